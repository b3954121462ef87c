"""The final order of a block's candidates, (key, low) pairs in shared memory."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    LOAD,
    atomic_add_shared_u32,
    count_shared_if,
    shared_address,
    shuffle_xor_u32,
    warp_max,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.cooperate import shared_vectors
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.rows import store_index
from kernels_cuda.top_k.shapes import BINS_PER_THREAD
from kernels_cuda.top_k.threshold import AMOUNT, CROWDED, bit_length, bit_length_u32, threshold_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

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
    all_bin_bits = (BINS_PER_THREAD * n_threads).bit_length() - 1
    last_bin = BINS_PER_THREAD * n_threads - 1
    needed_bits = bit_length(key_type)
    _, block_extremes, _, _ = threshold_functions(n_threads, key_type)
    exclusive_sum = block_scan(n_threads)
    keys_per_vector, load_keys, _ = shared_vectors(key_type)
    _, load_lows, _ = shared_vectors(u32)

    @device_function
    def bin_of(key, low, bins):
        """Return the bin of a pair.

        Its code is its key above `lowest`, then as many bits of its low as there are bins for. With separate
        ties, the lowest key has the latter half of the bins, by its lows alone.
        """
        lowest, low_base, left, right, low_right, last, tie_base, tie_shift = bins
        code = u32(((key - lowest) << key_type(left)) >> key_type(right))
        into = last - (code | ((low - low_base) >> low_right))
        if last != last_bin and key == lowest:
            into = last_bin - ((low - tie_base) >> tie_shift)
        return into

    @linked_function
    def pair_extremes(keys, n_pairs, extremes, thread, lane, warp):
        """Return the smallest and the largest key."""
        lowest = ~key_type(0)
        highest = key_type(0)
        pair = thread
        while pair < n_pairs:
            lowest = min(lowest, keys[pair])
            highest = max(highest, keys[pair])
            pair += n_threads
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
                    furthest = max(furthest, ~lows[pair])
                pair += n_threads
            furthest = warp_max(furthest)
            if lane == 0:
                sums[warp] = furthest
            cuda.syncthreads()
            furthest = u32(0)
            if lane < n_warps:
                furthest = sums[lane]
            furthest = warp_max(furthest)
            tie_base = ~furthest
            tie_shift = max(bit_length_u32(furthest), bin_bits) - bin_bits
        key_bits = needed_bits(highest - lowest)
        low_bits = bit_length_u32(u32(count - 1))
        right = max(key_bits, bin_bits) - bin_bits
        left = min(max(key_bits, bin_bits) - key_bits, low_bits)
        # Positions have 31 bits: so many to the right leave none.
        low_right = u32(31)
        if left != 0:
            low_right = low_bits - left
        last = (1 << bin_bits) - 1
        return lowest, u32(~(count - 1)), left, right, low_right, last, tie_base, tie_shift

    @linked_function
    def fill_bins(keys, lows, order, n_pairs, n_selected, bins, ends, sums, counters, thread):
        """Return how many places of `order` hold the first `n_selected` pairs, or 0 if a bin is crowded.

        If not 0, `order` and `ends`, of the bins, are filled in.
        """
        cuda.syncthreads()
        for bin in range(BINS_PER_THREAD):
            ends[u32(bin * n_threads) + thread] = u32(0)
        counters[CROWDED] = u32(0)
        cuda.syncthreads()
        ends_at = shared_address(ends)
        pair = thread
        while pair < n_pairs:
            into = bin_of(keys[pair], lows[pair], bins)
            count_shared_if(ends_at + (into << 2), True)
            pair += n_threads
        cuda.syncthreads()
        amounts = cuda.local.array(BINS_PER_THREAD, u32)
        own = thread * BINS_PER_THREAD
        amount = u32(0)
        for bin in range(BINS_PER_THREAD):
            amounts[bin] = ends[own + u32(bin)]
            amount += amounts[bin]
            if amounts[bin] > _CROWDED:
                counters[CROWDED] = u32(1)
        before, _ = exclusive_sum(amount, thread, sums)
        for bin in range(BINS_PER_THREAD):
            ends[own + u32(bin)] = before
            through = before + amounts[bin]
            if before < n_selected <= through:
                counters[AMOUNT] = through
            before = through
        cuda.syncthreads()
        n_placed = counters[AMOUNT]
        if counters[CROWDED] != 0:
            n_placed = u32(0)
        pair = thread
        while pair < n_pairs and n_placed != 0:
            into = bin_of(keys[pair], lows[pair], bins)
            order[atomic_add_shared_u32(ends_at + (into << 2), u32(1))] = pair
            pair += n_threads
        cuda.syncthreads()
        return n_placed

    @linked_function
    def rank_by_counting(keys, lows, n_pairs, thread, lane_bits):
        other_keys = cuda.local.array(keys_per_vector, key_type)
        other_lows = cuda.local.array(4, u32)
        pair = thread >> lane_bits
        lanes = 1 << lane_bits
        rank = u32(0)
        if pair < n_pairs:
            key = keys[pair]
            low = lows[pair]
            other = (thread & (lanes - 1)) << 2
            while other < n_pairs:
                load_lows(other_lows, lows, other >> 2)
                for part in range(4 // keys_per_vector):
                    load_keys(other_keys, keys, other // keys_per_vector + u32(part))
                    for at in range(keys_per_vector):
                        place = part * keys_per_vector + at
                        is_before = other_keys[at] > key
                        is_before |= other_keys[at] == key and other_lows[place] > low
                        if is_before and other + u32(place) < n_pairs:
                            rank += 1
                other += lanes << 2
        distance = u32(1)
        while distance < lanes:
            rank += shuffle_xor_u32(rank, distance)
            distance <<= 1
        return rank

    @linked_function
    def rank_in_bin(keys, lows, order, pair, ends, bins):
        key = keys[pair]
        low = lows[pair]
        into = bin_of(key, low, bins)
        place = u32(0)
        if into > 0:
            place = ends[into - 1]
        rank = place
        end = ends[into]
        while place < end:
            other = u32(order[place])
            other_key = keys[other]
            if other_key > key or (other_key == key and lows[other] > low):
                rank += 1
            place += 1
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
            while distance > 0:
                comparator = thread
                while comparator << 1 < n_pairs + size:
                    within = comparator & (distance - 1)
                    first = ((comparator - within) << 1) + within
                    second = first + distance
                    if distance == size:
                        second = ((comparator - within) << 1) + (size << 1)
                        second = second - 1 - within
                    if second < n_pairs:
                        order_pair(keys, lows, first, second)
                    comparator += n_threads
                # A warp's 32 comparators touch 64 places that are its own while the distance is below 64.
                distance >>= 1
                if distance >= 32:
                    cuda.syncthreads()
                else:
                    cuda.syncwarp()
            size <<= 1
            if size >= 64 or size >= n_pairs:
                cuda.syncthreads()
            else:
                cuda.syncwarp()

    return RankFunctions(rank_by_counting, pair_extremes, make_bins, fill_bins, rank_in_bin, sort_pairs)


@functools.cache
def write_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    restore = functions.restore
    store_element = functions.store_element
    rank_by_counting, pair_extremes, make_bins, fill_bins, rank_in_bin, sort_pairs = rank_functions(
        n_threads, key_type
    )
    load_source_u32 = LOAD[4]
    load_source_u64 = LOAD[8]

    @linked_function
    def index_of(position, first, sources, source_size):
        """Return the index of an element of a part that begins at `first`; `sources` hold indices."""
        index = first + position
        if sources != 0:
            if source_size == 4:
                index = i64(load_source_u32(sources + index * 4))
            else:
                index = i64(load_source_u64(sources + index * 8))
        return index

    @linked_function
    def write_first(
        memory,
        row,
        output,
        origin,
        n_pairs,
        n_selected,
        threshold,
        highest,
        is_threshold_close,
        key_format,
        ids,
    ):
        """Write the first `n_selected` of the candidates, in order.

        `memory` are the shared arrays, `row` is ``(address, stride, count)``, `output` is ``(values, indices,
        value_stride, index_stride, index_size)``, `origin` what `index_of` needs, and `ids` are ``(thread,
        lane, warp)``. All keys lie from `threshold` to `highest`; if these are not close, they are found.
        """
        keys, lows, order, bin_ends, sums, extremes, counters = memory
        address, stride, count = row
        values, indices, value_stride, index_stride, index_size = output
        thread, lane, warp = ids
        counts_ranks = n_pairs <= u32(n_threads // 4)
        is_binned = False
        # So many places hold the first ones.
        n_placed = n_pairs
        rank = n_pairs
        place = thread
        bins = (key_type(0), u32(0), u32(0), u32(0), u32(0), u32(0), u32(0), u32(0))
        if counts_ranks:
            pair_lanes = u32(2)
            while pair_lanes < 5 and n_pairs << (pair_lanes + 1) <= n_threads:
                pair_lanes += 1
            rank = rank_by_counting(keys, lows, n_pairs, thread, pair_lanes)
            place = thread >> pair_lanes
            if thread & ((1 << pair_lanes) - 1) != 0:
                place = n_pairs
        else:
            attempt = 0
            while attempt < 2 and not is_binned:
                if attempt == 1 or not is_threshold_close:
                    threshold, highest = pair_extremes(keys, n_pairs, extremes, thread, lane, warp)
                bins = make_bins(
                    keys, lows, n_pairs, count, threshold, highest, attempt == 1, sums, thread, lane, warp
                )
                n_placed = fill_bins(
                    keys, lows, order, n_pairs, n_selected, bins, bin_ends, sums, counters, thread
                )
                is_binned = n_placed > 0
                attempt += 1
            if not is_binned:
                sort_pairs(keys, lows, n_pairs, thread)
                n_placed = n_selected
        while place < n_placed:
            pair = place
            if is_binned:
                pair = u32(order[place])
                rank = rank_in_bin(keys, lows, order, pair, bin_ends, bins)
            elif not counts_ranks:
                rank = place
            if rank < n_selected:
                position = i64(~lows[pair])
                bits = restore(keys[pair], key_format, address + position * stride * element_size)
                store_element(values + i64(rank) * value_stride * element_size, bits)
                index = index_of(position, *origin)
                store_index(indices + i64(rank) * index_stride * index_size, index_size, index)
            place += n_threads

    return write_first
