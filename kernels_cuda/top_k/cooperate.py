"""What the lanes of a warp and the warps of a block do together: ranks, sums, histograms, the final sort."""

import functools
from typing import Any

from numba import cuda, types

from kernels_cuda.compiler import device_function
from kernels_cuda.ptx import (
    ballot,
    leading_zeros_u32,
    popcount_u32,
    shuffle_from_u32,
    shuffle_xor_u32,
    warp_add,
    warp_inclusive_sum,
    warp_max,
)

u32 = types.uint32
u64 = types.uint64
i64 = types.int64


@device_function
def reserve(counters, slot, amount, lane):
    """Take `amount` places from a shared counter; return the first. One atomic operation a warp."""
    total = warp_inclusive_sum(amount)
    base = u32(0)
    if lane == u32(31):
        base = u32(cuda.atomic.add(counters, slot, total))
    base = shuffle_from_u32(base, u32(31))
    return u32(base + total - u32(amount))


@device_function
def count_digit(histogram, takes_part, digit, lane):
    """Count one digit a lane; a digit that most lanes share costs one atomic operation, not 32."""
    taking_part = ballot(takes_part)
    if taking_part != u32(0):
        leader = u32(u32(31) - leading_zeros_u32(taking_part))
        common = shuffle_from_u32(digit, leader)
        same = ballot(takes_part and digit == common)
        if lane == leader:
            cuda.atomic.add(histogram, common, popcount_u32(same))
        elif takes_part and digit != common:
            cuda.atomic.add(histogram, digit, u32(1))


@device_function
def warp_maximum_u64(value):
    """Return the largest of the warp's values."""
    high = u32(value >> u64(32))
    best_high = warp_max(high)
    low = u32(0)
    if high == best_high:
        low = u32(value)
    return u64((u64(best_high) << u64(32)) | u64(warp_max(low)))


def warp_maximum(key_type: Any) -> Any:
    """Return the device function for the largest key of a warp."""
    return warp_maximum_u64 if key_type is u64 else warp_max


@functools.cache
def block_functions(n_threads: int) -> tuple[Any, Any]:
    """Make `block_sum` and `block_inclusive_sum` for blocks of `n_threads`.

    Both use 64 shared uint32. `half` (0 or 32) alternates from call to call, so that one barrier a call
    suffices.
    """
    n_warps = n_threads // 32

    @device_function
    def block_sum(sums, half, amount, lane, warp):
        total = warp_add(u32(amount))
        if lane == u32(0):
            sums[u32(half + warp)] = total
        cuda.syncthreads()
        part = u32(0)
        if lane < u32(n_warps):
            part = sums[u32(half + lane)]
        return warp_add(part)

    @device_function
    def block_inclusive_sum(sums, half, amount, lane, warp):
        total = warp_inclusive_sum(amount)
        if lane == u32(31):
            sums[u32(half + warp)] = total
        cuda.syncthreads()
        part = u32(0)
        if lane < warp:
            part = sums[u32(half + lane)]
        return u32(total + warp_add(part))

    return block_sum, block_inclusive_sum


@functools.cache
def rank_functions(n_threads: int, key_type: Any) -> tuple[Any, Any]:
    """Make the two ways to order shared (key, low) pairs by descending key, then descending low.

    `rank_by_counting` returns the rank of pair ``thread // 4``: few pairs, no barrier. `sort_pairs` sorts
    in place: a bitonic network whose comparators all point the same way, so that any number of pairs will
    do.
    """

    @device_function
    def rank_by_counting(keys, lows, n_pairs, thread):
        pair = u32(thread >> u32(2))
        rank = u32(0)
        if pair < n_pairs:
            key = keys[pair]
            low = lows[pair]
            other = u32(thread & u32(3))
            while other < n_pairs:
                other_key = keys[other]
                if other_key > key or (other_key == key and lows[other] > low):
                    rank = u32(rank + u32(1))
                other = u32(other + u32(4))
        rank = u32(rank + shuffle_xor_u32(rank, u32(1)))
        return u32(rank + shuffle_xor_u32(rank, u32(2)))

    @device_function
    def order_pair(keys, lows, first, second):
        first_key = keys[first]
        second_key = keys[second]
        first_low = lows[first]
        second_low = lows[second]
        if second_key > first_key or (second_key == first_key and second_low > first_low):
            keys[first] = second_key
            keys[second] = first_key
            lows[first] = second_low
            lows[second] = first_low

    @device_function
    def sort_pairs(keys, lows, n_pairs, thread):
        size = u32(1)
        while size < n_pairs:
            # Two sorted runs of `size` make one: compare mirrored places, then ever closer ones.
            distance = size
            while distance > u32(0):
                comparator = u32(thread)
                while u32(comparator << u32(1)) < u32(n_pairs + size):
                    within = u32(comparator & u32(distance - u32(1)))
                    first = u32(u32(u32(comparator - within) << u32(1)) + within)
                    second = u32(first + distance)
                    if distance == size:
                        second = u32(u32(u32(comparator - within) << u32(1)) + u32(size << u32(1)))
                        second = u32(second - u32(1) - within)
                    if second < n_pairs:
                        order_pair(keys, lows, first, second)
                    comparator = u32(comparator + u32(n_threads))
                # A warp's 32 comparators touch 64 places that are its own while the distance is below 64.
                distance = u32(distance >> u32(1))
                if distance >= u32(32):
                    cuda.syncthreads()
                else:
                    cuda.syncwarp()
            size = u32(size << u32(1))
            if size >= u32(64) or size >= n_pairs:
                cuda.syncthreads()
            else:
                cuda.syncwarp()

    return rank_by_counting, sort_pairs
