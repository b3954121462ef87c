"""Reorder the selected elements of each row by ascending index: the end of a selection that is not sorted.

An algorithm has written the first k elements of each row, in order. Their indices are marked in a bitmap of
the row, which is then read from its beginning: each mark is the next result, whose value the row has.

Few long rows are split into parts, with one block each, and every step is a launch: blocks clear the bitmap,
mark the indices, count the marks of each part, and write. Else one block per row takes all steps at once.

A row with a length (`lengths`) has min(k, length) selected elements; the algorithm has filled up the rest.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.order_launches import (
    CLEARING,
    COUNTING,
    MARKING,
    PART_BYTES,
    WORD_BYTES,
    WRITING,
    ByIndexParameters,
)
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import load_index, part_of


def by_index_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    load_element = ptx.LOAD[element_size]
    find_row, write_result, _ = row_functions(element_size)
    load_word, load_part, store_part = (
        ptx.LOAD_RELAXED[WORD_BYTES],
        ptx.LOAD[PART_BYTES],
        ptx.STORE[PART_BYTES],
    )
    block_exclusive_sum = block_scan(n_threads)
    n_warps = n_threads // 32

    @cuda.jit
    def order_by_index(
        x, windows: Windows, values, indices, words, parts, offsets, p: RowParameters, m: ByIndexParameters
    ):
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(n_warps, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        row, part = part_of(p.first + i64(cuda.blockIdx.x), m.n_parts)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        n_selected = min(p.k, length)
        words += row * m.n_words * WORD_BYTES
        parts += row * m.n_parts * PART_BYTES
        first = part * m.part_words
        end = min(first + m.part_words, m.n_words)
        if m.steps & CLEARING != 0:
            number = first + i64(thread)
            while number < end:
                ptx.store_u32(words + number * WORD_BYTES, u32(0))
                number += n_threads
            cuda.syncthreads()
        if m.steps & MARKING != 0:
            rank = part * n_threads + i64(thread)
            while rank < n_selected:
                at = indices.address + rank * p.strides.indices * p.index_size
                index = load_index(at, p.index_size) - indices.start
                # Clamped: if elements have changed meanwhile, the index may lie outside the row.
                index = min(max(index, i64(0)), length - 1)
                ptx.reduce_or_u32(words + (index >> 5) * WORD_BYTES, u32(1) << u32(index & 31))
                rank += m.n_parts * n_threads
            cuda.syncthreads()
        n_marked = i64(0)
        if m.steps & WRITING != 0:
            before = i64(lane)
            while before < part:
                n_marked += i64(load_part(parts + before * PART_BYTES))
                before += 32
            for bit in range(5):
                n_marked += i64(ptx.shuffle_xor_u64(u64(n_marked), u32(1 << bit)))
        while m.steps & (COUNTING | WRITING) != 0 and first < end:
            number = first + i64(thread)
            word = u32(0)
            if number < end:
                word = load_word(words + number * WORD_BYTES)
            rank, of_block = block_exclusive_sum(ptx.popcount_u32(word), thread, totals)
            place = n_marked + i64(rank)
            while m.steps & WRITING != 0 and word != 0:
                at = (number << 5) + i64(ptx.trailing_zeros_u32(word))
                word &= word - 1
                element = load_element(base + at * p.strides.x * element_size)
                write_result(values, indices, place, element, at, p)
                place += 1
            n_marked += i64(of_block)
            first += n_threads
            # The next words' sums take the same shared memory.
            cuda.syncthreads()
        if m.steps == COUNTING and thread == 0:
            store_part(parts + part * PART_BYTES, u64(n_marked))

    return order_by_index
