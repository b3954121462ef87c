"""The launches of each algorithm."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from kernels_cuda.diagonal_matrix.kernels import kernel
from kernels_cuda.diagonal_matrix.parameters import (
    THREADS,
    TILE_ROW_BYTES,
    TILE_ROWS,
    VECTOR,
    Dims,
    RowsParameters,
    TransposedParameters,
)
from kernels_cuda.diagonal_matrix.policy import Policy
from kernels_cuda.diagonal_matrix.problem import Band, Problem
from kernels_cuda.layout import ceil_div, divisor, make_table
from kernels_cuda.runtime.launch import LaunchList, load
from kernels_cuda.runtime.variant import Target, Variant

# All of a matrix stays as it is.
NO_BAND = Band(0, 0, inverted=False, has_input=True, value=0)


class Part(NamedTuple):
    """A launch for some of the rows, and how many bytes they are from the first ones."""

    x: int
    output: int
    launch: LaunchList

    def moved(self, x: int, output: int) -> "Part":
        """Return the part that many bytes on."""
        return self._replace(x=self.x + x, output=self.output + output)


def rows_parts(problem: Problem, policy: Policy, residue: int, target: Target) -> Iterator[Part]:
    """Make the launches of rows: one, or as many as it takes to count vectors in 31 bits.

    A row of the output may begin up to `residue` bytes after a 16-byte boundary.
    """
    per_row = ceil_div(problem.row_bytes + residue, VECTOR)
    n_rows, size = problem.n_rows, problem.element_size
    if n_rows * per_row <= policy.launch_vectors:
        parameters = RowsParameters(
            n_vectors=n_rows * per_row,
            vectors_per_row=divisor(per_row, wide=False),
            height=divisor(problem.height, wide=False),
            width=problem.width,
            matrix=problem.matrix,
        )
        table = make_table(Dims, problem.batch, (size, size), False, target)
        n_blocks = ceil_div(n_rows * per_row, THREADS)
        loaded = load(kernel("rows", size, problem.are_strided), target)
        yield Part(0, 0, loaded.prepare(n_blocks, THREADS, 0, 2, parameters, table.parameters()))
        return
    # The outermost dimension is split, and where single indices of it are too many, the next one.
    outermost = (problem.height, problem.x_strides[0], problem.output_strides[0])
    (length, x_stride, output_stride), *inner = problem.batch or (outermost,)
    step = max(policy.launch_vectors // (n_rows // length * per_row), 1)
    for first in range(0, length, step):
        count = min(step, length - first)
        if problem.batch:
            split = ((count, x_stride, output_stride),) if step > 1 else ()
            some = replace(problem, batch=(*split, *inner))
        else:
            some = problem.rows(first, count)
        for part in rows_parts(some, policy, residue, target):
            yield part.moved(*problem.bytes_between(first * x_stride, first * output_stride))


def tiles(problem: Problem) -> tuple[int, int, int]:
    """Return how many tiles all matrices have, and how many a row and a column of them has."""
    per_row, n_rows = ceil_div(problem.row_bytes, TILE_ROW_BYTES), ceil_div(problem.height, TILE_ROWS)
    return prod(size for size, *_ in problem.batch) * per_row * n_rows, per_row, n_rows


def transposing(problem: Problem, target: Target) -> tuple[Variant, int, tuple[Any, ...]]:
    """Return kernel, blocks and arguments for rows contiguous in the input, of columns in the output.

    Blocks have `THREADS` threads, and the kernel takes the addresses of both before the arguments.
    """
    size = problem.element_size
    n_tiles, tiles_per_row, rows_of_tiles = tiles(problem)
    parameters = TransposedParameters(
        tiles_per_row=divisor(tiles_per_row, wide=False),
        rows_of_tiles=divisor(rows_of_tiles, wide=False),
        height=problem.height,
        width=problem.width,
        matrix=problem.matrix,
    )
    table = make_table(Dims, problem.batch, (size, size), False, target)
    return kernel("transposed", size), n_tiles, (parameters, table.parameters())


def transposed_part(problem: Problem, target: Target) -> Part:
    """Make the launch for rows that are contiguous in the input, of columns that are in the output."""
    variant, n_tiles, arguments = transposing(problem, target)
    return Part(0, 0, load(variant, target).prepare(n_tiles, THREADS, 0, 2, *arguments))
