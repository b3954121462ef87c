"""Few elements of a row: a threshold from group maxima, and the order of what it leaves.

A pair is a number that is larger for what comes first: it has the key, and the complement of the position.
Each of a row's groups has a maximum, its first pair, or 0 if it has no elements. At least k pairs of the row
do not come after a maximum that k maxima do not come after.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    atomic_add_shared_u32,
    ballot,
    load_shared_u32,
    load_shared_u64,
    load_shared_u64x2,
    next_pass,
    store_shared_u32,
    store_shared_u64,
    trailing_zeros_u32,
    warp_add,
    warp_min,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cooperate import add_over_lanes
from kernels_cuda.top_k.keys import result_function
from kernels_cuda.top_k.rank import rank_functions
from kernels_cuda.top_k.shapes import WARP_LANES

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

PAIR_BYTES = 8
# Where a block keeps how many maxima come no later than each that it tries.
PLACES_BYTES = 4 * WARP_LANES


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
    slot = atomic_add_shared_u32(count, u32(1))
    if slot < room:
        store_shared_u64(pairs + slot * PAIR_BYTES, pair)


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
        """Return one of the maxima that at least `n_selected` do not come after, or 0.

        One is tried for each lane of a warp, and those are evenly spread. The last of them that is not too
        high leaves the fewest candidates. `maxima` and `places` are addresses.
        """
        apart = n_maxima // WARP_LANES
        for tried in range(WARP_LANES // n_warps):
            number = warp + u32(tried * n_warps)
            pivot = load_shared_u64(maxima + place_of(number, apart) * PAIR_BYTES)
            n_before = u32(0)
            other = lane
            while other < n_maxima:
                n_before += u32(load_shared_u64(maxima + other * PAIR_BYTES) >= pivot)
                other += WARP_LANES
            n_before = warp_add(n_before)
            if lane == 0:
                store_shared_u32(places + (number << 2), n_before)
        cuda.syncthreads()
        place = load_shared_u32(places + (lane << 2))
        if place < n_selected:
            place = n_maxima + 1
        smallest = warp_min(place)
        threshold = u64(0)
        if smallest <= n_maxima:
            chosen = trailing_zeros_u32(ballot(place == smallest))
            threshold = load_shared_u64(maxima + place_of(chosen, apart) * PAIR_BYTES)
        return threshold

    return find_threshold


class FewFunctions(NamedTuple):
    """Device functions for candidates in shared memory, at most one for each thread of a block."""

    pair_at: Any
    write_first: Any


@functools.cache
def few_functions(element_size: int, n_threads: int) -> FewFunctions:
    """Make the functions for one element width of at most 4 bytes, and block size.

    `pairs` is the address of the candidates, a multiple of 16 bytes.
    """
    place_of_few = rank_functions(n_threads, u32).place_of_few
    write_result = result_function(element_size)

    @device_function
    def load_pair(pairs, number):
        return load_shared_u64(pairs + number * PAIR_BYTES)

    @linked_function
    def rank_by_counting(pairs, n_pairs, thread, lane_bits):
        """Return how many candidates come before number ``thread >> lane_bits``."""
        number = thread >> lane_bits
        lanes = u32(1) << lane_bits
        count = u32(0)
        if number < n_pairs:
            own = load_pair(pairs, number)
            other = (thread & (lanes - 1)) << 1
            while other < n_pairs:
                first, second = load_shared_u64x2(pairs + other * PAIR_BYTES)
                count += u32(first > own)
                count += u32(second > own and other + 1 < n_pairs)
                other += lanes << 1
        return add_over_lanes(count, lanes)

    @linked_function
    def pair_at(pairs, found, n_pairs, rank, thread):
        """Return the pair that `rank` candidates come before; `found` is a shared array of one uint64."""
        lane_bits, number = place_of_few(n_pairs, thread)
        is_found = rank_by_counting(pairs, n_pairs, thread, lane_bits) == rank
        if number < n_pairs and is_found:
            found[0] = load_pair(pairs, number)
        cuda.syncthreads()
        return found[0]

    @linked_function
    def write_first(areas, row, output, n_pairs, n_selected, is_by_index, key_format, thread):
        """Write the first `n_selected` of the candidates, in order, or by ascending position.

        `areas` are the addresses of the candidates, and of room for a key of each that is selected.
        """
        pairs, keys = areas
        # Elements that have changed since they were read first may be missing.
        n_selected = min(n_selected, n_pairs)
        number, rank = n_pairs, n_pairs
        pair = u64(0)
        # One loop: instructions that are fetched for the first time take longer than the ranking itself.
        step = u32(0)
        while step <= u32(is_by_index):
            if step == 1:
                # Those that are selected take the place of the others, and their positions alone are ranked.
                cuda.syncthreads()
                if number < n_pairs and rank < n_selected:
                    store_shared_u64(pairs + rank * PAIR_BYTES, u64(u32(pair)))
                    store_shared_u32(keys + (rank << 2), u32(pair >> 32))
                cuda.syncthreads()
                n_pairs = n_selected
            lane_bits, number = place_of_few(n_pairs, thread)
            rank = rank_by_counting(pairs, n_pairs, thread, lane_bits)
            if number < n_pairs:
                pair = load_pair(pairs, number)
            step = next_pass(step)
        if number < n_pairs and rank < n_selected:
            key = u32(pair >> 32)
            if is_by_index:
                key = load_shared_u32(keys + (number << 2))
            write_result(row, output, rank, key, i64(~u32(pair)), key_format)

    return FewFunctions(pair_at, write_first)
