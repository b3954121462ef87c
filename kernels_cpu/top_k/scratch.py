"""A top-k problem as the kernels see it: an array of integers, and the workspace that they describe."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from kernels_cpu.intrinsics import simd
from kernels_cpu.intrinsics.pointers import address_of, elements_at, integers_at, short_integers_at, structure
from kernels_cpu.jit import inline, int64, njit, uint64
from kernels_cpu.keys import unpack_formula
from kernels_cpu.top_k.problem_words import LENGTH_STRIDE, START_STRIDE
from kernels_cpu.top_k.records import LOW_HALF
from kernels_cpu.top_k.scan import Scratch
from kernels_cpu.top_k.table import DIMENSION, HEADER, KEY_BYTES, Problem

Array = NDArray[Any]

unpack = structure(Problem)
"""Return the integers of a problem as scalars, which loops keep in registers."""


class Sorting(NamedTuple):
    """Arrays that ordering a list of records needs."""

    spare_records: Any
    spare_positions: Any
    ranks: Any
    order: Any
    taken: Any


@inline
def numbers_of(constants: Array) -> Array:
    """Return the integers behind the constants of keys."""
    numbers: Array = integers_at(address_of(constants) + KEY_BYTES)
    return numbers


class Windows(NamedTuple):
    """The addresses of the lengths and of the starts of rows; 0 where there are none."""

    lengths: int
    starts: int


class Row(NamedTuple):
    """Where a row begins in the input, the values and the indices, and which part of it takes part."""

    x_at: int
    """Where the first element is that takes part."""
    value_at: int
    index_at: int
    first: int
    """The position of that element."""
    length: int
    """Elements that take part."""


@inline
def row_of(numbers: Array, problem: Problem, windows: Windows, row: int) -> Row:
    """Return a row."""
    found = place_of(numbers, problem.n_dims, problem.longest, row)
    if windows.lengths or windows.starts:
        first, length = window_of(numbers, problem, windows, row)
        found = Row(found.x_at + first * problem.x_step, found.value_at, found.index_at, first, length)
    return found


@njit
def place_of(numbers: Array, n_dims: int, longest: int, row: int) -> Row:
    """Return a row of which all elements take part."""
    x = value = index = 0
    for d in range(n_dims - 1, -1, -1):
        at = HEADER + DIMENSION * d
        coordinate = row
        if d > 0:
            row = row // numbers[at]
            coordinate -= row * numbers[at]
        x += coordinate * numbers[at + 1]
        value += coordinate * numbers[at + 2]
        index += coordinate * numbers[at + 3]
    return Row(x, value, index, int64(0), longest)


class Stripe(NamedTuple):
    """Rows that lie side by side and are searched together."""

    first_row: int
    n_rows: int
    x_at: int
    """Where the first of them begins in the input."""


@inline
def stripe_of(numbers: Array, problem: Problem, number: int) -> Stripe:
    """Return a stripe: up to `problem.columns` rows along the last dimension of rows."""
    last_size = numbers[HEADER + DIMENSION * (problem.n_dims - 1)] if problem.n_dims else 1
    n_stripes = (last_size + problem.columns - 1) // problem.columns
    outer = number // n_stripes
    column = (number - outer * n_stripes) * problem.columns
    first_row = outer * last_size + column
    x_at = place_of(numbers, problem.n_dims, problem.longest, first_row).x_at
    return Stripe(first_row, min(problem.columns, last_size - column), x_at)


@njit
def offset_of(numbers: Array, n_dims: int, row: int, stride: int) -> int:
    """Return where a row is in an array; `stride` is the word of a dimension that has the array's stride."""
    offset = 0
    for d in range(n_dims - 1, -1, -1):
        at = HEADER + DIMENSION * d
        coordinate = row
        if d > 0:
            row = row // numbers[at]
            coordinate -= row * numbers[at]
        offset += coordinate * numbers[at + stride]
    return offset


@njit
def read_integer(address: int, index: int, size: int, is_signed: int) -> int:
    """Return an integer of 4 or 8 bytes; an unsigned one of 2^63 or more comes out negative."""
    if size == 8:
        number: int = integers_at(address)[index]
        return number
    number = int64(short_integers_at(address)[index])
    return number if is_signed else number & LOW_HALF


@njit
def window_of(numbers: Array, problem: Problem, windows: Windows, row: int) -> tuple[int, int]:
    """Return the first position of a row that takes part, and how many do."""
    # Lengths, and the distance before the row, are unsigned here, so that no sum overflows.
    length = ~uint64(0)
    if windows.lengths:
        index = offset_of(numbers, problem.n_dims, row, LENGTH_STRIDE)
        given = read_integer(windows.lengths, index, problem.length_size, problem.length_is_signed)
        length = uint64(0) if given < 0 and problem.length_is_signed else uint64(given)
    start = int64(0)
    if windows.starts:
        index = offset_of(numbers, problem.n_dims, row, START_STRIDE)
        start = read_integer(windows.starts, index, problem.start_size, problem.start_is_signed)
        if start < 0:
            before = uint64(0) - uint64(start)
            if not problem.start_is_signed or length < before:
                return int64(0), int64(0)
            length -= before
            start = int64(0)
        start = min(start, problem.axis_size)
    return start, int64(min(length, uint64(min(problem.axis_size - start, problem.longest))))


@inline
def scratch_of(workspace: int, keys: Array, problem: Problem, task: int) -> Scratch:
    """Return a task's arrays for its search; `keys` has the data type of keys."""
    start = workspace + task * problem.task_size
    return Scratch(
        integers_at(start + problem.records),
        integers_at(start + problem.positions),
        elements_at(start + problem.groups, keys),
        elements_at(start + problem.maxima, keys),
    )


@inline
def scratch_of_column(workspace: int, shared: Scratch, problem: Problem, task: int, column: int) -> Scratch:
    """Return a task's arrays for its search of one of several columns."""
    start = workspace + task * problem.task_size
    first = column * problem.list_length
    return Scratch(
        integers_at(start + problem.records + 8 * first),
        integers_at(start + problem.positions + 8 * first),
        shared.groups,
        shared.maxima,
    )


@inline
def sorting_of(workspace: int, problem: Problem, task: int) -> Sorting:
    """Return a task's arrays for ordering records."""
    start = workspace + task * problem.task_size
    return Sorting(
        integers_at(start + problem.spare_records),
        integers_at(start + problem.spare_positions),
        integers_at(start + problem.ranks),
        integers_at(start + problem.order),
        integers_at(start + problem.taken),
    )


@inline
def unpacked(constants: Array, task: int, x: int, values: int, workspace: int) -> Any:
    """Return the problem and the arrays of a task, as its kernel uses them."""
    numbers = numbers_of(constants)
    problem = unpack(numbers)
    return (
        numbers,
        problem,
        unpack_formula(constants),
        scratch_of(workspace, constants, problem, task),
        sorting_of(workspace, problem, task),
        elements_at(x, constants),
        elements_at(values, constants),
    )


@inline
def stage_of(constants: Array, problem: Problem, workspace: int, task: int) -> Array:
    """Return a task's stage."""
    stage: Array = elements_at(workspace + task * problem.task_size + problem.stage, constants)
    return stage


@njit
def copy_row(x: Array, at: int, step: int, n: int, stage: Array) -> None:
    """Copy `n` elements of a row to the stage."""
    if step == -1:  # compilers make vectors of these
        for i in range(n):
            stage[i] = x[at - i]
    else:
        for i in range(n):
            stage[i] = x[at + i * step]


@njit
def copy_to_stage(
    x: Array, at: int, step: int, column_step: int, n: int, n_columns: int, stage: Array, pitch: int
) -> None:
    """Copy `n` elements of `n_columns` rows to the stage of the workspace, so that each is contiguous."""
    if n_columns == 1:
        copy_row(x, at, step, n, stage)
        return
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
