"""Few elements of a row: a threshold from group maxima, and the order of what it leaves.

A pair is a number that is larger for what comes first: it has the key, and the complement of the position.
Each of a row's groups has a maximum, its first pair, or 0 if it has no elements. If at least k maxima reach a
pair, so do at least k pairs of the row: it is a threshold.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import add_over_lanes, bits_before, lanes_per_pair
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.keys import element_functions, result_function
from kernels_cuda.top_k.shared.shapes import WARP_LANES

PAIR_BYTES = 8
# A block keeps how many maxima reach each that it tries.
PLACES_BYTES = 4 * WARP_LANES
# Two counts share a word: the lower half is by value, the upper one by index.
_BY_VALUE, _BY_INDEX_SHIFT = 0xFFFF, 16


@device_function
def pair_of(key, position):
    """Return the pair of an element."""
    return (u64(key) << 32) | u64(~u32(position))


@device_function
def add_candidate(candidates, pair):
    """Add a pair to a list, as far as there is room.

    `candidates` are the addresses of its pairs and of their number, which may become larger, and the room.
    """
    pairs, count, room = candidates
    slot = ptx.atomic_add_shared_u32(count, u32(1))
    if slot < room:
        ptx.store_shared_u64(pairs + slot * PAIR_BYTES, pair)


@functools.cache
def threshold_of_maxima(n_threads: int) -> Any:
    """Make the device function that finds a threshold among maxima in shared memory."""
    n_warps = n_threads // WARP_LANES

    @device_function
    def place_of(number, apart):
        """Return which maximum is tried: of all lanes, each of which has a part of the groups."""
        return number * apart + (number & (apart - 1))

    @linked_function
    def find_threshold(maxima, places, n_maxima, n_selected, lane, warp):
        """Return one of the maxima, which at least `n_selected` of them reach, or 0.

        Each lane tries one maximum; the 32 are evenly spread over the groups. Of those that enough maxima
        reach, the largest leaves the fewest candidates. `maxima` and `places` are addresses.
        """
        apart = n_maxima // WARP_LANES
        for tried in range(WARP_LANES // n_warps):
            number = warp + u32(tried * n_warps)
            pivot = ptx.load_shared_u64(maxima + place_of(number, apart) * PAIR_BYTES)
            n_before = u32(0)
            other = lane
            while other < n_maxima:
                n_before += u32(ptx.load_shared_u64(maxima + other * PAIR_BYTES) >= pivot)
                other += WARP_LANES
            n_before = ptx.warp_add(n_before)
            if lane == 0:
                ptx.store_shared_u32(places + (number << 2), n_before)
        cuda.syncthreads()
        place = ptx.load_shared_u32(places + (lane << 2))
        if place < n_selected:
            place = n_maxima + 1
        smallest = ptx.warp_min(place)
        threshold = u64(0)
        if smallest <= n_maxima:
            chosen = ptx.trailing_zeros_u32(ptx.ballot(place == smallest))
            threshold = ptx.load_shared_u64(maxima + place_of(chosen, apart) * PAIR_BYTES)
        return threshold

    return find_threshold


class SmallKFunctions(NamedTuple):
    """Device functions for candidates in shared memory, at most one for each thread of a block."""

    list_vector: Any
    pair_at: Any
    write_first: Any


@functools.cache
def small_k_functions(element_size: int, n_threads: int) -> SmallKFunctions:
    """Make the functions for one element width of at most 4 bytes, and block size.

    `pairs` is the address of the candidates, a multiple of 16 bytes. They are fewer than 2^16, so that two
    counts of them fit into a word.
    """
    write_result = result_function(element_size)
    functions = element_functions(element_size)
    ordered_key, at_or_above = functions.ordered_key, functions.at_or_above
    bits_each = 8 * element_size
    ones = (1 << bits_each) - 1
    per_word = 4 // element_size

    @device_function
    def list_vector(candidates, words, at, place, bound, key_format):
        """List what does not come after the threshold, of the vector of the words from `at` on.

        `place` are the position of its first element, and how many of its elements are in the row; `bound`
        are the threshold, the least unfolded key of what does not come after it, and the unfolding.
        """
        first, n_inside = place
        threshold, unfolded, unfolding = bound
        found = at_or_above(words, at, unfolded, unfolding, False) & ((u32(1) << n_inside) - 1)
        while found != 0:
            element = ptx.trailing_zeros_u32(found)
            found &= found - 1
            word = words[at]
            for other in range(1, 4):
                if element // u32(per_word) == other:
                    word = words[at + other]
            bits = (word >> (element % u32(per_word) * bits_each)) & ones
            pair = pair_of(ordered_key(bits, key_format), first + element)
            if pair >= threshold:
                add_candidate(candidates, pair)

    @device_function
    def load_pair(pairs, number):
        return ptx.load_shared_u64(pairs + number * PAIR_BYTES)

    @device_function
    def count_pair(other, own):
        """Return what a candidate adds to the counts of another."""
        return u32(other > own) | (u32(u32(other) > u32(own)) << _BY_INDEX_SHIFT)

    @linked_function
    def rank_by_counting(pairs, n_pairs, thread, lane_bits):
        """Return how many candidates come before number ``thread >> lane_bits``, by value and by index."""
        number = thread >> lane_bits
        lanes = u32(1) << lane_bits
        counts = u32(0)
        if number < n_pairs:
            own = load_pair(pairs, number)
            other = (thread & (lanes - 1)) << 1
            while other < n_pairs:
                first, second = ptx.load_shared_u64x2(pairs + other * PAIR_BYTES)
                counts += count_pair(first, own)
                if other + 1 < n_pairs:
                    counts += count_pair(second, own)
                other += lanes << 1
        counts = add_over_lanes(counts, lanes)
        return counts & _BY_VALUE, counts >> _BY_INDEX_SHIFT

    @linked_function
    def pair_at(pairs, found, n_pairs, rank, thread):
        """Return the pair that `rank` candidates come before; `found` is a shared array of one uint64."""
        lane_bits, number = lanes_per_pair(n_pairs, n_threads, thread)
        found_rank, _ = rank_by_counting(pairs, n_pairs, thread, lane_bits)
        if number < n_pairs and found_rank == rank:
            found[0] = load_pair(pairs, number)
        cuda.syncthreads()
        return found[0]

    @linked_function
    def write_first(areas, row, output, n_pairs, n_selected, is_by_index, key_format, thread):
        """Write the first `n_selected` of the candidates, in order, or by ascending position.

        `areas` are the addresses of the candidates, and of a bit for each, in whole vectors: all zero.
        """
        pairs, bits = areas
        # Elements that have changed since they were read first may be missing.
        n_selected = min(n_selected, n_pairs)
        lane_bits, number = lanes_per_pair(n_pairs, n_threads, thread)
        rank, place = rank_by_counting(pairs, n_pairs, thread, lane_bits)
        is_selected = number < n_pairs and rank < n_selected
        if is_by_index:
            # The bits, in order of index, tell which candidates are selected.
            if is_selected:
                ptx.reduce_or_shared_u32(bits + (place >> 5 << 2), u32(1) << (place & 31))
            cuda.syncthreads()
            if is_selected:
                rank = bits_before(bits, place)
        if is_selected:
            pair = load_pair(pairs, number)
            write_result(row, output, rank, u32(pair >> 32), i64(~u32(pair)), key_format)

    return SmallKFunctions(list_vector, pair_at, write_first)
