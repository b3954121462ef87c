"""DIAGONAL_MATRIX1 on the CPU."""

from kernels_cpu.diagonal_matrix.planning import Plan, all_kernels, plan

__all__ = ["Plan", "all_kernels", "plan"]
