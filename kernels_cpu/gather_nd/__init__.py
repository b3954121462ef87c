"""GATHER_ND1 on the CPU."""

from kernels_cpu.gather_nd.planning import all_kernels, plan

__all__ = ["all_kernels", "plan"]
