"""How a cluster selects from the keys in its shared memory, and which result each selected one is.

1. Find the range of keys in which the k-th one lies, digit by digit (`cluster_range`). All keys above the
   range are selected. Of those within it, the first ones are, by number; at the end they are equal.
2. Count the selected keys of each warp. So each knows where in the results its own begin.
3. Go over the keys once more, and hand on the selected ones.

Keys are numbered by block, warp, step, lane and place in a vector. Those that stand for nothing come last and
are the lowest: so they are never selected.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.many_blocks.cluster_launches import CLUSTER_THREADS, CLUSTER_WARPS
from kernels_cuda.top_k.many_blocks.cluster_range import (
    DIGIT,
    DIGIT_BITS,
    N_ABOVE_BEFORE,
    N_LEFT,
    N_TIES,
    N_TIES_BEFORE,
    range_functions,
)
from kernels_cuda.top_k.many_blocks.shared_keys import STEP_BYTES, key_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.threshold import bit_length

# A bin is crowded if it has more than 1 in 20 of all keys (at the first digit), or more than 16 keys (later).
# Hardly any bin of normal numbers is.
_CROWDED_SHARE = 20
_CROWD = 16


@functools.cache
def select_function(element_size: int, hand_on: Any) -> Any:
    """Make the function for one element width.

    ``hand_on(context, place, key, number)`` is called for each selected key.
    """
    key_type = element_functions(element_size).key_type
    keys = key_functions(element_size)
    n_words, load_vector, key_at, load_key = keys.n_words, keys.load_vector, keys.key_at, keys.load_key
    _, find_digit = range_functions(element_size)
    needed_bits = bit_length(key_type)
    per_vector = VECTOR_BYTES // element_size
    crowd_of_step = CLUSTER_THREADS * per_vector // _CROWDED_SHARE
    highest = (1 << 8 * element_size) - 1

    @linked_function
    def count_selected(own, n_steps, low, high):
        """Return a thread's number of keys above `high`, and in the upper half those from `low` to it."""
        words = cuda.local.array(n_words, key_type)
        n_above = u32(0)
        n_ties = u32(0)
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            for element in range(per_vector):
                key = key_at(words, element)
                n_above += u32(key > high)
                n_ties += u32(key >= low)
            own += STEP_BYTES
            step = ptx.next_pass(step)
        return n_above + ((n_ties - n_above) << 16)

    @device_function
    def drop_last(mask, n_kept):
        """Return the lowest `n_kept` bits that are set."""
        while ptx.popcount_u32(mask) > n_kept:
            mask ^= u32(1) << (31 - ptx.leading_zeros_u32(mask))
        return mask

    @device_function
    def select(areas, own, n_steps, n_selected, ids, context):
        """Hand on the first `n_selected` keys of those that the threads of the cluster have.

        Returns whether this warp has handed on any. All blocks have arrived at the barrier of the cluster
        then; they must stay until all have.

        `areas` are the shared arrays `warp_counts` and `found`, and the addresses of room for the search and
        of the barriers. At `own` are a thread's keys, in `n_steps` vectors. `ids` are ``(thread, rank,
        n_blocks)``.
        """
        warp_counts, found, memory, barriers = areas
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        first = ((rank * CLUSTER_WARPS + warp) * n_steps * WARP_LANES + lane) * per_vector
        advance = u32(WARP_LANES * per_vector)

        # All selected keys are above `high`, or from `low` on: of these `n_left`.
        low = key_type(0)
        high = key_type(highest)
        n_left = n_selected
        place = u32(0)
        n_ties_before = u32(0)
        shift = needed_bits(high - low)
        # Only in a crowded bin is it worth finding out whether all keys are equal.
        crowd = n_blocks * n_steps * crowd_of_step
        finds_ends = False
        digit_number = u32(0)
        searching = n_selected > 0
        while searching:
            shift = max(shift, u32(DIGIT_BITS)) - DIGIT_BITS
            areas, bounds = (found, memory, barriers), (low, high - low)
            is_one, offset = find_digit(
                areas, digit_number, (own, n_steps), bounds, shift, n_left, finds_ends, ids
            )
            digit_number += 1
            if is_one:
                low += offset
                high = low
                searching = False
            else:
                low += key_type(found[DIGIT]) << key_type(shift)
                high = low + min(high - low, (key_type(1) << key_type(shift)) - 1)
                n_left = found[N_LEFT]
                place += found[N_ABOVE_BEFORE]
                n_ties_before = found[N_TIES_BEFORE]
                finds_ends = found[N_TIES] > crowd
                crowd = u32(_CROWD)
                searching = shift > 0 and n_left < found[N_TIES]
        # A block stays for the others to read its bins, which this one has done: its threads have met since.
        ptx.cluster_arrive_relaxed()

        warp_count = ptx.warp_add(count_selected(own, n_steps, low, high))
        if lane == 0:
            warp_counts[warp] = warp_count
        cuda.syncthreads()
        warp_count = u32(0)
        if lane < warp:
            warp_count = warp_counts[lane]
        # Selected keys of the warps before this one, and of the blocks before this one.
        place += ptx.warp_add(warp_count & 0xFFFF)
        n_ties_before += ptx.warp_add(warp_count >> 16)
        place += min(n_ties_before, n_left)
        n_left = max(n_left, n_ties_before) - n_ties_before

        words = cuda.local.array(n_words, key_type)
        has_selected = False
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            above = u32(0)
            ties = u32(0)
            for element in range(per_vector):
                key = key_at(words, element)
                above |= u32(key > high) << u32(element)
                ties |= u32(key >= low) << u32(element)
            if ptx.ballot(ties) != 0:
                has_selected = True
                ties ^= above
                n_ties = ptx.popcount_u32(ties)
                amounts = ptx.popcount_u32(above) | (n_ties << 16)
                through = ptx.warp_inclusive_sum(amounts)
                of_warp = ptx.shuffle_from_u32(through, u32(31))
                before = through - amounts
                n_ties_before = before >> 16
                n_kept = max(n_left, n_ties_before) - n_ties_before
                selected = above | drop_last(ties, n_kept)
                to = place + (before & 0xFFFF) + min(n_ties_before, n_left)
                while selected != 0:
                    lowest = selected & (~selected + 1)
                    selected ^= lowest
                    element = 31 - ptx.leading_zeros_u32(lowest)
                    hand_on(context, to, load_key(own, element), first + element)
                    to += 1
                n_ties = of_warp >> 16
                place += (of_warp & 0xFFFF) + min(n_ties, n_left)
                n_left = max(n_left, n_ties) - n_ties
            own += STEP_BYTES
            first += advance
            step = ptx.next_pass(step)
        return has_selected

    return select
