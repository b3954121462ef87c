"""Rows that are not contiguous, with few selected elements: parts of them are copied, then searched."""

import functools
from typing import Any

from numpy.typing import NDArray

from kernels_cpu.intrinsics.pointers import stack_integers
from kernels_cpu.jit import int64, njit
from kernels_cpu.processor import LINE_BYTES
from kernels_cpu.top_k.finish import finish, finish_ranked, write_padding
from kernels_cpu.top_k.scan import Limits, Search, search_run
from kernels_cpu.top_k.scratch import (
    Row,
    Windows,
    copy_to_stage,
    row_of,
    scratch_of_column,
    stage_of,
    stripe_of,
    unpacked,
)
from kernels_cpu.top_k.table import COLUMN_LINES, ROW_STATE

Array = NDArray[Any]

# The state of a column's search between two runs, `ROW_STATE` integers.
LISTED, THRESHOLD, UNTIL_STRICT, CLOSED, FIRST, LENGTH = range(ROW_STATE)
STATES = ROW_STATE * COLUMN_LINES * LINE_BYTES  # of elements of one byte


@functools.cache
def select(sorts: bool) -> Any:
    """Return the kernel for rows that are not contiguous."""
    finish_row = finish if sorts else finish_ranked

    @njit
    def select_columns(
        constants: Array,
        first_stripe: int,
        last_stripe: int,
        task: int,
        windows: tuple[int, int],
        x: int,
        values: int,
        indices: int,
        workspace: int,
    ) -> None:
        """Search rows that are not contiguous, some side by side, through a copy of a part of each."""
        numbers, problem, formula, scratch, sorting, elements, outputs = unpacked(
            constants, task, x, values, workspace
        )
        stage = stage_of(constants, problem, workspace, task)
        searches = stack_integers(STATES)  # not in the workspace, which other threads may write to
        for number in range(first_stripe, last_stripe):
            first_row, n_columns, x_at = stripe_of(numbers, problem, number)
            first_of_all, end_of_all = problem.axis_size, int64(0)
            for j in range(n_columns):
                place = row_of(numbers, problem, Windows(*windows), first_row + j)
                length = place.length
                if length > 0:
                    first_of_all = min(first_of_all, place.first)
                    end_of_all = max(end_of_all, place.first + length)
                s = ROW_STATE * j
                searches[s + LISTED] = 0
                searches[s + THRESHOLD] = ~problem.highest
                searches[s + UNTIL_STRICT] = min(problem.k, length)
                searches[s + CLOSED] = 0
                searches[s + FIRST] = place.first
                searches[s + LENGTH] = length
            for begin in range(first_of_all, end_of_all, problem.run):
                n = min(problem.run, end_of_all - begin)
                copy_to_stage(
                    elements,
                    x_at + begin * problem.x_step,
                    problem.x_step,
                    problem.column_step,
                    n,
                    n_columns,
                    stage,
                    problem.pitch,
                )
                for j in range(n_columns):
                    own = scratch_of_column(workspace, scratch, problem, task, j)
                    s = ROW_STATE * j
                    search = Search(
                        searches[s + LISTED],
                        searches[s + THRESHOLD],
                        searches[s + UNTIL_STRICT],
                        searches[s + CLOSED] != 0,
                    )
                    length = searches[s + LENGTH]
                    limits = Limits(
                        min(problem.k, length),
                        problem.capacity,
                        problem.fold,
                        problem.highest,
                        problem.wide != 0,
                    )
                    staged = j * problem.pitch
                    first = searches[s + FIRST]
                    own_begin = max(begin, first)
                    own_n = max(min(begin + n, first + length) - own_begin, 0)
                    search = search_run(
                        stage,
                        staged + own_begin - begin,
                        own_n,
                        begin - first - staged,
                        formula,
                        limits,
                        own,
                        search,
                    )
                    searches[s + LISTED] = search.n_candidates
                    searches[s + THRESHOLD] = search.threshold
                    searches[s + UNTIL_STRICT] = search.until_strict
                    searches[s + CLOSED] = search.closed
            for j in range(n_columns):
                place = row_of(numbers, problem, Windows(*windows), first_row + j)
                length = searches[ROW_STATE * j + LENGTH]
                # The window of the search: lengths and starts may have changed since.
                place = Row(
                    place.x_at + (searches[ROW_STATE * j + FIRST] - place.first) * problem.x_step,
                    place.value_at,
                    place.index_at,
                    searches[ROW_STATE * j + FIRST],
                    length,
                )
                own = scratch_of_column(workspace, scratch, problem, task, j)
                count = searches[ROW_STATE * j + LISTED]
                k = min(problem.k, length)
                finish_row(elements, outputs, indices, place, problem, formula, own, sorting, count, k)
                write_padding(outputs, indices, place, problem, k)

    return select_columns
