"""One top-k problem as the kernels see it: an array of integers, and the workspace that they describe."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import inlined, part
from kernels_cpu.memory import elements_at, integers_at, place_of, structure
from kernels_cpu.top_k.scan import Scratch

Array = NDArray[Any]

RANK_LIMIT = 160
"""Up to so many records are ranked by comparing each with each; more are sorted digit by digit."""


class Problem(NamedTuple):
    """The integers of a problem; places in the workspace are in bytes from the start of a task's part."""

    axis_size: int
    k: int
    x_step: int
    value_step: int
    index_step: int
    index_size: int
    lowest: int
    wide: int
    capacity: int
    list_length: int
    """`capacity` and room for padding."""
    fold: int
    segment: int
    """Elements of a row that one task searches."""
    segments: int
    run: int
    """Elements of a row that are searched at a time."""
    columns: int
    """Rows that go through each step together, with parts of them on the stage; 0 where there is no stage."""
    column_step: int
    pitch: int
    """Elements from one row on the stage to the next, where they do not lie side by side there."""
    task_size: int
    """Bytes of workspace a task has."""
    records: int
    positions: int
    spare_records: int
    spare_positions: int
    ranks: int
    counters: int
    groups: int
    minima: int
    stage: int
    searches: int
    n_dims: int
    """Dimensions of rows; size, x, value and index stride of each follow, the slowest first."""


HEADER = len(Problem._fields)

unpack = structure(Problem)
"""Return the integers of a problem as scalars, which loops keep in registers."""


class Sorting(NamedTuple):
    """Arrays that ordering a list of records needs."""

    spare_records: Any
    spare_positions: Any
    ranks: Any
    order: Any
    taken: Any
    counters: Any


MASKS_SIZE = 64
"""Bytes that the constants of keys have in front of a problem's integers."""


def packed(masks: Array, numbers: Sequence[int]) -> Array:
    """Return the constants of keys and the integers of a problem as one array: one argument for kernels."""
    memory = np.zeros(MASKS_SIZE + 8 * len(numbers), np.uint8)
    memory[: masks.nbytes] = masks.view(np.uint8)
    memory[MASKS_SIZE:] = np.array(numbers, np.int64).view(np.uint8)
    return memory.view(masks.dtype)


@inlined
def numbers_of(constants: Array) -> Array:
    """Return the integers in the array of `packed`."""
    numbers: Array = integers_at(place_of(constants) + MASKS_SIZE)
    return numbers


@part
def offsets_of(numbers: Array, n_dims: int, row: int) -> tuple[int, int, int]:
    """Return where a row starts in the input, the values and the indices."""
    x = value = index = 0
    for d in range(n_dims - 1, -1, -1):
        at = HEADER + 4 * d
        coordinate = row
        if d > 0:
            row = row // simd.get(numbers, at)
            coordinate -= row * simd.get(numbers, at)
        x += coordinate * simd.get(numbers, at + 1)
        value += coordinate * simd.get(numbers, at + 2)
        index += coordinate * simd.get(numbers, at + 3)
    return x, value, index


@inlined
def scratch_of(workspace: int, keys: Array, problem: Problem, task: int) -> Scratch:
    """Return a task's arrays for its search; `keys` has the data type of keys."""
    start = workspace + task * problem.task_size
    return Scratch(
        integers_at(start + problem.records),
        integers_at(start + problem.positions),
        elements_at(start + problem.groups, keys),
        elements_at(start + problem.minima, keys),
    )


@inlined
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


@inlined
def sorting_of(workspace: int, problem: Problem, task: int) -> Sorting:
    """Return a task's arrays for ordering records."""
    start = workspace + task * problem.task_size
    ranks = start + problem.ranks
    size = (problem.counters - problem.ranks) // 3
    return Sorting(
        integers_at(start + problem.spare_records),
        integers_at(start + problem.spare_positions),
        integers_at(ranks),
        integers_at(ranks + size),
        integers_at(ranks + 2 * size),
        integers_at(start + problem.counters),
    )
