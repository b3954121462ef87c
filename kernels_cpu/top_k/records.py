"""Lists of candidates: bounded, ranked and sorted by key, then by position.

A record is a signed 64-bit integer; the greatest come first. A *packed* record has the key above the 32 bits
of the complement of the position: no two are equal. If keys have 64 bits, or positions more than 32, a record
is the key alone, and `positions` holds the rest. In both cases, a list is in the order of positions, and that
order breaks ties.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import simd
from kernels_cpu.intrinsics.pointers import stack_integers
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.top_k.table import BINS, DIGIT_BITS, GAP, GAPS_FROM, PADDED_TO
from kernels_cpu.top_k.thresholds import threshold_of

Array = NDArray[Any]

PADDING = np.iinfo(np.int64).min
"""Fills a list up to whole vectors; no threshold that is searched for reaches it."""
LOW_HALF = 0xFFFFFFFF
COUNTERS = 3 * BINS  # of the last pass, of this one and of the next


@inline
def at_most(index: int, last: int) -> int:
    """Return an index of the workspace, which another thread may write to, or the last index."""
    return int64(min(np.uint64(index), np.uint64(last)))  # type: ignore[no-any-return]


@inline
def put_record(records: Array, positions: Array, to: int, key: int, position: int, wide: bool) -> None:
    """Make the record `to` of a key and its position."""
    if wide:
        records[to] = key
        positions[to] = position
    else:
        records[to] = (key << 32) | (position ^ LOW_HALF)


@inline
def position_of(records: Array, positions: Array, r: int, wide: bool) -> int:
    """Return the position of a record."""
    if wide:
        return int64(positions[r])  # type: ignore[no-any-return]
    return ~records[r] & LOW_HALF  # type: ignore[no-any-return]


@inline
def padded_count(count: int) -> int:
    """Return how long a list of `count` records is with its padding."""
    return (count + PADDED_TO - 1) & -PADDED_TO


@inline
def pad(records: Array, count: int) -> int:
    """Fill the list up to whole vectors, and some more, and return how long it then is."""
    padding = simd.fill(simd.load(records, 0), PADDING)
    for i in range(0, PADDED_TO, simd.lanes_of(records)):
        simd.store(records, count + i, padding)
    return padded_count(count)


@njit
def shrink(records: Array, positions: Array, wide: bool, count: int, k: int, slack: int) -> tuple[int, int]:
    """Keep the best `k` records (up to `slack` more where that is less work), in their order.

    Returns
    -------
    tuple of int
        How many are left, and a record that `k` of them reach.
    """
    threshold = threshold_of(records, count, pad(records, count), k, slack)
    greater = 0
    for i in range(count):
        greater += records[i] > threshold
    equal = max(k - greater, 0)
    kept = 0
    for i in range(count):
        record = records[i]
        records[kept] = record
        if wide:
            positions[kept] = positions[i]
        is_equal = (record == threshold) & (equal > 0)
        equal -= is_equal
        kept += (record > threshold) | is_equal
    return min(kept, k + slack), threshold  # more are left only where another thread changes the list


@njit
def rank(records: Array, wide: bool, count: int, ranks: Array, order: Array, taken: Array) -> None:
    """Set `ranks` to the rank of each record, and ``order[r]`` to the record of rank `r`.

    Each is compared with each. `taken` is scratch; the other two have room for a padded list. Loops run to
    whole vectors where they can: a mispredicted branch costs as much as a vector.
    """
    lanes = simd.lanes_of(records)
    padded = padded_count(count)
    zero = simd.fill(simd.load(records, 0), 0)
    for i in range(0, padded, 2 * lanes):
        first, second = simd.load(records, i), simd.load(records, i + lanes)
        first_ranks = second_ranks = zero
        for j in range(count):
            record = simd.fill(first, records[j])
            first_ranks = simd.count_less(first_ranks, first, record)
            second_ranks = simd.count_less(second_ranks, second, record)
        simd.store(ranks, i, first_ranks)
        simd.store(ranks, i + lanes, second_ranks)
    if not wide:
        for i in range(padded):
            order[at_most(ranks[i], count)] = i
        return
    for i in range(count):
        taken[i] = 0
    for i in range(count):
        r = at_most(ranks[i], count)
        equals = taken[r]
        taken[r] = equals + 1
        r = at_most(r + equals, count)
        ranks[i] = r
        order[r] = i


@njit
def keep_order(ranks: Array, order: Array, count: int, k: int) -> None:
    """Set `order` to the records of the best `k` ranks, as they follow each other in the list."""
    kept = 0
    for i in range(count):
        order[kept] = i
        kept += ranks[i] < k


@njit
def radix_sort(
    records: Array,
    positions: Array,
    spare_records: Array,
    spare_positions: Array,
    wide: bool,
    count: int,
    last: int,
) -> bool:
    """Sort by key, keeping the order of equal keys; return whether the result is in the spare arrays.

    Bins of equal sizes, as ascending keys have, would compete for the same lines of the caches where they
    begin a power of two apart: in long lists a gap of a line keeps them off each other. `last` is the last
    record that the lists have room for: where another thread changes them, bins are longer than was counted.
    """
    counters = stack_integers(COUNTERS)
    low = high = records[0]
    for i in range(1, count):
        record = records[i]
        low = min(low, record)
        high = max(high, record)
    key_shift = 0 if wide else 32
    highest = high | ((1 << key_shift) - 1)
    key_range = np.uint64(highest - low) >> np.uint64(key_shift)
    key_bits = 0
    while key_bits < 64 and key_range >> np.uint64(key_bits):
        key_bits += 1
    passes = (key_bits + DIGIT_BITS - 1) // DIGIT_BITS
    if passes == 0:
        return False
    digit_bits = (key_bits + passes - 1) // passes
    bins = 1 << digit_bits
    mask = bins - 1
    # The records lie in one range or, with gaps, in the ranges of the last pass, whose ends are in `before`.
    before, now, then = 0, BINS, 2 * BINS
    n_ranges, gap = 1, 0
    counters[before] = count
    counted = in_spare = False
    for p in range(passes):
        shift = np.uint64(key_shift + p * digit_bits)
        if not counted:
            for i in range(bins):
                counters[now + i] = 0
            begin = 0
            for j in range(n_ranges):
                for i in range(begin, min(counters[before + j], last)):
                    at = now + (int64(np.uint64(highest - records[i]) >> shift) & mask)
                    counters[at] = counters[at] + 1
                begin = min(counters[before + j], last) + gap
        # The greatest record differs from the least in the last digit: the last pass leaves no gaps.
        next_gap = GAP if count >= GAPS_FROM and p < passes - 1 else 0
        total = 0
        counted = True
        for i in range(bins):
            size = counters[now + i]
            counted &= size != count
            counters[now + i] = total
            counters[then + i] = 0
            total += size + next_gap
        if not counted:  # all have the same digit
            continue
        begin = 0
        for j in range(n_ranges):
            for i in range(begin, min(counters[before + j], last)):
                record = records[i]
                rest = np.uint64(highest - record) >> shift
                at = now + (int64(rest) & mask)
                to = counters[at]
                counters[at] = to + 1
                to = min(to, last)
                spare_records[to] = record
                if wide:
                    spare_positions[to] = positions[i]
                at = then + (int64(rest >> np.uint64(digit_bits)) & mask)
                counters[at] = counters[at] + 1
            begin = min(counters[before + j], last) + gap
        records, spare_records = spare_records, records
        positions, spare_positions = spare_positions, positions
        before, now, then = now, then, before
        n_ranges, gap = bins, next_gap
        in_spare = not in_spare
    return in_spare
