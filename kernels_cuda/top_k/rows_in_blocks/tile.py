"""Large k of rows of up to 16384 elements: a block sorts a row by radix in registers and shared memory.

A stable sort, least significant digit first, eight bits per pass. In each pass the block ranks the (ordered
key, position) pairs by their digit and exchanges them through shared memory. Reads the row once, writes the
first k values and indices.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u16, u32
from kernels_cuda.runtime.compiler import dynamic_shared_array
from kernels_cuda.top_k.shared.digits import block_digit_functions, digit_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, TILE_SUMS

# Limits that let blocks of 256 threads share a multiprocessor by fours, of 384 by threes, of 512 by twos.
REGISTERS = {256: 64, 384: 56, 512: 64, 1024: 64}


def tile_kernel(element_size: int, n_threads: int, n_items: int) -> Any:
    """Make the kernel for rows of up to ``n_threads * n_items`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    digit_of, rank_in_warp = digit_functions(key_type, n_items)
    clear_counts, counts_to_starts = block_digit_functions(n_threads)
    n_counters = n_threads // 32 * N_DIGITS
    key_bits = 8 * element_size

    @cuda.jit(max_registers=REGISTERS[n_threads])
    def sort_row(x, windows: Windows, values, indices, offsets, p: RowParameters):
        ptx.grid_dependency_wait()
        # Both lie at the same place: the block exchanges its keys first, then its positions.
        exchanged_keys = dynamic_shared_array(key_type)
        exchanged_positions = dynamic_shared_array(u16)
        warp_counts = cuda.shared.array(n_counters, u16)
        sums = cuda.shared.array(TILE_SUMS, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row = p.first + i64(cuda.blockIdx.x)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        step = p.strides.x * element_size
        count = u32(length)
        n_selected = min(p.k, length)

        keys = cuda.local.array(n_items, key_type)
        places = cuda.local.array(n_items, u32)
        own = warp * u32(32 * n_items) + lane
        address = base + i64(own) * step
        for item in range(n_items):
            # Slots beyond the row's end come last: their key is 0, and they are last in the row.
            position = own + u32(item * 32)
            exchanged_positions[position] = u16(position)
            keys[item] = key_type(0)
            if position < count:
                keys[item] = load_element(address)
            address += 32 * step
        for item in range(n_items):
            if own + u32(item * 32) < count:
                keys[item] = ordered_key(keys[item], p.key_format)

        own_counts = warp * N_DIGITS
        shift = i64(0)
        while shift < key_bits:
            clear_counts(warp_counts, thread)
            cuda.syncthreads()
            rank_in_warp(keys, places, warp_counts, own_counts, shift)
            # From here until it is exchanged, a position is the upper half of its place.
            for item in range(n_items):
                places[item] |= u32(exchanged_positions[own + u32(item * 32)]) << 16
            cuda.syncthreads()
            counts_to_starts(warp_counts, sums, thread)
            cuda.syncthreads()
            # An opaque copy: otherwise compilers would keep all digits, and where they are counted, in
            # registers.
            same_shift = ptx.shuffle_from_u32(u32(shift), u32(0))
            for item in range(n_items):
                places[item] += u32(warp_counts[own_counts + digit_of(keys[item], same_shift)])
                exchanged_keys[places[item] & 0xFFFF] = keys[item]
            cuda.syncthreads()
            shift += DIGIT_BITS
            # The threads' own elements lie 32 apart, as before; at last they are written side by side.
            first = own
            apart = u32(32)
            if shift == key_bits:
                first = thread
                apart = u32(n_threads)
            for item in range(n_items):
                keys[item] = exchanged_keys[first + u32(item) * apart]
            cuda.syncthreads()
            for item in range(n_items):
                exchanged_positions[places[item] & 0xFFFF] = u16(places[item] >> 16)

        cuda.syncthreads()
        for item in range(n_items):
            place = u32(item * n_threads) + thread
            rank = i64(place)
            if rank < n_selected:
                position = i64(exchanged_positions[place])
                bits = restore(keys[item], p.key_format, base + position * step)
                write_result(values, indices, rank, bits, position, p)
        pad_results(values, indices, n_selected + i64(thread), n_threads, p.k, p)

    return sort_row
