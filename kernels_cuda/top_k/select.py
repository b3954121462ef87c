"""How a block finds candidates among what it looks at again, whatever the data: few more than are wanted."""

import functools
from typing import Any

from numba import cuda, types

from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.filter_pass import NO_EDGE, sweep_functions
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.threshold import FOUND

u32 = types.uint32


@functools.cache
def select_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    raw_mask = functions.raw_mask
    raw_floor = functions.raw_floor
    raw_beyond = functions.raw_beyond
    sweeps = sweep_functions(element_size, n_threads)
    collect, collect_ties, narrow = sweeps.collect, sweeps.collect_ties, sweeps.narrow
    reserve, forget_found = sweeps.reserve, sweeps.forget_found

    @linked_function
    def select(
        memory, n_slots, items, source, edge, bound, highest, wanted, limit, unfolded_format, key_format, ids
    ):
        """Return how many candidates are above the bound, how many equal it, and the bound.

        What reaches the bound is kept, if it is no more than `limit`; else what is above it and, if that is
        less than `wanted`, the first of those that equal it; else the same with a higher bound.

        `memory` are the shared arrays, `items` and `source` those of `sweep`, and `ids` ``(thread, lane,
        warp)``. `edge` is ``(exists, bits, key, position, head)``, of the thread's element outside all
        vectors, of which those before `head` come before all vectors.
        """
        keys, lows, histogram, sums, counters = memory
        is_edge, edge_bits, edge_key, edge_position, head = edge
        thread, lane, warp = ids
        are_raw = source[3]
        mask = raw_mask(unfolded_format, are_raw)
        floor = raw_floor(bound, key_format)
        beyond = key_type(0)
        n_found = u32(0)
        n_ties = u32(0)
        only_above = False
        collecting = True
        while collecting:
            if not only_above or beyond != 0 or floor == 0:
                kept_floor = floor
                if only_above:
                    kept_floor = beyond
                collect(
                    keys, lows, n_slots, counters, items, source, kept_floor, limit, mask, sums, thread, lane
                )
                if warp == 0 and not are_raw:
                    is_kept = is_edge and (edge_key > bound or (edge_key == bound and not only_above))
                    slot = reserve(counters, u32(is_kept), lane)
                    if is_kept and slot < n_slots:
                        keys[slot] = edge_bits
                        lows[slot] = ~edge_position
            cuda.syncthreads()
            n_found = counters[FOUND]
            collecting = False
            if only_above:
                if n_found < wanted:
                    n_ties = wanted - n_found
                else:
                    bound, fits = narrow(
                        histogram,
                        items,
                        source,
                        edge_key,
                        is_edge,
                        bound,
                        highest,
                        wanted,
                        limit,
                        unfolded_format,
                        key_format,
                        sums,
                        counters,
                        thread,
                    )
                    floor = raw_floor(bound, key_format)
                    only_above = not fits
                    if only_above:
                        beyond = raw_beyond(bound, key_format)
                    collecting = True
            elif n_found > limit:
                only_above = True
                beyond = raw_beyond(bound, key_format)
                collecting = True
            if collecting:
                forget_found(counters, thread)
        if not are_raw:
            pair = thread
            while pair < n_found:
                keys[pair] = ordered_key(keys[pair], key_format)
                pair += n_threads
            cuda.syncthreads()
        if n_ties > 0:
            tie_edge = u32(NO_EDGE)
            if is_edge and edge_key == bound:
                tie_edge = edge_position
            collect_ties(
                keys,
                lows,
                n_found,
                n_ties,
                items,
                source,
                tie_edge,
                head,
                bound,
                floor,
                beyond,
                mask,
                sums,
                thread,
            )
            cuda.syncthreads()
        return n_found, n_ties, bound

    return select
