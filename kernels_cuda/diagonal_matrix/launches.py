"""The launches of each algorithm."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from kernels_cuda.diagonal_matrix import kernels
from kernels_cuda.diagonal_matrix.parameters import (
    THREADS,
    TILE_ROW_BYTES,
    TILE_ROWS,
    VECTOR,
    Dims,
    ElementsParameters,
    RowsParameters,
    StridedParameters,
    TransposedParameters,
    elements_per_thread,
)
from kernels_cuda.diagonal_matrix.policy import Policy
from kernels_cuda.diagonal_matrix.problem import Problem
from kernels_cuda.layout import ceil_div, divisor, make_table
from kernels_cuda.runtime.launch import LaunchList, as_signed, load
from kernels_cuda.runtime.variant import Target


class Part(NamedTuple):
    """A launch for some of the rows, and how many bytes they are from the first ones."""

    x: int
    output: int
    launch: LaunchList

    def moved(self, x: int, output: int) -> "Part":
        """Return the part that many bytes on."""
        return self._replace(x=self.x + x, output=self.output + output)


def vectors_per_row(problem: Problem, residue: int) -> int:
    """Return how many vectors cover a row that begins up to `residue` bytes after a 16-byte boundary."""
    return ceil_div(problem.row_bytes + residue, VECTOR)


def rows_parts(problem: Problem, policy: Policy, residue: int, target: Target) -> Iterator[Part]:
    """Make the launches of contiguous rows: one, or as many as it takes to count vectors in 31 bits.

    A row may begin up to `residue` bytes after a 16-byte boundary.
    """
    per_row = vectors_per_row(problem, residue)
    fitting_rows = policy.launch_vectors // per_row
    fitting_matrices = fitting_rows // problem.height
    ((n_matrices, x_batch, output_batch),) = problem.batch or ((1, 0, 0),)
    x_row, output_row = problem.x_strides[0], problem.output_strides[0]
    if n_matrices == 1 and fitting_matrices == 0:
        for y in range(0, problem.height, fitting_rows):
            some = problem.rows(y, min(fitting_rows, problem.height - y))
            for part in rows_parts(some, policy, residue, target):
                yield part.moved(*problem.bytes_between(y * x_row, y * output_row))
        return
    if fitting_matrices < n_matrices:
        step = max(fitting_matrices, 1)
        for first in range(0, n_matrices, step):
            some = replace(problem, batch=((min(step, n_matrices - first), x_batch, output_batch),))
            for part in rows_parts(some, policy, residue, target):
                yield part.moved(*problem.bytes_between(first * x_batch, first * output_batch))
        return
    n_vectors, size = problem.n_rows * per_row, problem.element_size
    parameters = RowsParameters(
        n_vectors=n_vectors,
        vectors_per_row=divisor(per_row, wide=False),
        height=divisor(problem.height, wide=False),
        width=problem.width,
        x_row=x_row * size,
        output_row=output_row * size,
        x_batch=x_batch * size,
        output_batch=output_batch * size,
        band=problem.band.parameters(size),
    )
    kernel = load(kernels.rows(size), target)
    yield Part(0, 0, kernel.prepare(ceil_div(n_vectors, THREADS), THREADS, 0, 2, parameters))


def strided_parts(problem: Problem, policy: Policy, residue: int, target: Target) -> Iterator[Part]:
    """Make the launches of rows whose columns are strided in the input, as `rows_parts`."""
    per_row = vectors_per_row(problem, residue)
    n_rows, size = problem.n_rows, problem.element_size
    if n_rows * per_row <= policy.launch_vectors:
        parameters = StridedParameters(
            n_vectors=n_rows * per_row,
            vectors_per_row=divisor(per_row, wide=False),
            height=divisor(problem.height, wide=False),
            width=problem.width,
            x_row=problem.x_strides[0] * size,
            x_column=problem.x_strides[1] * size,
            output_row=problem.output_strides[0] * size,
            band=problem.band.parameters(size),
        )
        table = make_table(Dims, problem.batch, (size, size), False, target)
        n_blocks = ceil_div(n_rows * per_row, THREADS)
        kernel = load(kernels.strided(size), target)
        yield Part(0, 0, kernel.prepare(n_blocks, THREADS, 0, 2, parameters, table.parameters()))
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
        for part in strided_parts(some, policy, residue, target):
            yield part.moved(*problem.bytes_between(first * x_stride, first * output_stride))


def tiles(problem: Problem) -> tuple[int, int, int]:
    """Return how many tiles all matrices have, and how many a row and a column of them has."""
    per_row, n_rows = ceil_div(problem.row_bytes, TILE_ROW_BYTES), ceil_div(problem.height, TILE_ROWS)
    return prod(size for size, *_ in problem.batch) * per_row * n_rows, per_row, n_rows


def transposed_part(problem: Problem, target: Target) -> Part:
    """Make the launch for rows that are contiguous in the input, of columns that are in the output."""
    size = problem.element_size
    n_tiles, tiles_per_row, rows_of_tiles = tiles(problem)
    parameters = TransposedParameters(
        tiles_per_row=divisor(tiles_per_row, wide=False),
        rows_of_tiles=divisor(rows_of_tiles, wide=False),
        height=problem.height,
        width=problem.width,
        x_row=problem.x_strides[0] * size,
        x_column=problem.x_strides[1] * size,
        output_row=problem.output_strides[0] * size,
        band=problem.band.parameters(size),
    )
    table = make_table(Dims, problem.batch, (size, size), False, target)
    kernel = load(kernels.transposed(size), target)
    return Part(0, 0, kernel.prepare(n_tiles, THREADS, 0, 2, parameters, table.parameters()))


def elements_parameters(problem: Problem, wide: bool) -> ElementsParameters:
    """Return the parameters of the element kernel."""
    size, band = problem.element_size, problem.band
    x_row, x_column = problem.x_strides
    output_row, output_column = problem.output_strides
    return ElementsParameters(
        n_elements=problem.n_elements,
        width=divisor(problem.width, wide),
        height=divisor(problem.height, wide),
        x_row=x_row * size,
        x_column=x_column * size,
        output_row=output_row * size,
        output_column=output_column * size,
        begin=band.begin,
        end=band.end,
        inverted=int(band.inverted),
        has_input=int(band.has_input),
        value=as_signed(band.value),
    )


def elements_blocks(problem: Problem, wide: bool) -> int:
    """Return the blocks of the element kernel."""
    return ceil_div(problem.n_elements, THREADS * elements_per_thread(wide))
