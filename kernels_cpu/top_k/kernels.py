"""The kernels that `plan` chooses from; a task works through some rows in its own part of the workspace."""

import functools
from typing import Any

from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import helper, inline, kernel
from kernels_cpu.keys import KeyMasks, key, unpack_masks
from kernels_cpu.pointers import elements_at, integers_at
from kernels_cpu.top_k.output import write_listed, write_padding, write_ranked
from kernels_cpu.top_k.problem import (
    Sorting,
    length_of,
    numbers_of,
    offsets_of,
    scratch_of,
    scratch_of_column,
    sorting_of,
    unpack,
)
from kernels_cpu.top_k.records import midpoint, pad, radix_sort, rank, shrink
from kernels_cpu.top_k.scan import Limits, Scratch, Search, scan, search_run
from kernels_cpu.top_k.sizes import DIMENSION, HEADER, RANK_LIMIT, SEARCH, Problem

Array = NDArray[Any]

# The state of a column's search between two runs, `SEARCH` integers.
LISTED, BOUND, UNTIL_STRICT, CLOSED, LENGTH = range(5)


@helper
def finish_unsorted(
    x: Array, values: Array, indices: int, at: tuple[int, int, int], problem: Problem, masks: KeyMasks,
    records: Array, positions: Array, count: int, k: int,
) -> None:  # fmt: skip
    """Write the best `k` of `count` records in the order of the list, which is that of positions."""
    if count > k:
        shrink(records, positions, problem.wide != 0, count, k, 0)
    write_listed(x, values, indices, at, problem, masks, records, positions, 0, k)


@inline
def finish_few(
    x: Array, values: Array, indices: int, at: tuple[int, int, int], problem: Problem, masks: KeyMasks,
    records: Array, positions: Array, sorting: Sorting, count: int, k: int,
) -> None:  # fmt: skip
    """Order `count` records, of which there are at least `k` <= `RANK_LIMIT`, and write the best."""
    if not problem.is_sorted:
        finish_unsorted(x, values, indices, at, problem, masks, records, positions, count, k)
        return
    if count > RANK_LIMIT:
        slack = min(k >> 3, RANK_LIMIT - k)
        count, _ = shrink(records, positions, problem.wide != 0, count, k, slack)
    pad(records, count)
    rank(records, problem.wide != 0, count, sorting.ranks, sorting.order, sorting.taken)
    write_ranked(x, values, indices, at, problem, records, positions, sorting.order, k)


@inline
def finish(
    x: Array, values: Array, indices: int, at: tuple[int, int, int], problem: Problem, masks: KeyMasks,
    records: Array, positions: Array, sorting: Sorting, count: int, k: int,
) -> None:  # fmt: skip
    """Order `count` records, of which there are at least `k`, and write the best."""
    if not problem.is_sorted:
        finish_unsorted(x, values, indices, at, problem, masks, records, positions, count, k)
        return
    wide = problem.wide != 0
    if count > RANK_LIMIT and count > k + (k >> 2):
        count, _ = shrink(records, positions, wide, count, k, k >> 3)
    if count <= RANK_LIMIT:
        pad(records, count)
        rank(records, wide, count, sorting.ranks, sorting.order, sorting.taken)
        write_ranked(x, values, indices, at, problem, records, positions, sorting.order, k)
        return
    if radix_sort(
        records, positions, sorting.spare_records, sorting.spare_positions, sorting.counters, wide, count
    ):
        records, positions = sorting.spare_records, sorting.spare_positions
    write_listed(x, values, indices, at, problem, masks, records, positions, 0, k)


@functools.cache
def rows_kernel(sorts: bool) -> Any:
    """Return the kernel for contiguous rows; `sorts` where more are wanted than ranking is for."""

    @kernel
    def select_rows(
        constants: Array, first_unit: int, last_unit: int, task: int,
        lengths: int, x: int, values: int, indices: int, workspace: int,
    ) -> None:  # fmt: skip
        """Search rows whose elements are contiguous, or segments of them, then one for each task."""
        numbers = numbers_of(constants)
        problem = unpack(numbers)
        masks = unpack_masks(constants)
        scratch = scratch_of(workspace, constants, problem, task)
        sorting = sorting_of(workspace, problem, task)
        elements, outputs = elements_at(x, constants), elements_at(values, constants)
        for unit in range(first_unit, last_unit):
            row = unit // problem.segments if problem.segments > 1 else unit
            last = length_of(numbers, problem, lengths, row)
            k = min(problem.k, last)
            first = 0
            if problem.segments > 1:
                first = (unit - row * problem.segments) * problem.segment
                last = min(first + problem.segment, last)
            at = offsets_of(numbers, problem.n_dims, row)
            limits = Limits(k, problem.capacity, problem.fold, problem.lowest, problem.wide != 0)
            search = Search(0, ~problem.lowest, k, False)
            for begin in range(first, last, problem.run):
                n = min(problem.run, last - begin)
                search = search_run(elements, at[0] + begin, n, -at[0], masks, limits, scratch, search)
            if problem.segments == 1:
                records, positions = scratch.records, scratch.positions
                count = search.listed
                if sorts:
                    finish(
                        elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k
                    )
                else:
                    finish_few(
                        elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k
                    )
                write_padding(outputs, indices, at, problem, k)
                continue
            count = search.listed
            if count > k:
                count, _ = shrink(scratch.records, scratch.positions, limits.wide, count, k, k >> 2)
            start = workspace + task * problem.task_size
            simd.put(integers_at(start + problem.searches), 0, count)

    return select_rows


@functools.cache
def merge_kernel(sorts: bool) -> Any:
    """Return what follows where several tasks searched segments of a row."""

    @kernel
    def merge_segments(
        constants: Array, lengths: int, x: int, values: int, indices: int, workspace: int
    ) -> None:
        """Add the lists of a row's segments to the first segment's, which has room for two of them."""
        numbers = numbers_of(constants)
        problem = unpack(numbers)
        masks = unpack_masks(constants)
        elements, outputs = elements_at(x, constants), elements_at(values, constants)
        wide = problem.wide != 0
        n_rows = 1
        for d in range(problem.n_dims):
            n_rows *= simd.get(numbers, HEADER + DIMENSION * d)
        for row in range(n_rows):
            k = min(problem.k, length_of(numbers, problem, lengths, row))
            task = row * problem.segments
            scratch = scratch_of(workspace, constants, problem, task)
            sorting = sorting_of(workspace, problem, task)
            records, positions = scratch.records, scratch.positions
            count = 0
            for other in range(task, task + problem.segments):
                start = workspace + other * problem.task_size
                size = simd.get(integers_at(start + problem.searches), 0)
                added = scratch_of(workspace, constants, problem, other)
                for i in range(size):
                    simd.put(records, count + i, simd.get(added.records, i))
                    if wide:
                        simd.put(positions, count + i, simd.get(added.positions, i))
                count += size
                if count > k:
                    count, _ = shrink(records, positions, wide, count, k, k >> 2)
            at = offsets_of(numbers, problem.n_dims, row)
            if sorts:
                finish(elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k)
            else:
                finish_few(
                    elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k
                )
            write_padding(outputs, indices, at, problem, k)

    return merge_segments


@helper
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
                simd.put(stage, j * pitch + r, simd.get(x, at + r * step + j))
    for i in range(block_rows, n):
        for j in range(n_columns):
            simd.put(stage, j * pitch + i, simd.get(x, at + i * step + j * column_step))


@functools.cache
def columns_kernel(sorts: bool) -> Any:
    """Return the kernel for rows that are not contiguous."""

    @kernel
    def select_columns(
        constants: Array, first_stripe: int, last_stripe: int, task: int,
        lengths: int, x: int, values: int, indices: int, workspace: int,
    ) -> None:  # fmt: skip
        """Search rows that are not contiguous, some side by side, through a copy of a part of each."""
        numbers = numbers_of(constants)
        problem = unpack(numbers)
        masks = unpack_masks(constants)
        scratch = scratch_of(workspace, constants, problem, task)
        sorting = sorting_of(workspace, problem, task)
        start = workspace + task * problem.task_size
        stage = elements_at(start + problem.stage, constants)
        searches = integers_at(start + problem.searches)
        elements, outputs = elements_at(x, constants), elements_at(values, constants)
        n_columns_all = simd.get(numbers, HEADER + DIMENSION * (problem.n_dims - 1)) if problem.n_dims else 1
        stripes = (n_columns_all + problem.columns - 1) // problem.columns
        for stripe in range(first_stripe, last_stripe):
            outer = stripe // stripes
            column = (stripe - outer * stripes) * problem.columns
            first_row = outer * n_columns_all + column
            n_columns = min(problem.columns, n_columns_all - column)
            x_at, _, _ = offsets_of(numbers, problem.n_dims, first_row)
            longest = 0
            for j in range(n_columns):
                length = length_of(numbers, problem, lengths, first_row + j)
                longest = max(longest, length)
                s = SEARCH * j
                simd.put(searches, s + LISTED, 0)
                simd.put(searches, s + BOUND, ~problem.lowest)
                simd.put(searches, s + UNTIL_STRICT, min(problem.k, length))
                simd.put(searches, s + CLOSED, 0)
                simd.put(searches, s + LENGTH, length)
            for begin in range(0, longest, problem.run):
                n = min(problem.run, longest - begin)
                copy_to_stage(
                    elements, x_at + begin * problem.x_step, problem.x_step, problem.column_step,
                    n, n_columns, stage, problem.pitch,
                )  # fmt: skip
                for j in range(n_columns):
                    own = scratch_of_column(workspace, scratch, problem, task, j)
                    s = SEARCH * j
                    search = Search(
                        simd.get(searches, s + LISTED), simd.get(searches, s + BOUND),
                        simd.get(searches, s + UNTIL_STRICT), simd.get(searches, s + CLOSED) != 0,
                    )  # fmt: skip
                    length = simd.get(searches, s + LENGTH)
                    limits = Limits(
                        min(problem.k, length), problem.capacity, problem.fold, problem.lowest,
                        problem.wide != 0,
                    )  # fmt: skip
                    staged = j * problem.pitch
                    own_n = max(min(n, length - begin), 0)
                    search = search_run(stage, staged, own_n, begin - staged, masks, limits, own, search)
                    simd.put(searches, s + LISTED, search.listed)
                    simd.put(searches, s + BOUND, search.bound)
                    simd.put(searches, s + UNTIL_STRICT, search.until_strict)
                    simd.put(searches, s + CLOSED, search.closed)
            for j in range(n_columns):
                at = offsets_of(numbers, problem.n_dims, first_row + j)
                own = scratch_of_column(workspace, scratch, problem, task, j)
                records, positions = own.records, own.positions
                count = simd.get(searches, SEARCH * j + LISTED)
                k = min(problem.k, simd.get(searches, SEARCH * j + LENGTH))
                if sorts:
                    finish(
                        elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k
                    )
                else:
                    finish_few(
                        elements, outputs, indices, at, problem, masks, records, positions, sorting, count, k
                    )
                write_padding(outputs, indices, at, problem, k)

    return select_columns


@helper
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
        total += simd.int64(key(simd.get(x, i), masks)) <= bound
    return total


@helper
def bound_of_keys(
    x: Array, begin: int, end: int, wanted: int, slack: int, lowest: int, masks: KeyMasks
) -> int:
    """Return a bound that `wanted` to ``wanted + slack`` keys do not exceed; with ties the least possible."""
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


@helper
def list_all(x: Array, begin: int, n: int, masks: KeyMasks, scratch: Scratch, wide: bool) -> None:
    """Make a record of every element."""
    for i in range(n):
        value = simd.int64(key(simd.get(x, begin + i), masks))
        if wide:
            simd.put(scratch.records, i, value)
            simd.put(scratch.positions, i, i)
        else:
            simd.put(scratch.records, i, (value << 32) | i)


@kernel
def sort_rows(
    constants: Array, first_row: int, last_row: int, task: int,
    lengths: int, x: int, values: int, indices: int, workspace: int,
) -> None:  # fmt: skip
    """Sort rows of which a large part is wanted."""
    numbers = numbers_of(constants)
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    scratch = scratch_of(workspace, constants, problem, task)
    sorting = sorting_of(workspace, problem, task)
    start = workspace + task * problem.task_size
    stage = elements_at(start + problem.stage, constants)
    elements, outputs = elements_at(x, constants), elements_at(values, constants)
    for row in range(first_row, last_row):
        n = length_of(numbers, problem, lengths, row)
        k = min(problem.k, n)
        limits = Limits(k, problem.capacity, problem.fold, problem.lowest, problem.wide != 0)
        at = offsets_of(numbers, problem.n_dims, row)
        run, begin = elements, at[0]
        if problem.columns:
            copy_to_stage(elements, at[0], problem.x_step, 0, n, 1, stage, 0)
            run, begin = stage, 0
        count = n
        if problem.capacity < n:
            bound = bound_of_keys(run, begin, begin + n, k, k >> 3, problem.lowest, masks)
            search = Search(0, bound, k, False)
            count = scan(run, begin, begin + n, -begin, masks, limits, scratch, search).listed
        else:
            list_all(run, begin, n, masks, scratch, problem.wide != 0)
        finish(
            elements, outputs, indices, at, problem, masks, scratch.records, scratch.positions, sorting,
            count, k,
        )  # fmt: skip
        write_padding(outputs, indices, at, problem, k)
