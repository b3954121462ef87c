"""Reorder the selected elements of each row by ascending index, without another look at the row.

An algorithm has written the first k elements of each row, in order. Their indices are sorted where they are,
and each value follows its index. A warp ranks up to 128 indices by counting. A block sorts more of them by
radix, as `tile` sorts elements: least significant digit first, eight bits per pass, with the ranks that the
indices had. The time depends on neither the row's length nor the indices.

A row with a length (`lengths`) has min(k, length) selected elements; its padding stays where it is.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import LOAD, STORE, grid_dependency_wait, shuffle_from_u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.shared.digits import block_digit_functions, digit_functions
from kernels_cuda.top_k.shared.order_launches import REORDER_THREADS, ReorderParameters
from kernels_cuda.top_k.shared.rows import load_index, row_length, row_offsets, store_index
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, TILE_SUMS, WARP_LANES

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_NOWHERE = 0xFFFFFFFF

_load_8, _load_16, _load_32, _load_64 = (LOAD[size] for size in (1, 2, 4, 8))
_store_8, _store_16, _store_32, _store_64 = (STORE[size] for size in (1, 2, 4, 8))


@device_function
def _load_value(address, size):
    value = u64(0)
    if size == 4:
        value = u64(_load_32(address))
    elif size == 2:
        value = u64(_load_16(address))
    elif size == 8:
        value = u64(_load_64(address))
    else:
        value = u64(_load_8(address))
    return value


@device_function
def _store_value(address, size, value):
    if size == 4:
        _store_32(address, u32(value))
    elif size == 2:
        _store_16(address, u32(value))
    elif size == 8:
        _store_64(address, value)
    else:
        _store_8(address, u32(value))


@device_function
def _result_addresses(lengths, values, indices, offsets, row, p):
    """Return where the values and indices of a row are, and how many of them are selected."""
    _, value_row, index_row = row_offsets(p.layout, offsets, row)
    length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
    return values + value_row * p.element_size, indices + index_row * p.index_size, u32(min(p.k, length))


def few_kernel(n_items: int) -> Any:
    """Make the kernel for up to ``32 * n_items`` selected elements: one warp per row."""

    @cuda.jit
    def reorder_few(lengths, values, indices, offsets, p: ReorderParameters):
        grid_dependency_wait()
        lane = u32(cuda.threadIdx.x) & 31
        unit = i64(cuda.blockIdx.x) * (REORDER_THREADS // WARP_LANES) + i64(cuda.threadIdx.x >> 5)
        row = p.first_row + unit
        if row >= p.n_rows:
            return
        value_row, index_row, n_selected = _result_addresses(lengths, values, indices, offsets, row, p)
        value_step = p.strides.values * p.element_size
        index_step = p.strides.indices * p.index_size
        found = cuda.local.array(n_items, u32)
        elements = cuda.local.array(n_items, u64)
        ranks = cuda.local.array(n_items, u32)
        for item in range(n_items):
            at = lane + u32(item * WARP_LANES)
            found[item] = u32(_NOWHERE)
            ranks[item] = u32(0)
            if at < n_selected:
                found[item] = u32(load_index(index_row + i64(at) * index_step, p.index_size))
                elements[item] = _load_value(value_row + i64(at) * value_step, p.element_size)
        for source in range(n_items):
            other = u32(0)
            while other + u32(source * WARP_LANES) < n_selected and other < WARP_LANES:
                index = shuffle_from_u32(found[source], other)
                for item in range(n_items):
                    ranks[item] += u32(index < found[item])
                other += 1
        # All lanes have loaded their elements before any lane overwrites one.
        cuda.syncwarp()
        for item in range(n_items):
            if lane + u32(item * WARP_LANES) < n_selected:
                rank = i64(ranks[item])
                _store_value(value_row + rank * value_step, p.element_size, elements[item])
                store_index(index_row + rank * index_step, p.index_size, i64(found[item]))

    return reorder_few


def many_kernel(n_threads: int, n_items: int) -> Any:
    """Make the kernel for up to ``n_threads * n_items`` selected elements: one block per row."""
    digit_of, rank_in_warp = digit_functions(u32, n_items)
    clear_counts, counts_to_starts = block_digit_functions(n_threads)
    n_slots = n_threads * n_items
    n_counters = n_threads // WARP_LANES * N_DIGITS

    @cuda.jit
    def reorder_many(lengths, values, indices, offsets, p: ReorderParameters):
        grid_dependency_wait()
        exchanged = cuda.shared.array(n_slots, u32)
        ranks = cuda.shared.array(n_slots, u16)
        warp_counts = cuda.shared.array(n_counters, u16)
        sums = cuda.shared.array(TILE_SUMS, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row = p.first_row + i64(cuda.blockIdx.x)
        value_row, index_row, n_selected = _result_addresses(lengths, values, indices, offsets, row, p)
        value_step = p.strides.values * p.element_size
        index_step = p.strides.indices * p.index_size

        # Inverted, because digits ascend as keys descend. Slots without an element come last: their key is 0.
        keys = cuda.local.array(n_items, u32)
        places = cuda.local.array(n_items, u32)
        own = warp * u32(WARP_LANES * n_items) + lane
        for item in range(n_items):
            rank = own + u32(item * WARP_LANES)
            ranks[rank] = u16(rank)
            keys[item] = u32(0)
            if rank < n_selected:
                keys[item] = ~u32(load_index(index_row + i64(rank) * index_step, p.index_size))

        own_counts = warp * N_DIGITS
        shift = i64(0)
        while shift < p.index_bits:
            clear_counts(warp_counts, thread)
            cuda.syncthreads()
            rank_in_warp(keys, places, warp_counts, own_counts, shift)
            # Until it is exchanged, a rank is the upper half of its place.
            for item in range(n_items):
                places[item] |= u32(ranks[own + u32(item * WARP_LANES)]) << 16
            cuda.syncthreads()
            counts_to_starts(warp_counts, sums, thread, lane, warp)
            cuda.syncthreads()
            for item in range(n_items):
                places[item] += u32(warp_counts[own_counts + digit_of(keys[item], shift)])
                exchanged[places[item] & 0xFFFF] = keys[item]
                ranks[places[item] & 0xFFFF] = u16(places[item] >> 16)
            cuda.syncthreads()
            for item in range(n_items):
                keys[item] = exchanged[own + u32(item * WARP_LANES)]
            shift += DIGIT_BITS

        cuda.syncthreads()
        found = cuda.local.array(n_items, u64)
        for item in range(n_items):
            place = u32(item * n_threads) + thread
            if place < n_selected:
                found[item] = _load_value(value_row + i64(ranks[place]) * value_step, p.element_size)
        # All threads have loaded their values before any thread overwrites one.
        cuda.syncthreads()
        for item in range(n_items):
            place = u32(item * n_threads) + thread
            if place < n_selected:
                _store_value(value_row + i64(place) * value_step, p.element_size, found[item])
                index = i64(~exchanged[place])
                store_index(index_row + i64(place) * index_step, p.index_size, index)

    return reorder_many
