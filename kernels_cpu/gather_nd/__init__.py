"""GATHER_ND1 on the CPU."""

from kernels_cpu.gather_nd.planning import Plan, all_kernels, plan

__all__ = ["Plan", "all_kernels", "plan"]
