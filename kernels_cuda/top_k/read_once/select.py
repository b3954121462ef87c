"""A block finds candidates in the groups that it reads again: few more than k, whatever the data.

Elements may have changed since they were read before: limits on what is found keep accesses within memory.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.read_once.filter_pass import NOT_UNALIGNED, filter_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.threshold import FOUND

# Two are enough if elements stay as they are.
_MOST_ROUNDS = 5


class SelectMemory(NamedTuple):
    """Shared memory of a block: candidates, the list of groups, what else it knows of its row, and scratch.

    They are `rank.Candidates`, two arrays, and a `threshold.Scratch`.
    """

    candidates: Any
    candidate_groups: Any
    state: Any
    scratch: Any


class Limits(NamedTuple):
    """How many candidates there may be.

    Attributes
    ----------
    n_selected, limit, n_slots : uint32
        How many elements are selected, how many candidates there may be, and for how many there is room.
    are_too_many, are_many_equal : bool
        Whether it is known that there are too many candidates, and that too many equal the threshold.
    """

    n_selected: Any
    limit: Any
    n_slots: Any
    are_too_many: Any
    are_many_equal: Any


@functools.cache
def select_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    unfolding_of = functions.unfolding_of
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    filters = filter_functions(element_size, n_threads)
    collect, collect_ties, narrow = filters.collect, filters.collect_ties, filters.narrow
    reserve, forget_found = filters.reserve, filters.forget_found
    exclusive_sum = block_scan(n_threads)

    @linked_function
    def select(memory, limits, items, source, unaligned, extent, p, ids):
        """Return how many candidates are above the threshold, how many equal it, and what it is.

        Elements at or above the threshold are kept if they are not too many; else the same with a higher
        threshold. Of too many that equal that of the last element selected, the first are kept.

        `extent` are the threshold and the highest key. The others are as `FilterFunctions` have them.
        """
        candidates, _, _, scratch = memory
        keys, lows, _, _ = candidates
        n_selected, limit, n_slots, are_too_many, only_above = limits
        threshold, highest = extent
        key_format = p.key_format
        is_unaligned, unaligned_bits, unaligned_key, unaligned_position, prefix = unaligned
        thread, lane, warp = ids
        counters = scratch.counters
        are_unfolded = source.are_unfolded
        unfolding = unfolding_of(p.unfolded_format, are_unfolded)
        unfolded_threshold = unfold_threshold(threshold, key_format)
        next_above = key_type(0)
        n_found = u32(0)
        n_ties = u32(0)
        if only_above:
            next_above = unfold_next_above(threshold, key_format)
        collecting = True
        n_rounds = u32(0)
        while collecting:
            has_above = threshold < highest and (next_above != 0 or unfolded_threshold == 0)
            if not are_too_many and (has_above or not only_above):
                kept_threshold = unfolded_threshold
                if only_above:
                    kept_threshold = next_above
                is_kept = is_unaligned and (
                    unaligned_key > threshold or (unaligned_key == threshold and not only_above)
                )
                comes_first = is_kept and source.in_order and unaligned_position < prefix
                slot = u32(0)
                n_first = u32(0)
                if source.in_order and prefix != 0 and not are_unfolded:
                    sums = ptx.shared_from(scratch.sums, 32)
                    slot, n_first = exclusive_sum(u32(comes_first), thread, sums)
                slots = n_slots, limit
                collect(candidates, n_first, slots, items, source, kept_threshold, unfolding, scratch, ids)
                if warp == 0 and not are_unfolded:
                    # The first thread may just have stored the count.
                    cuda.syncwarp()
                    last = reserve(counters, u32(is_kept and not comes_first), lane)
                    if not comes_first:
                        slot = last
                    if is_kept and slot < n_slots:
                        keys[slot] = unaligned_bits
                        lows[slot] = ~unaligned_position
            cuda.syncthreads()
            n_found = counters[FOUND]
            collecting = are_too_many or n_found > limit or (only_above and n_found >= n_selected)
            n_rounds += 1
            collecting = collecting and n_rounds < _MOST_ROUNDS
            are_too_many = False
            if collecting:
                known = is_unaligned, unaligned_key
                extent = threshold, highest
                threshold, fits = narrow(
                    items, source, known, extent, n_selected, limit, key_format, scratch, ids
                )
                unfolded_threshold = unfold_threshold(threshold, key_format)
                only_above = not fits
                if only_above:
                    next_above = unfold_next_above(threshold, key_format)
                forget_found(counters, thread)
            elif only_above:
                n_ties = max(n_selected, n_found) - n_found
        n_found = min(n_found, limit)
        if not are_unfolded:
            pair = thread
            while pair < n_found:
                keys[pair] = min(max(ordered_key(keys[pair], key_format), threshold), highest)
                pair += n_threads
            cuda.syncthreads()
        if n_ties > 0:
            unaligned_tie = u32(NOT_UNALIGNED)
            if is_unaligned and unaligned_key == threshold:
                unaligned_tie = unaligned_position
            tied = threshold, unfolded_threshold, next_above
            at = unaligned_tie, prefix
            n_ties = collect_ties(
                candidates, n_found, n_ties, items, source, at, tied, unfolding, scratch.sums, thread
            )
            cuda.syncthreads()
        return n_found, n_ties, threshold

    return select
