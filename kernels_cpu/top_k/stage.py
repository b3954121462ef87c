"""The stage: a part of the workspace to which elements of rows that are not contiguous are copied."""

from typing import Any

from numpy.typing import NDArray

from kernels_cpu.intrinsics import simd
from kernels_cpu.jit import njit

Array = NDArray[Any]


@njit
def copy_to_stage(
    x: Array, at: int, step: int, column_step: int, n: int, n_columns: int, stage: Array, pitch: int
) -> None:
    """Copy `n` elements of `n_columns` rows, so that each is contiguous."""
    edge = simd.block_edge_of(x)
    block_rows, block_columns = n & -edge, n_columns & -edge
    if column_step != 1:
        block_rows = block_columns = 0
    for i in range(0, block_rows, edge):
        for j in range(0, block_columns, edge):
            simd.transpose(x, at + i * step + j, step, stage, j * pitch + i, pitch)
        for j in range(block_columns, n_columns):
            for r in range(i, i + edge):
                stage[j * pitch + r] = x[at + r * step + j]
    for i in range(block_rows, n):
        for j in range(n_columns):
            stage[j * pitch + i] = x[at + i * step + j * column_step]
