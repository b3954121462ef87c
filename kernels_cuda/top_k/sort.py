"""Any k: stable radix sort of whole rows, least significant digit first, eight bits a pass.

A pass is two or three launches. `digit_histogram` counts the digits of every tile, `scan_tiles` turns the
counts of a digit into what lies before each tile, and `scatter_digits` ranks a tile's elements, brings them
into order in shared memory and writes them out. Where a row has few tiles, `scatter_digits` adds up the
counts itself.

The first pass reads the elements and makes (order key, position) pairs, which stay in the workspace; the
last writes the first k elements and their positions. Passes being stable, equal keys stay in the order of
their positions.

A pass over n pairs moves about ``n * (3 * key + 2 * position)`` bytes.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.ptx import LOAD, REGISTER, STORE, ballot, lanes_below, popcount_u32
from kernels_cuda.top_k.cooperate import block_functions, count_digit
from kernels_cuda.top_k.keys import N_MASKS, element_functions
from kernels_cuda.top_k.rows import N_LAYOUT, row_offsets, store_index

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

DIGIT_BITS = 8
N_DIGITS = 1 << DIGIT_BITS
# A thread a digit.
N_THREADS = N_DIGITS
_N_WARPS = N_THREADS // 32
_SCAN_ITEMS = 4


def tile_elements(element_size: int, position_size: int) -> int:
    """Return the elements of a tile: what fits, sorted, into 48 KiB of shared memory."""
    return N_THREADS * (16 if element_size + position_size <= 8 else 8)


def histogram_source(element_size: int, position_size: int) -> KernelSource:
    """Make `digit_histogram` for one width of elements and positions."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    load_element = functions.load_element
    store_count = STORE[position_size]
    count_type = REGISTER[position_size]
    tile_size = tile_elements(element_size, position_size)
    n_items = tile_size // N_THREADS
    n_counters = _N_WARPS * N_DIGITS

    def digit_histogram(
        x, source, counts, offsets, first_row, axis_size, n_tiles, shift, is_first, x_stride, layout, masks
    ):
        histogram = cuda.shared.array(n_counters, u32)
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        block = i64(cuda.blockIdx.x)
        row = block // n_tiles
        tile = block - row * n_tiles
        base = source + row * axis_size * element_size
        stride = i64(1)
        if is_first != 0:
            x_row, _, _ = row_offsets(layout, offsets, first_row + row)
            base = x + x_row * element_size
            stride = x_stride
        for item in range(_N_WARPS):
            histogram[u32(item * N_DIGITS) + thread] = u32(0)
        cuda.syncthreads()

        keys = cuda.local.array(n_items, key_type)
        first = tile * tile_size + i64(u32(warp * u32(32 * n_items)) + lane)
        for item in range(n_items):
            at = first + item * 32
            keys[item] = key_type(0)
            if at < axis_size:
                keys[item] = load_element(base + at * stride * element_size)
        for item in range(n_items):
            key = keys[item]
            if is_first != 0:
                key = order_key(key, *masks)
            digit = u32(u32(N_DIGITS - 1) - u32(u32(key >> key_type(shift)) & u32(N_DIGITS - 1)))
            exists = first + item * 32 < axis_size
            count_digit(histogram, exists, u32(u32(warp * u32(N_DIGITS)) + digit), lane)
        cuda.syncthreads()
        total = u32(0)
        for item in range(_N_WARPS):
            total = u32(total + histogram[u32(item * N_DIGITS) + thread])
        entry = (row * N_DIGITS + i64(thread)) * n_tiles + tile
        store_count(counts + entry * position_size, count_type(total))

    return KernelSource(digit_histogram, {"layout": N_LAYOUT, "masks": N_MASKS})


def scan_source(position_size: int) -> KernelSource:
    """Make `scan_tiles`: a block for the counts of one digit of one row."""
    load_count = LOAD[position_size]
    store_count = STORE[position_size]
    count_type = REGISTER[position_size]
    _, block_inclusive_sum = block_functions(N_THREADS)

    def scan_tiles(counts, totals, n_tiles):
        sums = cuda.shared.array(64, u32)
        last = cuda.shared.array(2, u32)
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        base = counts + i64(cuda.blockIdx.x) * n_tiles * position_size
        before = count_type(0)
        half = u32(0)
        amounts = cuda.local.array(_SCAN_ITEMS, u32)
        tile = i64(0)
        while tile < n_tiles:
            first = tile + i64(thread) * _SCAN_ITEMS
            own = u32(0)
            for item in range(_SCAN_ITEMS):
                amounts[item] = u32(0)
                if first + item < n_tiles:
                    amounts[item] = u32(load_count(base + (first + item) * position_size))
                own = u32(own + amounts[item])
            # A tile is smaller than 2^13: the sum of a block's tiles is a uint32.
            total = block_inclusive_sum(sums, half, own, lane, warp)
            if thread == u32(N_THREADS - 1):
                last[half >> u32(5)] = total
            running = count_type(before + count_type(u32(total - own)))
            for item in range(_SCAN_ITEMS):
                if first + item < n_tiles:
                    store_count(base + (first + item) * position_size, running)
                running = count_type(running + count_type(amounts[item]))
            cuda.syncthreads()
            before = count_type(before + count_type(last[half >> u32(5)]))
            half = u32(u32(32) - half)
            tile += N_THREADS * _SCAN_ITEMS
        if thread == u32(0):
            store_count(totals + i64(cuda.blockIdx.x) * position_size, before)

    return KernelSource(scan_tiles)


def scatter_source(element_size: int, position_size: int) -> KernelSource:
    """Make `scatter_digits` for one width of elements and positions."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    load_position = LOAD[position_size]
    store_position = STORE[position_size]
    position_type = REGISTER[position_size]
    _, block_inclusive_sum = block_functions(N_THREADS)
    tile_size = tile_elements(element_size, position_size)
    n_items = tile_size // N_THREADS
    n_counters = _N_WARPS * N_DIGITS

    @device_function
    def exclusive_sum_of_digits(sums, half, amount, wide_sums, lane, warp):
        """Return the sum of `amount` over the digits before the thread's own."""
        if position_size == 4:
            return position_type(block_inclusive_sum(sums, half, u32(amount), lane, warp) - u32(amount))
        wide_sums[u32(warp * u32(32)) + lane] = amount
        cuda.syncthreads()
        total = position_type(0)
        digit = u32(0)
        while digit < u32(u32(warp * u32(32)) + lane):
            total = position_type(total + wide_sums[digit])
            digit = u32(digit + u32(1))
        return total

    def scatter_digits(
        x,
        source,
        source_positions,
        sorted_keys,
        sorted_positions,
        values,
        indices,
        counts,
        totals,
        offsets,
        index_size,
        first_row,
        axis_size,
        n_tiles,
        k,
        shift,
        is_first,
        is_last,
        is_scanned,
        x_stride,
        value_stride,
        index_stride,
        layout,
        masks,
    ):
        tile_keys = cuda.shared.array(tile_size, key_type)
        tile_positions = cuda.shared.array(tile_size, position_type)
        warp_counts = cuda.shared.array(n_counters, u32)
        digit_base = cuda.shared.array(N_DIGITS, position_type)
        sums = cuda.shared.array(64, u32)
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        block = i64(cuda.blockIdx.x)
        row = block // n_tiles
        tile = block - row * n_tiles
        x_row, value_row, index_row = row_offsets(layout, offsets, first_row + row)
        x_base = x + x_row * element_size
        pairs = row * axis_size
        base = source + pairs * element_size
        stride = i64(1)
        if is_first != 0:
            base = x_base
            stride = x_stride
        for item in range(_N_WARPS):
            warp_counts[u32(item * N_DIGITS) + thread] = u32(0)

        keys = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, position_type)
        ranks = cuda.local.array(n_items, u32)
        first = tile * tile_size + i64(u32(warp * u32(32 * n_items)) + lane)
        for item in range(n_items):
            at = first + item * 32
            keys[item] = key_type(0)
            positions[item] = position_type(at)
            if at < axis_size:
                keys[item] = load_element(base + at * stride * element_size)
                if is_first == 0:
                    positions[item] = load_position(source_positions + (pairs + at) * position_size)
        if is_first != 0:
            for item in range(n_items):
                # What is beyond the row's end comes last: its key is 0, and it is last in the tile.
                if first + item * 32 < axis_size:
                    keys[item] = order_key(keys[item], *masks)

        # Where the tile's first element of digit `thread` goes.
        entry = (row * N_DIGITS + i64(thread)) * n_tiles
        if is_scanned != 0:
            before = position_type(load_position(counts + (entry + tile) * position_size))
            amount = position_type(load_position(totals + (row * N_DIGITS + i64(thread)) * position_size))
        else:
            before = position_type(0)
            amount = position_type(0)
            other = i64(0)
            while other < n_tiles:
                part = load_position(counts + (entry + other) * position_size)
                if other < tile:
                    before = position_type(before + part)
                amount = position_type(amount + part)
                other += 1
        wide_sums = digit_base
        destination = position_type(
            before + exclusive_sum_of_digits(sums, u32(0), amount, wide_sums, lane, warp)
        )
        cuda.syncthreads()

        # Rank of each element among those of its digit in its warp: 32 elements at a time, in order.
        below = lanes_below()
        own_counts = u32(warp * u32(N_DIGITS))
        for item in range(n_items):
            digit = u32(u32(N_DIGITS - 1) - u32(u32(keys[item] >> key_type(shift)) & u32(N_DIGITS - 1)))
            same = u32(0xFFFFFFFF)
            for bit in range(DIGIT_BITS):
                is_set = u32(u32(digit >> u32(bit)) & u32(1))
                # All ones where the lane's own bit is 0: then the lanes that have it set are not the same.
                same = u32(same & u32(ballot(is_set) ^ u32(is_set - u32(1))))
            counter = u32(own_counts + digit)
            already = warp_counts[counter]
            cuda.syncwarp()
            earlier = u32(same & below)
            if earlier == u32(0):
                warp_counts[counter] = u32(already + popcount_u32(same))
            cuda.syncwarp()
            ranks[item] = u32(already + popcount_u32(earlier))
        cuda.syncthreads()

        # Turn the warps' counts into places in the sorted tile.
        running = u32(0)
        for item in range(_N_WARPS):
            counter = u32(u32(item * N_DIGITS) + thread)
            amount_of_warp = warp_counts[counter]
            warp_counts[counter] = running
            running = u32(running + amount_of_warp)
        start = u32(block_inclusive_sum(sums, u32(32), running, lane, warp) - running)
        for item in range(_N_WARPS):
            counter = u32(u32(item * N_DIGITS) + thread)
            warp_counts[counter] = u32(warp_counts[counter] + start)
        digit_base[thread] = position_type(destination - position_type(start))
        cuda.syncthreads()
        for item in range(n_items):
            digit = u32(u32(N_DIGITS - 1) - u32(u32(keys[item] >> key_type(shift)) & u32(N_DIGITS - 1)))
            place = u32(warp_counts[u32(own_counts + digit)] + ranks[item])
            tile_keys[place] = keys[item]
            tile_positions[place] = positions[item]
        cuda.syncthreads()

        for item in range(n_items):
            place = u32(u32(item * N_THREADS) + thread)
            if tile * tile_size + i64(place) < axis_size:
                key = tile_keys[place]
                position = tile_positions[place]
                digit = u32(u32(N_DIGITS - 1) - u32(u32(key >> key_type(shift)) & u32(N_DIGITS - 1)))
                rank = i64(position_type(digit_base[digit] + position_type(place)))
                if is_last == 0:
                    store_element(sorted_keys + (pairs + rank) * element_size, key)
                    store_position(sorted_positions + (pairs + rank) * position_size, position)
                elif rank < k:
                    address = x_base + i64(position) * x_stride * element_size
                    bits = restore(key, masks, address)
                    store_element(values + (value_row + rank * value_stride) * element_size, bits)
                    at = indices + (index_row + rank * index_stride) * index_size
                    store_index(at, index_size, i64(position))

    return KernelSource(scatter_digits, {"layout": N_LAYOUT, "masks": N_MASKS})
