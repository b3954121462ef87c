"""NONZERO_COORDINATES on the CPU."""

from kernels_cpu.nonzero_coordinates.planning import Plan, all_kernels, plan

__all__ = ["Plan", "all_kernels", "plan"]
