"""A block sorts (key, position) pairs in shared memory: radix sort, least significant digit first.

Each warp counts the digits of its own pairs, and the others' counts tell it where these go. The pairs come by
ascending position, and passes are stable: of equal keys the first in the row stays the first. Passes go over
the bits in which the keys differ, and take the same time whatever the keys.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.cooperate import warp_maximum
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


@functools.cache
def pair_sort(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    is_wide = element_size == 8
    key_type = u64 if is_wide else u32
    load_pair = ptx.load_shared_u64x2 if is_wide else ptx.load_shared_u32x2
    store_pair_if = ptx.store_shared_if_u64x2 if is_wide else ptx.store_shared_if_u32x2
    n_pair_bytes = pair_bytes(element_size)
    first_bit = max(0, 32 - 8 * element_size)
    n_items = SORTED_PAIRS // n_threads
    n_warps = n_threads // WARP_LANES
    # Threads that share a digit, each of which adds up the counts of some warps.
    n_sharing = n_threads // N_DIGITS
    n_shared = n_warps // n_sharing
    largest_of_warp = warp_maximum(key_type)
    needed_bits = bit_length(key_type)
    block_exclusive_sum = block_scan(n_threads)

    @linked_function
    def sort_pairs(pairs, counters, n_pairs, lowest, maxima, totals, thread):
        """Sort by descending key; all keys are at or above `lowest`.

        `pairs` and `counters` are addresses in shared memory; there is room for the same number of pairs for
        each thread.
        """
        lane = thread & 31
        warp = thread >> 5
        below = ptx.lanes_below()
        n_used = (n_pairs + u32(n_threads - 1)) // u32(n_threads)
        first = warp * n_used * u32(WARP_LANES) + lane
        n_own = max(n_pairs, first) - first
        own_pairs = pairs + first * n_pair_bytes
        own_counters = counters + warp * WARP_COUNTER_BYTES

        distances = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, key_type)
        places = cuda.local.array(n_items, u32)
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

        end = needed_bits(highest - lowest)
        shift = u32(first_bit)
        while shift < end:
            ptx.store_shared_u32x4(own_counters + lane * VECTOR_BYTES, u32(0), u32(0), u32(0), u32(0))
            cuda.syncwarp()
            for item in range(n_items):
                if u32(item) < n_used:
                    digit = u32(distances[item] >> shift) & u32(N_DIGITS - 1)
                    same = ptx.match_byte(digit)
                    counter = own_counters + digit * _COUNTER_BYTES
                    already = ptx.load_shared_u16(counter)
                    cuda.syncwarp()
                    earlier = same & below
                    if earlier == 0:
                        ptx.store_shared_u16(counter, already + ptx.popcount_u32(same))
                    cuda.syncwarp()
                    places[item] = already + ptx.popcount_u32(earlier)
            cuda.syncthreads()
            amount = u32(0)
            counter = counters + (thread & (n_sharing - 1)) * (n_shared * WARP_COUNTER_BYTES)
            counter += thread // n_sharing * _COUNTER_BYTES
            for other in range(n_shared):
                amount += ptx.load_shared_u16(counter + u32(other * WARP_COUNTER_BYTES))
            start, _ = block_exclusive_sum(amount, thread, totals)
            for other in range(n_shared):
                of_warp = ptx.load_shared_u16(counter + u32(other * WARP_COUNTER_BYTES))
                ptx.store_shared_u16(counter + u32(other * WARP_COUNTER_BYTES), start)
                start += of_warp
            cuda.syncthreads()
            is_last = shift + DIGIT_BITS >= end
            for item in range(n_items):
                if u32(item) < n_used:
                    digit = u32(distances[item] >> shift) & u32(N_DIGITS - 1)
                    place = places[item] + ptx.load_shared_u16(own_counters + digit * _COUNTER_BYTES)
                    stored = distances[item]
                    if is_last:
                        stored = highest - stored
                    store_pair_if(pairs + place * n_pair_bytes, stored, positions[item], True)
            cuda.syncthreads()
            shift += DIGIT_BITS
            if not is_last:
                for item in range(n_items):
                    if u32(item) < n_used:
                        at = own_pairs + u32(item * WARP_LANES) * n_pair_bytes
                        distances[item], positions[item] = load_pair(at)

    return sort_pairs
