"""The final order of a block's candidates, (key, low) pairs in shared memory."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.compiler import device_function, linked_function
from kernels_cuda.ptx import (
    atomic_add_shared_u32,
    count_shared_if,
    shared_address,
    shuffle_xor_u32,
    warp_max,
)
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.block_shape import BINS_A_THREAD
from kernels_cuda.top_k.quads import quad_functions
from kernels_cuda.top_k.threshold import AMOUNT, CROWDED, bit_length, bit_length_u32, threshold_functions

u32 = types.uint32
u64 = types.uint64

# Pairs of a bin beyond which comparing each with each takes longer than sorting all.
_CROWDED = 128


class RankFunctions(NamedTuple):
    """Device functions for one block size and key."""

    rank_by_counting: Any
    pair_extremes: Any
    make_bins: Any
    fill_bins: Any
    rank_in_bin: Any
    sort_pairs: Any


@functools.cache
def rank_functions(n_threads: int, key_type: Any) -> RankFunctions:
    """Make the three ways to order shared (key, low) pairs by descending key, then descending low.

    `rank_by_counting` returns the rank of pair ``thread >> lane_bits``: few pairs, no barrier.

    `fill_bins` puts the pairs' numbers in order of bins, descending ranges of (key, low) told by `make_bins`,
    and `rank_in_bin` compares a pair with its bin's others. Where many keys are equal to the lowest, and few
    are far above, bins that separate these ties hold about as many pairs each.

    `sort_pairs` sorts in place, for pairs that still crowd few bins: a bitonic network whose comparators all
    point the same way, so that any number of pairs will do.
    """
    n_warps = n_threads // 32
    all_bin_bits = (BINS_A_THREAD * n_threads).bit_length() - 1
    last_bin = BINS_A_THREAD * n_threads - 1
    needed_bits = bit_length(key_type)
    _, block_extremes, _, _ = threshold_functions(n_threads, key_type)
    exclusive_sum = block_scan(n_threads)
    per_quad, load_keys, _ = quad_functions(key_type)
    _, load_lows, _ = quad_functions(u32)

    @device_function
    def bin_of(key, low, bins):
        """Return the bin of a pair.

        Its code is its key above `lowest`, then as many bits of its low as there are bins for. With separate
        ties, the lowest key has the latter half of the bins, by its lows alone.
        """
        lowest, low_base, left, right, low_right, last, tie_base, tie_shift = bins
        code = u32(key_type(key_type(key - lowest) << key_type(left)) >> key_type(right))
        into = u32(last - u32(code | u32(u32(low - low_base) >> low_right)))
        if last != u32(last_bin) and key == lowest:
            into = u32(u32(last_bin) - u32(u32(low - tie_base) >> tie_shift))
        return into

    @linked_function
    def pair_extremes(keys, n_pairs, extremes, thread, lane, warp):
        """Return the smallest and the largest key."""
        lowest = key_type(~key_type(0))
        highest = key_type(0)
        pair = thread
        while pair < n_pairs:
            lowest = min(lowest, keys[pair])
            highest = max(highest, keys[pair])
            pair = u32(pair + u32(n_threads))
        return block_extremes(extremes, lowest, highest, lane, warp)

    @linked_function
    def make_bins(keys, lows, n_pairs, count, lowest, highest, separates_ties, sums, thread, lane, warp):
        """Return what `bin_of` needs to know; all keys are from `lowest`, which ties share, to `highest`."""
        bin_bits = u32(all_bin_bits)
        tie_base = u32(0)
        tie_shift = u32(0)
        if separates_ties:
            bin_bits = u32(all_bin_bits - 1)
            # The largest of the inverted lows, which are positions.
            furthest = u32(0)
            pair = thread
            while pair < n_pairs:
                if keys[pair] == lowest:
                    furthest = max(furthest, u32(~lows[pair]))
                pair = u32(pair + u32(n_threads))
            furthest = warp_max(furthest)
            if lane == u32(0):
                sums[warp] = furthest
            cuda.syncthreads()
            furthest = u32(0)
            if lane < u32(n_warps):
                furthest = sums[lane]
            furthest = warp_max(furthest)
            tie_base = u32(~furthest)
            tie_shift = u32(max(bit_length_u32(furthest), bin_bits) - bin_bits)
        key_bits = needed_bits(key_type(highest - lowest))
        low_bits = bit_length_u32(u32(count - 1))
        right = u32(max(key_bits, bin_bits) - bin_bits)
        left = min(u32(max(key_bits, bin_bits) - key_bits), low_bits)
        # Positions have 31 bits: so many to the right leave none.
        low_right = u32(31)
        if left != u32(0):
            low_right = u32(low_bits - left)
        last = u32((u32(1) << bin_bits) - u32(1))
        return lowest, u32(~(count - 1)), left, right, low_right, last, tie_base, tie_shift

    @linked_function
    def fill_bins(keys, lows, order, n_pairs, wanted, bins, ends, sums, counters, thread):
        """Return how many places of `order` hold the first `wanted` pairs, or 0 if a bin is crowded.

        If not 0, `order` and `ends`, of the bins, are filled in.
        """
        cuda.syncthreads()
        for bin in range(BINS_A_THREAD):
            ends[u32(u32(bin * n_threads) + thread)] = u32(0)
        counters[CROWDED] = u32(0)
        cuda.syncthreads()
        ends_at = shared_address(ends)
        pair = thread
        while pair < n_pairs:
            into = bin_of(keys[pair], lows[pair], bins)
            count_shared_if(u32(ends_at + u32(into << u32(2))), True)
            pair = u32(pair + u32(n_threads))
        cuda.syncthreads()
        amounts = cuda.local.array(BINS_A_THREAD, u32)
        own = u32(thread * u32(BINS_A_THREAD))
        amount = u32(0)
        for bin in range(BINS_A_THREAD):
            amounts[bin] = ends[u32(own + u32(bin))]
            amount = u32(amount + amounts[bin])
            if amounts[bin] > u32(_CROWDED):
                counters[CROWDED] = u32(1)
        before, _ = exclusive_sum(amount, thread, sums)
        for bin in range(BINS_A_THREAD):
            ends[u32(own + u32(bin))] = before
            through = u32(before + amounts[bin])
            if before < wanted <= through:
                counters[AMOUNT] = through
            before = through
        cuda.syncthreads()
        n_placed = counters[AMOUNT]
        if counters[CROWDED] != u32(0):
            n_placed = u32(0)
        pair = thread
        while pair < n_pairs and n_placed != u32(0):
            into = bin_of(keys[pair], lows[pair], bins)
            order[atomic_add_shared_u32(u32(ends_at + u32(into << u32(2))), u32(1))] = pair
            pair = u32(pair + u32(n_threads))
        cuda.syncthreads()
        return n_placed

    @linked_function
    def rank_by_counting(keys, lows, n_pairs, thread, lane_bits):
        other_keys = cuda.local.array(per_quad, key_type)
        other_lows = cuda.local.array(4, u32)
        pair = u32(thread >> lane_bits)
        lanes = u32(u32(1) << lane_bits)
        rank = u32(0)
        if pair < n_pairs:
            key = keys[pair]
            low = lows[pair]
            other = u32(u32(thread & u32(lanes - u32(1))) << u32(2))
            while other < n_pairs:
                load_lows(other_lows, lows, u32(other >> u32(2)))
                for part in range(4 // per_quad):
                    load_keys(other_keys, keys, u32(u32(other // u32(per_quad)) + u32(part)))
                    for at in range(per_quad):
                        place = part * per_quad + at
                        is_before = other_keys[at] > key
                        is_before |= other_keys[at] == key and other_lows[place] > low
                        if is_before and u32(other + u32(place)) < n_pairs:
                            rank = u32(rank + u32(1))
                other = u32(other + u32(lanes << u32(2)))
        distance = u32(1)
        while distance < lanes:
            rank = u32(rank + shuffle_xor_u32(rank, distance))
            distance = u32(distance << u32(1))
        return rank

    @linked_function
    def rank_in_bin(keys, lows, order, pair, ends, bins):
        key = keys[pair]
        low = lows[pair]
        into = bin_of(key, low, bins)
        place = u32(0)
        if into > u32(0):
            place = ends[u32(into - u32(1))]
        rank = place
        end = ends[into]
        while place < end:
            other = u32(order[place])
            other_key = keys[other]
            if other_key > key or (other_key == key and lows[other] > low):
                rank = u32(rank + u32(1))
            place = u32(place + u32(1))
        return rank

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

    @linked_function
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

    return RankFunctions(rank_by_counting, pair_extremes, make_bins, fill_bins, rank_in_bin, sort_pairs)
