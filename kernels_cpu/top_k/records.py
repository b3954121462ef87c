"""Lists of candidates: bounded, ranked and sorted by key, then by position.

A record is a signed 64-bit integer that sorts ascending, best first. A *packed* record is
``key << 32 | position``: no two are equal. Where keys have 64 bits, or positions more than 32, a record is
the key alone and `positions` holds the rest. Either way a list is in the order of positions, so that its own
order breaks ties.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import helper, inline
from kernels_cpu.top_k.problem import DIGIT_BITS, PADDED_TO

Array = NDArray[Any]

PADDING = np.iinfo(np.int64).max
"""Fills a list up to whole vectors; no bound that is searched for reaches it."""
LOW_HALF = 0xFFFFFFFF


@inline
def midpoint(low: int, high: int) -> int:
    """Return the mean of two 64-bit integers, rounded down, where their sum may overflow."""
    return (low & high) + ((low ^ high) >> 1)


@helper
def count_at_most(array: Array, n: int, bound: int) -> int:
    """Return how many of the first `n` elements are at most `bound`; `n` is a multiple of the lanes."""
    total = 0
    lanes = simd.lanes_of(array)
    limit = simd.fill(simd.load(array, 0), bound)
    for i in range(0, n, lanes):
        total += simd.population(simd.mask_at_most(simd.load(array, i), limit))
    return total


@helper
def bound_of(array: Array, n: int, padded: int, wanted: int, slack: int) -> int:
    """Return a bound that `wanted` to ``wanted + slack`` of the first `n` elements do not exceed.

    Where ties make that impossible it is the least bound that at least `wanted` elements do not exceed. From
    `n` to `padded`, a multiple of the lanes, the array holds its type's greatest integer.
    """
    lanes = simd.lanes_of(array)
    low: int = simd.int64(simd.get(array, 0))
    high = low
    whole = n & -lanes
    if whole:
        lows = highs = simd.load(array, 0)
        for i in range(lanes, whole, lanes):
            values = simd.load(array, i)
            lows, highs = simd.minimum(lows, values), simd.maximum(highs, values)
        low, high = simd.int64(simd.least(lows)), simd.int64(simd.greatest(highs))
    for i in range(whole, n):
        value: int = simd.int64(simd.get(array, i))
        low, high = min(low, value), max(high, value)
    while low < high:
        middle = midpoint(low, high)
        count = count_at_most(array, padded, middle)
        if count < wanted:
            low = middle + 1
        else:
            high = middle
            if count <= wanted + slack:
                break
    return high


@inline
def padded_count(count: int) -> int:
    """Return how long a list of `count` records is with its padding."""
    return (count + PADDED_TO - 1) & -PADDED_TO


@inline
def pad(records: Array, count: int) -> int:
    """Fill the list up to whole vectors and beyond, and return how long it then is."""
    padding = simd.fill(simd.load(records, 0), PADDING)
    for i in range(0, PADDED_TO, simd.lanes_of(records)):
        simd.store(records, count + i, padding)
    return padded_count(count)


@helper
def shrink(records: Array, positions: Array, wide: bool, count: int, k: int, slack: int) -> tuple[int, int]:
    """Keep the best `k` records (up to `slack` more where that is less work), in their order.

    Returns
    -------
    tuple of int
        How many are left, and a record that `k` of them do not exceed.
    """
    bound = bound_of(records, count, pad(records, count), k, slack)
    less = 0
    for i in range(count):
        less += simd.get(records, i) < bound
    equal = max(k - less, 0)
    kept = 0
    for i in range(count):
        record = simd.get(records, i)
        simd.put(records, kept, record)
        if wide:
            simd.put(positions, kept, simd.get(positions, i))
        is_equal = (record == bound) & (equal > 0)
        equal -= is_equal
        kept += (record < bound) | is_equal
    return kept, bound


@helper
def rank(records: Array, wide: bool, count: int, ranks: Array, order: Array, taken: Array) -> None:
    """Set ``order[r]`` to the place of the record of rank `r`, by comparing each with each.

    `ranks`, `order` and `taken` are scratch; the first two have room for a padded list. No loop depends on
    more of `count` than how many vectors hold it: a branch that is guessed wrong costs as much as a vector.
    """
    lanes = simd.lanes_of(records)
    padded = padded_count(count)
    zero = simd.fill(simd.load(records, 0), 0)
    for i in range(0, padded, 2 * lanes):
        first, second = simd.load(records, i), simd.load(records, i + lanes)
        first_ranks = second_ranks = zero
        for j in range(count):
            record = simd.fill(first, simd.get(records, j))
            first_ranks = simd.count_less(first_ranks, record, first)
            second_ranks = simd.count_less(second_ranks, record, second)
        simd.store(ranks, i, first_ranks)
        simd.store(ranks, i + lanes, second_ranks)
    if not wide:
        for i in range(padded):
            simd.put(order, simd.get(ranks, i), i)
        return
    for i in range(count):
        simd.put(taken, i, 0)
    for i in range(count):
        r = simd.get(ranks, i)
        equals = simd.get(taken, r)
        simd.put(taken, r, equals + 1)
        simd.put(order, r + equals, i)


@helper
def radix_sort(
    records: Array,
    positions: Array,
    spare_records: Array,
    spare_positions: Array,
    counters: Array,
    wide: bool,
    count: int,
) -> bool:
    """Sort by key, keeping the order of equal keys; return whether the result is in the spare arrays."""
    low = high = simd.get(records, 0)
    for i in range(1, count):
        record = simd.get(records, i)
        low = min(low, record)
        high = max(high, record)
    key_shift = 0 if wide else 32
    lowest = (low >> key_shift) << key_shift
    key_range = np.uint64(high - lowest) >> np.uint64(key_shift)
    key_bits = 0
    while key_bits < 64 and key_range >> np.uint64(key_bits):
        key_bits += 1
    passes = (key_bits + DIGIT_BITS - 1) // DIGIT_BITS
    if passes == 0:
        return False
    digit_bits = (key_bits + passes - 1) // passes
    bins = 1 << digit_bits
    mask = bins - 1
    now, then = 0, bins
    counted = in_spare = False
    for p in range(passes):
        shift = np.uint64(key_shift + p * digit_bits)
        if not counted:
            for i in range(bins):
                simd.put(counters, now + i, 0)
            for i in range(count):
                at = now + (simd.int64(np.uint64(simd.get(records, i) - lowest) >> shift) & mask)
                simd.put(counters, at, simd.get(counters, at) + 1)
        total = 0
        counted = True
        for i in range(bins):
            size = simd.get(counters, now + i)
            counted &= size != count
            simd.put(counters, now + i, total)
            simd.put(counters, then + i, 0)
            total += size
        if not counted:  # all have the same digit
            continue
        for i in range(count):
            record = simd.get(records, i)
            rest = np.uint64(record - lowest) >> shift
            at = now + (simd.int64(rest) & mask)
            to = simd.get(counters, at)
            simd.put(counters, at, to + 1)
            simd.put(spare_records, to, record)
            if wide:
                simd.put(spare_positions, to, simd.get(positions, i))
            at = then + (simd.int64(rest >> np.uint64(digit_bits)) & mask)
            simd.put(counters, at, simd.get(counters, at) + 1)
        records, spare_records = spare_records, records
        positions, spare_positions = spare_positions, positions
        now, then = then, now
        in_spare = not in_spare
    return in_spare
