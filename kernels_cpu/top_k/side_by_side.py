"""Rows that are not contiguous but adjacent, like the columns of a matrix: each lane searches one of them.

Nothing is transposed: the keys of 64 rows are written in the order of memory, while each lane takes the
maxima of groups of its own row. The k-th largest maximum, found bit by bit in all lanes at once, bounds the
candidates.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.intrinsics.pointers import stack_integers, tail
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import KeyFormula, key
from kernels_cpu.top_k.finish import finish_ranked
from kernels_cpu.top_k.records import put_record, shrink
from kernels_cpu.top_k.scan import Scratch
from kernels_cpu.top_k.scratch import place_of, scratch_of_column, stage_of, stripe_of, unpacked
from kernels_cpu.top_k.table import RANK_LIMIT, Problem
from kernels_cpu.top_k.table import SIDE_BY_SIDE_COLUMNS as COLUMNS

Array = NDArray[Any]

NEIGHBOURS = 2  # consecutive elements of a row that share a group
BITS = 16  # bits searched for below those that all groups share; more would cost more than they save


@njit
def write_keys(
    x: Array,
    at: int,
    step: int,
    n: int,
    n_columns: int,
    n_groups: int,
    highest: int,
    formula: KeyFormula,
    keys: Array,
    groups: Array,
) -> None:
    """Write the keys of `n` elements of each row, and the maxima of groups of all but the last few.

    Memory is read in its order: elements of a row that are far apart would compete for a line of the cache.
    """
    lanes = simd.lanes_of(x)
    whole = n_columns & -lanes
    worst = simd.fill(simd.load(keys, 0), ~highest)
    for i in range(0, n_groups * COLUMNS, lanes):
        simd.store(groups, i, worst)
    slot = 0
    grouped = n & -NEIGHBOURS
    for i in range(0, grouped, NEIGHBOURS):
        for c in range(0, whole, lanes):
            group = simd.load(groups, slot + c)
            for r in range(NEIGHBOURS):
                vector = key(simd.load(x, at + (i + r) * step + c), formula)
                simd.store(keys, (i + r) * COLUMNS + c, vector)
                group = simd.maximum(group, vector)
            simd.store(groups, slot + c, group)
        if whole < n_columns:
            group = simd.load(groups, slot + whole)
            for r in range(i, i + NEIGHBOURS):
                for c in range(whole, n_columns):
                    keys[r * COLUMNS + c] = key(x[at + r * step + c], formula)
                group = simd.maximum(group, simd.load(keys, r * COLUMNS + whole))
            simd.store(groups, slot + whole, group)
        slot += COLUMNS
        if slot == n_groups * COLUMNS:
            slot = 0
    for i in range(grouped, n):
        for c in range(n_columns):
            keys[i * COLUMNS + c] = key(x[at + i * step + c], formula)


@njit
def raise_thresholds(
    groups: Array, n_groups: int, n_columns: int, k: int, highest: int, thresholds: Array
) -> None:
    """Raise each row's threshold to what `k` of its groups reach, and few more."""
    for c in range(0, n_columns, simd.lanes_of(groups)):
        least = greatest = simd.load(groups, c)
        for g in range(1, n_groups):
            group = simd.load(groups, g * COLUMNS + c)
            least, greatest = simd.minimum(least, group), simd.maximum(greatest, group)
        low, high = int64(simd.least(least)), int64(simd.greatest(greatest))
        # The highest bits are common to all; only the bits below them are searched for.
        lowest = ~highest
        n_bits = 64 - bitops.leading_zeros(np.uint64((low - lowest) ^ (high - lowest)))
        low = lowest if n_bits == 64 else (((low - lowest) >> n_bits) << n_bits) + lowest
        kth = simd.fill(least, low)
        last = max(n_bits - BITS, 0)
        for bit in range(n_bits - 1, last - 1, -1):
            higher = simd.add(kth, simd.fill(kth, 1 << bit))
            less = simd.fill(kth, k - 1 - n_groups)
            for g in range(n_groups):
                less = simd.count_less(less, simd.load(groups, g * COLUMNS + c), higher)
            kth = simd.where_negative(less, higher, kth)
        simd.store(thresholds, c, simd.maximum(simd.load(thresholds, c), kth))


@inline
def within_thresholds(keys: Array, at: int, thresholds: Array) -> Any:
    """Return a mask of the rows whose key of those at `at` reaches their threshold."""
    mask = np.uint64(0)
    for c in range(0, COLUMNS, simd.lanes_of(keys)):
        is_within = simd.mask_at_most(simd.load(thresholds, c), simd.load(keys, at + c))
        mask |= is_within << np.uint64(c)
    return mask


@njit
def close_in(
    records: Array, positions: Array, wide: bool, count: int, k: int, threshold: int
) -> tuple[int, int]:
    """Return the length of a list after a check, and the key that later elements must be better than.

    Of a list that is full the best `k` are kept. In any other, `k` records reach `threshold`.
    """
    if count < RANK_LIMIT:
        return count, threshold
    count, worst = shrink(records, positions, wide, RANK_LIMIT, k, 0)
    return count, worst if wide else worst >> 32


@njit
def list_keys(
    keys: Array,
    n: int,
    first_position: int,
    used: Any,
    problem: Problem,
    lists: Scratch,
    thresholds: Array,
    counts: Array,
    checked_at: Array,
) -> Any:
    """List the keys within the thresholds; return which rows may have more.

    Lists are checked when they are as long as `checked_at` says.
    """
    wide = problem.wide != 0
    for i in range(n):
        mask = within_thresholds(keys, i * COLUMNS, thresholds) & used
        while mask:
            c = bitops.trailing_zeros(mask)
            mask &= mask - np.uint64(1)
            count = counts[c]
            value = int64(keys[i * COLUMNS + c])
            to = c * problem.list_length + count
            put_record(lists.records, lists.positions, to, value, first_position + i, wide)
            counts[c] = count + 1
            if count + 1 == checked_at[c]:
                records = tail(lists.records, c * problem.list_length)
                positions = tail(lists.positions, c * problem.list_length)
                # A later element that equals the worst loses to `k` earlier ones.
                counts[c], worst = close_in(
                    records, positions, wide, count + 1, problem.k, int64(thresholds[c])
                )
                checked_at[c] = RANK_LIMIT
                if worst == problem.highest:
                    used &= ~(np.uint64(1) << np.uint64(c))
                else:
                    thresholds[c] = max(int64(thresholds[c]), worst + 1)
    return used


@njit
def select(
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
    """Search rows that lie side by side, up to 64 of them at a time; all are whole, without `windows`."""
    numbers, problem, formula, scratch, sorting, elements, outputs = unpacked(
        constants, task, x, values, workspace
    )
    keys = stage_of(constants, problem, workspace, task)
    # Not in the workspace, which other threads may write to.
    counts, checked_at = stack_integers(COLUMNS), stack_integers(COLUMNS)
    k, highest = problem.k, problem.highest
    thresholds = scratch.maxima
    for number in range(first_stripe, last_stripe):
        first_row, n_columns, x_at = stripe_of(numbers, problem, number)
        used = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(COLUMNS - n_columns)
        for c in range(n_columns):
            counts[c] = 0
        for c in range(COLUMNS):
            thresholds[c] = ~highest
        for begin in range(0, problem.longest, problem.run):
            n = min(problem.run, problem.longest - begin)
            n_groups = min(problem.fold, n // NEIGHBOURS)
            write_keys(
                elements,
                x_at + begin * problem.x_step,
                problem.x_step,
                n,
                n_columns,
                n_groups,
                highest,
                formula,
                keys,
                scratch.groups,
            )
            if n_groups >= k:
                raise_thresholds(scratch.groups, n_groups, n_columns, k, highest, thresholds)
            for c in range(n_columns):
                checked_at[c] = min(counts[c] + k, RANK_LIMIT)
            used = list_keys(keys, n, begin, used, problem, scratch, thresholds, counts, checked_at)
        for c in range(n_columns):
            own = scratch_of_column(workspace, scratch, problem, task, c)
            place = place_of(numbers, problem.n_dims, problem.longest, first_row + c)
            finish_ranked(elements, outputs, indices, place, problem, formula, own, sorting, counts[c], k)
