"""Many winners of short rows: a block sorts a row by radix in registers and shared memory.

A stable sort, least significant digit first, eight bits a pass. In each pass the block ranks the (order key,
position) pairs by their digit and exchanges them through shared memory. Reads the row once, writes the first
k values and indices.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource
from kernels_cuda.ptx import take_turn
from kernels_cuda.top_k.cooperate import block_inclusive_sum
from kernels_cuda.top_k.elements import N_MASKS
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.row_offsets import row_offsets, store_index
from kernels_cuda.top_k.rows import N_LAYOUT
from kernels_cuda.top_k.sort import digit_functions
from kernels_cuda.top_k.sort_shape import DIGIT_BITS, N_DIGITS

u16 = types.uint16
u32 = types.uint32
i64 = types.int64

# Limits that let two blocks share a multiprocessor, or more.
REGISTERS = {256: 80, 384: 80, 512: 64}


def tile_source(element_size: int, n_threads: int, n_items: int) -> KernelSource:
    """Make the kernel for rows of up to ``n_threads * n_items`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    digit_of, rank_in_warp = digit_functions(key_type, n_items)
    inclusive_sum = block_inclusive_sum(n_threads)
    n_warps = n_threads // 32
    n_counters = n_warps * N_DIGITS
    key_bits = 8 * element_size

    def sort_row(
        x,
        values,
        indices,
        offsets,
        index_size,
        first_row,
        axis_size,
        k,
        x_stride,
        value_stride,
        index_stride,
        layout,
        masks,
    ):
        take_turn()
        # Both lie at the same place: the block exchanges its keys first, then its positions.
        exchanged_keys = cuda.shared.array(0, key_type)
        exchanged_positions = cuda.shared.array(0, u32)
        warp_counts = cuda.shared.array(n_counters, u16)
        sums = cuda.shared.array(64, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        x_row, value_row, index_row = row_offsets(layout, offsets, first_row + i64(cuda.blockIdx.x))
        base = x + x_row * element_size
        step = x_stride * element_size
        count = u32(axis_size)

        keys = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, u32)
        places = cuda.local.array(n_items, u32)
        first = warp * u32(32 * n_items) + lane
        for item in range(n_items):
            # What is beyond the row's end comes last: its key is 0, and it is last in the row.
            positions[item] = first + u32(item * 32)
            keys[item] = key_type(0)
            if positions[item] < count:
                keys[item] = load_element(base + i64(positions[item]) * step)
        for item in range(n_items):
            if positions[item] < count:
                keys[item] = order_key(keys[item], *masks)

        of_warps = cuda.local.array(n_warps, u32)
        own_counts = warp * N_DIGITS
        shift = i64(0)
        while shift < key_bits:
            counter = thread
            while counter < n_counters:
                warp_counts[counter] = u16(0)
                counter += n_threads
            cuda.syncthreads()
            rank_in_warp(keys, places, warp_counts, own_counts, shift)
            cuda.syncthreads()
            amount = u32(0)
            if thread < N_DIGITS:
                for other in range(n_warps):
                    of_warps[other] = u32(warp_counts[u32(other * N_DIGITS) + thread])
                    amount += of_warps[other]
            start = inclusive_sum(sums, u32(0), amount, lane, warp) - amount
            if thread < N_DIGITS:
                for other in range(n_warps):
                    warp_counts[u32(other * N_DIGITS) + thread] = u16(start)
                    start += of_warps[other]
            cuda.syncthreads()
            for item in range(n_items):
                digit = digit_of(keys[item], shift)
                places[item] = places[item] + u32(warp_counts[own_counts + digit])
                exchanged_keys[places[item]] = keys[item]
            cuda.syncthreads()
            shift += DIGIT_BITS
            # The threads' own elements lie 32 apart, as before; at last they are written side by side.
            apart = u32(32)
            if shift == key_bits:
                first = thread
                apart = u32(n_threads)
            for item in range(n_items):
                keys[item] = exchanged_keys[first + u32(item) * apart]
            cuda.syncthreads()
            for item in range(n_items):
                exchanged_positions[places[item]] = positions[item]
            cuda.syncthreads()
            for item in range(n_items):
                positions[item] = exchanged_positions[first + u32(item) * apart]

        for item in range(n_items):
            rank = i64(u32(item * n_threads) + thread)
            if rank < k:
                bits = restore(keys[item], masks, base + i64(positions[item]) * step)
                store_element(values + (value_row + rank * value_stride) * element_size, bits)
                at = indices + (index_row + rank * index_stride) * index_size
                store_index(at, index_size, i64(positions[item]))

    return KernelSource(sort_row, {"layout": N_LAYOUT, "masks": N_MASKS}, max_registers=REGISTERS[n_threads])
