"""Any k: stable radix sort of whole rows, least significant digit first, eight bits a pass.

1. `clear_words` empties what the launches below count in.
2. `digit_histograms` reads the rows once and counts the digits of all passes.
3. `sort_digit`, once a pass, ranks a tile's elements by their digit, brings them into order in shared memory
   and writes them out. Where a tile's elements of a digit go, it learns from the histogram and by looking
   back over the tiles before it in the row: each makes known how many elements of each digit it has, and soon
   after how many it and all before it have.

A tile is taken from a counter, so that all tiles before it are being worked on: waiting for them ends.

The first pass reads the elements and makes (ordered key, position) pairs, which stay in the workspace; the
last writes the first k elements and their positions. Passes being stable, equal keys stay in the order of
their positions. Rows that end early (`lengths`) are filled up with pairs that come last.

A pass over n pairs moves ``2 * n * (key + position)`` bytes.
"""

import functools
from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    LOAD,
    LOAD_RELAXED,
    REGISTER,
    STORE,
    STORE_RELAXED,
    atomic_add_u32,
    grid_dependency_wait,
    lanes_below,
    load_u64,
    match_byte,
    popcount_u32,
    reduce_add_u64,
    store_u32x4,
)
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.cooperate import block_inclusive_sum
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.parameters import ClearParameters, HistogramParameters, SortParameters
from kernels_cuda.top_k.rows import NO_INDEX, row_length, row_offsets, store_index
from kernels_cuda.top_k.shapes import (
    CLEARING_THREADS,
    COUNT_BYTES,
    COUNTED_ELEMENTS,
    COUNTED_PER_THREAD,
    COUNTING_THREADS,
    DIGIT_BITS,
    N_DIGITS,
)

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Tiles whose state is asked for at once.
_LOOKBACK_TILES = 4


def clear_kernel() -> Any:
    """Make `clear_words`, which sets vectors of 16 bytes to zero."""

    @cuda.jit
    def clear_words(first, p: ClearParameters):
        grid_dependency_wait()
        vector = i64(cuda.blockIdx.x) * CLEARING_THREADS + i64(cuda.threadIdx.x)
        if vector < p.n_vectors:
            store_u32x4(first + vector * 16, u32(0), u32(0), u32(0), u32(0))

    return clear_words


def histogram_kernel(element_size: int) -> Any:
    """Make `digit_histograms` for one width of elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    n_counters = element_size * N_DIGITS

    @cuda.jit(max_registers=32)
    def digit_histograms(x, lengths, histograms, offsets, p: HistogramParameters):
        grid_dependency_wait()
        histogram = cuda.shared.array(n_counters, u32)
        thread = u32(cuda.threadIdx.x)
        block = i64(cuda.blockIdx.x)
        row = block // p.blocks_per_row
        x_row, _, _ = row_offsets(p.layout, offsets, p.first_row + row)
        length = row_length(lengths, p.layout, offsets, p.first_row + row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.x_stride * element_size
        counter = thread
        while counter < n_counters:
            histogram[counter] = u32(0)
            counter += COUNTING_THREADS
        cuda.syncthreads()
        keys = cuda.local.array(COUNTED_PER_THREAD, key_type)
        block_of_row = block - row * p.blocks_per_row
        first = block_of_row * COUNTED_ELEMENTS + i64(thread)
        while first < length:
            for item in range(COUNTED_PER_THREAD):
                at = first + item * COUNTING_THREADS
                keys[item] = key_type(0)
                if at < length:
                    keys[item] = load_element(base + at * step)
            for item in range(COUNTED_PER_THREAD):
                if first + item * COUNTING_THREADS < length:
                    key = ~ordered_key(keys[item], p.key_format)
                    for digit in range(element_size):
                        value = u32(key >> key_type(digit * DIGIT_BITS)) & u32(N_DIGITS - 1)
                        cuda.atomic.add(histogram, u32(digit * N_DIGITS) + value, u32(1))
            first += p.blocks_per_row * COUNTED_ELEMENTS
        cuda.syncthreads()
        counter = thread
        while counter < n_counters:
            if histogram[counter] != 0:
                at = histograms + (row * n_counters + i64(counter)) * COUNT_BYTES
                reduce_add_u64(at, u64(histogram[counter]))
            counter += COUNTING_THREADS
        # The key of what fills the row up is 0.
        if block_of_row == 0 and thread < element_size and length < p.axis_size:
            last_counter = row * n_counters + i64(thread * N_DIGITS + (N_DIGITS - 1))
            reduce_add_u64(histograms + last_counter * COUNT_BYTES, u64(p.axis_size - length))

    return digit_histograms


@functools.cache
def digit_functions(key_type: Any, n_items: int) -> tuple[Any, Any]:
    """Make `digit_of`, whose digits ascend as keys descend, and `rank_in_warp`, `n_items` keys per lane."""

    @device_function
    def digit_of(key, shift):
        return u32(N_DIGITS - 1) - (u32(key >> key_type(shift)) & u32(N_DIGITS - 1))

    @device_function
    def rank_in_warp(keys, places, warp_counts, own_counts, shift):
        """Rank each key among those of its digit in its warp: 32 keys at a time, in order."""
        below = lanes_below()
        for item in range(n_items):
            digit = digit_of(keys[item], shift)
            same = match_byte(digit)
            counter = own_counts + digit
            already = u32(warp_counts[counter])
            cuda.syncwarp()
            earlier = same & below
            if earlier == 0:
                warp_counts[counter] = u16(already + popcount_u32(same))
            cuda.syncwarp()
            places[item] = already + popcount_u32(earlier)

    return digit_of, rank_in_warp


def sort_kernel(
    element_size: int, position_size: int, n_threads: int, n_items: int, max_registers: int
) -> Any:
    """Make `sort_digit` for one width of elements and positions."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    load_position = LOAD[position_size]
    store_position = STORE[position_size]
    load_state = LOAD_RELAXED[position_size]
    store_state = STORE_RELAXED[position_size]
    position_type = REGISTER[position_size]
    digit_of, rank_in_warp = digit_functions(key_type, n_items)
    inclusive_sum = block_inclusive_sum(n_threads)
    n_warps = n_threads // 32
    tile_size = n_threads * n_items
    n_counters = n_warps * N_DIGITS
    state_shift = 8 * position_size - 2
    of_tile = 1 << state_shift
    of_all = 2 << state_shift
    count_mask = of_tile - 1

    @device_function
    def exclusive_sum_of_digits(sums, half, amount, wide_sums, thread, lane, warp):
        """Return the sum of `amount` over the digits before the thread's own."""
        if position_size == 4:
            return inclusive_sum(sums, half, amount, lane, warp) - amount
        if thread < N_DIGITS:
            wide_sums[thread] = amount
        cuda.syncthreads()
        total = position_type(0)
        digit = u32(0)
        while digit < min(thread, u32(N_DIGITS)):
            total += wide_sums[digit]
            digit += 1
        cuda.syncthreads()
        return total

    @device_function
    def look_back(states, before):
        """Return the sum over the tiles up to `before` of what they have of the digit of `states`."""
        seen = cuda.local.array(_LOOKBACK_TILES, position_type)
        total = position_type(0)
        while before >= 0:
            for back in range(_LOOKBACK_TILES):
                seen[back] = position_type(of_all)
                if before - back >= 0:
                    seen[back] = load_state(states + (before - back) * (N_DIGITS * position_size))
            is_known = True
            for back in range(_LOOKBACK_TILES):
                is_known = is_known and seen[back] != 0 and before >= 0
                if is_known:
                    total += seen[back] & count_mask
                    before -= 1
                    if seen[back] >= of_all:
                        before = i64(-1)
        return total

    @cuda.jit(max_registers=max_registers)
    def sort_digit(
        x,
        lengths,
        source,
        source_positions,
        sorted_keys,
        sorted_positions,
        values,
        indices,
        histograms,
        states,
        next_tile,
        offsets,
        p: SortParameters,
    ):
        grid_dependency_wait()
        # Both lie at the same place: a tile exchanges its keys first, then its positions.
        exchanged_keys = cuda.shared.array(0, key_type)
        exchanged_positions = cuda.shared.array(0, position_type)
        warp_counts = cuda.shared.array(n_counters, u16)
        digit_base = cuda.shared.array(N_DIGITS, position_type)
        sums = cuda.shared.array(64, u32)
        taken = cuda.shared.array(1, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        if thread == 0:
            taken[0] = atomic_add_u32(next_tile, u32(1))
        counter = thread
        while counter < n_counters:
            warp_counts[counter] = u16(0)
            counter += n_threads
        cuda.syncthreads()
        block = i64(taken[0])
        row = block // p.n_tiles
        tile = block - row * p.n_tiles
        x_row, value_row, index_row = row_offsets(p.layout, offsets, p.first_row + row)
        length = row_length(lengths, p.layout, offsets, p.first_row + row, p.axis_size, p.length_format)
        x_base = x + x_row * element_size
        pairs = row * p.axis_size
        base = source + pairs * element_size
        step = i64(element_size)
        if p.is_first != 0:
            base = x_base
            step = p.strides.x * element_size
        tile_first = tile * tile_size
        count = u32(min(i64(tile_size), p.axis_size - tile_first))
        n_loaded = count
        if p.is_first != 0:
            n_loaded = u32(min(max(length - tile_first, i64(0)), i64(count)))

        keys = cuda.local.array(n_items, key_type)
        places = cuda.local.array(n_items, u32)
        first = warp * u32(32 * n_items) + lane
        address = base + (tile_first + i64(first)) * step
        for item in range(n_items):
            # Slots beyond the row's end come last: their key is 0, and they are last in the tile.
            keys[item] = key_type(0)
            if first + u32(item * 32) < n_loaded:
                keys[item] = load_element(address)
            address += 32 * step
        if p.is_first != 0:
            for item in range(n_items):
                if first + u32(item * 32) < n_loaded:
                    keys[item] = ordered_key(keys[item], p.key_format)

        of_digit = position_type(0)
        if thread < N_DIGITS:
            entry = row * (element_size * N_DIGITS) + i64(thread)
            of_digit = position_type(load_u64(histograms + entry * COUNT_BYTES))
        own_counts = warp * N_DIGITS
        rank_in_warp(keys, places, warp_counts, own_counts, p.shift)
        cuda.syncthreads()

        # Turn the warps' counts into places in the sorted tile, and make known what the tile has.
        of_warps = cuda.local.array(n_warps, u32)
        amount = u32(0)
        state = states + (row * p.n_tiles * N_DIGITS + i64(thread)) * position_size
        if thread < N_DIGITS:
            for other in range(n_warps):
                of_warps[other] = u32(warp_counts[u32(other * N_DIGITS) + thread])
                amount += of_warps[other]
            if tile > 0:
                known = of_tile | position_type(amount)
                store_state(state + tile * (N_DIGITS * position_size), known)
        start = inclusive_sum(sums, u32(0), amount, lane, warp) - amount
        destination = exclusive_sum_of_digits(sums, u32(32), of_digit, digit_base, thread, lane, warp)
        if thread < N_DIGITS:
            running = start
            for other in range(n_warps):
                warp_counts[u32(other * N_DIGITS) + thread] = u16(running)
                running += of_warps[other]
        cuda.syncthreads()
        for item in range(n_items):
            places[item] = places[item] + u32(warp_counts[own_counts + digit_of(keys[item], p.shift)])
            exchanged_keys[places[item]] = keys[item]
        # Positions are on their way while the tile waits.
        positions = cuda.local.array(n_items, position_type)
        address = source_positions + (pairs + tile_first + i64(first)) * position_size
        for item in range(n_items):
            positions[item] = position_type(tile_first + i64(first) + item * 32)
            if p.is_first == 0 and first + u32(item * 32) < count:
                positions[item] = load_position(address + item * (32 * position_size))
        if thread < N_DIGITS:
            before = look_back(state, tile - 1)
            known = of_all | (before + position_type(amount))
            store_state(state + tile * (N_DIGITS * position_size), known)
            digit_base[thread] = destination + before - position_type(start)
        cuda.syncthreads()

        for item in range(n_items):
            place = u32(item * n_threads) + thread
            keys[item] = exchanged_keys[place]
            if p.is_last == 0 and place < count:
                rank = i64(digit_base[digit_of(keys[item], p.shift)] + position_type(place))
                store_element(sorted_keys + (pairs + rank) * element_size, keys[item])
        cuda.syncthreads()
        for item in range(n_items):
            exchanged_positions[places[item]] = positions[item]
        cuda.syncthreads()
        for item in range(n_items):
            place = u32(item * n_threads) + thread
            if place < count:
                position = exchanged_positions[place]
                rank = i64(digit_base[digit_of(keys[item], p.shift)] + position_type(place))
                if p.is_last == 0:
                    store_position(sorted_positions + (pairs + rank) * position_size, position)
                elif rank < p.k:
                    bits = key_type(p.length_format.padding)
                    index = i64(NO_INDEX)
                    if rank < length:
                        index = i64(position)
                        bits = restore(keys[item], p.key_format, x_base + index * p.strides.x * element_size)
                    store_element(values + (value_row + rank * p.strides.values) * element_size, bits)
                    at = indices + (index_row + rank * p.strides.indices) * p.index_size
                    store_index(at, p.index_size, index)

    return sort_digit
