"""NONZERO_COORDINATES on the CPU."""

from kernels_cpu.nonzero_coordinates.planning import all_kernels, plan

__all__ = ["all_kernels", "plan"]
