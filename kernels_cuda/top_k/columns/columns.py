"""One lane per row, where rows are columns of neighbours in memory, as along any axis but the last.

Neighbouring lanes walk down neighbouring columns, so every load is coalesced. A lane has the first k elements
so far in registers, in order. What comes before the last of them goes to a buffer in shared memory. Once the
buffer of any lane of a warp might overflow, all lanes insert what they have in theirs, an element each at a
time: no lane waits for another that finds more.

So that a trend along the axis does not let every element in, chunks of rows that follow each other in a walk
lie far from each other.

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
    CHUNKS_APART,
    ColumnsParameters,
    buffer_pairs,
    chunk_rows,
    warp_bytes,
)
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import WARP_LANES, pair_bytes

_NOWHERE = 0xFFFFFFFF


def columns_kernel(element_size: int, n_kept: int) -> Any:
    """Make the kernel for k up to `n_kept`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    read_if = ptx.READ_IF[element_size]
    find_row, write_result, pad_results = row_functions(element_size)
    is_wide = element_size == 8
    load_pair = ptx.load_shared_u64x2 if is_wide else ptx.load_shared_u32x2
    store_pair_if = ptx.store_shared_if_u64x2 if is_wide else ptx.store_shared_if_u32x2
    n_pair_bytes = pair_bytes(element_size)
    pair_step = WARP_LANES * n_pair_bytes
    n_rows_ahead = chunk_rows(element_size)
    n_filled = buffer_pairs(element_size) - n_rows_ahead
    n_warp_bytes = warp_bytes(element_size, n_kept)

    @device_function
    def comes_before(key, position, other_key, other_position):
        return (key > other_key) | ((key == other_key) & (position < other_position))

    @linked_function
    def insert(keys, positions, key, position):
        """Insert an element into a lane's list; the last one is lost."""
        for place in range(n_kept):
            other_key = keys[place]
            other_position = positions[place]
            is_first = comes_before(key, position, other_key, other_position)
            keys[place] = key if is_first else other_key
            positions[place] = position if is_first else other_position
            key = other_key if is_first else key
            position = other_position if is_first else position

    @linked_function
    def insert_pairs(keys, positions, pairs, count):
        """Insert the first `count` pairs of each lane."""
        most = ptx.warp_max(count)
        number = u32(0)
        while number < most:
            key, low = load_pair(pairs + number * u32(pair_step))
            position = u32(low)
            if number >= count:
                key = key_type(0)
                position = u32(_NOWHERE)
            insert(keys, positions, key, position)
            number += u32(1)

    @linked_function
    def store_list(keys, positions, pairs):
        for place in range(n_kept):
            store_pair_if(pairs + u32(place * pair_step), keys[place], key_type(positions[place]), True)

    @linked_function
    def walk_chunk(ahead, base, step, at, next_at, end, pairs, count, last_key, last_position, key_format):
        """Put what comes before a lane's last element into its buffer; load the next chunk instead."""
        for place in range(n_rows_ahead):
            key = ordered_key(ahead[place], key_format)
            position = at + u32(place)
            next_position = next_at + u32(place)
            ahead[place] = read_if(base + i64(next_position) * step, next_position < end)
            is_kept = comes_before(key, position, last_key, last_position) & (position < end)
            store_pair_if(pairs + count * u32(pair_step), key, key_type(position), is_kept)
            count += u32(is_kept)
        return count

    @linked_function
    def merge_parts(keys, positions, pairs, part, n_parts, n_selected):
        """Merge the lists of the warps that share columns into that of the first of them."""
        distance = u32(1)
        while distance < n_parts:
            cuda.syncthreads()
            store_list(keys, positions, pairs)
            cuda.syncthreads()
            if part & ((distance << 1) - 1) == 0:
                theirs = pairs + distance * u32(n_warp_bytes) + (u32(n_kept) - n_selected) * u32(pair_step)
                insert_pairs(keys, positions, theirs, n_selected)
            distance <<= 1

    @linked_function
    def write_column(positions, pairs, n_written, row, is_by_index, p):
        """Write the first elements of a list, whose last `p.k` ones are selected."""
        base, values, indices = row
        n_others = u32(n_kept) - u32(p.k)
        rank = u32(0)
        while rank < n_written:
            key, low = load_pair(pairs + (n_others + rank) * u32(pair_step))
            position = u32(low)
            place = rank
            if is_by_index != 0:
                # The others count as if they came before all.
                place = u32(0) - n_others - u32(1)
                for other in range(n_kept):
                    place += u32(positions[other] <= position)
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
        step = p.strides.x * element_size
        size = u32(p.axis_size)
        begin = (size * part) // n_parts
        end = max(begin, min((size * (part + 1)) // n_parts, u32(length)))
        pairs = ptx.shared_address(dynamic_shared_array(u64))
        pairs += warp * u32(n_warp_bytes) + lane * u32(n_pair_bytes)

        # A shorter list comes behind keys that come before all, at positions that come before all.
        keys = cuda.local.array(n_kept, key_type)
        positions = cuda.local.array(n_kept, u32)
        for place in range(n_kept):
            is_used = u32(place) + u32(p.k) >= n_kept
            keys[place] = key_type(0) if is_used else ~key_type(0)
            positions[place] = u32(_NOWHERE) if is_used else u32(0)

        n_chunks = ptx.warp_max((end - begin + u32(n_rows_ahead - 1)) // u32(n_rows_ahead))
        ahead = cuda.local.array(n_rows_ahead, key_type)
        for place in range(n_rows_ahead):
            position = begin + u32(place)
            ahead[place] = read_if(base + i64(position) * step, position < end)
        at = begin
        chunk = u32(0)
        first = u32(0)
        count = u32(0)
        n_walked = u32(0)
        while n_walked < n_chunks:
            n_walked += u32(1)
            chunk += u32(CHUNKS_APART)
            if chunk >= n_chunks:
                first += u32(1)
                chunk = first
            next_at = begin + chunk * u32(n_rows_ahead)
            last_key = keys[n_kept - 1]
            last_position = positions[n_kept - 1]
            count = walk_chunk(
                ahead, base, step, at, next_at, end, pairs, count, last_key, last_position, p.key_format
            )
            at = next_at
            if n_walked == n_chunks or ptx.ballot(count > n_filled) != 0:
                insert_pairs(keys, positions, pairs, count)
                count = u32(0)

        merge_parts(keys, positions, pairs, part, n_parts, u32(p.k))
        if part == 0 and column < p.n_rows:
            store_list(keys, positions, pairs)
            n_written = min(u32(p.k), u32(length))
            write_column(positions, pairs, n_written, (base, values, indices), c.is_by_index, p)

    return column_top_k
