"""A block sorts (key, position) pairs in shared memory. Of equal keys, the first in the row stays the first.

Few pairs are compared with each other: as many come before one as its place says. More are sorted by digits,
least significant digit first: each warp counts the digits of its own pairs, and the others' counts tell it
where these go. Passes go over the bits in which the keys differ, and take the same time whatever the keys.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import add_over_lanes, lanes_per_pair, warp_maximum
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.shapes import (
    DIGIT_BITS,
    N_DIGITS,
    SORTED_PAIRS,
    VECTOR_BYTES,
    WARP_COUNTER_BYTES,
    WARP_LANES,
    pair_bytes,
)
from kernels_cuda.top_k.shared.threshold import bit_length

# Counters have 16 bits.
_COUNTER_BYTES = 2
# Eight counters and as much again, which no others of a multiple of this share banks with.
_BANKS_BYTES = 32
# As many comparisons by a thread take about as long as a pass over a byte of the keys.
_COMPARISONS_PER_BYTE = 32


@functools.cache
def digit_sort(element_size: int, n_threads: int, most: int, has_short_positions: bool) -> Any:
    """Make the device function that sorts up to `most` pairs, which each warp has in registers.

    Short positions have 16 bits. They are kept in one register with the place that a pair goes to.
    """
    key_type = ptx.REGISTER[element_size]
    n_pair_bytes = pair_bytes(element_size)
    load_pair, store_pair_if = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR_IF[n_pair_bytes]
    n_items = most // n_threads
    n_places = 1 if has_short_positions else n_items
    n_warps = n_threads // WARP_LANES
    # Threads share a digit, each of which adds up the counts of some warps, or have several digits.
    n_sharing = max(1, n_threads // N_DIGITS)
    n_shared = n_warps // n_sharing
    digits_each = max(1, N_DIGITS // n_threads)
    n_counts = n_shared * digits_each
    block_exclusive_sum = block_scan(n_threads)

    @device_function
    def offset_of(number):
        """Return where a thread has a count: all its warps' of its first digit, then those of the next."""
        return u32(number % n_shared * WARP_COUNTER_BYTES + number // n_shared * _COUNTER_BYTES)

    @device_function
    def counter_of(digit, sharer):
        """Return where a warp counts a digit: in other banks than those whose counts other threads add up."""
        offset = digit * u32(_COUNTER_BYTES)
        if n_sharing > 1:
            offset ^= sharer * u32(_BANKS_BYTES)
        return offset

    @linked_function
    def sort_digits(pairs, counters, distances, positions, n_used, bits, highest, totals, thread):
        """Sort by the bits of distances from a first one up to a last one.

        A warp has ``32 * n_used`` pairs beside each other; item `i` of a lane is number ``32 * i + lane``. In
        the end there are keys in `pairs`: `highest` less the distances.
        """
        lane = thread & 31
        warp = thread >> 5
        below = ptx.lanes_below()
        own_pairs = pairs + (warp * n_used * u32(WARP_LANES) + lane) * n_pair_bytes
        own_counters = counters + warp * WARP_COUNTER_BYTES
        sharer = warp // u32(n_shared)
        places = cuda.local.array(n_places, u32)
        shift, end = bits
        while shift < end:
            ptx.store_shared_u32x4(own_counters + lane * VECTOR_BYTES, u32(0), u32(0), u32(0), u32(0))
            cuda.syncwarp()
            for item in range(n_items):
                if u32(item) < n_used:
                    digit = u32(distances[item] >> shift) & u32(N_DIGITS - 1)
                    same = ptx.match_byte(digit)
                    counter = own_counters + counter_of(digit, sharer)
                    already = ptx.load_shared_u16(counter)
                    cuda.syncwarp()
                    earlier = same & below
                    if earlier == 0:
                        ptx.store_shared_u16(counter, already + ptx.popcount_u32(same))
                    cuda.syncwarp()
                    place = already + ptx.popcount_u32(earlier)
                    if has_short_positions:
                        positions[item] = positions[item] << 16 | place
                    else:
                        places[item] = place
            cuda.syncthreads()
            amount = u32(0)
            of_thread = thread & (n_sharing - 1)
            counter = counters + of_thread * (n_shared * WARP_COUNTER_BYTES)
            counter += counter_of(thread // n_sharing * digits_each, of_thread)
            for number in range(n_counts):
                amount += ptx.load_shared_u16(counter + offset_of(number))
            start, _ = block_exclusive_sum(amount, thread, totals)
            for number in range(n_counts):
                of_warp = ptx.load_shared_u16(counter + offset_of(number))
                ptx.store_shared_u16(counter + offset_of(number), start)
                start += of_warp
            cuda.syncthreads()
            is_last = shift + DIGIT_BITS >= end
            for item in range(n_items):
                if u32(item) < n_used:
                    digit = u32(distances[item] >> shift) & u32(N_DIGITS - 1)
                    position = positions[item]
                    if has_short_positions:
                        place = u32(position) & 0xFFFF
                        position >>= 16
                    else:
                        place = places[item]
                    place += ptx.load_shared_u16(own_counters + counter_of(digit, sharer))
                    stored = distances[item]
                    if is_last:
                        stored = highest - stored
                    store_pair_if(pairs + place * n_pair_bytes, stored, key_type(position), True)
            cuda.syncthreads()
            shift += DIGIT_BITS
            if not is_last:
                for item in range(n_items):
                    if u32(item) < n_used:
                        at = own_pairs + u32(item * WARP_LANES) * n_pair_bytes
                        distances[item], positions[item] = load_pair(at)

    return sort_digits


@functools.cache
def pair_sort(
    element_size: int, n_threads: int, most: int = SORTED_PAIRS, has_short_positions: bool = False
) -> Any:
    """Make the device function for one element width and block size, and up to `most` pairs."""
    key_type = ptx.REGISTER[element_size]
    position_type = u32 if has_short_positions else key_type
    n_pair_bytes = pair_bytes(element_size)
    load_pair, store_pair_if = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR_IF[n_pair_bytes]
    first_bit = max(0, 32 - 8 * element_size)
    n_items = most // n_threads
    n_warps = n_threads // WARP_LANES
    largest_of_warp = warp_maximum(key_type)
    needed_bits = bit_length(key_type)
    sort_digits = digit_sort(element_size, n_threads, most, has_short_positions)

    @linked_function
    def sort_by_counting(pairs, n_pairs, thread):
        lane_bits, written = lanes_per_pair(n_pairs, n_threads, thread)
        own = min(thread >> lane_bits, max(n_pairs, u32(1)) - 1)
        key, position = load_pair(pairs + own * n_pair_bytes)
        place = u32(0)
        other = thread - (thread >> lane_bits << lane_bits)
        while other < n_pairs:
            other_key, _ = load_pair(pairs + other * n_pair_bytes)
            place += u32(other_key > key or (other_key == key and other < own))
            other += 1 << lane_bits
        place = add_over_lanes(place, 1 << lane_bits)
        cuda.syncthreads()
        store_pair_if(pairs + place * n_pair_bytes, key, position, written < n_pairs)
        cuda.syncthreads()

    @linked_function
    def sort_by_digits(pairs, counters, n_pairs, lowest, maxima, totals, thread):
        lane = thread & 31
        warp = thread >> 5
        n_used = (n_pairs + u32(n_threads - 1)) // u32(n_threads)
        first = warp * n_used * u32(WARP_LANES) + lane
        n_own = max(n_pairs, first) - first
        own_pairs = pairs + first * n_pair_bytes

        distances = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, position_type)
        highest = key_type(0)
        for item in range(n_items):
            if u32(item) < n_used:
                distances[item], positions[item] = load_pair(
                    own_pairs + u32(item * WARP_LANES) * n_pair_bytes
                )
                if u32(item * WARP_LANES) < n_own:
                    highest = max(highest, distances[item])
        highest = largest_of_warp(highest)
        if lane == 0:
            maxima[warp] = highest
        cuda.syncthreads()
        if lane < n_warps:
            highest = maxima[lane]
        highest = largest_of_warp(highest)
        for item in range(n_items):
            if u32(item) < n_used:
                # Slots behind the pairs come last.
                distance = ~key_type(0)
                if u32(item * WARP_LANES) < n_own:
                    distance = highest - distances[item]
                distances[item] = distance

        bits = u32(first_bit), needed_bits(highest - lowest)
        sort_digits(pairs, counters, distances, positions, n_used, bits, highest, totals, thread)

    @device_function
    def sort_pairs(pairs, counters, n_pairs, lowest, maxima, totals, thread):
        """Sort by descending key; all keys are at or above `lowest`, and pairs come by ascending position.

        `pairs` and `counters` are addresses in shared memory; there is room for the same number of pairs for
        each thread.
        """
        n_compared = n_pairs * n_pairs
        if n_pairs <= n_threads and n_compared <= n_threads * element_size * _COMPARISONS_PER_BYTE:
            sort_by_counting(pairs, n_pairs, thread)
        else:
            sort_by_digits(pairs, counters, n_pairs, lowest, maxima, totals, thread)

    return sort_pairs
