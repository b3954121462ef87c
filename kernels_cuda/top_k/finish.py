"""How a block ends: it orders its candidates and writes the first of them."""

import functools
from typing import Any

from numba import types

from kernels_cuda.ptx import LOAD
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.rank import rank_functions
from kernels_cuda.top_k.row_offsets import store_index

u32 = types.uint32
i64 = types.int64


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
        """Return the index of an element of a part that begins at `first`, or of the winner that it was."""
        index = first + position
        if sources != 0:
            if source_size == 4:
                index = i64(load_source_u32(sources + index * 4))
            else:
                index = i64(load_source_u64(sources + index * 8))
        return index

    @linked_function
    def write_first(memory, row, output, origin, n_pairs, wanted, bound, highest, is_bound_close, masks, ids):
        """Write the first `wanted` of the candidates, in order.

        `memory` are the shared arrays, `row` is ``(address, stride, count)``, `output` is ``(values, indices,
        value_stride, index_stride, index_size)``, `origin` what `index_of` needs, and `ids` are ``(thread,
        lane, warp)``. All keys lie from `bound` to `highest`; if these are not close, they are found.
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
                if attempt == 1 or not is_bound_close:
                    bound, highest = pair_extremes(keys, n_pairs, extremes, thread, lane, warp)
                bins = make_bins(
                    keys, lows, n_pairs, count, bound, highest, attempt == 1, sums, thread, lane, warp
                )
                n_placed = fill_bins(
                    keys, lows, order, n_pairs, wanted, bins, bin_ends, sums, counters, thread
                )
                is_binned = n_placed > 0
                attempt += 1
            if not is_binned:
                sort_pairs(keys, lows, n_pairs, thread)
                n_placed = wanted
        while place < n_placed:
            pair = place
            if is_binned:
                pair = u32(order[place])
                rank = rank_in_bin(keys, lows, order, pair, bin_ends, bins)
            elif not counts_ranks:
                rank = place
            if rank < wanted:
                position = i64(~lows[pair])
                bits = restore(keys[pair], masks, address + position * stride * element_size)
                store_element(values + i64(rank) * value_stride * element_size, bits)
                index = index_of(position, *origin)
                store_index(indices + i64(rank) * index_stride * index_size, index_size, index)
            place += n_threads

    return write_first
