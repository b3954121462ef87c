"""The final order of a block's candidates, (key, low) pairs in shared memory."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.compiler import device_function, linked_function
from kernels_cuda.ptx import shuffle_xor_u32, warp_max
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.block_shape import BINS_A_THREAD
from kernels_cuda.top_k.cooperate import count_digit
from kernels_cuda.top_k.threshold import CROWDED, bit_length, bit_length_u32, threshold_functions

u32 = types.uint32
u64 = types.uint64

# Pairs of a bin beyond which comparing each with each takes longer than sorting all.
_CROWDED = 128


class RankFunctions(NamedTuple):
    """Device functions for one block size and key."""

    rank_by_counting: Any
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

    @device_function
    def bin_of(key, low, bins):
        """Return the bin of a pair.

        Its code is its key above the lowest one, then as many bits of its low as fit. With separate ties, the
        lowest key has the latter half of the bins, by its lows alone.
        """
        lowest, low_base, used_bits, unused_bits, shift, last, tie_base, tie_shift = bins
        code = (u64(key_type(key - lowest)) << u64(used_bits)) | (
            u64(u32(low - low_base)) >> u64(unused_bits)
        )
        into = u32(last - u32(code >> u64(shift)))
        if last != u32(last_bin) and key == lowest:
            into = u32(u32(last_bin) - u32(u32(low - tie_base) >> tie_shift))
        return into

    @linked_function
    def make_bins(keys, lows, n_pairs, count, separates_ties, sums, extremes, thread, lane, warp):
        """Return what `bin_of` needs to know."""
        lowest = key_type(~key_type(0))
        highest = key_type(0)
        pair = thread
        while pair < n_pairs:
            lowest = min(lowest, keys[pair])
            highest = max(highest, keys[pair])
            pair = u32(pair + u32(n_threads))
        lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
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
        used_bits = min(low_bits, u32(u32(64) - key_bits))
        unused_bits = u32(low_bits - used_bits)
        shift = u32(max(u32(key_bits + used_bits), bin_bits) - bin_bits)
        last = u32((u32(1) << bin_bits) - u32(1))
        return lowest, u32(~(count - 1)), used_bits, unused_bits, shift, last, tie_base, tie_shift

    @linked_function
    def fill_bins(keys, lows, order, n_pairs, bins, ends, sums, counters, thread, lane, warp):
        """Return whether a bin is crowded; if not, `order` and `ends`, of the bins, are filled in."""
        cuda.syncthreads()
        for bin in range(BINS_A_THREAD):
            ends[u32(u32(bin * n_threads) + thread)] = u32(0)
        counters[CROWDED] = u32(0)
        cuda.syncthreads()
        first = u32(warp << u32(5))
        while first < n_pairs:
            pair = u32(first + lane)
            into = u32(0)
            if pair < n_pairs:
                into = bin_of(keys[pair], lows[pair], bins)
            count_digit(ends, pair < n_pairs, into, lane)
            first = u32(first + u32(n_threads))
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
            before = u32(before + amounts[bin])
        cuda.syncthreads()
        is_crowded = counters[CROWDED] != u32(0)
        if not is_crowded:
            pair = thread
            while pair < n_pairs:
                into = bin_of(keys[pair], lows[pair], bins)
                order[cuda.atomic.add(ends, into, u32(1))] = pair
                pair = u32(pair + u32(n_threads))
            cuda.syncthreads()
        return is_crowded

    @linked_function
    def rank_by_counting(keys, lows, n_pairs, thread, lane_bits):
        pair = u32(thread >> lane_bits)
        lanes = u32(u32(1) << lane_bits)
        rank = u32(0)
        if pair < n_pairs:
            key = keys[pair]
            low = lows[pair]
            other = u32(thread & u32(lanes - u32(1)))
            while other < n_pairs:
                other_key = keys[other]
                if other_key > key or (other_key == key and lows[other] > low):
                    rank = u32(rank + u32(1))
                other = u32(other + lanes)
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

    return RankFunctions(rank_by_counting, make_bins, fill_bins, rank_in_bin, sort_pairs)
