"""Rows with few selected elements, searched in place if they are contiguous, or else in copies of parts.

If there are fewer rows than threads, several tasks search segments of a row, and one kernel merges their
lists. Rows that are windows may be much shorter than the longest one: short ones are searched as in
`short_rows`.
"""

import functools
from typing import Any

from numpy.typing import NDArray

from kernels_cpu.intrinsics.pointers import element_size, integers_at, stack_words, tail
from kernels_cpu.jit import njit
from kernels_cpu.top_k.finish import finish, finish_ranked, write_padding
from kernels_cpu.top_k.records import at_most, shrink
from kernels_cpu.top_k.scan import Limits, Search, list_all, search_run
from kernels_cpu.top_k.scratch import Windows, copy_row, row_of, scratch_of, sorting_of, stage_of, unpacked
from kernels_cpu.top_k.short_rows import list_short_row
from kernels_cpu.top_k.table import DIMENSION, HEADER, SHORT_ROW_BYTES, SHORT_ROWS_MAX_K, SHORT_WORDS
from kernels_cpu.top_k.written_keys import padded_size

Array = NDArray[Any]


@functools.cache
def select(sorts: bool) -> Any:
    """Return the kernel for rows; `sorts`: for lists that are too long to be ranked."""
    finish_row = finish if sorts else finish_ranked

    @njit
    def select_rows(
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
        """Search rows, or segments of them, then one for each task."""
        numbers, problem, formula, scratch, sorting, elements, outputs = unpacked(
            constants, task, x, values, workspace
        )
        stage = stage_of(constants, problem, workspace, task)
        words, greater = stack_words(SHORT_WORDS), stack_words(SHORT_WORDS)
        for unit in range(first_unit, last_unit):
            row = unit // problem.segments if problem.segments > 1 else unit
            place = row_of(numbers, problem, Windows(*windows), row)
            k = min(problem.k, place.length)
            first, last = 0, place.length
            if problem.segments > 1:
                first = (unit - row * problem.segments) * problem.segment
                last = min(first + problem.segment, last)
            at = place.x_at
            limits = Limits(k, problem.capacity, problem.fold, problem.highest, problem.wide != 0)
            search = Search(0, ~problem.highest, k, False)
            is_short = problem.segments == 1 and last * element_size(elements) <= SHORT_ROW_BYTES
            if not sorts and is_short and problem.columns > 0 and 0 < k <= SHORT_ROWS_MAX_K:
                run, run_at = elements, at
                if problem.x_step != 1:
                    run, run_at = tail(stage, padded_size(last)), 0  # behind the keys
                    copy_row(elements, at, problem.x_step, last, run)
                count = list_short_row(run, run_at, last, k, problem, formula, stage, words, greater, scratch)
                search = Search(count, ~problem.highest, k, True)
                last = first
            for begin in range(first, last, problem.run):
                n = min(problem.run, last - begin)
                if problem.x_step == 1:
                    search = search_run(elements, at + begin, n, -at, formula, limits, scratch, search)
                else:
                    copy_row(elements, at + begin * problem.x_step, problem.x_step, n, stage)
                    search = search_run(stage, 0, n, begin, formula, limits, scratch, search)
            if problem.segments == 1:
                count = search.n_candidates
                if count < k:  # elements have changed since the threshold was found: take any
                    list_all(elements, at, problem.x_step, 0, k, formula, scratch, limits.wide)
                    count = k
                finish_row(elements, outputs, indices, place, problem, formula, scratch, sorting, count, k)
                write_padding(outputs, indices, place, problem, k)
                continue
            count = search.n_candidates
            if count > k:
                count, _ = shrink(scratch.records, scratch.positions, limits.wide, count, k, k >> 2)
            start = workspace + task * problem.task_size
            integers_at(start + problem.listed)[0] = count

    return select_rows


@functools.cache
def merge(sorts: bool) -> Any:
    """Return the kernel that runs after several tasks have searched segments of a row."""
    finish_row = finish if sorts else finish_ranked

    @njit
    def merge_segments(
        constants: Array, windows: tuple[int, int], x: int, values: int, indices: int, workspace: int
    ) -> None:
        """Add the lists of a row's segments to the first segment's, which has room for two of them."""
        numbers, problem, formula, _, _, elements, outputs = unpacked(constants, 0, x, values, workspace)
        wide = problem.wide != 0
        n_rows = 1
        for d in range(problem.n_dims):
            n_rows *= numbers[HEADER + DIMENSION * d]
        for row in range(n_rows):
            place = row_of(numbers, problem, Windows(*windows), row)
            k = min(problem.k, place.length)
            task = row * problem.segments
            scratch = scratch_of(workspace, constants, problem, task)
            sorting = sorting_of(workspace, problem, task)
            records, positions = scratch.records, scratch.positions
            count = 0
            for other in range(task, task + problem.segments):
                start = workspace + other * problem.task_size
                size = at_most(integers_at(start + problem.listed)[0], k + (k >> 2))
                added = scratch_of(workspace, constants, problem, other)
                for i in range(size):
                    records[count + i] = added.records[i]
                    if wide:
                        positions[count + i] = added.positions[i]
                count += size
                if count > k:
                    count, _ = shrink(records, positions, wide, count, k, k >> 2)
            if count < k:  # elements or the window have changed since the search: take any
                list_all(elements, place.x_at, problem.x_step, 0, k, formula, scratch, wide)
                count = k
            finish_row(elements, outputs, indices, place, problem, formula, scratch, sorting, count, k)
            write_padding(outputs, indices, place, problem, k)

    return merge_segments
