"""Reorder the selected elements of each row by ascending index: the end of a selection that is not sorted.

An algorithm has written the first k elements of each row, in order. The last of them is the threshold: an
element of the row is selected if it does not come after that one. So no order has to be undone: a block
reads the row once more, from its beginning, and writes the selected elements as it meets them. It ends with
the last of them, at the latest with the row.

The block works on one tile of the row at a time. Each warp has a part of the tile, 32 neighbouring elements
at a time: a ballot tells how many of these are selected before each lane's, and the block adds up what the
warps have selected.

Few long rows are split into parts, with one block each. A launch before counts what each part selects, and
puts the threshold of each row aside, which the blocks that write would overwrite.

A row with a length (`lengths`) has min(k, length) selected elements; the algorithm has filled up the rest.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters
from kernels_cuda.top_k.shared.order_launches import PART_BYTES, ByIndexParameters
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import load_index

# Elements that each lane loads at a time.
N_ITEMS = 8


def by_index_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    find_row, write_result, _ = row_functions(element_size)
    load_part, store_part = ptx.LOAD[PART_BYTES], ptx.STORE[PART_BYTES]
    block_exclusive_sum = block_scan(n_threads)
    n_warps = n_threads // 32
    tile_size = n_threads * N_ITEMS

    @cuda.jit
    def order_by_index(x, lengths, values, indices, parts, offsets, p: RowParameters, m: ByIndexParameters):
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(n_warps, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        unit = p.first + i64(cuda.blockIdx.x)
        row = unit // m.n_parts
        part = unit - row * m.n_parts
        # The row's threshold, then how many elements each of its parts selects.
        parts_of_row = parts + row * (m.n_parts + 1) * PART_BYTES
        base, values, indices, length = find_row(x, lengths, values, indices, offsets, row, p)
        x_step = p.strides.x * element_size
        n_selected = min(p.k, length)
        n_written = i64(0)
        last = i64(0)
        last_key = key_type(0)
        if n_selected > 0:
            if m.n_parts == 1 or m.is_counting != 0:
                last_index = indices + (n_selected - 1) * p.strides.indices * p.index_size
                last = load_index(last_index, p.index_size)
            else:
                last = i64(load_part(parts_of_row))
                before = i64(lane)
                while before < part:
                    n_written += i64(load_part(parts_of_row + (1 + before) * PART_BYTES))
                    before += 32
                for bit in range(5):
                    n_written += i64(ptx.shuffle_xor_u64(u64(n_written), u32(1 << bit)))
            # It has not been written if elements have changed meanwhile.
            last = min(max(last, i64(0)), length - 1)
            last_key = ordered_key(load_element(base + last * x_step), p.key_format)
        # All threads know the threshold before any of them overwrites it.
        cuda.syncthreads()

        elements = cuda.local.array(N_ITEMS, key_type)
        selections = cuda.local.array(N_ITEMS, u32)
        first = part * m.part_size
        end = min(first + m.part_size, length)
        position = first + i64(thread & ~u32(31)) * N_ITEMS + i64(lane)
        while n_written < n_selected and first < end:
            for item in range(N_ITEMS):
                at = position + item * 32
                elements[item] = key_type(0)
                if at < end:
                    elements[item] = load_element(base + at * x_step)
            of_warp = u32(0)
            for item in range(N_ITEMS):
                at = position + item * 32
                key = ordered_key(elements[item], p.key_format)
                is_selected = at < end and (key > last_key or (key == last_key and at <= last))
                selections[item] = ptx.ballot(is_selected)
                of_warp += ptx.popcount_u32(selections[item])
            # The sum before a thread does not count its own: only the last lane has the warp's.
            share = u32(0)
            if lane == 31:
                share = of_warp
            of_warps_before, of_block = block_exclusive_sum(share, thread, totals)
            rank = n_written + i64(of_warps_before)
            for item in range(N_ITEMS):
                place = rank + i64(ptx.popcount_u32(selections[item] & ptx.lanes_below()))
                is_written = (selections[item] >> lane) & 1 != 0 and place < n_selected
                if is_written and m.is_counting == 0:
                    write_result(values, indices, place, elements[item], position + item * 32, p)
                rank += i64(ptx.popcount_u32(selections[item]))
            n_written += i64(of_block)
            position += tile_size
            first += tile_size
            # The next tile's sums take the same shared memory.
            cuda.syncthreads()
        if m.is_counting != 0 and thread == 0:
            store_part(parts_of_row + (1 + part) * PART_BYTES, u64(n_written))
            if part == 0:
                store_part(parts_of_row, u64(last))

    return order_by_index
