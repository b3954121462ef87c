"""One cluster of blocks per row, whose keys they hold in shared memory: for few long rows.

Each block has a part of the row; those of higher rank have later parts.

1. Load the row, and make ordered keys of its elements (`shared_keys`).
2. Select the first ones (`cluster_select`).
3. By ascending index: they have been written. Sorted: order them (`cluster_sort`).

What is beyond the end of a row has the lowest key, and comes after all of the row: it is never selected. The
time hardly depends on the data: at most one step per digit, and no list can overflow.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import dynamic_shared_array
from kernels_cuda.top_k.many_blocks.cluster_launches import (
    CLUSTER_THREADS,
    CLUSTER_WARPS,
    LARGEST_CLUSTER_CHUNK,
    SMALL_K_LARGEST_ELEMENT,
    ClusterParameters,
    cluster_sort_bytes,
)
from kernels_cuda.top_k.many_blocks.cluster_messages import N_BARRIERS, begin_messages
from kernels_cuda.top_k.many_blocks.cluster_range import N_FOUND, RANGE_BYTES, range_functions
from kernels_cuda.top_k.many_blocks.cluster_select import select_function
from kernels_cuda.top_k.many_blocks.cluster_small_k import SMALL_K_BYTES, small_k_function
from kernels_cuda.top_k.many_blocks.cluster_sort import sort_functions
from kernels_cuda.top_k.many_blocks.shared_keys import key_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.unaligned import extent_function


def cluster_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    key_type = element_functions(element_size).key_type
    load_keys = key_functions(element_size).load_keys
    begin, _ = range_functions(element_size)
    hand_on, sort_and_write = sort_functions(element_size)
    serves_small_k = element_size <= SMALL_K_LARGEST_ELEMENT
    select_small_k: Any = small_k_function(element_size) if serves_small_k else None
    select = select_function(element_size, hand_on)
    find_row, _, pad_results = row_functions(element_size)
    extent_of = extent_function(element_size)
    per_vector = VECTOR_BYTES // element_size
    # For the search, then for the keys that are ordered.
    room_words = max(RANGE_BYTES, cluster_sort_bytes(element_size), SMALL_K_BYTES) // 4

    @cuda.jit(max_registers=65536 // CLUSTER_THREADS)
    def cluster_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, c: ClusterParameters):
        row_keys = dynamic_shared_array(u32)
        room = cuda.shared.array(room_words, u32, VECTOR_BYTES)
        chunk_keys = cuda.shared.array(LARGEST_CLUSTER_CHUNK, key_type, VECTOR_BYTES)
        chunk_lows = cuda.shared.array(LARGEST_CLUSTER_CHUNK, u32, VECTOR_BYTES)
        warp_counts = cuda.shared.array(CLUSTER_WARPS, u32)
        found = cuda.shared.array(N_FOUND, u32)
        barriers = ptx.shared_address(cuda.shared.array(N_BARRIERS, u64))
        memory = ptx.shared_address(room)

        thread = u32(cuda.threadIdx.x)
        rank = ptx.cluster_rank()
        n_blocks = u32(1) << u32(c.cluster_bits)
        ids = thread, rank, n_blocks
        tries_small_k = serves_small_k and c.is_small_k != 0
        begin_messages(barriers, thread, n_blocks)
        if not tries_small_k:
            begin(memory, thread, n_blocks)
            cuda.syncthreads()
        # After this barrier all blocks are resident. Of what this one has stored, others use only its
        # barriers, which have a fence of their own.
        ptx.cluster_arrive_relaxed()
        ptx.grid_dependency_wait()

        row = p.first + (i64(cuda.blockIdx.x) >> c.cluster_bits)
        address, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        n_selected = u32(min(p.k, length))
        n_steps = u32((length + ((1 << c.step_bits) - 1)) >> c.step_bits)
        warp_steps = (thread >> 5) * n_steps
        own = ptx.shared_address(row_keys) + (warp_steps * WARP_LANES + (thread & 31)) * VECTOR_BYTES
        elements = address, p.strides.x, u32(length), extent_of(x, p)
        output = values, indices, p.strides.values, p.strides.indices, p.index_size
        is_selected = False
        if tries_small_k and n_selected > 0:
            small_k_areas = barriers, memory
            is_selected = select_small_k(small_k_areas, own, elements, output, n_steps, n_selected, p, c, ids)
            if not is_selected:
                begin(memory, thread, n_blocks)
                cuda.syncthreads()
                ptx.cluster_arrive()
        if not is_selected:
            first = (
                (rank * CLUSTER_WARPS + (thread >> 5)) * n_steps * WARP_LANES + (thread & 31)
            ) * per_vector
            load_keys(own, elements, (first, u32(WARP_LANES * per_vector)), n_steps, p.key_format)
            ptx.cluster_wait()
            areas = warp_counts, found, memory, barriers
            context = chunk_keys, chunk_lows, (address, p.strides.x), output, p.key_format, c
            has_sent = select(areas, own, n_steps, n_selected, ids, context)
            ptx.cluster_wait()
            if c.is_sorted != 0:
                sort_and_write(context, memory, has_sent, n_selected, ids)
        padded = n_selected + (rank * CLUSTER_THREADS + thread)
        pad_results(values, indices, padded, n_blocks * CLUSTER_THREADS, p.k, p)

    return cluster_top_k
