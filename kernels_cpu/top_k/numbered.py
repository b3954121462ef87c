"""Rows whose elements have the caller's numbers, which are returned, and settle ties.

Keys are written next to each other; elements numbered -1, which take no part, get the worst one. The maxima
of groups bound the k-th key, and all elements that reach that bound are listed. If these are too many, the
k-th key is found by counting: all better elements are listed, and of those that tie with it the ones with the
lowest numbers. The list is ordered by number, and then by key: both sorts keep the order of what is equal.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.intrinsics.pointers import integers_at, put_index, short_integers_at, tail
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.top_k.finish import write_padding
from kernels_cpu.top_k.problem_words import NUMBER_STRIDE
from kernels_cpu.top_k.records import LOW_HALF, at_most, pad, radix_sort, rank, shrink
from kernels_cpu.top_k.scan import Scratch, threshold_of_groups
from kernels_cpu.top_k.scratch import Sorting, Windows, copy_to_stage, offset_of, row_of, stage_of, unpacked
from kernels_cpu.top_k.short_rows import groups_for
from kernels_cpu.top_k.table import RANK_LIMIT, WORD, Problem
from kernels_cpu.top_k.thresholds import bounds_of
from kernels_cpu.top_k.written_keys import list_word, padded_size, write_all_keys

Array = NDArray[Any]


class Numbers(NamedTuple):
    """The numbers of the elements of a row."""

    address: int
    size: int
    """Bytes of a number: 4 or 8."""
    step: int
    flip: int
    """The sign bit of numbers of 8 bytes without a sign, which puts these in order; else 0."""
    mask: int
    """The bits of a number of 4 bytes without a sign; else all."""
    last: int
    """The last position."""


@inline
def number_at(numbers: Numbers, position: int) -> int:
    """Return the number of an element, as an integer of the same order."""
    index = at_most(position, numbers.last) * numbers.step
    number: int = int64(0)
    if numbers.size == 8:
        number = integers_at(numbers.address)[index] ^ numbers.flip
    else:
        number = int64(short_integers_at(numbers.address)[index]) & numbers.mask
    return number


@inline
def drop(array: Array, step: int, begin: int, end: int, worst: int, keys: Array) -> int:
    """Give elements numbered -1 the worst key; return how many there are."""
    n_dropped: int = int64(0)
    if step == 1:  # a loop that compilers make vectors of
        for i in range(begin, end):
            n_dropped += array[i] == -1
    else:
        for i in range(begin, end):
            n_dropped += array[i * step] == -1
    if n_dropped:
        for i in range(begin, end):
            if array[i * step] == -1:
                keys[i] = worst
    return n_dropped


@njit
def drop_all(numbers: Numbers, n: int, worst: int, keys: Array) -> int:
    """Give elements numbered -1 the worst key; return how many there are."""
    total: int = int64(0)
    for begin in range(0, n, WORD):
        end = min(begin + WORD, n)
        if numbers.size == 8:
            total += drop(integers_at(numbers.address), numbers.step, begin, end, worst, keys)
        else:
            total += drop(short_integers_at(numbers.address), numbers.step, begin, end, worst, keys)
    return total


@njit
def bound_of_groups(keys: Array, padded: int, n_groups: int, k: int, highest: int, groups: Array) -> int:
    """Return a key that at least `k` keys reach, and few more."""
    lanes = simd.lanes_of(keys)
    for i in range(0, n_groups, lanes):
        simd.store(groups, i, simd.load(keys, i))
    slot = int64(0)
    for i in range(n_groups, padded, lanes):
        simd.store(groups, slot, simd.maximum(simd.load(groups, slot), simd.load(keys, i)))
        slot = slot + lanes if slot + lanes < n_groups else 0
    return threshold_of_groups(groups, n_groups, k, highest)


@njit
def list_at_least(keys: Array, padded: int, threshold: int, scratch: Scratch, most: int) -> int:
    """List the elements whose keys reach a threshold; return how many there are, or 0 for over `most`."""
    count: int = int64(0)
    for at in range(0, padded, WORD):
        if count > most - WORD:
            return 0
        count = list_word(keys, at, simd.word_at_least(keys, at, threshold), True, scratch, count)
    return count


@njit
def list_ties(
    keys: Array,
    n: int,
    threshold: int,
    highest: int,
    numbers: Numbers,
    need: int,
    records: Array,
    positions: Array,
    room: int,
) -> int:
    """List the `need` elements with the lowest numbers among those with a key; return how many there are."""
    count: int = int64(0)
    for at in range(0, n, WORD):
        ties = simd.word_at_least(keys, at, threshold)
        if threshold < highest:
            ties ^= simd.word_at_least(keys, at, threshold + 1)
        if at + WORD > n:
            ties &= (np.uint64(1) << np.uint64(n - at)) - np.uint64(1)
        while ties:
            position = at + bitops.trailing_zeros(ties)
            ties &= ties - np.uint64(1)
            number = number_at(numbers, position)
            if number ^ numbers.flip != numbers.mask:
                records[count] = ~number
                positions[count] = position
                count += 1
        if count > room - WORD:
            count, _ = shrink(records, positions, True, count, need, 0)
    if count > need:
        count, _ = shrink(records, positions, True, count, need, 0)
    return count


@njit
def order(records: Array, positions: Array, sorting: Sorting, count: int, list_length: int) -> None:
    """Put positions in falling order of their records, equal ones as they are."""
    is_ordered = True
    for i in range(1, count):
        is_ordered &= records[i - 1] >= records[i]
    if is_ordered:
        return
    if count > RANK_LIMIT:
        if radix_sort(
            records, positions, sorting.spare_records, sorting.spare_positions, True, count, list_length - 1
        ):
            for i in range(count):
                positions[i] = sorting.spare_positions[i]
        return
    pad(records, count)
    rank(records, True, count, sorting.ranks, sorting.order, sorting.taken)
    for i in range(count):
        sorting.taken[i] = positions[i]
    for i in range(count):
        positions[i] = sorting.taken[at_most(sorting.order[i], count - 1)]


@njit
def order_by_number(
    numbers: Numbers, records: Array, positions: Array, sorting: Sorting, count: int, list_length: int
) -> None:
    """Put positions in the order of their numbers, equal ones as they are."""
    for i in range(count):
        records[i] = ~number_at(numbers, positions[i])
    order(records, positions, sorting, count, list_length)


@inline
def choose(keys: Array, n: int, k: int, problem: Problem, numbers: Numbers, scratch: Scratch) -> int:
    """List the best `k` elements of a row, and few more; return how many."""
    highest, slack, padded = problem.highest, k >> 3, padded_size(n)
    lanes = simd.lanes_of(keys)
    n_groups = (groups_for(k) + lanes - 1) & -lanes
    if 2 * n_groups <= n:
        threshold = bound_of_groups(keys, padded, n_groups, k, highest, scratch.groups)
        if threshold > ~highest:
            count = list_at_least(keys, padded, threshold, scratch, problem.capacity)
            if count > 0:
                return count
    bounds = bounds_of(keys, n, padded, k, slack, highest, scratch.groups)
    threshold = bounds.low
    if threshold > ~highest and bounds.n_at_least <= k + slack:
        return list_at_least(keys, padded, threshold, scratch, problem.capacity)
    # The bounds have met at the k-th key, or elements that take no part have it as well.
    count = int64(0)
    if threshold < highest:
        count = list_at_least(keys, padded, threshold + 1, scratch, problem.capacity)
    if count < k:
        count += list_ties(
            keys,
            n,
            threshold,
            highest,
            numbers,
            k - count,
            tail(scratch.records, count),
            tail(scratch.positions, count),
            problem.capacity - count,
        )
    return count


@njit
def select(
    constants: Array,
    first_row: int,
    last_row: int,
    task: int,
    windows: tuple[int, int],
    numbers_at: int,
    x: int,
    values: int,
    indices: int,
    workspace: int,
) -> None:
    """Select from rows whose elements have numbers."""
    table, problem, formula, scratch, sorting, elements, outputs = unpacked(
        constants, task, x, values, workspace
    )
    keys = stage_of(constants, problem, workspace, task)
    records, positions, length = scratch.records, scratch.positions, problem.list_length
    mask = int64(-1) if problem.number_size == 8 or problem.number_is_signed else int64(LOW_HALF)
    flip = int64(0) if problem.number_size != 8 or problem.number_is_signed else int64(-1) << 63
    for row in range(first_row, last_row):
        place = row_of(table, problem, Windows(*windows), row)
        n = place.length
        first = offset_of(table, problem.n_dims, row, NUMBER_STRIDE) + place.first * problem.number_step
        numbers = Numbers(
            numbers_at + first * problem.number_size,
            problem.number_size,
            problem.number_step,
            flip,
            mask,
            n - 1,
        )
        run, begin = elements, place.x_at
        if problem.columns:
            copy_to_stage(elements, place.x_at, problem.x_step, 0, n, 1, keys, 0)
            run, begin = keys, 0
        write_all_keys(run, begin, n, problem.highest, formula, keys)
        k = min(problem.k, n - drop_all(numbers, n, ~problem.highest, keys))
        if k > 0:
            count = choose(keys, n, k, problem, numbers, scratch)
            order_by_number(numbers, records, positions, sorting, count, length)
            for i in range(count):
                records[i] = int64(keys[at_most(positions[i], n - 1)])
            order(records, positions, sorting, count, length)
            if not problem.is_sorted:
                for i in range(k):
                    records[i] = ~positions[i]
                order(records, positions, sorting, k, length)
                order_by_number(numbers, records, positions, sorting, k, length)
        for r in range(k):
            position = at_most(positions[r], n - 1)
            outputs[place.value_at + r * problem.value_step] = elements[
                place.x_at + position * problem.x_step
            ]
            number = number_at(numbers, position) ^ flip
            put_index(indices, problem.index_size, place.index_at + r * problem.index_step, number)
        write_padding(outputs, indices, place, problem, k)
