"""One pass over rows of some ten thousand elements and more, for a small k: a block per row, or a cluster.

An element is compared as a pair, one number made of its key and, below that, its inverted position: no two
are equal. A pair fits 64 bits, so elements have 1, 2 or 4 bytes.

1. Each warp reads a stretch of the row, in tiles of some vectors per lane. The largest elements of all lanes
   in the first tiles of all warps are a sample: at least k elements of the row are at or above the k-th
   largest of these, which becomes the threshold.
2. Elements at or above the threshold go to a list in shared memory, the others are done with. When the list
   is full, its k-th largest pair becomes the threshold, and what is below leaves the list. So the list always
   holds the first k of what was read, whatever the data, and no vector is read twice.
3. The k-th largest pair of the list, or one a little below, is found once more. The blocks of a cluster hand
   what is at or above it to the first block, which does the same with all of it.
4. Few more than k pairs are left. They are ranked by comparing each with each.

Reads the row once, writes k values and indices.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    LOAD_SHARED,
    atomic_add_shared_u32,
    ballot,
    cluster_address,
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_wait,
    commit_copies,
    copy_async_if,
    grid_dependency_wait,
    larger_bf16x2,
    larger_f16x2,
    larger_f32,
    larger_u16x2,
    leading_zeros_u32,
    load_shared_u32,
    load_shared_u32x4,
    shared_address,
    shared_from,
    smaller_bf16x2,
    smaller_f16x2,
    smaller_f32,
    store_cluster_u32,
    store_cluster_u64,
    wait_for_copies,
    warp_add,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.pairs import KEPT, pair_functions
from kernels_cuda.top_k.parameters import SinglePassParameters
from kernels_cuda.top_k.rows import locate, row_length, store_index
from kernels_cuda.top_k.sample import N_GROUPS, sample_threshold, send_maximum
from kernels_cuda.top_k.shapes import (
    PAIR_BYTES,
    SINGLE_PASS_STAGES,
    SINGLE_PASS_THREADS,
    SINGLE_PASS_VECTORS,
    SINGLE_PASS_WARPS,
    VECTOR_BYTES,
    WARP_LANES,
)
from kernels_cuda.top_k.threshold import FOUND

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_THREADS = SINGLE_PASS_THREADS
_WARP_BITS = SINGLE_PASS_WARPS.bit_length() - 1
# What a block does: it fills the list, cuts a full list down, cuts it down in the end, and does so with what
# all blocks of the cluster have kept.
_FILL, _FULL, _END, _MERGE, _DONE = range(5)
# Pairs that are ranked without another search.
_RANKED = SINGLE_PASS_THREADS // 2
_INFINITY_OF_HALVES = 0x7C00
# Places of shared counters behind that of `pairs`: whether the list is full, and what the sample tells.
_IS_FULL = KEPT + 1
_LEAST_KEY = KEPT + 2
_LAST_GROUP = KEPT + 3
_N_COUNTERS = KEPT + 4
# Entries of the block's state in shared memory.
BASE, VALUES, INDICES = range(3)
_N_STATE = 3
# In shared memory, from a lane's vector to its next, and from its tile to the next.
VECTOR_STEP = SINGLE_PASS_THREADS * VECTOR_BYTES
TILE_STEP = VECTOR_STEP * SINGLE_PASS_VECTORS
wait_for_copy = wait_for_copies(SINGLE_PASS_STAGES - 1)


def single_pass_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    load_shared_element = LOAD_SHARED[element_size]
    store_element = functions.store_element
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    unfolded_maximum = functions.unfolded_maximum
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    at_or_above = functions.at_or_above
    fold = functions.fold
    restore = functions.restore
    pad_row = pad_function(element_size)
    kth_largest, keep, rank_pairs = pair_functions(_THREADS)
    per_vector = VECTOR_BYTES // element_size
    n_vectors_each = SINGLE_PASS_VECTORS
    n_words = 4 * n_vectors_each
    # Vectors that a warp reads in a tile.
    tile_vectors = WARP_LANES * n_vectors_each
    tile_bytes = tile_vectors * VECTOR_BYTES

    @device_function
    def pair_of(key, position, p):
        return (u64(key) << u64(p.position_bits)) | u64(p.position_mask - i64(position))

    @device_function
    def key_of(pair, p):
        return key_type(pair >> u64(p.position_bits))

    @device_function
    def position_of(pair, p):
        return p.position_mask - (i64(pair) & p.position_mask)

    @linked_function
    def bars(threshold, p):
        """Return the least unfolded keys of elements with the key of a threshold, and a larger one.

        And the position of the threshold.
        """
        key = key_of(threshold, p)
        above = unfold_next_above(key, p.key_format)
        if above == 0:
            above = ~above
        return unfold_threshold(key, p.key_format), above, position_of(threshold, p)

    @linked_function
    def copy_tile(place, address, n_left):
        """Begin to copy a lane's vectors ``32 * j`` from `address` on, up to `n_left`."""
        for at in range(n_vectors_each):
            copy_async_if(
                place + VECTOR_STEP * at,
                address + WARP_LANES * VECTOR_BYTES * at,
                u32(WARP_LANES * at) < n_left,
            )
        commit_copies()

    @linked_function
    def load_tile(words, place):
        """Load the vectors of a lane from shared memory."""
        for at in range(n_vectors_each):
            word = 4 * at
            words[word], words[word + 1], words[word + 2], words[word + 3] = load_shared_u32x4(
                place + VECTOR_STEP * at
            )

    larger_integer = larger_u16x2 if element_size == 2 else max

    @device_function
    def is_bfloat(p):
        return element_size == 2 and p.key_format.infinity != _INFINITY_OF_HALVES

    def extreme_of(combine: Any) -> Any:
        @device_function
        def extreme(words):
            best = words[0]
            for at in range(1, n_words):
                best = combine(best, words[at])
            return best

        return extreme

    larger, smaller = map(
        extreme_of, (larger_f16x2, smaller_f16x2) if element_size == 2 else (larger_f32, smaller_f32)
    )
    larger_bfloat, smaller_bfloat = extreme_of(larger_bf16x2), extreme_of(smaller_bf16x2)

    @linked_function
    def extreme_word(words, p):
        """Return a word that has an element which no other of the words comes before, in few instructions."""
        change = u32(p.unfolded_format.change)
        best = words[0] ^ change
        if p.key_format.flip == 0:
            for at in range(1, n_words):
                best = larger_integer(best, words[at] ^ change)
            best ^= change
        elif p.key_format.unordered != 0:
            best = larger_bfloat(words) if is_bfloat(p) else larger(words)
        else:
            best = smaller_bfloat(words) if is_bfloat(p) else smaller(words)
        return best

    @device_function
    def reach(word, unfolding):
        """Return the largest unfolded key of the elements of a word."""
        best = unfolded_element(word, unfolding)
        if element_size == 2:
            best = max(best, unfolded_element(word >> 16, unfolding))
        return best

    @cuda.jit(max_registers=64)
    def single_pass_top_k(x, lengths, values, indices, offsets, p: SinglePassParameters):
        grid_dependency_wait()
        found = cuda.shared.array(0, u64, VECTOR_BYTES)
        kept = shared_from(found, p.n_slots)
        histogram = cuda.shared.array(_THREADS, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, u64)
        counters = cuda.shared.array(_N_COUNTERS, u32)
        group_maxima = cuda.shared.array(N_GROUPS, u32, VECTOR_BYTES)
        totals = cuda.shared.array(WARP_LANES, u32)
        state = cuda.shared.array(_N_STATE, i64)
        memory = histogram, sums, extremes, counters

        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ids = thread, lane, warp
        block = p.first_block + i64(cuda.blockIdx.x)
        row = block >> p.cluster_bits
        rank = u32(block) & u32((i64(1) << p.cluster_bits) - 1)
        if p.cluster_bits != 0:
            cluster_arrive_relaxed()
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        value_row, index_row, _, base, address, prefix, n_row_vectors = locate(
            x, offsets, row, i64(0), length, length, i64(1), element_size, p.layout
        )
        n_selected = u32(min(p.k, length))
        n_vectors = u32(n_row_vectors)

        # The warp's stretch of the row: a lane's vectors are every 32nd from `vector` on.
        warp_bits = u32(_WARP_BITS) + u32(p.cluster_bits)
        n_tiles = (n_vectors + ((u32(tile_vectors) << warp_bits) - 1)) // tile_vectors >> warp_bits
        vector = (rank * SINGLE_PASS_WARPS + warp) * n_tiles * tile_vectors
        end = min(n_vectors, vector + n_tiles * tile_vectors)
        vector += lane
        n_left = max(end, vector) - vector
        address += i64(vector) * VECTOR_BYTES
        first_place = shared_address(found) + u32(p.ring_byte) + thread * VECTOR_BYTES
        n_ahead = n_left
        for stage in range(SINGLE_PASS_STAGES):
            copy_tile(first_place + u32(stage * TILE_STEP), address, n_ahead)
            address += tile_bytes
            n_ahead = max(n_ahead, u32(tile_vectors)) - tile_vectors
        if thread == 0:
            state[BASE] = base
            state[VALUES] = values + value_row * element_size
            state[INDICES] = indices + index_row * p.index_size

        # Elements before the first and after the last whole vector are of the first block.
        n_unaligned = u32(length - n_row_vectors * per_vector)
        if rank != 0:
            n_unaligned = u32(0)
        if thread < n_unaligned:
            unaligned = i64(thread)
            if unaligned >= prefix:
                unaligned += n_row_vectors * per_vector
            bits = load_element(base + unaligned * element_size)
            found[thread] = pair_of(ordered_key(bits, p.key_format), unaligned, p)
        histogram[thread] = u32(0)
        if thread < _N_COUNTERS:
            counters[thread] = u32(0)
            if thread == FOUND:
                counters[FOUND] = n_unaligned

        # The largest keys of the groups of lanes, of all blocks that share the row.
        words = cuda.local.array(n_words, u32)
        unfolding = unfolding_of(p.unfolded_format, False)
        best = key_type(0)
        wait_for_copy()
        if n_left > 0:
            load_tile(words, first_place)
            unfolded = unfolded_maximum(words, 0, unfolding)
            for at in range(1, n_vectors_each):
                if u32(WARP_LANES * at) < n_left:
                    unfolded = max(unfolded, unfolded_maximum(words, 4 * at, unfolding))
            best = fold(unfolded, p.unfolded_format, p.key_format)
        send_maximum(group_maxima, best, rank, u32(p.cluster_bits), lane, warp)
        if warp == 0:
            least_key, last_group = sample_threshold(group_maxima, n_selected, lane)
            if lane == 0:
                counters[_LEAST_KEY] = least_key
                counters[_LAST_GROUP] = last_group
        cuda.syncthreads()
        threshold = u64(counters[_LEAST_KEY]) << u64(p.position_bits)
        if counters[_LAST_GROUP] < N_GROUPS:
            # Of the elements that tie, those up to the last in the first tile of the group's warp will do.
            last_warp = counters[_LAST_GROUP] >> (4 - u32(p.cluster_bits))
            last_vector = last_warp * n_tiles * tile_vectors + tile_vectors
            last_position = i64(last_vector) * per_vector + prefix
            threshold |= u64(max(p.position_mask - last_position, i64(0)))

        # The list is filled, and cut down to the first k when it is full and in the end, until all tiles are
        # done with; then the first block goes on with what all blocks have kept.
        phase = u32(_FILL)
        searching = False
        first_position = i64(vector) * per_vector + prefix
        first_pair = i64(0)
        n_pairs = u32(0)
        destination = shared_address(kept)
        counters_at = shared_address(counters)
        place = first_place
        stage = u32(0)
        tile = u32(0)
        live = u32(0)
        while phase != _DONE:
            pairs = shared_from(found, first_pair)
            if searching:
                threshold = kth_largest(pairs, n_pairs, n_selected, u32(p.most), memory, ids)
            if phase != _FILL:
                n_pairs = keep(pairs, n_pairs, threshold, destination, counters, thread)
            if phase == _FULL:
                if thread < n_pairs:
                    found[thread] = kept[thread]
                if thread == 0:
                    counters[FOUND] = n_pairs
                    counters[_IS_FULL] = u32(0)
                cuda.syncthreads()
            if phase <= _FULL:
                least_unfolded, next_unfolded, threshold_position = bars(threshold, p)
                # Only a full list, and the end, make warps wait for each other.
                while tile < n_tiles and load_shared_u32(counters_at + u32(4 * _IS_FULL)) == 0:
                    if ballot(live) == 0:
                        wait_for_copy()
                        load_tile(words, place)
                        # Of elements beyond the position of the threshold, those that tie with it are not
                        # live.
                        bar = least_unfolded
                        if first_position > threshold_position:
                            bar = next_unfolded
                        if reach(extreme_word(words, p), unfolding) >= bar:
                            for at in range(n_vectors_each):
                                above = at_or_above(words, 4 * at, bar, unfolding, False)
                                live |= above << u32(at * per_vector)
                            for at in range(n_vectors_each):
                                if u32(WARP_LANES * at) >= n_left:
                                    live &= (1 << u32(at * per_vector)) - 1
                    left = live
                    live = u32(0)
                    while left != 0:
                        lowest = left & (0 - left)
                        left ^= lowest
                        bit = 31 - leading_zeros_u32(lowest)
                        number = bit // per_vector
                        element = bit % per_vector
                        bits = load_shared_element(place + number * VECTOR_STEP + element * element_size)
                        position = first_position + i64(number * (WARP_LANES * per_vector) + element)
                        pair = pair_of(ordered_key(bits, p.key_format), position, p)
                        if pair >= threshold:
                            slot = atomic_add_shared_u32(counters_at + u32(4 * FOUND), u32(1))
                            if slot < u32(p.n_slots):
                                found[slot] = pair
                            else:
                                live |= lowest
                    if ballot(live) == 0:
                        copy_tile(place, address, n_ahead)
                        address += tile_bytes
                        n_ahead = max(n_ahead, u32(tile_vectors)) - tile_vectors
                        n_left = max(n_left, u32(tile_vectors)) - tile_vectors
                        first_position += tile_vectors * per_vector
                        tile += 1
                        stage += 1
                        place += TILE_STEP
                        if stage == SINGLE_PASS_STAGES:
                            stage = u32(0)
                            place = first_place
                    elif lane == 0:
                        counters[_IS_FULL] = u32(1)
                cuda.syncthreads()
                phase = u32(_END)
                n_pairs = min(counters[FOUND], u32(p.n_slots))
                most = max(u32(p.most), u32(_RANKED))
                if counters[_IS_FULL] != 0:
                    phase = u32(_FULL)
                elif p.cluster_bits != 0:
                    most = u32(p.most)
                    destination = cluster_address(destination + rank * most * PAIR_BYTES, u32(0))
                searching = phase == _FULL or n_pairs > most
                if phase == _END and not searching:
                    threshold = u64(0)
            elif phase == _END and p.cluster_bits != 0:
                if n_pairs + thread < u32(p.most):
                    store_cluster_u64(destination + (n_pairs + thread) * PAIR_BYTES, u64(0))
                if thread == 0:
                    store_cluster_u32(cluster_address(shared_address(totals) + rank * 4, u32(0)), n_pairs)
                cluster_arrive()
                cluster_wait()
                if rank != 0:
                    return
                n_pairs = u32(0)
                if lane < u32(1) << u32(p.cluster_bits):
                    n_pairs = totals[lane]
                searching = warp_add(n_pairs) > min(u32(_RANKED), u32(p.n_slots))
                phase = u32(_MERGE)
                threshold = u64(0)
                n_pairs = u32(p.most) << u32(p.cluster_bits)
                first_pair = p.n_slots
                destination = shared_address(found)
            else:
                phase = u32(_DONE)

        # The pairs are where those that they were kept from are not.
        ranked = shared_from(found, first_pair)
        rank_pairs(shared_from(found, p.n_slots - first_pair), n_pairs, n_selected, ranked, thread)
        if thread < n_selected:
            pair = ranked[thread]
            position = position_of(pair, p)
            rank_of_result = i64(thread)
            if p.is_sorted == 0:
                rank_of_result = i64(0)
                other = u32(0)
                while other < n_selected:
                    rank_of_result += i64(position_of(ranked[other], p) < position)
                    other += 1
            bits = restore(key_of(pair, p), p.key_format, state[BASE] + position * element_size)
            store_element(state[VALUES] + rank_of_result * p.strides.values * element_size, bits)
            store_index(
                state[INDICES] + rank_of_result * p.strides.indices * p.index_size, p.index_size, position
            )
        pad_row(
            *(state[VALUES], state[INDICES], p.strides, p.index_size, p.length_format.padding),
            *(i64(n_selected) + i64(thread), i64(_THREADS), i64(p.k)),
        )

    return single_pass_top_k
