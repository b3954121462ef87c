"""A top-k problem as the kernels see it: an array of integers, and the workspace that they describe."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from kernels_cpu.intrinsics import simd
from kernels_cpu.intrinsics.pointers import address_of, elements_at, integers_at, short_integers_at, structure
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import unpack_masks
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


@njit
def offsets_of(numbers: Array, n_dims: int, row: int) -> tuple[int, int, int]:
    """Return where a row starts in the input, the values and the indices."""
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
    return x, value, index


@inline
def length_of(numbers: Array, problem: Problem, lengths: int, row: int) -> int:
    """Return how many elements a row has; `lengths` is the address of all lengths, or 0."""
    length: int = problem.axis_size
    if lengths:
        length = read_length(numbers, problem, lengths, row)
    return length


@njit
def read_length(numbers: Array, problem: Problem, lengths: int, row: int) -> int:
    """Return the length of a row, from 0 to `axis_size`."""
    index = 0
    for d in range(problem.n_dims - 1, -1, -1):
        at = HEADER + DIMENSION * d
        coordinate = row
        if d > 0:
            row = row // numbers[at]
            coordinate -= row * numbers[at]
        index += coordinate * numbers[at + 4]
    if problem.length_size == 8:
        length: int = integers_at(lengths)[index]
        if length < 0 and not problem.length_is_signed:
            return problem.axis_size
    else:
        length = int64(short_integers_at(lengths)[index])
        if not problem.length_is_signed:
            length &= LOW_HALF
    return min(max(length, 0), problem.axis_size)


@inline
def scratch_of(workspace: int, keys: Array, problem: Problem, task: int) -> Scratch:
    """Return a task's arrays for its search; `keys` has the data type of keys."""
    start = workspace + task * problem.task_size
    return Scratch(
        integers_at(start + problem.records),
        integers_at(start + problem.positions),
        elements_at(start + problem.groups, keys),
        elements_at(start + problem.minima, keys),
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
        shared.minima,
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
        unpack_masks(constants),
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
def copy_to_stage(
    x: Array, at: int, step: int, column_step: int, n: int, n_columns: int, stage: Array, pitch: int
) -> None:
    """Copy `n` elements of `n_columns` rows to the stage of the workspace, so that each is contiguous."""
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
