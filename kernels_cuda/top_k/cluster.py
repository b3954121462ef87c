"""One cluster of blocks per row, whose keys they hold in shared memory: for few long rows.

Each block has a part of the row; those of higher rank have later parts.

1. Load the row, and make ordered keys of its elements (`shared_keys`).
2. Find the range of keys in which the k-th one lies, digit by digit (`cluster_range`). All keys above the
   range are selected. Of those within it, the first ones are, by position; after the last digit they are
   equal.
3. Count the selected keys of each warp. So each knows where in the results its own begin.
4. By ascending index: write them there. Sorted: order them (`cluster_sort`).

What is beyond the end of a row has the lowest key, and comes after all of the row: it is never selected. The
time hardly depends on the data: at most one step per digit, and no list can overflow.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    ballot,
    cluster_arrive_relaxed,
    cluster_rank,
    cluster_wait,
    grid_dependency_wait,
    leading_zeros_u32,
    next_pass,
    popcount_u32,
    shared_address,
    shuffle_from_u32,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_few import FEW_BYTES, few_function
from kernels_cuda.top_k.cluster_range import (
    DIGIT,
    DIGIT_BITS,
    N_ABOVE_BEFORE,
    N_FOUND,
    N_LEFT,
    N_TIES,
    N_TIES_BEFORE,
    RANGE_BYTES,
    range_functions,
)
from kernels_cuda.top_k.cluster_sort import sort_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.parameters import ClusterParameters
from kernels_cuda.top_k.rows import row_length, row_offsets, store_index
from kernels_cuda.top_k.shapes import (
    CLUSTER_THREADS,
    FEW_LARGEST_ELEMENT,
    LARGEST_CLUSTER_CHUNK,
    VECTOR_BYTES,
    WARP_LANES,
    cluster_sort_bytes,
)
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions

u32 = types.uint32
i64 = types.int64

_N_WARPS = CLUSTER_THREADS // WARP_LANES


def cluster_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    restore = functions.restore
    store_element = functions.store_element
    keys = key_functions(element_size)
    n_words, load_vector, key_at = keys.n_words, keys.load_vector, keys.key_at
    load_row, load_key = keys.load_row, keys.load_key
    begin, find_digit = range_functions(element_size)
    serves_few = element_size <= FEW_LARGEST_ELEMENT
    select_few: Any = few_function(element_size) if serves_few else None
    send, sort_and_write = sort_function(element_size)
    pad_row = pad_function(element_size)
    per_vector = VECTOR_BYTES // element_size
    n_bits = 8 * element_size
    # For the search, then for the keys that are ordered.
    room_words = max(RANGE_BYTES, cluster_sort_bytes(element_size), FEW_BYTES) // 4
    ones = (1 << n_bits) - 1

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
            step = next_pass(step)
        return n_above + ((n_ties - n_above) << 16)

    @device_function
    def drop_last(mask, n_kept):
        """Return the lowest `n_kept` bits that are set."""
        while popcount_u32(mask) > n_kept:
            mask ^= u32(1) << (31 - leading_zeros_u32(mask))
        return mask

    @device_function
    def select_by_digits(areas, own, row, output, n_steps, n_selected, p, ids):
        """Write the first elements of a row; the blocks of the cluster have arrived at its barrier.

        `areas` are shared arrays, and the address of room for the search and the sort; `own` is where this
        thread keeps its keys in shared memory; `row` is ``(address, length)``, `output` is ``(values,
        indices)``, and `ids` are ``(thread, rank, n_blocks)``.
        """
        chunk_keys, chunk_lows, warp_counts, found, memory = areas
        row_address, length = row
        values, indices = output
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        first = ((rank * _N_WARPS + warp) * n_steps * WARP_LANES + lane) * per_vector
        advance = u32(WARP_LANES * per_vector)
        load_row(own, row_address, p.strides.x, first, n_steps, advance, length, p.key_format)
        cluster_wait()

        # All selected keys are above `high`, or from `low` on: of these `n_left`.
        low = key_type(0)
        high = key_type(ones)
        n_left = n_selected
        place = u32(0)
        n_ties_before = u32(0)
        shift = u32(n_bits)
        half = u32(0)
        searching = n_selected > 0
        while searching:
            shift = max(shift, u32(DIGIT_BITS)) - DIGIT_BITS
            find_digit(
                memory,
                found,
                half,
                (own, n_steps),
                (low, high - low),
                shift,
                n_left,
                (thread, rank, n_blocks),
            )
            half = 1 - half
            low += key_type(found[DIGIT]) << key_type(shift)
            high = low + ((key_type(1) << key_type(shift)) - 1)
            n_left = found[N_LEFT]
            place += found[N_ABOVE_BEFORE]
            n_ties_before = found[N_TIES_BEFORE]
            searching = shift > 0 and n_left < found[N_TIES]
        # A block stays for the others to read its bins.
        cluster_arrive_relaxed()

        warp_count = warp_add(count_selected(own, n_steps, low, high))
        if lane == 0:
            warp_counts[warp] = warp_count
        cuda.syncthreads()
        warp_count = u32(0)
        if lane < warp:
            warp_count = warp_counts[lane]
        # Selected keys of the warps before this one, and of the blocks before this one.
        place += warp_add(warp_count & 0xFFFF)
        n_ties_before += warp_add(warp_count >> 16)
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
            if ballot(ties) != 0:
                has_selected = True
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
                    element = 31 - leading_zeros_u32(lowest)
                    key = load_key(own, element)
                    position = first + element
                    if p.is_sorted != 0:
                        send(chunk_keys, chunk_lows, to, key, position, u32(p.chunk_bits))
                    else:
                        address = row_address + i64(position) * p.strides.x * element_size
                        bits = restore(key, p.key_format, address)
                        store_element(values + i64(to) * p.strides.values * element_size, bits)
                        at = indices + i64(to) * p.strides.indices * p.index_size
                        store_index(at, p.index_size, i64(position))
                    to += 1
                n_ties = of_warp >> 16
                place += (of_warp & 0xFFFF) + min(n_ties, n_left)
                n_left = max(n_left, n_ties) - n_ties
            own += STEP_BYTES
            first += advance
            step = next_pass(step)

        if p.is_sorted != 0:
            cluster_wait()
            sort_and_write(
                (chunk_keys, chunk_lows, memory),
                (row_address, p.strides.x),
                (values, indices, p.strides.values, p.strides.indices, p.index_size),
                has_selected,
                n_selected,
                u32(p.chunk_bits),
                p.key_format,
                (thread, rank),
            )
        else:
            cluster_wait()

    @cuda.jit(max_registers=65536 // CLUSTER_THREADS)
    def cluster_top_k(x, values, indices, lengths, offsets, p: ClusterParameters):
        row_keys = cuda.shared.array(0, u32, VECTOR_BYTES)
        room = cuda.shared.array(room_words, u32, VECTOR_BYTES)
        chunk_keys = cuda.shared.array(LARGEST_CLUSTER_CHUNK, key_type, VECTOR_BYTES)
        chunk_lows = cuda.shared.array(LARGEST_CLUSTER_CHUNK, u32, VECTOR_BYTES)
        warp_counts = cuda.shared.array(_N_WARPS, u32)
        found = cuda.shared.array(N_FOUND, u32)
        memory = shared_address(room)

        thread = u32(cuda.threadIdx.x)
        rank = cluster_rank()
        n_blocks = u32(1) << u32(p.cluster_bits)
        may_be_few = serves_few and p.is_few != 0
        if not may_be_few:
            begin(memory, thread, n_blocks)
            cuda.syncthreads()
        # Where all have arrived, all blocks are there.
        cluster_arrive_relaxed()
        grid_dependency_wait()

        row = p.first_row + (i64(cuda.blockIdx.x) >> p.cluster_bits)
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        row_address = x + x_row * element_size
        values += value_row * element_size
        indices += index_row * p.index_size
        n_selected = u32(min(p.k, length))
        n_steps = u32((length + ((1 << p.step_bits) - 1)) >> p.step_bits)
        own = shared_address(row_keys) + ((thread >> 5) * n_steps * WARP_LANES + (thread & 31)) * VECTOR_BYTES
        elements = row_address, u32(length)
        output = values, indices
        ids = thread, rank, n_blocks
        is_selected = False
        if may_be_few and n_selected > 0:
            areas = chunk_keys, chunk_lows, memory
            is_selected = select_few(areas, own, elements, output, n_steps, n_selected, p, ids)
            if not is_selected:
                begin(memory, thread, n_blocks)
                cuda.syncthreads()
                cluster_arrive_relaxed()
        if not is_selected:
            all_areas = chunk_keys, chunk_lows, warp_counts, found, memory
            select_by_digits(all_areas, own, elements, output, n_steps, n_selected, p, ids)
        padded = i64(n_selected) + i64(rank * CLUSTER_THREADS + thread)
        step = i64(n_blocks * CLUSTER_THREADS)
        pad_row(values, indices, p.strides, p.index_size, p.length_format.padding, padded, step, p.k)

    return cluster_top_k
