"""Pairs: keys and inverted positions as one number each, no two of which are equal, in shared memory.

The first elements have the largest pairs. A pair of 0 stands for none.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    atomic_add_shared_u32,
    shared_address,
    shuffle_xor_u32,
    store_cluster_u64,
)
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.shapes import PAIR_BYTES
from kernels_cuda.top_k.threshold import N_COUNTERS, threshold_functions

u32 = types.uint32
u64 = types.uint64

_ALL_ONES = 0xFFFFFFFFFFFFFFFF
# The place of a shared counter behind those of `threshold`: pairs that stay.
KEPT = N_COUNTERS


class PairFunctions(NamedTuple):
    """Device functions for one block size."""

    kth_largest: Any
    keep: Any
    rank_pairs: Any


@functools.cache
def pair_functions(n_threads: int) -> PairFunctions:
    """Make the device functions."""
    _, block_extremes, find_threshold, _ = threshold_functions(n_threads, u64)

    @linked_function
    def kth_largest(pairs, n_pairs, n_selected, most, memory, ids):
        """Return a pair that at least `n_selected` and at most `most` of the pairs are at or above.

        Those that are 0 do not count.
        """
        histogram, sums, extremes, counters = memory
        thread, lane, warp = ids
        lowest = u64(_ALL_ONES)
        highest = u64(0)
        at = thread
        while at < n_pairs:
            pair = pairs[at]
            highest = max(highest, pair)
            if pair != 0:
                lowest = min(lowest, pair)
            at += n_threads
        lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
        threshold, _, _ = find_threshold(
            *(pairs, n_pairs, lowest, highest, n_selected, most, histogram, sums, counters),
            *(thread, lane, warp),
        )
        return threshold

    @linked_function
    def keep(pairs, n_pairs, threshold, address, counters, thread):
        """Copy the pairs at or above a threshold to shared memory, of any block; return how many are."""
        cuda.syncthreads()
        if thread == 0:
            counters[KEPT] = u32(0)
        cuda.syncthreads()
        at = thread
        while at < n_pairs:
            pair = pairs[at]
            if pair != 0 and pair >= threshold:
                slot = atomic_add_shared_u32(shared_address(counters) + u32(4 * KEPT), u32(1))
                store_cluster_u64(address + slot * PAIR_BYTES, pair)
            at += n_threads
        cuda.syncthreads()
        return counters[KEPT]

    @linked_function
    def rank_pairs(pairs, n_pairs, n_selected, ranked, thread):
        """Put the first pairs in order: each is compared with all, by as many lanes as there are for it."""
        lane_bits = u32(0)
        while lane_bits < 5 and n_pairs << (lane_bits + 1) <= n_threads:
            lane_bits += 1
        lanes = u32(1) << lane_bits
        at = thread >> lane_bits
        own = u64(0)
        rank = u32(0)
        if at < n_pairs:
            own = pairs[at]
            other = thread & (lanes - 1)
            while other < n_pairs:
                rank += u32(pairs[other] > own)
                other += lanes
        distance = u32(1)
        while distance < lanes:
            rank += shuffle_xor_u32(rank, distance)
            distance <<= 1
        if at < n_pairs and rank < n_selected and thread & (lanes - 1) == 0:
            ranked[rank] = own
        cuda.syncthreads()

    return PairFunctions(kth_largest, keep, rank_pairs)
