"""One lane per row, where rows are columns of neighbours in memory, as along any axis but the last.

Neighbouring lanes walk down neighbouring columns, so every load is coalesced. A lane has the first k elements
so far in registers, in order. What may come before the last of them goes to a buffer in shared memory. Once
the buffer of any lane of a warp might overflow, all lanes insert what they have in theirs, an element each at
a time: no lane waits for another that finds more.

So that a trend along the axis does not let every element in, a column is walked in chunks of rows that lie
far from each other. Elements are compared with the last one of the list by their unfolded keys (`keys`).

If there are few columns, each is split: warps of a block take parts of it and merge what they select. Columns
that end early (`lengths`) are walked down together with the longest one of the warp.

Reads the columns once, writes k values and indices.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.top_k.columns.columns_launches import (
    ColumnsParameters,
    buffer_pairs,
    chunk_rows,
    warp_bytes,
)
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import WARP_LANES, pair_bytes

# The last position there may be also stands for none: an element of the least key there comes last anyway.
_NOWHERE = 0xFFFF


def columns_kernel(element_size: int, n_kept: int) -> Any:
    """Make the kernel for k up to `n_kept`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    read_if = ptx.READ_IF[element_size]
    find_row, write_result, pad_results = row_functions(element_size)
    n_pair_bytes = pair_bytes(element_size)
    load_pair, store_pair = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR[n_pair_bytes]
    pair_step = WARP_LANES * n_pair_bytes
    n_rows_ahead = chunk_rows(element_size)
    n_filled = buffer_pairs(element_size) - n_rows_ahead
    n_warp_bytes = warp_bytes(element_size, n_kept)
    # Keys of 8 and 16 bits make one number with the inverted position.
    is_narrow = element_size <= 2
    number_type = u32 if is_narrow else key_type
    n_positions = 1 if is_narrow else n_kept

    if is_narrow:

        @device_function
        def entry(numbers, positions, place):
            return numbers[place] >> 16, _NOWHERE - (numbers[place] & _NOWHERE)

        @linked_function
        def insert(numbers, positions, key, position):
            """Insert an element into a lane's list; the last one is lost."""
            number = key << 16 | (_NOWHERE - position)
            for back in range(1, n_kept):
                place = n_kept - back
                numbers[place] = max(numbers[place], min(numbers[place - 1], number))
            numbers[0] = max(numbers[0], number)

    else:

        @device_function
        def entry(numbers, positions, place):
            return numbers[place], positions[place]

        @device_function
        def comes_before(key, position, other_key, other_position):
            return (key > other_key) | ((key == other_key) & (position < other_position))

        @linked_function
        def insert(numbers, positions, key, position):
            """Insert an element into a lane's list; the last one is lost."""
            is_before = comes_before(key, position, numbers[n_kept - 1], positions[n_kept - 1])
            for back in range(1, n_kept):
                place = n_kept - back
                is_before_both = comes_before(key, position, numbers[place - 1], positions[place - 1])
                own_key = key if is_before else numbers[place]
                own_position = position if is_before else positions[place]
                numbers[place] = numbers[place - 1] if is_before_both else own_key
                positions[place] = positions[place - 1] if is_before_both else own_position
                is_before = is_before_both
            numbers[0] = key if is_before else numbers[0]
            positions[0] = position if is_before else positions[0]

    @linked_function
    def begin_list(numbers, positions, n_selected):
        """Empty a list; its places of more than `n_selected` hold fillers, which come before all elements."""
        for place in range(n_kept):
            numbers[place] = number_type(0)
            if u32(place) + n_selected < n_kept:
                numbers[place] = ~number_type(0)
        for place in range(n_positions):
            positions[place] = u32(_NOWHERE)
            if u32(place) + n_selected < n_kept:
                positions[place] = u32(0)

    @linked_function
    def insert_pairs(numbers, positions, pairs, count, are_elements, key_format):
        """Insert the first `count` pairs of each lane."""
        most = ptx.warp_max(count)
        number = u32(0)
        while number < most:
            key, low = load_pair(pairs + number * u32(pair_step))
            position = u32(low)
            if are_elements:
                key = ordered_key(key, key_format)
            if number >= count:
                key = key_type(0)
                position = u32(_NOWHERE)
            insert(numbers, positions, key, position)
            number += u32(1)

    @linked_function
    def store_list(numbers, positions, pairs):
        for place in range(n_kept):
            key, position = entry(numbers, positions, place)
            store_pair(pairs + u32(place * pair_step), key, key_type(position))

    @linked_function
    def walk_chunk(ahead, address, step, n_next, at, n_live, threshold, slot, unfolding):
        """Put the elements at or above a threshold into a lane's buffer; load another chunk instead."""
        for place in range(n_rows_ahead):
            bits = ahead[place]
            ahead[place] = read_if(address, u32(place) < n_next)
            address += step
            # Not `and`, which would branch.
            if (unfolded_element(bits, unfolding) >= threshold) & (u32(place) < n_live):
                store_pair(slot, bits, key_type(at + u32(place)))
                slot += u32(pair_step)
        return slot

    @device_function
    def following_chunk(chunk, cycle, n_chunks, stride):
        """Return the chunk after this one, and the round.

        Chunks follow each other some 0.618 of the column apart: by the golden ratio, any number of them is
        spread evenly. A round that leads back to its first chunk is followed by a round from the next one.
        """
        chunk += stride
        if chunk >= n_chunks:
            chunk -= n_chunks
        if chunk == cycle:
            cycle += 1
            chunk = cycle
        return chunk, cycle

    @linked_function
    def walk_column(numbers, positions, base, begin, end, pairs, p):
        """Bring the first elements of a part of a column into a list."""
        step = p.strides.x * element_size
        unfolding = unfolding_of(p.unfolded_format, False)
        n_chunks = ptx.warp_max((end - begin + u32(n_rows_ahead - 1)) // u32(n_rows_ahead))
        stride = max(u32(1), (n_chunks * 2531) >> 12)
        ahead = cuda.local.array(n_rows_ahead, key_type)
        for place in range(n_rows_ahead):
            position = begin + u32(place)
            ahead[place] = read_if(base + i64(position) * step, position < end)
        at = begin
        chunk = u32(0)
        cycle = u32(0)
        slot = pairs
        full = pairs + u32(n_filled * pair_step)
        # Until the list is full, no element is known to come after the last selected one.
        reached = key_type(0)
        next_above = key_type(0)
        last_position = u32(_NOWHERE)
        remaining = n_chunks
        while remaining > 0:
            remaining -= u32(1)
            chunk, cycle = following_chunk(chunk, cycle, n_chunks, stride)
            next_at = begin + chunk * u32(n_rows_ahead)
            n_live = max(end, at) - at
            threshold = reached
            if at > last_position:
                threshold = next_above
                n_live = n_live if next_above != 0 else u32(0)
            address = base + i64(next_at) * step
            n_next = max(end, next_at) - next_at
            slot = walk_chunk(ahead, address, step, n_next, at, n_live, threshold, slot, unfolding)
            at = next_at
            if remaining == 0 or ptx.ballot(slot > full) != 0:
                count = (slot - pairs) // u32(pair_step)
                insert_pairs(numbers, positions, pairs, count, True, p.key_format)
                slot = pairs
                key, last_position = entry(numbers, positions, n_kept - 1)
                if last_position != _NOWHERE:
                    reached = unfold_threshold(key, p.key_format)
                    next_above = unfold_next_above(key, p.key_format)

    @linked_function
    def merge_parts(numbers, positions, pairs, part, n_parts, p):
        """Merge the lists of the warps that share columns into that of the first of them."""
        n_selected = u32(p.k)
        distance = u32(1)
        while distance < n_parts:
            cuda.syncthreads()
            store_list(numbers, positions, pairs)
            cuda.syncthreads()
            if part & ((distance << 1) - 1) == 0:
                theirs = pairs + distance * u32(n_warp_bytes) + (u32(n_kept) - n_selected) * u32(pair_step)
                insert_pairs(numbers, positions, theirs, n_selected, False, p.key_format)
            distance <<= 1

    @linked_function
    def write_column(numbers, positions, pairs, n_written, row, is_by_index, p):
        """Write the first `n_written` of the selected elements, which are the last `p.k` of the list."""
        base, values, indices = row
        store_list(numbers, positions, pairs)
        n_others = u32(n_kept) - u32(p.k)
        rank = u32(0)
        while rank < n_written:
            key, low = load_pair(pairs + (n_others + rank) * u32(pair_step))
            position = u32(low)
            place = rank
            if is_by_index != 0:
                # The fillers count as if they came before all.
                place = u32(0) - n_others - u32(1)
                for other in range(n_kept):
                    _, other_position = entry(numbers, positions, other)
                    place += u32(other_position <= position)
            bits = restore(key, p.key_format, base + i64(position) * (p.strides.x * element_size))
            write_result(values, indices, place, bits, i64(position), p)
            rank += u32(1)
        pad_results(values, indices, n_written, 1, p.k, p)

    @cuda.jit
    def column_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, c: ColumnsParameters):
        ptx.grid_dependency_wait()
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        n_parts = u32(c.n_parts)
        group = warp // n_parts
        part = warp - group * n_parts
        n_groups = (u32(cuda.blockDim.x) >> 5) // n_parts
        column = ((p.first + i64(cuda.blockIdx.x)) * i64(n_groups) + i64(group)) * WARP_LANES + i64(lane)
        row = min(column, p.n_rows - 1)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        size = u32(p.axis_size)
        begin = (size * part) // n_parts
        end = max(begin, min((size * (part + 1)) // n_parts, u32(length)))
        pairs = ptx.shared_address(dynamic_shared_array(u64))
        pairs += warp * u32(n_warp_bytes) + lane * u32(n_pair_bytes)
        numbers = cuda.local.array(n_kept, number_type)
        positions = cuda.local.array(n_positions, u32)
        begin_list(numbers, positions, u32(p.k))
        walk_column(numbers, positions, base, begin, end, pairs, p)
        merge_parts(numbers, positions, pairs, part, n_parts, p)
        if part == 0 and column < p.n_rows:
            n_written = min(u32(p.k), u32(length))
            write_column(numbers, positions, pairs, n_written, (base, values, indices), c.is_by_index, p)

    return column_top_k
