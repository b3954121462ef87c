"""One cluster of blocks per row, whose elements they hold in registers: for few long rows.

Each block has a part of the row; those of higher rank have later parts.

1. Load the row, and make ordered keys of its elements.
2. Find the range of keys in which the k-th one lies, digit by digit: count the digits of the keys that are in
   the range so far, add up the counts of all blocks, and go on with the digit at which the k-th key is. All
   keys above the range are selected. Of those within it, the first ones are, by position; after the last
   digit they are equal.
3. Tell all blocks how many keys each has above the range and within it: so each warp knows how many of its
   own are selected, and where in the results they begin.
4. By ascending index: write them there. Sorted: `cluster_sort` orders them.

The digits have 11 bits. Each block counts in bins of its own. It adds them to those of the cluster, which are
shared out in pages of 64 bins: block 0 has page 0, block 1 page 1, and so on. How many keys a page has is
added up in every block: so each knows in which page the k-th key is, and reads that one page. One barrier of
the cluster per digit does, because the cluster's bins are there three times: while one is read, the next is
added to, and the one after that is cleared.

What is beyond the end of a row has the lowest key, and comes after all of the row: it is never selected. The
time hardly depends on the data: at most one step per digit, and no list can overflow.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    READ_IF,
    ballot,
    cluster_address,
    cluster_arrive,
    cluster_rank,
    cluster_wait,
    count_shared_if,
    grid_dependency_wait,
    leading_zeros_u32,
    load_cluster_u64,
    load_if_u32x4,
    load_shared_u64,
    popcount_u32,
    reduce_add_cluster_u32,
    shared_address,
    shuffle_from_u32,
    store_cluster_u64,
    store_shared_u64,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_sort import sort_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.parameters import ClusterParameters
from kernels_cuda.top_k.rows import row_length, row_offsets, store_index
from kernels_cuda.top_k.shapes import (
    CLUSTER_BINS,
    CLUSTER_THREADS,
    CLUSTER_VECTORS,
    LARGEST_CLUSTER,
    LARGEST_CLUSTER_CHUNK,
    VECTOR_BYTES,
    WARP_LANES,
)

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_DIGIT_BITS = CLUSTER_BINS.bit_length() - 1
_N_WARPS = CLUSTER_THREADS // WARP_LANES
# A lane has two bins of its warp's page.
_PAGE_BINS = CLUSTER_BINS // _N_WARPS
# Bytes of the cluster's bins, and of the totals of its pages.
_BIN_BYTES = 4 * CLUSTER_BINS
_TOTAL_BYTES = 4 * _N_WARPS
_N_COPIES = 3
_ALL_BINS = (1 + _N_COPIES) * CLUSTER_BINS
_ALL_TOTALS = _N_COPIES * _N_WARPS


class KeyFunctions(NamedTuple):
    """Device functions for the keys that a thread holds: an array of `n_words` words."""

    n_words: int
    n_vectors: int
    load: Any
    key_at: Any


@functools.cache
def key_functions(element_size: int) -> KeyFunctions:
    """Make the functions for one element width; keys of less than 32 bits share a word."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    read_if = READ_IF[element_size]
    n_vectors = CLUSTER_VECTORS[element_size]
    per_vector = VECTOR_BYTES // element_size
    per_word = max(1, 4 // element_size)
    words_per_vector = per_vector // per_word
    bits = 8 * element_size
    ones = (1 << bits) - 1

    @device_function
    def key_at(words, place):
        """Return the key of element number `place` of a thread."""
        word = words[place // per_word]
        if per_word > 1:
            word = (word >> u32(place % per_word * bits)) & ones
        return word

    @device_function
    def end_of(first, n_steps):
        """Return where a thread's elements end."""
        return first + ((n_steps - 1) * WARP_LANES + 1) * per_vector

    @linked_function
    def load_elements(words, address, stride, first, n_steps, count):
        """Load a thread's elements, `n_steps` vectors from number `first` of `count` elements on."""
        is_aligned = stride == 1 and address & (VECTOR_BYTES - 1) == 0
        raw = cuda.local.array((n_vectors, 4), u32)
        for vector in range(n_vectors):
            position = first + u32(vector * WARP_LANES * per_vector)
            is_whole = is_aligned and vector < n_steps and position + per_vector <= count
            raw[vector, 0], raw[vector, 1], raw[vector, 2], raw[vector, 3] = load_if_u32x4(
                address + i64(position) * element_size, is_whole
            )
        for vector in range(n_vectors):
            for word in range(words_per_vector):
                at = vector * words_per_vector + word
                if element_size == 8:
                    words[at] = u64(raw[vector, 2 * word]) | (u64(raw[vector, 2 * word + 1]) << 32)
                else:
                    words[at] = raw[vector, word]
        if not is_aligned or end_of(first, n_steps) > count:
            step = stride * element_size
            for vector in range(n_vectors):
                position = first + u32(vector * WARP_LANES * per_vector)
                if vector < n_steps and (not is_aligned or position < count < position + per_vector):
                    for word in range(words_per_vector):
                        packed = key_type(0)
                        for part in range(per_word):
                            at = position + u32(word * per_word + part)
                            element = read_if(address + i64(at) * step, at < count)
                            packed |= element << key_type(part * bits)
                        words[vector * words_per_vector + word] = packed

    @linked_function
    def make_keys(words, key_format, first, n_steps, count):
        """Turn a thread's elements into keys; what is beyond the last of `count` elements gets the lowest."""
        for vector in range(n_vectors):
            if vector < n_steps:
                for word in range(vector * words_per_vector, (vector + 1) * words_per_vector):
                    packed = key_type(0)
                    for part in range(per_word):
                        key = ordered_key(key_at(words, word * per_word + part), key_format)
                        packed |= key << key_type(part * bits)
                    words[word] = packed
        if end_of(first, n_steps) > count:
            for vector in range(n_vectors):
                position = first + u32(vector * WARP_LANES * per_vector)
                for word in range(words_per_vector):
                    kept = key_type(0)
                    for part in range(per_word):
                        if position + u32(word * per_word + part) < count:
                            kept |= key_type(ones) << key_type(part * bits)
                    words[vector * words_per_vector + word] &= kept

    @device_function
    def load(words, address, stride, first, n_steps, count, key_format):
        load_elements(words, address, stride, first, n_steps, count)
        make_keys(words, key_format, first, n_steps, count)

    return KeyFunctions(n_vectors * words_per_vector, n_vectors, load, key_at)


def cluster_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    store_element = functions.store_element
    n_words, n_vectors, load_keys, key_at = key_functions(element_size)
    send, sort_and_write = sort_function(element_size)
    pad_row = pad_function(element_size)
    per_vector = VECTOR_BYTES // element_size
    n_bits = 8 * element_size
    ones = (1 << n_bits) - 1

    @linked_function
    def count_digits(words, n_steps, bins, low, span, shift):
        """Count the digits at bit `shift` of the keys from `low` to ``low + span``."""
        for vector in range(n_vectors):
            if vector < n_steps:
                for element in range(per_vector):
                    offset = key_at(words, vector * per_vector + element) - low
                    count_shared_if(bins + (u32(offset >> key_type(shift)) << 2), offset <= span)

    @linked_function
    def add_up(bins, sums, totals, copy, thread, n_blocks):
        """Add a block's bins to those of the cluster, and clear them, and the cluster's next bins."""
        lane = thread & 31
        page = thread >> 5
        own = bins + (thread << 3)
        pair = load_shared_u64(own)
        store_shared_u64(own, u64(0))
        first = u32(pair)
        second = u32(pair >> 32)
        at = cluster_address(sums + copy * _BIN_BYTES + (thread << 3), page & (n_blocks - 1))
        if first != 0:
            reduce_add_cluster_u32(at, first)
        if second != 0:
            reduce_add_cluster_u32(at + 4, second)
        total = warp_add(first + second)
        if lane < n_blocks and total != 0:
            reduce_add_cluster_u32(cluster_address(totals + copy * _TOTAL_BYTES + (page << 2), lane), total)

    @device_function
    def clear(sums, totals, copy, thread):
        store_shared_u64(sums + copy * _BIN_BYTES + (thread << 3), u64(0))
        if thread < _N_WARPS // 2:
            store_shared_u64(totals + copy * _TOTAL_BYTES + (thread << 3), u64(0))

    @linked_function
    def find_digit(cut, sums, page_totals, copy, n_left, lane, n_blocks):
        """Write down the digit of key number `n_left` from the top, its number among those, and how many.

        A warp does, whose lanes go through the pages from the last to the first, and then through the bins of
        one of them.
        """
        amount = page_totals[copy * _N_WARPS + (_N_WARPS - 1 - lane)]
        through = warp_inclusive_sum(amount)
        found = 31 - leading_zeros_u32(ballot(through - amount < n_left <= through))
        n_left -= shuffle_from_u32(through - amount, found)
        page = _N_WARPS - 1 - found
        first_bin = page * _PAGE_BINS + (_PAGE_BINS - 2) - 2 * lane
        at = cluster_address(sums + copy * _BIN_BYTES + (first_bin << 2), page & (n_blocks - 1))
        pair = load_cluster_u64(at)
        below = u32(pair)
        above = u32(pair >> 32)
        amount = above + below
        before = warp_inclusive_sum(amount) - amount
        if before < n_left <= before + amount:
            n_left -= before
            cut[0] = first_bin + 1
            cut[1] = n_left
            cut[2] = above
            if n_left > above:
                cut[0] = first_bin
                cut[1] = n_left - above
                cut[2] = below

    @linked_function
    def count_selected(words, n_steps, low, high):
        """Return how many of a thread's keys are above `high`, and how many from `low` to `high`."""
        n_above = u32(0)
        n_ties = u32(0)
        for vector in range(n_vectors):
            if vector < n_steps:
                for element in range(per_vector):
                    key = key_at(words, vector * per_vector + element)
                    n_above += u32(key > high)
                    n_ties += u32(key >= low)
        return n_above, n_ties - n_above

    @device_function
    def drop_last(mask, n_kept):
        """Return the lowest `n_kept` bits that are set."""
        while popcount_u32(mask) > n_kept:
            mask ^= u32(1) << (31 - leading_zeros_u32(mask))
        return mask

    @cuda.jit(max_registers=65536 // CLUSTER_THREADS)
    def cluster_top_k(x, values, indices, lengths, offsets, p: ClusterParameters):
        bins_and_sums = cuda.shared.array(_ALL_BINS, u32, VECTOR_BYTES)
        page_totals = cuda.shared.array(_ALL_TOTALS, u32, VECTOR_BYTES)
        chunk_keys = cuda.shared.array(LARGEST_CLUSTER_CHUNK, key_type, VECTOR_BYTES)
        chunk_lows = cuda.shared.array(LARGEST_CLUSTER_CHUNK, u32, VECTOR_BYTES)
        block_counts = cuda.shared.array(LARGEST_CLUSTER, u64)
        warp_counts = cuda.shared.array(_N_WARPS, u64)
        cut = cuda.shared.array(3, u32)
        bins = shared_address(bins_and_sums)
        sums = bins + _BIN_BYTES
        totals = shared_address(page_totals)

        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        rank = cluster_rank()
        n_blocks = u32(1) << u32(p.cluster_bits)
        store_shared_u64(bins + (thread << 3), u64(0))
        clear(sums, totals, u32(0), thread)
        cluster_arrive()
        grid_dependency_wait()

        row = p.first_row + (i64(cuda.blockIdx.x) >> p.cluster_bits)
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        values += value_row * element_size
        indices += index_row * p.index_size
        n_selected = u32(min(p.k, length))
        # In each step, a warp reads neighbouring vectors; those of all its steps are neighbours, too.
        n_steps = u32((length + ((1 << p.step_bits) - 1)) >> p.step_bits)
        first = ((rank * _N_WARPS + warp) * n_steps * WARP_LANES + lane) * per_vector
        words = cuda.local.array(n_words, key_type)
        row_address = x + x_row * element_size
        load_keys(words, row_address, p.strides.x, first, n_steps, u32(length), p.key_format)
        cluster_wait()

        # All selected keys are above `high`, or from `low` on: of these `n_left`.
        low = key_type(0)
        high = key_type(ones)
        n_left = n_selected
        shift = u32(n_bits)
        copy = u32(0)
        searching = n_selected > 0
        while searching:
            shift = max(shift, u32(_DIGIT_BITS)) - _DIGIT_BITS
            next_copy = copy + 1
            if next_copy == _N_COPIES:
                next_copy = u32(0)
            clear(sums, totals, next_copy, thread)
            count_digits(words, n_steps, bins, low, high - low, shift)
            cuda.syncthreads()
            add_up(bins, sums, totals, copy, thread, n_blocks)
            cluster_arrive()
            cluster_wait()
            if warp == 0:
                find_digit(cut, sums, page_totals, copy, n_left, lane, n_blocks)
            cuda.syncthreads()
            low += key_type(cut[0]) << key_type(shift)
            high = low + ((key_type(1) << key_type(shift)) - 1)
            n_left = cut[1]
            searching = shift > 0 and n_left < cut[2]
            copy = next_copy

        n_above, n_ties = count_selected(words, n_steps, low, high)
        n_above = warp_add(n_above)
        n_ties = warp_add(n_ties)
        if lane == 0:
            warp_counts[warp] = u64(n_above) | (u64(n_ties) << 32)
        cuda.syncthreads()
        counts = warp_counts[lane]
        if warp == 0:
            of_block = u64(warp_add(u32(counts))) | (u64(warp_add(u32(counts >> 32))) << 32)
            if lane < n_blocks:
                store_cluster_u64(cluster_address(shared_address(block_counts) + (rank << 3), lane), of_block)
        cluster_arrive()
        cluster_wait()
        # Those of the warps before this one, and of the blocks before this one.
        if lane >= warp:
            counts = u64(0)
        if lane < rank:
            counts += block_counts[lane]
        n_ties_before = warp_add(u32(counts >> 32))
        place = warp_add(u32(counts)) + min(n_ties_before, n_left)
        n_left = max(n_left, n_ties_before) - n_ties_before

        for vector in range(n_vectors):
            above = u32(0)
            ties = u32(0)
            if vector < n_steps:
                for element in range(per_vector):
                    key = key_at(words, vector * per_vector + element)
                    above |= u32(key > high) << u32(element)
                    ties |= u32(key >= low) << u32(element)
            if ballot(ties) != 0:
                ties ^= above
                n_ties = popcount_u32(ties)
                amounts = popcount_u32(above) | (n_ties << 16)
                through = warp_inclusive_sum(amounts)
                of_warp = shuffle_from_u32(through, u32(31))
                before = through - amounts
                n_ties_before = before >> 16
                n_kept = max(n_left, n_ties_before) - n_ties_before
                selected = above | drop_last(ties, n_kept)
                to = place + (before & 0xFFFF) + min(n_ties_before, n_left)
                while selected != 0:
                    lowest = selected & (~selected + 1)
                    selected ^= lowest
                    position = (
                        first + u32(vector * WARP_LANES * per_vector) + (31 - leading_zeros_u32(lowest))
                    )
                    element = load_element(row_address + i64(position) * p.strides.x * element_size)
                    if p.is_sorted != 0:
                        key = ordered_key(element, p.key_format)
                        send(chunk_keys, chunk_lows, to, key, position, u32(p.chunk_bits))
                    else:
                        store_element(values + i64(to) * p.strides.values * element_size, element)
                        at = indices + i64(to) * p.strides.indices * p.index_size
                        store_index(at, p.index_size, i64(position))
                    to += 1
                n_ties = of_warp >> 16
                place += (of_warp & 0xFFFF) + min(n_ties, n_left)
                n_left = max(n_left, n_ties) - n_ties

        if p.is_sorted != 0:
            sort_and_write(
                (chunk_keys, chunk_lows, bins),
                (row_address, p.strides.x),
                (values, indices, p.strides.values, p.strides.indices, p.index_size),
                n_selected,
                u32(p.chunk_bits),
                p.key_format,
                (thread, rank),
            )
        padded = i64(n_selected) + i64(rank * CLUSTER_THREADS + thread)
        step = i64(n_blocks * CLUSTER_THREADS)
        pad_row(values, indices, p.strides, p.index_size, p.length_format.padding, padded, step, p.k)

    return cluster_top_k
