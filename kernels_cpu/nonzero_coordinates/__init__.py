"""NONZERO_COORDINATES on the CPU."""

from kernels_cpu.nonzero_coordinates.planning import Plan, kernels, plan

__all__ = ["Plan", "kernels", "plan"]
