"""The last step of every algorithm: order the listed records of a row, and write the best of them."""

from typing import Any

from numpy.typing import NDArray

from kernels_cpu.jit import inline, njit
from kernels_cpu.keys import KeyMasks
from kernels_cpu.top_k.output import write_listed, write_ranked
from kernels_cpu.top_k.problem import RANK_LIMIT, Problem
from kernels_cpu.top_k.records import keep_order, pad, radix_sort, rank, shrink
from kernels_cpu.top_k.scratch import Sorting

Array = NDArray[Any]


@njit
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
    x: Array, values: Array, indices: int, at: tuple[int, int, int], problem: Problem,
    records: Array, positions: Array, sorting: Sorting, count: int, k: int,
) -> None:  # fmt: skip
    """Rank `count` records, of which there are at least `k` <= `RANK_LIMIT`, and write the best."""
    if count > RANK_LIMIT:
        slack = min(k >> 3, RANK_LIMIT - k)
        count, _ = shrink(records, positions, problem.wide != 0, count, k, slack)
    pad(records, count)
    rank(records, problem.wide != 0, count, sorting.ranks, sorting.order, sorting.taken)
    if not problem.is_sorted:
        keep_order(sorting.ranks, sorting.order, count, k)
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
