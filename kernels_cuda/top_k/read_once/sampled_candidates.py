"""A row's candidates in shared memory, by ascending position: those that `sampled` has listed.

Where the sample has misled, they are what a threshold of the row itself leaves.
"""

from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    STORE_SHARED,
    ballot,
    count_shared_if,
    lanes_below,
    load_shared_u32,
    load_u32,
    load_u64,
    popcount_u32,
    shared_address,
    store_shared_u32,
)
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.read_once.sampled_launches import SAMPLED_THREADS, SEGMENT_BYTES, segment_elements
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import group_key_bytes
from kernels_cuda.top_k.shared.threshold import bit_length, threshold_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Elements that each lane loads at a time.
_N_ITEMS = 8
_N_WARPS = SAMPLED_THREADS // 32
# What is known of a segment that is read again: how many elements are above the threshold, and above this
# shift, how many equal it.
_EQUAL_SHIFT = 16
_ABOVE_MASK = (1 << _EQUAL_SHIFT) - 1


class CandidateFunctions(NamedTuple):
    """Device functions for one element width."""

    take_listed: Any
    read_row: Any


def candidate_functions(element_size: int) -> CandidateFunctions:
    """Make the device functions.

    `memory` are shared arrays: ``(keys, lows, places, counts)``, the latter two of segments.
    """
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    find_digit = threshold_functions(SAMPLED_THREADS, key_type).find_digit
    exclusive_sum = block_scan(SAMPLED_THREADS)
    needed_bits = bit_length(key_type)
    key_bytes = group_key_bytes(element_size)
    store_shared_key = STORE_SHARED[key_bytes]
    digit_bits = SAMPLED_THREADS.bit_length() - 1
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @linked_function
    def take_listed(memory, lists, segments, n_segments, n_listed, prefix, totals, key_format, thread):
        """Bring what is listed into shared memory; return the thread's largest key.

        `lists` are the addresses of a row's elements and lows, and `prefix` tells how many elements of the
        first segment come before the row.
        """
        keys, lows, places, _ = memory
        n_placed = u32(0)
        first = u32(0)
        while first < n_segments:
            segment = first + thread
            known = u64(0)
            if segment < n_segments:
                known = load_u64(segments + i64(segment) * SEGMENT_BYTES)
            before, of_all = exclusive_sum(u32(known >> 32), thread, totals)
            if segment < n_segments:
                # From a place in the list to that in shared memory.
                places[segment] = n_placed + before - u32(known)
            n_placed += of_all
            first += SAMPLED_THREADS
            cuda.syncthreads()

        first_element = lists[0] + i64(thread) * key_bytes
        first_low = lists[1] + i64(thread) * 4
        listed = cuda.local.array(_N_ITEMS, key_type)
        listed_low = cuda.local.array(_N_ITEMS, u32)
        keys_at, lows_at, places_at = shared_address(keys), shared_address(lows), shared_address(places)
        highest = key_type(0)
        slot = thread
        while slot < n_listed:
            for item in range(_N_ITEMS):
                if slot + u32(item * SAMPLED_THREADS) < n_listed:
                    listed[item] = load_element(first_element + item * SAMPLED_THREADS * key_bytes)
                    listed_low[item] = load_u32(first_low + item * SAMPLED_THREADS * 4)
            for item in range(_N_ITEMS):
                if slot < n_listed:
                    segment = (u32(prefix) + ~listed_low[item]) // n_elements
                    place = slot + load_shared_u32(places_at + (segment << 2))
                    key = ordered_key(listed[item], key_format)
                    store_shared_key(keys_at + place * key_bytes, key)
                    store_shared_u32(lows_at + (place << 2), listed_low[item])
                    highest = max(highest, key)
                slot += SAMPLED_THREADS
            first_element += _N_ITEMS * SAMPLED_THREADS * key_bytes
            first_low += _N_ITEMS * SAMPLED_THREADS * 4
        return highest

    @linked_function
    def row_threshold(row, n_selected, most, histogram, sums, counters, key_format, ids):
        """Return a key that enough elements are at or above, and how many of its equals are needed.

        At most `most` elements are at or above it, or it is the key of element number `n_selected`.
        """
        base, step, count = row
        thread, lane, warp = ids
        elements = cuda.local.array(_N_ITEMS, key_type)
        bins = shared_address(histogram)
        low = key_type(0)
        high = key_type(ones)
        above = u32(0)
        amount = u32(0)
        searching = True
        while searching:
            width = high - low
            shift = max(needed_bits(width), u32(digit_bits)) - digit_bits
            position = i64(thread)
            while position < count:
                for item in range(_N_ITEMS):
                    at = position + item * SAMPLED_THREADS
                    elements[item] = key_type(0)
                    if at < count:
                        elements[item] = load_element(base + at * step)
                for item in range(_N_ITEMS):
                    above_low = ordered_key(elements[item], key_format) - low
                    exists = position + item * SAMPLED_THREADS < count
                    digit = u32(above_low >> key_type(shift))
                    count_shared_if(bins + (digit << 2), above_low <= width and exists)
                position += _N_ITEMS * SAMPLED_THREADS
            digit, larger, amount = find_digit(
                histogram, sums, counters, n_selected - above, thread, lane, warp
            )
            low += key_type(digit) << key_type(shift)
            # The end of the last bin may lie beyond what a key can be.
            width = min(high - low, (1 << key_type(shift)) - 1)
            high = low + width
            above += larger
            searching = shift > 0 and above + amount > most
        n_equals = n_selected - above
        if above + amount <= most:
            n_equals = amount
        return low, n_equals

    @linked_function
    def read_segment(
        keys, lows, n_slots, row, first, threshold, place, n_equals, is_counting, key_format, lane
    ):
        """Bring a segment's elements above the threshold, and the first that equal it, into shared memory.

        The segment begins at position `first`, perhaps before the row does. Returns how many elements are
        above the threshold, and how many equal it.
        """
        base, step, count = row
        elements = cuda.local.array(_N_ITEMS, key_type)
        n_above = u32(0)
        n_equal = u32(0)
        position = first + i64(lane)
        end = min(first + n_elements, count)
        while first < end:
            for item in range(_N_ITEMS):
                at = position + item * 32
                elements[item] = key_type(0)
                if 0 <= at < end:
                    elements[item] = load_element(base + at * step)
            for item in range(_N_ITEMS):
                at = position + item * 32
                key = ordered_key(elements[item], key_format)
                exists = 0 <= at < end
                above = ballot(exists and key > threshold)
                equal = ballot(exists and key == threshold)
                equals_before = n_equal + popcount_u32(equal & lanes_below())
                slot = place + n_above + popcount_u32(above & lanes_below()) + min(equals_before, n_equals)
                is_listed = key > threshold or (key == threshold and equals_before < n_equals)
                if exists and is_listed and not is_counting and slot < n_slots:
                    keys[slot] = key
                    lows[slot] = ~u32(at)
                n_above += popcount_u32(above)
                n_equal += popcount_u32(equal)
            position += _N_ITEMS * 32
            first += _N_ITEMS * 32
        return n_above, n_equal

    @linked_function
    def read_row(
        memory, row, prefix, n_selected, n_slots, n_segments, histogram, sums, counters, key_format, ids
    ):
        """Bring the row's candidates into shared memory; return their threshold, and how many there are."""
        keys, lows, places, counts = memory
        thread, lane, warp = ids
        # The histogram has been cleared.
        cuda.syncthreads()
        threshold, n_equals = row_threshold(
            row, n_selected, n_slots, histogram, sums, counters, key_format, ids
        )
        segment = warp
        while segment < n_segments:
            first = i64(segment) * n_elements - prefix
            n_above, n_equal = read_segment(
                keys, lows, n_slots, row, first, threshold, u32(0), u32(0), True, key_format, lane
            )
            if lane == 0:
                counts[segment] = n_above | (n_equal << _EQUAL_SHIFT)
            segment += _N_WARPS
        cuda.syncthreads()

        # Of the equals, the first segments give theirs.
        n_placed = u32(0)
        equals_before = u32(0)
        first_segment = u32(0)
        while first_segment < n_segments:
            segment = first_segment + thread
            known = u32(0)
            if segment < n_segments:
                known = counts[segment]
            n_equal = known >> _EQUAL_SHIFT
            before, of_all = exclusive_sum(n_equal, thread, sums)
            cuda.syncthreads()
            given = min(n_equals - min(n_equals, equals_before + before), n_equal)
            equals_before += of_all
            before, of_all = exclusive_sum((known & _ABOVE_MASK) + given, thread, sums)
            cuda.syncthreads()
            if segment < n_segments:
                counts[segment] = given
                places[segment] = n_placed + before
            n_placed += of_all
            first_segment += SAMPLED_THREADS
        cuda.syncthreads()

        segment = warp
        while segment < n_segments:
            first = i64(segment) * n_elements - prefix
            read_segment(
                keys,
                lows,
                n_slots,
                row,
                first,
                threshold,
                places[segment],
                counts[segment],
                False,
                key_format,
                lane,
            )
            segment += _N_WARPS
        # Elements that have changed since they were counted may be more, fewer or smaller.
        cuda.syncthreads()
        n_placed = min(n_placed, n_slots)
        pair = thread
        while pair < n_placed:
            keys[pair] = max(keys[pair], threshold)
            pair += SAMPLED_THREADS
        return threshold, n_placed

    return CandidateFunctions(take_listed, read_row)
