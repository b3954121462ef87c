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
    atomic_add_shared_u32,
    ballot,
    cluster_address,
    cluster_arrive,
    cluster_wait,
    grid_dependency_wait,
    leading_zeros_u32,
    load_if_u32x4,
    popcount_u32,
    shared_address,
    shared_from,
    shuffle_xor_u32,
    store_cluster_u64,
    warp_add,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.parameters import SinglePassParameters
from kernels_cuda.top_k.rows import locate, row_length, store_index
from kernels_cuda.top_k.shapes import (
    PAIR_BYTES,
    SINGLE_PASS_THREADS,
    SINGLE_PASS_WARPS,
    VECTOR_BYTES,
    WARP_LANES,
    single_pass_vectors,
)
from kernels_cuda.top_k.threshold import FOUND, N_COUNTERS, threshold_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_THREADS = SINGLE_PASS_THREADS
_WARP_BITS = SINGLE_PASS_WARPS.bit_length() - 1
_ALL_ONES = 0xFFFFFFFFFFFFFFFF
# Places of shared counters behind those of `threshold`: pairs that stay, and the last two rounds in which
# the list was full.
_KEPT = N_COUNTERS
_FULL = N_COUNTERS + 1
_N_COUNTERS = N_COUNTERS + 4


def single_pass_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    store_element = functions.store_element
    unfolding_of = functions.unfolding_of
    unfolded_maximum = functions.unfolded_maximum
    unfold_threshold = functions.unfold_threshold
    at_or_above = functions.at_or_above
    fold = functions.fold
    restore = functions.restore
    pad_row = pad_function(element_size)
    _, block_extremes, find_threshold, _ = threshold_functions(_THREADS, u64)
    per_vector = VECTOR_BYTES // element_size
    per_word = 4 // element_size
    n_vectors_each = single_pass_vectors(element_size)
    n_words = 4 * n_vectors_each
    # Vectors that a warp reads in a tile.
    warp_vectors = WARP_LANES * n_vectors_each
    tile_bytes = warp_vectors * VECTOR_BYTES
    element_mask = (1 << 8 * element_size) - 1

    @device_function
    def pair_of(key, position, p):
        return (u64(key) << u64(p.position_bits)) | u64(p.position_mask - i64(position))

    @device_function
    def position_of(pair, p):
        return p.position_mask - (i64(pair) & p.position_mask)

    @linked_function
    def load_tile(words, address, n_left):
        """Load a lane's vectors ``32 * j`` from `address` on, up to `n_left`."""
        for at in range(n_vectors_each):
            word = 4 * at
            words[word], words[word + 1], words[word + 2], words[word + 3] = load_if_u32x4(
                address + WARP_LANES * VECTOR_BYTES * at, u32(WARP_LANES * at) < n_left
            )

    @linked_function
    def word_of(words, number):
        """Return a word of a local array, which stays in registers."""
        word = words[0]
        for at in range(1, n_words):
            if number == u32(at):
                word = words[at]
        return word

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
            at += _THREADS
        lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
        threshold, _, _ = find_threshold(
            *(pairs, n_pairs, lowest, highest, n_selected, most, histogram, sums, counters),
            *(thread, lane, warp),
        )
        return threshold

    @linked_function
    def keep(pairs, n_pairs, threshold, address, counters, thread):
        """Copy the pairs at or above a threshold to shared memory, of any block; return how many there are."""
        cuda.syncthreads()
        if thread == 0:
            counters[_KEPT] = u32(0)
        cuda.syncthreads()
        at = thread
        while at < n_pairs:
            pair = pairs[at]
            if pair != 0 and pair >= threshold:
                slot = atomic_add_shared_u32(shared_address(counters) + u32(4 * _KEPT), u32(1))
                store_cluster_u64(address + slot * PAIR_BYTES, pair)
            at += _THREADS
        cuda.syncthreads()
        return counters[_KEPT]

    @linked_function
    def rank_pairs(pairs, n_pairs, n_selected, ranked, thread):
        """Put the first pairs in order: each is compared with all, by as many lanes as there are for it."""
        lane_bits = u32(0)
        while lane_bits < 5 and n_pairs << (lane_bits + 1) <= _THREADS:
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

    @cuda.jit(max_registers=64)
    def single_pass_top_k(x, lengths, values, indices, offsets, p: SinglePassParameters):
        grid_dependency_wait()
        found = cuda.shared.array(0, u64, VECTOR_BYTES)
        kept = shared_from(found, p.n_slots)
        sample = cuda.shared.array(_THREADS, u64, VECTOR_BYTES)
        histogram = cuda.shared.array(_THREADS, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, u64)
        counters = cuda.shared.array(_N_COUNTERS, u32)
        memory = histogram, sums, extremes, counters

        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ids = thread, lane, warp
        block = p.first_block + i64(cuda.blockIdx.x)
        row = block >> p.cluster_bits
        rank = u32(block) & u32((i64(1) << p.cluster_bits) - 1)
        if p.cluster_bits != 0:
            cluster_arrive()
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        _, _, value_row, index_row, base, address, prefix, n_row_vectors = locate(
            x, offsets, row, length, length, i64(1), i64(1), element_size, p.layout
        )
        n_selected = u32(min(p.k, length))
        n_vectors = u32(n_row_vectors)

        # The first tile of the warp's stretch; the last one's vectors may not exist.
        n_warp_tiles = (n_vectors + (warp_vectors - 1)) // warp_vectors
        warp_bits = u32(_WARP_BITS) + u32(p.cluster_bits)
        n_tiles = (n_warp_tiles + ((u32(1) << warp_bits) - 1)) >> warp_bits
        vector = (rank * SINGLE_PASS_WARPS + warp) * n_tiles * warp_vectors + lane
        n_left = max(n_vectors, vector) - vector
        address += i64(vector) * VECTOR_BYTES
        words = cuda.local.array(n_words, u32)
        next_words = cuda.local.array(n_words, u32)
        maxima = cuda.local.array(n_vectors_each, key_type)
        unfolding = unfolding_of(p.unfolded_format, False)
        load_tile(words, address, n_left)

        # Elements before the first and after the last whole vector are of the first block.
        n_unaligned = u32(length - n_row_vectors * per_vector)
        if rank != 0:
            n_unaligned = u32(0)
        pair = u64(0)
        if thread < n_unaligned:
            unaligned = i64(thread)
            if unaligned >= prefix:
                unaligned += n_row_vectors * per_vector
            bits = load_element(base + unaligned * element_size)
            pair = pair_of(ordered_key(bits, p.key_format), unaligned, p)
            found[thread] = pair
        histogram[thread] = u32(0)
        if thread < _N_COUNTERS:
            counters[thread] = u32(0)
            if thread == FOUND:
                counters[FOUND] = n_unaligned
        cuda.syncthreads()

        found_counter = shared_address(counters) + u32(4 * FOUND)
        threshold = u64(0)
        least_unfolded = key_type(0)
        round = u32(1)
        tile = u32(0)
        while tile < n_tiles:
            n_next = max(n_left, u32(warp_vectors)) - warp_vectors
            if tile + 1 == n_tiles:
                n_next = u32(0)
            load_tile(next_words, address + tile_bytes, n_next)
            for at in range(n_vectors_each):
                maxima[at] = unfolded_maximum(words, 4 * at, unfolding)
            first_position = i64(vector) * per_vector + prefix

            if tile == 0:
                # The pair of a lane is of its largest element, or of the last of that vector.
                if n_left > 0:
                    best = maxima[0]
                    place = i64(0)
                    for at in range(1, n_vectors_each):
                        if maxima[at] > best and u32(WARP_LANES * at) < n_left:
                            best = maxima[at]
                            place = i64(WARP_LANES * at)
                    position = first_position + place * per_vector + (per_vector - 1)
                    key = fold(best, p.unfolded_format, p.key_format)
                    pair = max(pair, pair_of(key, position, p))
                sample[thread] = pair
                n_pairs = popcount_u32(ballot(pair != 0))
                if lane == 0:
                    sums[warp] = n_pairs
                cuda.syncthreads()
                n_pairs = u32(0)
                if lane < SINGLE_PASS_WARPS:
                    n_pairs = sums[lane]
                if warp_add(n_pairs) >= n_selected:
                    threshold = kth_largest(sample, u32(_THREADS), n_selected, u32(p.most), memory, ids)
                    key = key_type(threshold >> u64(p.position_bits))
                    least_unfolded = unfold_threshold(key, p.key_format)

            live = u32(0)
            for at in range(n_vectors_each):
                if maxima[at] >= least_unfolded and u32(WARP_LANES * at) < n_left:
                    above = at_or_above(words, 4 * at, least_unfolded, unfolding, False)
                    live |= above << u32(at * per_vector)
            collecting = True
            while collecting:
                left = live
                live = u32(0)
                while left != 0:
                    lowest = left & (0 - left)
                    left ^= lowest
                    place = 31 - leading_zeros_u32(lowest)
                    bits = word_of(words, place // per_word)
                    bits = (bits >> (place % per_word * (8 * element_size))) & element_mask
                    position = first_position + i64(
                        place // per_vector * (WARP_LANES * per_vector) + place % per_vector
                    )
                    pair = pair_of(ordered_key(bits, p.key_format), position, p)
                    if pair >= threshold:
                        slot = atomic_add_shared_u32(found_counter, u32(1))
                        if slot < u32(p.n_slots):
                            found[slot] = pair
                        else:
                            live |= lowest
                if live != 0:
                    counters[_FULL + (round & 1)] = round
                cuda.syncthreads()
                collecting = counters[_FULL + (round & 1)] == round
                round += 1
                if collecting:
                    threshold = kth_largest(found, u32(p.n_slots), n_selected, u32(p.most), memory, ids)
                    key = key_type(threshold >> u64(p.position_bits))
                    least_unfolded = unfold_threshold(key, p.key_format)
                    n_kept = keep(found, u32(p.n_slots), threshold, shared_address(kept), counters, thread)
                    if thread < n_kept:
                        found[thread] = kept[thread]
                    if thread == 0:
                        counters[FOUND] = n_kept
                    cuda.syncthreads()

            for at in range(n_words):
                words[at] = next_words[at]
            address += tile_bytes
            vector += warp_vectors
            n_left = n_next
            tile += 1

        n_pairs = counters[FOUND]
        threshold = u64(0)
        if n_pairs > u32(p.most):
            threshold = kth_largest(found, n_pairs, n_selected, u32(p.most), memory, ids)
        destination = shared_address(kept)
        if p.cluster_bits != 0:
            destination = cluster_address(destination + rank * u32(p.most) * PAIR_BYTES, u32(0))
            # All blocks have begun.
            cluster_wait()
        n_pairs = keep(found, n_pairs, threshold, destination, counters, thread)
        first_pair = p.n_slots
        if p.cluster_bits != 0:
            if n_pairs + thread < u32(p.most):
                store_cluster_u64(destination + (n_pairs + thread) * PAIR_BYTES, u64(0))
            cluster_arrive()
            cluster_wait()
            if rank != 0:
                return
            n_kept = u32(p.most) << u32(p.cluster_bits)
            threshold = u64(0)
            if n_selected != 0:
                threshold = kth_largest(kept, n_kept, n_selected, u32(p.most), memory, ids)
            n_pairs = keep(kept, n_kept, threshold, shared_address(found), counters, thread)
            first_pair = i64(0)

        rank_pairs(shared_from(found, first_pair), n_pairs, n_selected, sample, thread)
        values += value_row * element_size
        indices += index_row * p.index_size
        if thread < n_selected:
            pair = sample[thread]
            position = position_of(pair, p)
            place = i64(thread)
            if p.is_sorted == 0:
                place = i64(0)
                other = u32(0)
                while other < n_selected:
                    place += i64(position_of(sample[other], p) < position)
                    other += 1
            key = key_type(pair >> u64(p.position_bits))
            bits = restore(key, p.key_format, base + position * element_size)
            store_element(values + place * p.strides.values * element_size, bits)
            store_index(indices + place * p.strides.indices * p.index_size, p.index_size, position)
        pad_row(
            *(values, indices, p.strides, p.index_size, p.length_format.padding),
            *(i64(n_selected) + i64(thread), i64(_THREADS), i64(p.k)),
        )

    return single_pass_top_k
