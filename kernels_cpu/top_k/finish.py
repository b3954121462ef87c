"""The last step of every algorithm: order the listed records of a row, and write the best of them."""

from typing import Any

from numpy.typing import NDArray

from kernels_cpu.intrinsics.pointers import put_index
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import KeyFormula
from kernels_cpu.top_k.records import at_most, keep_order, pad, position_of, radix_sort, rank, shrink
from kernels_cpu.top_k.scan import Scratch
from kernels_cpu.top_k.scratch import Row, Sorting
from kernels_cpu.top_k.table import RANK_LIMIT, Problem

Array = NDArray[Any]


@njit
def write_ranked(
    x: Array, values: Array, indices: int, row: Row, problem: Problem, lists: Scratch, order: Array, k: int
) -> None:
    """Write the best `k` records, found through `order`."""
    for r in range(k):
        i = at_most(order[r], problem.capacity)
        position = at_most(position_of(lists.records, lists.positions, i, problem.wide != 0), row.length - 1)
        values[row.value_at + r * problem.value_step] = x[row.x_at + position * problem.x_step]
        put_index(indices, problem.index_size, row.index_at + r * problem.index_step, row.first + position)


@njit
def write_listed(
    x: Array,
    values: Array,
    indices: int,
    row: Row,
    problem: Problem,
    formula: KeyFormula,
    lists: Scratch,
    first: int,
    last: int,
) -> None:
    """Write records `first` to `last` of the list.

    Where the key determines the bits, they are computed from it, which saves a far read of `x`.
    """
    zero, nan = int64(formula.plus ^ formula.swap), int64(formula.limit)
    plus, minus, direction = int64(formula.plus), int64(formula.minus), int64(formula.direction)
    is_float, wide = formula.negative != 0, problem.wide != 0
    for r in range(first, last):
        position = position_of(lists.records, lists.positions, r, wide)
        ordered = (lists.records[r] if wide else lists.records[r] >> 32) ^ direction
        put_index(indices, problem.index_size, row.index_at + r * problem.index_step, row.first + position)
        bits = ordered - plus
        if is_float and (ordered <= zero or ordered == nan):
            bits = minus - ordered
            if ordered in (zero, nan):
                bits = int64(x[row.x_at + at_most(position, row.length - 1) * problem.x_step])
        values[row.value_at + r * problem.value_step] = bits


@inline
def write_padding(values: Array, indices: int, row: Row, problem: Problem, k: int) -> None:
    """Write the padding behind the `k` elements of a row that has no more."""
    for r in range(k, problem.n_results):
        values[row.value_at + r * problem.value_step] = problem.padding
        put_index(indices, problem.index_size, row.index_at + r * problem.index_step, -1)


@njit
def finish_unsorted(
    x: Array,
    values: Array,
    indices: int,
    row: Row,
    problem: Problem,
    formula: KeyFormula,
    lists: Scratch,
    count: int,
    k: int,
) -> None:
    """Write the best `k` of `count` records in the order of the list, by position."""
    if count > k:
        shrink(lists.records, lists.positions, problem.wide != 0, count, k, 0)
    write_listed(x, values, indices, row, problem, formula, lists, 0, k)


@inline
def finish_ranked(
    x: Array,
    values: Array,
    indices: int,
    row: Row,
    problem: Problem,
    formula: KeyFormula,
    lists: Scratch,
    sorting: Sorting,
    count: int,
    k: int,
) -> None:
    """Rank `count` records, of which there are at least `k` <= `RANK_LIMIT`, and write the best.

    It takes the parameters of `finish`, in whose place it is called.
    """
    if count > RANK_LIMIT:
        slack = min(k >> 3, RANK_LIMIT - k)
        count, _ = shrink(lists.records, lists.positions, problem.wide != 0, count, k, slack)
    count = max(count, k)  # fewer are left only where another thread changes the workspace
    pad(lists.records, count)
    rank(lists.records, problem.wide != 0, count, sorting.ranks, sorting.order, sorting.taken)
    if not problem.is_sorted:
        keep_order(sorting.ranks, sorting.order, count, k)
    write_ranked(x, values, indices, row, problem, lists, sorting.order, k)


@inline
def finish(
    x: Array,
    values: Array,
    indices: int,
    row: Row,
    problem: Problem,
    formula: KeyFormula,
    lists: Scratch,
    sorting: Sorting,
    count: int,
    k: int,
) -> None:
    """Order `count` records, of which there are at least `k`, and write the best."""
    wide = problem.wide != 0
    if not problem.is_sorted:
        finish_unsorted(x, values, indices, row, problem, formula, lists, count, k)
    elif k <= RANK_LIMIT:
        finish_ranked(x, values, indices, row, problem, formula, lists, sorting, count, k)
    else:
        if count > k + (k >> 2):
            count, _ = shrink(lists.records, lists.positions, wide, count, k, k >> 3)
        count = max(count, k)  # as in `finish_ranked`
        if radix_sort(
            lists.records,
            lists.positions,
            sorting.spare_records,
            sorting.spare_positions,
            wide,
            count,
            problem.list_length - 1,
        ):
            lists = Scratch(sorting.spare_records, sorting.spare_positions, lists.groups, lists.maxima)
        write_listed(x, values, indices, row, problem, formula, lists, 0, k)
