"""Step 1 for matrices whose columns, not their rows, are contiguous: x.T, or arrays in Fortran order.

A lane has a row, so that a warp's loads are of neighbours, and fills words of the mask bit by bit. What a
granule of these words counts is found by a launch of its own.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.nonzero_coordinates.parameters import (
    FILLED_WORDS,
    GRANULE,
    TRANSPOSED_THREADS,
    TransposedMaskParameters,
)
from kernels_cuda.ptx import i64, u32
from kernels_cuda.scan import block_add

_WARPS = TRANSPOSED_THREADS // 32
_COUNTED_WORDS = GRANULE // 32 // TRANSPOSED_THREADS  # of a thread


def mask_kernel(element_size: int) -> Any:
    """Make the kernel that fills the mask."""
    in_flight = 16 if element_size == 8 else 32
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]

    @cuda.jit
    def nonzero_mask_transposed(x, mask, p: TransposedMaskParameters):
        ptx.grid_dependency_wait()
        elements = cuda.local.array(in_flight, register)
        thread = i64(cuda.threadIdx.x)
        unit = i64(cuda.blockIdx.x) * _WARPS + (thread >> 5)
        if unit >= p.n_units:
            return
        above = unit // p.n_word_tiles
        first_word = (unit - above * p.n_word_tiles) * FILLED_WORDS
        matrix = above // p.n_row_tiles
        row = (above - matrix * p.n_row_tiles) * 32 + (thread & 31)
        if row >= p.height:
            return
        address = x + matrix * p.batch_bytes + row * element_size + first_word * 32 * p.column_bytes
        word_address = mask + ((matrix * p.height + row) * p.row_words + first_word) * 4
        for _ in range(min(FILLED_WORDS, p.row_words - first_word)):
            word = u32(0)
            for batch in range(32 // in_flight):
                for k in range(in_flight):
                    elements[k] = read(address + k * p.column_bytes)
                for k in range(in_flight):
                    is_set = elements[k] & register(p.magnitude) != 0
                    word |= u32(is_set) << u32(batch * in_flight + k)
                address += in_flight * p.column_bytes
            ptx.store_u32(word_address, word)
            word_address += 4

    return nonzero_mask_transposed


def count_kernel() -> Any:
    """Make the kernel that counts the bits of granules, one per block."""

    @cuda.jit
    def nonzero_count(mask, counts, n_words):
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(_WARPS, u32)
        thread = u32(cuda.threadIdx.x)
        first = i64(cuda.blockIdx.x) * (GRANULE // 32) + i64(thread) * _COUNTED_WORDS
        count = u32(0)
        for k in range(_COUNTED_WORDS):
            # The last granule goes on after the last element, and must be empty there.
            if first + k < n_words:
                count += ptx.popcount_u32(ptx.load_u32(mask + (first + k) * 4))
            else:
                ptx.store_u32(mask + (first + k) * 4, u32(0))
        total = block_add(count, thread, totals, _WARPS)
        if thread == 0:
            ptx.store_u32(counts + i64(cuda.blockIdx.x) * 4, total)

    return nonzero_count
