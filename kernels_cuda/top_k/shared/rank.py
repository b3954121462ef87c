"""How a block orders its candidates, (key, low) pairs in shared memory, and writes the first ones."""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import add_over_lanes, lanes_per_pair, place_in_order, shared_vectors
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import load_index
from kernels_cuda.top_k.shared.shapes import BINS_PER_THREAD
from kernels_cuda.top_k.shared.threshold import (
    AMOUNT,
    CROWDED,
    bit_length,
    bit_length_u32,
    threshold_functions,
)

# With more pairs than the first in a bin, refining the bins is faster than comparing each with each; with
# more than the second, sorting all pairs is.
_MANY = 48
_CROWDED = 128
# Bins of a part, and pairs for each bin that a part is cut into.
_PART_BITS = BINS_PER_THREAD.bit_length() - 1
_PAIR_BITS = 2
# A word for each part has its first bin, the bits of their number, and whether its keys are equal.
_BITS_SHIFT, _EQUAL_SHIFT = 16, 31


class Bins(NamedTuple):
    """Ranges of (key, low), in descending order.

    Attributes
    ----------
    lowest, low_base : key, uint32
        The smallest key and the smallest low.
    left, right, low_right, low_bits : uint32
        Of a key, `right` bits are left out; or `left` bits of its low are added, by shifts to the right. Lows
        have `low_bits` bits.
    is_refined : bool
        Whether parts of `BINS_PER_THREAD` bins have been cut into as many bins as their pairs need.
    tie_base, tie_bits : uint32
        The smallest low of pairs with the smallest key, at most, and the bits of lows above it.
    """

    lowest: Any
    low_base: Any
    left: Any
    right: Any
    low_right: Any
    low_bits: Any
    is_refined: Any
    tie_base: Any
    tie_bits: Any


class Candidates(NamedTuple):
    """Shared arrays of (key, low) pairs, whose lows are inverted positions.

    Attributes
    ----------
    keys, lows : array
        The pairs.
    order : array of uint16
        Room for the numbers of as many pairs.
    bin_ends : array of uint32
        `BINS_PER_THREAD` for each thread.
    """

    keys: Any
    lows: Any
    order: Any
    bin_ends: Any


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
    `cooperate.lanes_per_pair` tells how many lanes there are for each pair.

    `fill_bins` puts the pairs' numbers in order of bins, descending ranges of (key, low) told by `make_bins`,
    and `rank_in_bin` compares a pair with its bin's others. Where some bins have many pairs, all are refined:
    parts of the range get bins by the number of their pairs, and if the keys of a part are equal, its bins
    are ranges of lows.

    `sort_pairs` sorts in place, for pairs that still crowd few bins: a bitonic network whose comparators all
    point the same way, so that any number of pairs will do.
    """
    n_warps = n_threads // 32
    bin_bits = (BINS_PER_THREAD * n_threads).bit_length() - 1
    last_bin = BINS_PER_THREAD * n_threads - 1
    needed_bits = bit_length(key_type)
    block_extremes = threshold_functions(n_threads, key_type).block_extremes
    exclusive_sum = block_scan(n_threads)
    keys_per_vector, load_keys, _ = shared_vectors(key_type)
    _, load_lows, _ = shared_vectors(u32)

    @device_function
    def even_bin_of(key, low, bins):
        """Return the bin of a pair before bins are refined.

        Its code is its key above `lowest`, then as many bits of its low as there are bins for.
        """
        code = u32(((key - bins.lowest) << key_type(bins.left)) >> key_type(bins.right))
        return last_bin - (code | ((low - bins.low_base) >> bins.low_right))

    @linked_function
    def refined_bin_of(key, low, bins, parts):
        known = parts[even_bin_of(key, low, bins) >> _PART_BITS]
        bits = (known >> _BITS_SHIFT) & 31
        # Bits of keys and lows that differ within a part.
        key_bits = bins.right + u32(_PART_BITS) - min(bins.left, u32(_PART_BITS))
        free_bits = bins.low_bits + u32(_PART_BITS) - max(bins.left, u32(_PART_BITS))
        within = (low - bins.low_base) & ((u32(1) << free_bits) - 1)
        if known >> _EQUAL_SHIFT != 0:
            key_bits = u32(0)
            if bins.left <= _PART_BITS and key == bins.lowest:
                within = low - bins.tie_base
                free_bits = bins.tie_bits
        number = (key - bins.lowest) & ((key_type(1) << key_type(key_bits)) - 1)
        if key_bits >= bits:
            number >>= key_type(key_bits - bits)
        else:
            number <<= key_type(bits - key_bits)
            free_bits += key_bits
            number |= key_type(
                (within << (max(free_bits, bits) - free_bits)) >> (max(free_bits, bits) - bits)
            )
        return (known & ((1 << _BITS_SHIFT) - 1)) + ((u32(1) << bits) - 1 - u32(number))

    @device_function
    def bin_of(key, low, bins, parts):
        into = even_bin_of(key, low, bins)
        if bins.is_refined:
            into = refined_bin_of(key, low, bins, parts)
        return into

    @linked_function
    def pair_extremes(keys, n_pairs, scratch, ids):
        """Return the smallest and the largest key."""
        lowest = ~key_type(0)
        highest = key_type(0)
        pair, _, _ = ids
        while pair < n_pairs:
            lowest = min(lowest, keys[pair])
            highest = max(highest, keys[pair])
            pair += n_threads
        return block_extremes(scratch, lowest, highest, ids)

    @linked_function
    def make_bins(count, lowest, highest):
        """Return bins for pairs whose keys are from `lowest` to `highest`, of a row of `count` elements."""
        key_bits = needed_bits(highest - lowest)
        low_bits = bit_length_u32(u32(count - 1))
        right = max(key_bits, u32(bin_bits)) - bin_bits
        left = min(max(key_bits, u32(bin_bits)) - key_bits, low_bits)
        # Positions have 31 bits: so many to the right leave none.
        low_right = u32(31)
        if left != 0:
            low_right = low_bits - left
        return Bins(lowest, u32(~(count - 1)), left, right, low_right, low_bits, False, u32(0), u32(0))

    @linked_function
    def refine(candidates, n_pairs, amount, bins, scratch, thread):
        """Return refined bins, and how many there are; `amount` is that of the thread's part."""
        keys, lows, _, ends = candidates
        parts, sums = scratch.histogram, scratch.sums
        lane = thread & 31
        # A pair of each part, with which the others are compared.
        ends[thread] = u32(0)
        parts[thread] = u32(1) << _EQUAL_SHIFT
        cuda.syncthreads()
        firsts = ptx.shared_address(ends)
        pair = thread
        while pair < n_pairs:
            part = even_bin_of(keys[pair], lows[pair], bins) >> _PART_BITS
            ptx.reduce_max_shared_u32(firsts + (part << 2), pair)
            pair += n_threads
        cuda.syncthreads()
        # The largest of the inverted lows, which are positions.
        furthest = u32(0)
        pair = thread
        while pair < n_pairs:
            part = even_bin_of(keys[pair], lows[pair], bins) >> _PART_BITS
            if keys[pair] != keys[ends[part]]:
                parts[part] = u32(0)
            if keys[pair] == bins.lowest:
                furthest = max(furthest, ~lows[pair])
            pair += n_threads
        furthest = ptx.warp_max(furthest)
        if lane == 0:
            sums[thread >> 5] = furthest
        cuda.syncthreads()
        furthest = u32(0)
        if lane < n_warps:
            furthest = sums[lane]
        furthest = ptx.warp_max(furthest)
        bits = max(bit_length_u32(amount >> _PAIR_BITS), u32(1)) - 1
        n_own = u32(0)
        if amount != 0:
            n_own = u32(1) << bits
        cuda.syncthreads()
        before, n_bins = exclusive_sum(n_own, thread, sums)
        parts[thread] |= before | (bits << _BITS_SHIFT)
        return Bins(*bins[:6], True, ~furthest, bit_length_u32(furthest)), n_bins

    @linked_function
    def fill_bins(candidates, n_pairs, n_selected, bins, scratch, thread):
        """Return the bins, and how many places of the order hold the first `n_selected` pairs.

        If that is not 0, the order and the ends of the bins are filled in; if it is, a bin is crowded. What
        is known of parts takes the place of the histogram.
        """
        keys, lows, order, ends = candidates
        parts, sums, _, counters = scratch
        ends_at = ptx.shared_address(ends)
        amounts = cuda.local.array(BINS_PER_THREAD, u32)
        own = thread * BINS_PER_THREAD
        most = u32(_MANY)
        before = u32(0)
        is_crowded = True
        counting = True
        while counting:
            cuda.syncthreads()
            for bin in range(BINS_PER_THREAD):
                ends[u32(bin * n_threads) + thread] = u32(0)
            counters[CROWDED] = u32(0)
            cuda.syncthreads()
            pair = thread
            while pair < n_pairs:
                into = bin_of(keys[pair], lows[pair], bins, parts)
                ptx.count_shared_if(ends_at + (into << 2), True)
                pair += n_threads
            cuda.syncthreads()
            amount = u32(0)
            for bin in range(BINS_PER_THREAD):
                amounts[bin] = ends[own + u32(bin)]
                amount += amounts[bin]
                if amounts[bin] > most:
                    counters[CROWDED] = u32(1)
            before, _ = exclusive_sum(amount, thread, sums)
            is_crowded = counters[CROWDED] != 0
            counting = is_crowded and not bins.is_refined
            if counting:
                cuda.syncthreads()
                bins, n_bins = refine(candidates, n_pairs, amount, bins, scratch, thread)
                most = u32(_CROWDED)
                counting = n_bins <= last_bin + 1
        if not is_crowded:
            for bin in range(BINS_PER_THREAD):
                ends[own + u32(bin)] = before
                through = before + amounts[bin]
                if before < n_selected <= through:
                    counters[AMOUNT] = through
                before = through
        cuda.syncthreads()
        n_placed = u32(0)
        if not is_crowded:
            n_placed = counters[AMOUNT]
        pair = thread
        while pair < n_pairs and n_placed != 0:
            into = bin_of(keys[pair], lows[pair], bins, parts)
            order[ptx.atomic_add_shared_u32(ends_at + (into << 2), u32(1))] = pair
            pair += n_threads
        cuda.syncthreads()
        return bins, n_placed

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
        return add_over_lanes(rank, lanes)

    @linked_function
    def rank_in_bin(candidates, pair, bins, parts):
        keys, lows, order, ends = candidates
        key = keys[pair]
        low = lows[pair]
        into = bin_of(key, low, bins, parts)
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
def write_functions(element_size: int, n_threads: int) -> tuple[Any, Any]:
    """Make the device functions `write_by_value` and `write_by_index` for one element width and block size.

    Both write the first `n_selected` candidates, whose keys lie in `extent`. `row` is ``(address, count)``,
    and `output` is ``(values, indices, origin)``; `index_of` takes the parts of `origin`.
    """
    functions = element_functions(element_size)
    key_type = functions.key_type
    restore = functions.restore
    _, write_result, _ = row_functions(element_size)
    ranks = rank_functions(n_threads, key_type)
    rank_by_counting, rank_in_bin, sort_pairs = ranks.rank_by_counting, ranks.rank_in_bin, ranks.sort_pairs
    make_bins, fill_bins = ranks.make_bins, ranks.fill_bins
    finding = threshold_functions(n_threads, key_type)
    find_threshold, list_groups = finding.find_threshold, finding.list_groups

    @linked_function
    def index_of(position, first, sources, source_size):
        """Return the index of an element of a part that begins at `first`; `sources` hold indices."""
        index = first + position
        if sources != 0:
            index = load_index(sources + index * source_size, source_size)
        return index

    @linked_function
    def write_pair(candidates, pair, rank, row, output, p):
        address, count = row
        values, indices, origin = output
        position = min(i64(~candidates.lows[pair]), count - 1)
        at = address + position * p.strides.x * element_size
        bits = restore(candidates.keys[pair], p.key_format, at)
        row_indices = RowIndices(indices, i64(0))
        write_result(values, row_indices, rank, bits, index_of(position, *origin), p)

    @linked_function
    def write_by_value(candidates, n_pairs, n_selected, extent, row, output, p, scratch, ids):
        keys, lows, order, _ = candidates
        thread, _, _ = ids
        # Elements that have changed since they were read first may be missing.
        n_selected = min(n_selected, n_pairs)
        counts_ranks = n_pairs <= u32(n_threads // 4)
        is_binned = False
        # So many places hold the first ones.
        n_placed = n_pairs
        rank = n_pairs
        place = thread
        bins = make_bins(row[1], *extent)
        if counts_ranks:
            pair_lanes, place = lanes_per_pair(n_pairs, n_threads, thread)
            rank = rank_by_counting(keys, lows, n_pairs, thread, pair_lanes)
        else:
            bins, n_placed = fill_bins(candidates, n_pairs, n_selected, bins, scratch, thread)
            is_binned = n_placed > 0
            if not is_binned:
                sort_pairs(keys, lows, n_pairs, thread)
                n_placed = n_selected
        while place < n_placed:
            pair = place
            if is_binned:
                pair = u32(order[place])
                rank = rank_in_bin(candidates, pair, bins, scratch.histogram)
            elif not counts_ranks:
                rank = place
            if rank < n_selected:
                write_pair(candidates, pair, rank, row, output, p)
            place += n_threads

    @linked_function
    def write_by_index(candidates, counts, extent, listed, row, output, p, scratch, ids):
        """Write in order of position, as the first `n_above` candidates are, and so are the others.

        `counts` are ``(n_above, n_pairs, n_selected)``. The others tie for the last places. `listed` has room
        for the numbers of what is written.
        """
        n_above, n_pairs, n_selected = counts
        thread, _, _ = ids
        if n_above < n_pairs:
            # Only fillers of a part of a row are too many; they come last.
            n_pairs = min(n_pairs, n_selected)
        is_listed = n_pairs > n_selected
        if is_listed:
            n_ties = u32(0xFFFFFFFF)
            least, n_larger, n_reached = find_threshold(
                candidates.keys, n_pairs, extent, n_selected, n_selected, scratch, ids
            )
            if n_reached > n_selected:
                n_ties = n_selected - n_larger
            list_groups(candidates.keys, n_pairs, least, n_ties, listed, scratch, ids)
        rank = thread
        while rank < min(n_selected, n_pairs):
            pair = rank
            place = rank
            if is_listed:
                pair = listed[rank]
            else:
                place = place_in_order(candidates.lows, n_above, n_pairs, pair)
            write_pair(candidates, pair, place, row, output, p)
            rank += n_threads

    return write_by_value, write_by_index
