"""DIAGONAL_MATRIX1 on the CPU."""

from kernels_cpu.diagonal_matrix.planning import all_kernels, plan

__all__ = ["all_kernels", "plan"]
