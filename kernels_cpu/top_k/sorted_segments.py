"""A row that is sorted nearly whole, by several threads.

Each task sorts a segment of a row. Then each task merges an equal part of the result, for which it finds
where that part begins and ends in each segment.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics.pointers import address_of, integers_at, stack_integers
from kernels_cpu.jit import int64, njit
from kernels_cpu.top_k.finish import write_listed, write_padding
from kernels_cpu.top_k.records import PADDING, at_most, radix_sort
from kernels_cpu.top_k.scan import Scratch, list_all
from kernels_cpu.top_k.scratch import Row, Windows, row_of, scratch_of, sorting_of, unpacked
from kernels_cpu.top_k.table import MAX_SORTED_SEGMENTS, Problem

Array = NDArray[Any]


@njit
def select(
    constants: Array,
    first_unit: int,
    last_unit: int,
    task: int,
    windows: tuple[int, int],
    x: int,
    values: int,
    indices: int,
    workspace: int,
) -> None:
    """Sort segments of rows, one for each task."""
    numbers, problem, formula, lists, sorting, elements, _ = unpacked(constants, task, x, values, workspace)
    wide = problem.wide != 0
    for unit in range(first_unit, last_unit):
        row = unit // problem.segments
        place = row_of(numbers, problem, Windows(*windows), row)
        first = (unit - row * problem.segments) * problem.segment
        n = min(problem.segment, place.length - first)
        at = place.x_at + first * problem.x_step
        if problem.x_step == 1:  # compilers make vectors of it
            list_all(elements, at, 1, first, n, formula, lists, wide)
        else:
            list_all(elements, at, problem.x_step, first, n, formula, lists, wide)
        in_spare = radix_sort(
            lists.records,
            lists.positions,
            sorting.spare_records,
            sorting.spare_positions,
            wide,
            n,
            problem.list_length - 1,
        )
        integers_at(workspace + task * problem.task_size + problem.listed)[0] = in_spare


@njit
def list_of(workspace: int, keys: Array, problem: Problem, task: int, is_sorted: bool) -> Scratch:
    """Return the list that holds the sorted segment of a task, or its spare list."""
    lists, sorting = scratch_of(workspace, keys, problem, task), sorting_of(workspace, problem, task)
    in_spare = integers_at(workspace + task * problem.task_size + problem.listed)[0] != 0
    if in_spare == is_sorted:
        return Scratch(sorting.spare_records, sorting.spare_positions, lists.groups, lists.maxima)
    return lists


@njit
def n_above(records: Array, n: int, record: int) -> int:
    """Return how many of `n` sorted records are greater than one."""
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        if records[middle] > record:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def find_begins(
    rank: int, begins: Array, constants: Array, problem: Problem, first_task: int, workspace: int
) -> None:
    """Find how many records of each sorted segment are among the first `rank` of all."""
    n_segments = problem.segments
    low, high = int64(PADDING), int64(~PADDING)
    # Search for the least value with at most `rank` records above it.
    while low < high:
        middle = low + int64((np.uint64(high) - np.uint64(low)) >> np.uint64(1))
        before = 0
        for s in range(n_segments):
            n = min(problem.segment, problem.longest - s * problem.segment)
            before += n_above(list_of(workspace, constants, problem, first_task + s, True).records, n, middle)
        if before <= rank:
            high = middle
        else:
            low = middle + 1
    left = rank
    for s in range(n_segments):
        n = min(problem.segment, problem.longest - s * problem.segment)
        begins[s] = n_above(list_of(workspace, constants, problem, first_task + s, True).records, n, low)
        left -= begins[s]
    # Equal records of earlier segments come first.
    for s in range(n_segments):
        if left > 0:
            n = min(problem.segment, problem.longest - s * problem.segment)
            records = list_of(workspace, constants, problem, first_task + s, True).records
            n_at_least = n if low == PADDING else n_above(records, n, low - 1)
            n_equal = min(n_at_least - begins[s], left)
            begins[s] += n_equal
            left -= n_equal


@njit
def merge_two(
    merged: Scratch, held: Scratch, other: Scratch, begins: Array, ends: Array, count: int, wide: bool
) -> int:
    """Merge two lists until one of them ends; return how many records these are."""
    at, end, other_at, other_end = begins[0], ends[0], begins[1], ends[1]
    to = 0
    while to < count and at < end and other_at < other_end:
        record, other_record = held.records[at], other.records[other_at]
        is_other = other_record > record  # without a branch, which would be mispredicted
        merged.records[to] = other_record if is_other else record
        if wide:
            merged.positions[to] = other.positions[other_at] if is_other else held.positions[at]
        at += 1 - is_other
        other_at += is_other
        to += 1
    begins[0], begins[1] = at, other_at
    return to


@njit
def merge(
    constants: Array,
    first_unit: int,
    last_unit: int,
    task: int,
    windows: tuple[int, int],
    x: int,
    values: int,
    indices: int,
    workspace: int,
) -> None:
    """Merge parts of the results of rows, one for each task, from all of their sorted segments."""
    numbers, problem, formula, _, _, elements, outputs = unpacked(constants, task, x, values, workspace)
    wide, n_segments = problem.wide != 0, problem.segments
    begins, ends = stack_integers(MAX_SORTED_SEGMENTS), stack_integers(MAX_SORTED_SEGMENTS)
    records, positions = stack_integers(MAX_SORTED_SEGMENTS), stack_integers(MAX_SORTED_SEGMENTS)
    for unit in range(first_unit, last_unit):
        row = unit // n_segments
        place = row_of(numbers, problem, Windows(*windows), row)
        part, first_task = unit - row * n_segments, row * n_segments
        first, last = part * problem.k // n_segments, (part + 1) * problem.k // n_segments
        find_begins(first, begins, constants, problem, first_task, workspace)
        find_begins(last, ends, constants, problem, first_task, workspace)
        for s in range(n_segments):
            held = list_of(workspace, constants, problem, first_task + s, True)
            records[s], positions[s] = address_of(held.records), address_of(held.positions)
        merged = list_of(workspace, constants, problem, unit, False)
        n_merged = 0
        if n_segments == 2:
            held = list_of(workspace, constants, problem, first_task, True)
            other = list_of(workspace, constants, problem, first_task + 1, True)
            n_merged = merge_two(merged, held, other, begins, ends, last - first, wide)
        for to in range(n_merged, last - first):
            # Equal records of earlier segments come first.
            best, chosen = int64(PADDING), -1
            for s in range(n_segments):
                if begins[s] < ends[s]:
                    record = integers_at(records[s])[begins[s]]
                    if record > best or chosen < 0:
                        best, chosen = record, s
            chosen = max(chosen, 0)
            merged.records[to] = best
            if wide:
                # There are fewer only where another thread changes the workspace.
                at = at_most(begins[chosen], problem.segment - 1)
                merged.positions[to] = integers_at(positions[chosen])[at]
            begins[chosen] += 1
        shifted = Row(
            place.x_at,
            place.value_at + first * problem.value_step,
            place.index_at + first * problem.index_step,
            place.first,
            place.length,
        )
        write_listed(elements, outputs, indices, shifted, problem, formula, merged, 0, last - first)
        if part == 0:
            write_padding(outputs, indices, place, problem, problem.k)
