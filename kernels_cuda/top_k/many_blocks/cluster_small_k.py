"""A small k in a cluster: a threshold from group maxima leaves few candidates.

Elements whose positions leave the same remainder are a group: so neighbours, and equal elements, are spread
over all groups. Each block has `WARP_LANES` of them.

1. Each block finds the first (key, position) of each of its groups, and tells all blocks.
2. Every block finds the same threshold among these, which at least k of them reach, as do all elements that
   are selected.
3. Each block lists its elements that reach the threshold, and sends these candidates to the first block,
   which orders them and writes the first k.

Only if some groups have far more of the row's first elements than others are there more candidates than
there is room for. Nothing is selected then.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum_u64
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.many_blocks.cluster_launches import (
    CLUSTER_THREADS,
    CLUSTER_WARPS,
    LARGEST_CLUSTER,
    SMALL_K_CANDIDATES,
    SMALL_K_CANDIDATES_OF_BLOCK,
)
from kernels_cuda.top_k.many_blocks.cluster_messages import (
    CANDIDATES,
    MAXIMA,
    announce,
    barrier_at,
    of_block,
    wait_for_all,
)
from kernels_cuda.top_k.many_blocks.shared_keys import STEP_BYTES, key_functions
from kernels_cuda.top_k.shared.keys import are_integers, element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.small_k import (
    PAIR_BYTES,
    PLACES_BYTES,
    pair_of,
    small_k_functions,
    threshold_of_maxima,
)

_VECTOR_PAIRS = VECTOR_BYTES // PAIR_BYTES
# A part of the row holds one element of each group; parts are counted in 16 bits.
_MOST_PARTS = 0xFFFF
# The areas lie one behind the other, and begin at these bytes. They hold: what each warp finds of each group
# (rows are padded, because each warp then reads a column), later the candidates of this block, and behind
# them those of all; the maxima of this block's groups; those of all groups; how many maxima come no later
# than each that is tried; the candidates that each block has sent, and how many; the number of this block's
# (a whole vector); and a bit for each candidate of all blocks. The last two are cleared together.
_PAIRS = SMALL_K_CANDIDATES_OF_BLOCK * PAIR_BYTES
_WARP_STRIDE = (WARP_LANES + 1) * PAIR_BYTES
_OWN_MAXIMA = CLUSTER_WARPS * _WARP_STRIDE
_MAXIMA = _OWN_MAXIMA + WARP_LANES * PAIR_BYTES
_MAXIMA_BYTES = WARP_LANES * PAIR_BYTES
_MAXIMA_VECTORS = _MAXIMA_BYTES // VECTOR_BYTES
_PLACES = _MAXIMA + LARGEST_CLUSTER * _MAXIMA_BYTES
_LISTS = _PLACES + PLACES_BYTES
_LIST_BYTES = SMALL_K_CANDIDATES_OF_BLOCK * PAIR_BYTES
_COUNTS = _LISTS + LARGEST_CLUSTER * _LIST_BYTES
_OWN_COUNT = _COUNTS + 4 * LARGEST_CLUSTER
_BITS = _OWN_COUNT + VECTOR_BYTES
SMALL_K_BYTES = _BITS + SMALL_K_CANDIDATES // 8


@functools.cache
def small_k_function(element_size: int) -> Any:
    """Make the function for one element width of at most 4 bytes."""
    functions = element_functions(element_size)
    unfolding_of, fold, whole_key = functions.unfolding_of, functions.fold, functions.whole_key
    unfold_threshold = functions.unfold_threshold
    spread_unfolded_keys = functions.spread_unfolded_keys
    keys = key_functions(element_size)
    load_vector, load_elements = keys.load_vector, keys.load_elements
    find_threshold = threshold_of_maxima(CLUSTER_THREADS)
    list_vector, _, write_first = small_k_functions(element_size, CLUSTER_THREADS)
    per_vector = VECTOR_BYTES // element_size
    vector_bits = per_vector.bit_length() - 1
    # So many neighbouring lanes read 32 neighbouring elements: one of each group.
    group_lanes = WARP_LANES // per_vector
    # For each group, a warp finds a pair, or a word.
    best_bytes = 8 if element_size == 4 else 4
    store_best, load_best = ptx.STORE_SHARED[best_bytes], ptx.LOAD_SHARED[best_bytes]
    shuffle_xor = ptx.shuffle_xor_u64 if element_size == 4 else ptx.shuffle_xor_u32

    @device_function
    def share_out(best, lane):
        """Have lanes that have the same groups give each other what they do not keep; return what is kept."""
        for halving in range(vector_bits):
            n_kept = per_vector >> (halving + 1)
            distance = u32(WARP_LANES >> (halving + 1))
            is_upper = lane & distance != 0
            for element in range(n_kept):
                kept, given = best[element], best[element + n_kept]
                if is_upper:
                    kept, given = given, kept
                best[element] = max(kept, shuffle_xor(given, distance))
        return best[0]

    @device_function
    def elements_of_step(step, n_steps, first, advance, count):
        """Return how many of a thread's elements are in the row: only the last step may go beyond its end."""
        n_inside = u32(per_vector)
        if step + 1 == n_steps:
            at = first + step * advance
            n_inside = min(count - min(at, count), u32(per_vector))
        return n_inside

    if element_size == 4:

        @linked_function
        def first_of_groups(own, first, n_steps, advance, count, thread, unfolding):
            """Return a warp's first (unfolded key, position) of group number `lane`, 0 where it has none.

            The largest unfolded key of the thread is returned, too. Of neighbours that have the same key but
            different bits, any one may count as the first.
            """
            words = cuda.local.array(4, u32)
            unfolded_keys = cuda.local.array(per_vector, u32)
            best_keys = cuda.local.array(per_vector, u32)
            best_steps = cuda.local.array(per_vector, u32)
            best = cuda.local.array(per_vector, u64)
            for element in range(per_vector):
                best_keys[element] = u32(0)
                best_steps[element] = u32(0)
            step = u32(0)
            while step < n_steps:
                load_vector(words, own)
                spread_unfolded_keys(words, unfolded_keys, 0, unfolding)
                n_inside = elements_of_step(step, n_steps, first, advance, count)
                for element in range(per_vector):
                    if unfolded_keys[element] > best_keys[element] and element < n_inside:
                        best_keys[element] = unfolded_keys[element]
                        best_steps[element] = step
                own += STEP_BYTES
                step = ptx.next_pass(step)
            largest = u32(0)
            for element in range(per_vector):
                largest = max(largest, best_keys[element])
                best[element] = u64(0)
                if first + u32(element) < count:
                    position = first + best_steps[element] * advance + u32(element)
                    best[element] = pair_of(best_keys[element], position)
            return share_out(best, thread & 31), largest

        @device_function
        def maximum_pair(best, n_blocks, rank, offset, key_format):
            pair = warp_maximum_u64(best)
            if pair != 0:
                pair = (u64(fold(u32(pair >> 32), key_format)) << 32) | u32(pair)
            return pair

    else:
        # Of elements in the same group, the part of the row that they are in tells the position: it and the
        # key make one word.
        @linked_function
        def first_of_groups(own, first, n_steps, advance, count, thread, unfolding):
            """Do the same, with a word for each (unfolded key, part of the row)."""
            words = cuda.local.array(4, u32)
            unfolded_keys = cuda.local.array(per_vector, u32)
            best = cuda.local.array(per_vector, u32)
            low = u32(_MOST_PARTS) - thread // group_lanes
            for element in range(per_vector):
                best[element] = u32(0)
            step = u32(0)
            while step < n_steps:
                load_vector(words, own)
                spread_unfolded_keys(words, unfolded_keys, 0, unfolding)
                n_inside = elements_of_step(step, n_steps, first, advance, count)
                for element in range(per_vector):
                    if element < n_inside:
                        best[element] = max(best[element], whole_key(unfolded_keys[element]) | low)
                low -= CLUSTER_THREADS // group_lanes
                own += STEP_BYTES
                step = ptx.next_pass(step)
            largest = u32(0)
            for element in range(per_vector):
                largest = max(largest, best[element])
            return share_out(best, thread & 31), largest

        @device_function
        def maximum_pair(best, n_blocks, rank, offset, key_format):
            word = ptx.warp_max(best)
            pair = u64(0)
            if word != 0:
                part = u32(_MOST_PARTS) - (word & _MOST_PARTS)
                position = (part * n_blocks + rank) * WARP_LANES + offset
                pair = pair_of(fold(word, key_format), position)
            return pair

    @linked_function
    def share_maxima(memory, barrier, best, thread, rank, n_blocks, key_format):
        """Tell all blocks the first (key, position) of each group of this one, and wait for theirs."""
        lane = thread & 31
        warp = thread >> 5
        store_best(memory + warp * _WARP_STRIDE + lane * best_bytes, best)
        cuda.syncthreads()
        best = load_best(memory + lane * _WARP_STRIDE + warp * best_bytes)
        # The group that lane number `warp` of each warp has.
        offset = warp % group_lanes * per_vector + warp // group_lanes
        pair = maximum_pair(best, n_blocks, rank, offset, key_format)
        if lane == 0:
            ptx.store_shared_u64(memory + _OWN_MAXIMA + warp * PAIR_BYTES, pair)
        if thread == 0:
            announce(barrier, n_blocks * _MAXIMA_BYTES)
        cuda.syncthreads()
        block = thread // _MAXIMA_VECTORS
        if block < n_blocks:
            at = thread % _MAXIMA_VECTORS * VECTOR_BYTES
            to, at_barrier = of_block(memory + _MAXIMA + rank * _MAXIMA_BYTES + at, barrier, block)
            ptx.send_u32x4(to, *ptx.load_shared_u32x4(memory + _OWN_MAXIMA + at), at_barrier)
        wait_for_all(barrier, 0)

    @linked_function
    def first_of_all(memory, n_blocks, lane):
        """Return the first (key, position) of the row."""
        best = u64(0)
        other = lane
        while other < n_blocks * WARP_LANES:
            best = max(best, ptx.load_shared_u64(memory + _MAXIMA + other * PAIR_BYTES))
            other += WARP_LANES
        return warp_maximum_u64(best)

    @device_function
    def may_differ(key, key_format):
        """Return whether elements that have this key may differ in bits, as zeros and NaNs do."""
        distance = key ^ u32(key_format.direction)
        is_shared = distance == u32(key_format.infinity) or distance == u32(key_format.unordered)
        return is_shared and not are_integers(key_format)

    @linked_function
    def list_candidates(memory, own, first, n_steps, advance, count, bound, key_format):
        """List a thread's elements that reach the threshold, as far as there is room."""
        words = cuda.local.array(4, u32)
        candidates = memory, memory + _OWN_COUNT, SMALL_K_CANDIDATES_OF_BLOCK
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            place = first + step * advance, elements_of_step(step, n_steps, first, advance, count)
            list_vector(candidates, words, 0, place, bound, key_format)
            own += STEP_BYTES
            step = ptx.next_pass(step)

    @linked_function
    def give_candidates(memory, barrier, thread, rank, n_blocks):
        """Give the first block the candidates of this one, and tell all blocks how many they are."""
        cuda.syncthreads()
        if thread < WARP_LANES:
            count = ptx.load_shared_u32(memory + _OWN_COUNT)
            n_vectors = (min(count, u32(SMALL_K_CANDIDATES_OF_BLOCK)) + (_VECTOR_PAIRS - 1)) // _VECTOR_PAIRS
            if thread < n_blocks:
                to, at_barrier = of_block(memory + _COUNTS + (rank << 2), barrier, thread)
                n_bytes = u32(4)
                if thread == 0:
                    n_bytes += n_vectors * VECTOR_BYTES
                announce(at_barrier, n_bytes)
                ptx.send_u32(to, count, at_barrier)
            to, at_barrier = of_block(memory + _LISTS + rank * _LIST_BYTES, barrier, u32(0))
            vector = thread
            while vector < n_vectors:
                at = vector * VECTOR_BYTES
                ptx.send_u32x4(to + at, *ptx.load_shared_u32x4(memory + at), at_barrier)
                vector += WARP_LANES
        wait_for_all(barrier, 0)

    @linked_function
    def take_candidates(memory, count, lane, warp):
        """Put the candidates of all blocks into one list; `count` are those of block number `lane`."""
        before = u32(0)
        if lane < warp:
            before = count
        to = ptx.warp_add(before)
        n_own = ptx.shuffle_from_u32(count, warp)
        candidate = lane
        while candidate < n_own:
            pair = ptx.load_shared_u64(memory + _LISTS + warp * _LIST_BYTES + candidate * PAIR_BYTES)
            ptx.store_shared_u64(memory + _PAIRS + (to + candidate) * PAIR_BYTES, pair)
            candidate += WARP_LANES

    @device_function
    def select_small_k(areas, own, row, output, n_steps, n_selected, p, c, ids):
        """Write the first elements of a row, and tell whether there was room for the candidates.

        `areas` are the addresses of the barriers and of `SMALL_K_BYTES` of shared memory. The other
        parameters are those of the same name in `cluster`; at least one element is to be selected.
        """
        barriers, memory = areas
        address, stride, length, _ = row
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        if thread < (SMALL_K_BYTES - _OWN_COUNT) // 4:
            ptx.store_shared_u32(memory + _OWN_COUNT + (thread << 2), u32(0))
        # Runs of 32 elements, one of each group, belong to one block of the cluster after the other.
        part = thread // group_lanes
        first = (part * n_blocks + rank) * WARP_LANES + lane % group_lanes * per_vector
        advance = u32(1) << u32(c.step_bits)
        load_elements(own, row, (first, advance), n_steps)
        unfolding = unfolding_of(p.unfolded_format, False)
        best, largest = first_of_groups(own, first, n_steps, advance, length, thread, unfolding)
        ptx.cluster_wait()
        maxima = barrier_at(barriers, MAXIMA)
        share_maxima(memory, maxima, best, thread, rank, n_blocks, p.key_format)
        n_candidates = u32(1)
        has_room = True
        is_found = False
        if n_selected == 1:
            # Of those with neighbouring unfolded keys, a group need not have found the first.
            found = first_of_all(memory, n_blocks, lane)
            is_found = not may_differ(u32(found >> 32), p.key_format)
            if is_found and rank == 0 and warp == 0:
                ptx.store_shared_u64(memory + _PAIRS, found)
        if not is_found:
            n_maxima = n_blocks * WARP_LANES
            threshold = find_threshold(memory + _MAXIMA, memory + _PLACES, n_maxima, n_selected, lane, warp)
            least = unfold_threshold(u32(threshold >> 32), p.key_format)
            if largest >= least:
                bound = threshold, least, unfolding
                list_candidates(memory, own, first, n_steps, advance, length, bound, p.key_format)
            give_candidates(memory, barrier_at(barriers, CANDIDATES), thread, rank, n_blocks)
            count = u32(0)
            if lane < n_blocks:
                count = ptx.load_shared_u32(memory + _COUNTS + (lane << 2))
            n_candidates = ptx.warp_add(count)
            has_room = (
                ptx.ballot(count > SMALL_K_CANDIDATES_OF_BLOCK) == 0 and n_candidates <= SMALL_K_CANDIDATES
            )
            if has_room and rank == 0:
                take_candidates(memory, count, lane, warp)
        cuda.syncthreads()
        if has_room and rank == 0:
            areas, row, is_by_index = (memory + _PAIRS, memory + _BITS), (address, stride), c.is_sorted == 0
            write_first(areas, row, output, n_candidates, n_selected, is_by_index, p.key_format, thread)
        return has_room

    return select_small_k
