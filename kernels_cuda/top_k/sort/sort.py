"""Any k: stable radix sort of whole rows, least significant digit first, eight bits a pass.

1. `clear_words` (`counting`) empties what the launches below count in.
2. `digit_histograms` (`counting`) reads the rows once and counts the digits of all passes. Where few elements
   of long rows are selected, most are dropped before that (`filter`), and only what is left is sorted. Where
   that would take too much memory, elements are selected exactly (`select`).
3. `sort_digit`, once a pass, ranks a tile's elements by their digit, brings them into order in shared memory
   and writes them out. Where a tile's elements of a digit go, it learns by looking back over the tiles before
   it in the row: each makes known how many elements of each digit it has as soon as it has counted them, and
   later where the elements after its own begin. The first tile takes that from the histogram.

A tile is taken from a counter, so that all tiles before it are being worked on: waiting for them ends.

The first pass reads the elements and makes pairs of a key, the complement of the ordered key, and a position.
The others read what the pass before has written, each pair in one piece of memory. The last pass writes the
first k elements and their positions. Passes being stable, equal keys stay in the order of their positions. Of
a row that ends early (`lengths`), tiles beyond the end have nothing to sort; in the last pass they fill the
results up. Rows that lie side by side are first copied, one after the other, by a kernel of
`diagonal_matrix`.

A pass over n pairs moves ``2 * n * pair`` bytes. Pairs are in the workspace, or, where that would need too
much of it, in the results too, some of them with keys and positions in two arrays
(`sort_shape.SortBuffers`). If the last pass reads pairs from the indices, it writes positions to the
workspace, from where `write_indices` takes them. This takes up to a third longer.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import NO_INDEX, part_of, store_index
from kernels_cuda.top_k.shared.shapes import N_DIGITS, pair_bytes
from kernels_cuda.top_k.sort.counting import clearing_function
from kernels_cuda.top_k.sort.sort_launches import (
    WRITING_ELEMENTS,
    WRITING_THREADS,
    PairBuffers,
    SortCounts,
    SortParameters,
    WritingParameters,
)
from kernels_cuda.top_k.sort.sort_shape import COUNT_BYTES, IN_INDICES, IN_SCRATCH, IN_VALUES, STATE_BYTES

# Tiles whose state is asked for at once.
_LOOKBACK_TILES = 4
# Elements that a thread writes together.
_TOGETHER = 4


@device_function
def address_of(place, bases):
    """Return the address of an array of a row (`sort_shape.place`), or 0.

    `bases` are where the row's part of the workspace, its values and its indices begin.
    """
    scratch, values, indices = bases
    kind = place & 3
    base = i64(0)
    if kind == IN_SCRATCH:
        base = scratch
    elif kind == IN_VALUES:
        base = values
    elif kind == IN_INDICES:
        base = indices
    return base + (place >> 2)


def sort_kernel(
    element_size: int,
    position_size: int,
    n_threads: int,
    n_items: int,
    max_registers: int,
    in_results: int = 0,
) -> Any:
    """Make `sort_digit` for one width of elements and positions, and for pairs in results or elsewhere."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    load_element = functions.load_element
    load_shared = ptx.LOAD_SHARED[position_size]
    load_state = ptx.LOAD_RELAXED[position_size]
    store_state = ptx.STORE_RELAXED[position_size]
    position_type = ptx.REGISTER[position_size]
    load_position, store_position = ptx.LOAD[position_size], ptx.STORE[position_size]
    store_element = functions.store_element
    pair_size = pair_bytes(element_size, position_size)
    load_pair, store_pair = ptx.LOAD_PAIR[pair_size], ptx.STORE_PAIR[pair_size]
    load_shared_pair, store_shared_pair = ptx.LOAD_SHARED_PAIR[pair_size], ptx.STORE_SHARED_PAIR[pair_size]
    find_row, write_result, pad_results = row_functions(element_size)
    ones = (1 << 8 * element_size) - 1
    n_warps = n_threads // 32
    n_counters = n_warps * N_DIGITS
    clear_counts = clearing_function(n_counters, n_threads)
    exclusive_sum = block_scan(n_threads)
    tile_size = n_threads * n_items
    state_shift = 8 * position_size - 2
    of_tile = 1 << state_shift
    of_all = 2 << state_shift
    count_mask = of_tile - 1

    if key_type is u64:

        @device_function
        def digit_of(key, byte):
            return ptx.permute(u32(key), u32(key >> 32), byte) & 0xFF

    else:

        @device_function
        def digit_of(key, byte):
            return ptx.permute(key, u32(0), 0x4440 | byte)

    @device_function
    def exclusive_sum_of_digits(sums, amount, wide_sums, thread):
        """Return the sum of `amount` over the digits before the thread's own."""
        if position_size == 4:
            before, _ = exclusive_sum(amount, thread, ptx.shared_from(sums, 32))
            return before
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
        """Return how many elements with the digit of `states` the tiles up to `before` have, by look-back."""
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

    @linked_function
    def load_elements(keys, positions, address, step, first_position, own, count, key_format):
        """Make pairs of a tile's elements, a thread's of which begin with number `own`."""
        for item in range(n_items):
            keys[item] = key_type(0)
            if own + u32(item * 32) < count:
                keys[item] = load_element(address)
            address += 32 * step
        for item in range(n_items):
            key = ordered_key(keys[item], key_format) ^ key_type(ones)
            keys[item] = key if own + u32(item * 32) < count else key_type(ones)
            positions[item] = position_type(first_position) + position_type(own + u32(item * 32))

    @linked_function
    def load_pairs(keys, positions, address, own, count):
        for item in range(n_items):
            keys[item] = key_type(ones)
            positions[item] = position_type(0)
            if own + u32(item * 32) < count:
                keys[item], positions[item] = load_pair(address + item * (32 * pair_size))

    @linked_function
    def load_arrays(keys, positions, keys_at, positions_at, own, count):
        for item in range(n_items):
            keys[item] = key_type(ones)
            positions[item] = position_type(0)
            if own + u32(item * 32) < count:
                keys[item] = load_element(keys_at + item * (32 * element_size))
                positions[item] = load_position(positions_at + item * (32 * position_size))

    @device_function
    def load_buffer(keys, positions, source, bases, first, own, count):
        """Load pairs of a row, from number `first` on."""
        if source.positions != 0:
            keys_at = address_of(source.keys, bases) + first * element_size
            positions_at = address_of(source.positions, bases) + first * position_size
            load_arrays(keys, positions, keys_at, positions_at, own, count)
        else:
            load_pairs(keys, positions, address_of(source.keys, bases) + first * pair_size, own, count)

    @linked_function
    def make_places(counts, start, thread):
        """Turn the warps' counts of a digit into places in the sorted tile, from `start` on."""
        running = start
        for warp in range(n_warps):
            of_warp = counts[u32(warp * N_DIGITS) + thread]
            counts[u32(warp * N_DIGITS) + thread] = running
            running += of_warp

    @linked_function
    def order_pairs(exchanged, own_counts, keys, positions, byte, lane):
        """Store pairs in order of their digits.

        A warp orders 32 pairs at a time: of the lanes with the same digit, the last one counts for all.
        """
        below = ptx.lanes_below()
        for item in range(n_items):
            digit = digit_of(keys[item], byte)
            same = ptx.match_byte(digit)
            earlier = ptx.popcount_u32(same & below)
            last = ptx.highest_bit(same)
            place = ptx.add_shared_if(own_counts + (digit << 2), earlier + 1, u32(lane == last))
            place = ptx.shuffle_from_u32(place, last) + earlier
            store_shared_pair(exchanged + place * u32(pair_size), keys[item], positions[item])

    @linked_function
    def store_pairs(keys, positions, ranks, place, count, row_pairs, capacity):
        """Store pairs at their ranks in a row; the first one's place in the tile is `place`."""
        for item in range(_TOGETHER):
            exists = place + u32(item * n_threads) < count
            # Digits of elements that have changed since they were counted may have no room.
            if exists and ranks[item] < position_type(capacity):
                store_pair(row_pairs + i64(ranks[item]) * pair_size, keys[item], positions[item])

    @linked_function
    def store_arrays(keys, positions, ranks, place, count, keys_at, positions_at, capacity):
        for item in range(_TOGETHER):
            exists = place + u32(item * n_threads) < count
            if exists and ranks[item] < position_type(capacity):
                store_element(keys_at + i64(ranks[item]) * element_size, keys[item])
                store_position(positions_at + i64(ranks[item]) * position_size, positions[item])

    @linked_function
    def write_results(keys, positions, ranks, place, count, x_base, outputs, p):
        """Write pairs as results if they are among the first k."""
        values, indices = outputs
        last = position_type(p.k)
        for item in range(_TOGETHER):
            if place + u32(item * n_threads) >= count:
                ranks[item] = last
        for item in range(_TOGETHER):
            if ranks[item] < last:
                positions[item] = min(positions[item], position_type(p.axis_size - 1))
                address = x_base + i64(positions[item]) * p.strides.x * element_size
                keys[item] = restore(keys[item] ^ key_type(ones), p.key_format, address)
        for item in range(_TOGETHER):
            if ranks[item] < last:
                write_result(values, indices, ranks[item], keys[item], i64(positions[item]), p)

    @linked_function
    def write_values(keys, positions, ranks, place, count, x_base, values, positions_at, p):
        """Write values, and positions rather than indices."""
        last = position_type(p.k)
        for item in range(_TOGETHER):
            if place + u32(item * n_threads) < count and ranks[item] < last:
                positions[item] = min(positions[item], position_type(p.axis_size - 1))
                address = x_base + i64(positions[item]) * p.strides.x * element_size
                element = restore(keys[item] ^ key_type(ones), p.key_format, address)
                store_element(values + i64(ranks[item]) * element_size, element)
                store_position(positions_at + i64(ranks[item]) * position_size, positions[item])

    @linked_function
    def pad_values(values, padding, rank, end):
        while rank < end:
            store_element(values + rank * element_size, key_type(padding))
            rank += n_threads

    @device_function
    def pad_tile(values, indices, length, tile_first, thread, p, s):
        """Pad the results from the end of a row on that lie where a tile does."""
        rank = max(length, tile_first) + i64(thread)
        end = min(p.k, tile_first + tile_size)
        if in_results and s.target.positions != 0:
            pad_values(values, p.window_format.padding, rank, end)
        else:
            pad_results(values, indices, rank, n_threads, end, p)

    @device_function
    def count_of_digit(counts, thread):
        """Return how many pairs of the tile have the thread's digit."""
        amount = u32(0)
        if thread < N_DIGITS:
            for other in range(n_warps):
                amount += counts[u32(other * N_DIGITS) + thread]
        return amount

    @cuda.jit(max_registers=max_registers)
    def sort_digit(
        x,
        windows: Windows,
        buffers: PairBuffers,
        values,
        indices,
        counted: SortCounts,
        offsets,
        p: RowParameters,
        s: SortParameters,
    ):
        ptx.grid_dependency_wait_only()
        exchanged = ptx.shared_address(dynamic_shared_array(u64))
        counts = cuda.shared.array(n_counters, u32)
        digit_base = cuda.shared.array(N_DIGITS, position_type)
        sums = cuda.shared.array(64, u32)
        taken = cuda.shared.array(1, u32)
        shared_byte = cuda.shared.array(1, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        if thread == 0:
            taken[0] = ptx.atomic_add_u32(counted.next_tile, u32(1))
            shared_byte[0] = u32(s.shift >> 3)
        clear_counts(counts, thread)
        cuda.syncthreads()
        row = i64(taken[0] // u32(s.n_tiles))
        tile = i64(taken[0]) - row * s.n_tiles
        x_base, values, indices, length = find_row(x, windows, values, indices, offsets, p.first + row, p)
        if counted.n_kept != 0:
            length = i64(ptx.load_u32(counted.n_kept + row * STATE_BYTES))
        tile_first = tile * tile_size
        # Not the comparison with 0 that comes later: compilers would keep its outcome in registers.
        if s.is_last == 1:
            pad_tile(values, indices, length, tile_first, thread, p, s)
        if tile_first >= length:
            return
        count = u32(min(i64(tile_size), length - tile_first))

        keys = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, position_type)
        own = warp * u32(32 * n_items) + lane
        # Slots beyond the row's end come last: their key is the largest, and they are last in the tile.
        if s.is_first != 0:
            step = p.strides.x * element_size
            address = x_base + (tile_first + i64(own)) * step
            load_elements(keys, positions, address, step, tile_first, own, count, p.key_format)
        elif in_results:
            bases = buffers.source + row * s.row_bytes, values, indices.address
            load_buffer(keys, positions, s.source, bases, tile_first + i64(own), own, count)
        else:
            address = buffers.source + (row * s.capacity + tile_first + i64(own)) * pair_size
            load_pairs(keys, positions, address, own, count)
        of_digit = position_type(0)
        if tile == 0 and thread < N_DIGITS:
            entry = row * (element_size * N_DIGITS) + i64(thread)
            of_digit = position_type(ptx.load_u64(counted.histograms + entry * COUNT_BYTES))
        byte = u32(s.shift >> 3)
        own_counts = ptx.shared_address(counts) + warp * u32(N_DIGITS * 4)
        for item in range(n_items):
            ptx.count_shared(own_counts + (digit_of(keys[item], byte) << 2))
        cuda.syncthreads()

        # Announce how many elements of each digit the tile has.
        state = counted.states + (row * s.n_tiles * N_DIGITS + i64(thread)) * position_size
        own_state = state + tile * (N_DIGITS * position_size)
        amount = count_of_digit(counts, thread)
        before = position_type(0)
        if tile == 0:
            before = exclusive_sum_of_digits(sums, of_digit, digit_base, thread)
        known = of_tile | position_type(amount)
        if tile == 0:
            known = of_all | (before + position_type(amount))
        if thread < N_DIGITS:
            store_state(own_state, known)
        start, _ = exclusive_sum(amount, thread, sums)
        if thread < N_DIGITS:
            make_places(counts, start, thread)
        cuda.syncthreads()

        # An opaque copy: otherwise compilers would keep all digits, and where they are counted, in registers.
        order_pairs(exchanged, own_counts, keys, positions, shared_byte[0], lane)
        if thread < N_DIGITS:
            if tile > 0:
                before = look_back(state, tile - 1)
                store_state(own_state, of_all | (before + position_type(amount)))
            digit_base[thread] = before - position_type(start)
        cuda.syncthreads()

        ptx.let_next_launch_begin()
        base_address = ptx.shared_address(digit_base)
        keys_at = buffers.destination + row * s.capacity * pair_size
        positions_at = i64(0)
        if in_results:
            bases = buffers.destination + row * s.row_bytes, values, indices.address
            keys_at = address_of(s.target.keys, bases)
            positions_at = address_of(s.target.positions, bases)
        ranks = cuda.local.array(_TOGETHER, position_type)
        for first in range(0, n_items, _TOGETHER):
            own = u32(first * n_threads) + thread
            for item in range(_TOGETHER):
                place = u32((first + item) * n_threads) + thread
                keys[item], positions[item] = load_shared_pair(exchanged + place * u32(pair_size))
            for item in range(_TOGETHER):
                place = u32((first + item) * n_threads) + thread
                base = load_shared(base_address + digit_of(keys[item], byte) * u32(position_size))
                ranks[item] = base + position_type(place)
            if in_results and positions_at != 0:
                if s.is_last == 0:
                    store_arrays(keys, positions, ranks, own, count, keys_at, positions_at, s.capacity)
                else:
                    write_values(keys, positions, ranks, own, count, x_base, values, positions_at, p)
            elif s.is_last == 0:
                store_pairs(keys, positions, ranks, own, count, keys_at, s.capacity)
            else:
                write_results(keys, positions, ranks, own, count, x_base, (values, indices), p)

    return sort_digit


def result_sort_kernel(
    element_size: int, position_size: int, n_threads: int, n_items: int, max_registers: int
) -> Any:
    """Make `sort_digit` for pairs of which some are in the results."""
    return sort_kernel(element_size, position_size, n_threads, n_items, max_registers, 1)


def indices_kernel() -> Any:
    """Make `write_indices`, which makes indices of the positions that the last pass has left elsewhere."""
    # It reads and writes no elements, so their size does not matter.
    find_row, _, _ = row_functions(1)

    @cuda.jit(max_registers=40)
    def write_indices(windows: Windows, scratch, indices, offsets, p: RowParameters, w: WritingParameters):
        ptx.grid_dependency_wait()
        row, part = part_of(i64(cuda.blockIdx.x), w.n_parts)
        _, _, indices, length = find_row(i64(0), windows, i64(0), indices, offsets, p.first + row, p)
        positions_at = scratch + row * w.row_bytes + w.positions
        rank = part * WRITING_ELEMENTS + i64(cuda.threadIdx.x)
        end = min(p.k, (part + 1) * WRITING_ELEMENTS)
        while rank < end:
            index = i64(NO_INDEX)
            if rank < length:
                position = min(i64(ptx.load_u32(positions_at + rank * 4)), length - 1)
                index = position + indices.start
            store_index(indices.address + rank * p.index_size, p.index_size, index)
            rank += WRITING_THREADS

    return write_indices
