"""The kernels that `plan` chooses from; each works through a range of rows in its own part of the workspace."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.keys import KeyMasks, key, unpack_masks
from kernels_cpu.top_k.problem import (
    RANK_LIMIT,
    Problem,
    Sorting,
    array_at,
    limits_of,
    offsets_of,
    scratch_of,
    scratch_of_column,
    sorting_of,
    unpack,
)
from kernels_cpu.top_k.records import LOW_HALF, midpoint, radix_sort, rank, shrink
from kernels_cpu.top_k.scan import Scratch, Search, chosen, chosen_at_end, scan, search_run

Array = NDArray[Any]


@inlined
def write(
    x: Array, values: Array, indices: Array, at: tuple[int, int, int], problem: Problem,
    records: Array, positions: Array, order: Array, ranked: bool,
) -> None:  # fmt: skip
    """Write the best k records, found through `order` if `ranked`, else in their own order."""
    x_at, value_at, index_at = at
    for r in range(problem.k):
        place = simd.get(order, r) if ranked else r
        if problem.wide:
            position = np.int64(simd.get(positions, place))
        else:
            position = simd.get(records, place) & LOW_HALF
        simd.put(values, value_at + r * problem.value_step, simd.get(x, x_at + position * problem.x_step))
        simd.put(indices, index_at + r * problem.index_step, position)


@inlined
def finish(
    x: Array, values: Array, indices: Array, at: tuple[int, int, int], problem: Problem,
    records: Array, positions: Array, sorting: Sorting, count: int,
) -> None:  # fmt: skip
    """Order `count` records, of which there are at least k, and write the best."""
    wide = problem.wide != 0
    if count > RANK_LIMIT and count > problem.k + (problem.k >> 2):
        count, _ = shrink(records, positions, wide, count, problem.k, problem.k >> 3)
    if count <= RANK_LIMIT:
        rank(records, count, sorting.ranks, sorting.order, sorting.taken)
        write(x, values, indices, at, problem, records, positions, sorting.order, True)
        return
    in_spare = radix_sort(
        records, positions, sorting.spare_records, sorting.spare_positions, sorting.counters, wide, count
    )
    if in_spare:
        records, positions = sorting.spare_records, sorting.spare_positions
    write(x, values, indices, at, problem, records, positions, sorting.order, False)


@kernel
def select_rows(
    x: Array, values: Array, indices: Array, workspace: Array, constants: Array, numbers: Array,
    first_row: int, last_row: int, task: int,
) -> None:  # fmt: skip
    """Search rows whose elements are contiguous."""
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    limits = limits_of(problem)
    scratch = scratch_of(workspace, constants, numbers, indices, problem, task)
    sorting = sorting_of(workspace, numbers, indices, problem, task)
    elements = array_at(x, 0, len(x) * x.itemsize, constants)
    for row in range(first_row, last_row):
        at = offsets_of(numbers, problem, row)
        search = Search(0, ~problem.lowest, problem.k, False)
        for begin in range(0, problem.axis_size, problem.run):
            n = min(problem.run, problem.axis_size - begin)
            search = search_run(elements, at[0] + begin, n, -at[0], masks, limits, scratch, search)
        finish(x, values, indices, at, problem, scratch.records, scratch.positions, sorting, search.count)


@kernel
def copy_to_stage(
    x: Array, at: int, step: int, column_step: int, n: int, n_columns: int, stage: Array, pitch: int
) -> None:
    """Copy `n` elements of `n_columns` rows, so that each is contiguous."""
    for i in range(n):
        for j in range(n_columns):
            simd.put(stage, j * pitch + i, simd.get(x, at + i * step + j * column_step))


@kernel
def select_columns(
    x: Array, values: Array, indices: Array, workspace: Array, constants: Array, numbers: Array,
    first_stripe: int, last_stripe: int, task: int,
) -> None:  # fmt: skip
    """Search rows that are not contiguous, some side by side, through a contiguous copy of a part of each."""
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    limits = limits_of(problem)
    scratch = scratch_of(workspace, constants, numbers, indices, problem, task)
    sorting = sorting_of(workspace, numbers, indices, problem, task)
    start = task * problem.task_size
    stage = array_at(workspace, start + problem.stage, start + problem.searches, constants)
    searches = array_at(workspace, start + problem.searches, start + problem.task_size, numbers)
    elements = array_at(x, 0, len(x) * x.itemsize, constants)
    n_columns_all = numbers[len(problem) + 4 * (problem.n_dims - 1)] if problem.n_dims else 1
    stripes = (n_columns_all + problem.columns - 1) // problem.columns
    for stripe in range(first_stripe, last_stripe):
        outer = stripe // stripes
        column = (stripe - outer * stripes) * problem.columns
        first_row = outer * n_columns_all + column
        n_columns = min(problem.columns, n_columns_all - column)
        x_at, _, _ = offsets_of(numbers, problem, first_row)
        for begin in range(0, problem.axis_size, problem.run):
            n = min(problem.run, problem.axis_size - begin)
            copy_to_stage(
                elements, x_at + begin * problem.x_step, problem.x_step, problem.column_step,
                n, n_columns, stage, problem.pitch,
            )  # fmt: skip
            for j in range(n_columns):
                own = scratch_of_column(workspace, scratch, numbers, indices, problem, task, j)
                search = Search(0, ~problem.lowest, problem.k, False)
                if begin > 0:
                    s = 4 * j
                    search = Search(searches[s], searches[s + 1], searches[s + 2], searches[s + 3] != 0)
                staged = j * problem.pitch
                search = search_run(stage, staged, n, begin - staged, masks, limits, own, search)
                searches[4 * j] = search.count
                searches[4 * j + 1] = search.bound
                searches[4 * j + 2] = search.until_strict
                searches[4 * j + 3] = search.closed
        for j in range(n_columns):
            at = offsets_of(numbers, problem, first_row + j)
            own = scratch_of_column(workspace, scratch, numbers, indices, problem, task, j)
            finish(x, values, indices, at, problem, own.records, own.positions, sorting, searches[4 * j])


@kernel
def count_keys_at_most(x: Array, begin: int, end: int, bound: int, masks: KeyMasks) -> int:
    """Return how many keys of ``x[begin:end]`` are at most `bound`."""
    total = 0
    lanes = simd.lanes_of(x)
    at = begin
    while at + lanes <= end:
        keys = key(simd.load(x, at), masks)
        total += simd.population(simd.mask_at_most(keys, simd.fill(keys, bound)))
        at += lanes
    for i in range(at, end):
        total += np.int64(key(simd.get(x, i), masks)) <= bound
    return total


@kernel
def bound_of_keys(x: Array, begin: int, end: int, wanted: int, slack: int, lowest: int, masks: KeyMasks) -> int:
    """Return a bound that `wanted` to ``wanted + slack`` keys do not exceed, or with ties the least that does."""
    low, high = lowest, ~lowest
    while low < high:
        middle = midpoint(low, high)
        count = count_keys_at_most(x, begin, end, middle, masks)
        if count < wanted:
            low = middle + 1
        else:
            high = middle
            if count <= wanted + slack:
                break
    return high


@kernel
def list_all(x: Array, begin: int, n: int, masks: KeyMasks, scratch: Scratch, wide: bool) -> None:
    """Make a record of every element."""
    for i in range(n):
        value = np.int64(key(simd.get(x, begin + i), masks))
        if wide:
            simd.put(scratch.records, i, value)
            simd.put(scratch.positions, i, i)
        else:
            simd.put(scratch.records, i, (value << 32) | i)


@kernel
def sort_rows(
    x: Array, values: Array, indices: Array, workspace: Array, constants: Array, numbers: Array,
    first_row: int, last_row: int, task: int,
) -> None:  # fmt: skip
    """Sort rows of which a large part is wanted."""
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    limits = limits_of(problem)
    scratch = scratch_of(workspace, constants, numbers, indices, problem, task)
    sorting = sorting_of(workspace, numbers, indices, problem, task)
    start = task * problem.task_size
    stage = array_at(workspace, start + problem.stage, start + problem.searches, constants)
    elements = array_at(x, 0, len(x) * x.itemsize, constants)
    n, k = problem.axis_size, problem.k
    for row in range(first_row, last_row):
        at = offsets_of(numbers, problem, row)
        run, begin = elements, at[0]
        if problem.columns:
            copy_to_stage(elements, at[0], problem.x_step, 0, n, 1, stage, 0)
            run, begin = stage, 0
        count = n
        if problem.capacity < n:
            bound = bound_of_keys(run, begin, begin + n, k, k >> 3, problem.lowest, masks)
            search = Search(0, bound, k, False)
            count = scan(run, begin, begin + n, -begin, masks, limits, scratch, search).count
        else:
            list_all(run, begin, n, masks, scratch, problem.wide != 0)
        finish(x, values, indices, at, problem, scratch.records, scratch.positions, sorting, count)
