"""Rows that end early: each has its first ``lengths[row]`` elements only.

Kernels ask for a row's length when they begin (`rows.row_length`), select from so many elements, and fill the
results up where these are fewer than k (`pad_row`). No length is known before the kernels run.

For an algorithm that does not read lengths:

1. `mask_rows` copies x into the workspace, where every row has all of its elements: those from the length on
   are fillers, which come after every element of the row, or tie with it and have a larger index.
2. The algorithm selects from the copy. It takes a filler only where it has taken all elements of the row.
3. `pad_rows` overwrites these fillers, and their indices.

The copy costs one pass over x and as much workspace.
"""

import functools
from typing import Any

from numba import cuda, types

from kernels_cuda.offsets import arithmetic
from kernels_cuda.ptx import LOAD, REGISTER, STORE, grid_dependency_wait
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.parameters import MaskParameters, PadParameters
from kernels_cuda.top_k.rows import row_length, row_offsets, store_index
from kernels_cuda.top_k.shapes import LENGTHS_THREADS

u64 = types.uint64
i64 = types.int64


@functools.cache
def pad_function(element_size: int) -> Any:
    """Make the device function that fills up the results of a row."""
    element_type, store_element = REGISTER[element_size], STORE[element_size]

    @linked_function
    def pad_row(values, indices, strides, index_size, padding, rank, step, end):
        """Write the padding to the ranks `rank`, ``rank + step``, ... below `end`.

        `values` and `indices` are the addresses of those of the row.
        """
        while rank < end:
            at = values + rank * strides.values * element_size
            store_element(at, element_type(padding))
            store_index(indices + rank * strides.indices * index_size, index_size, i64(-1))
            rank += step

    return pad_row


def mask_kernel(element_size: int) -> Any:
    """Make the kernel that copies rows and fills them up, one thread per element."""
    element_type = REGISTER[element_size]
    load_element, store_element = LOAD[element_size], STORE[element_size]
    _, _, divide = arithmetic(wide=True)

    @cuda.jit
    def mask_rows(x, lengths, masked, offsets, p: MaskParameters):
        grid_dependency_wait()
        element = p.first + i64(cuda.blockIdx.x) * LENGTHS_THREADS + i64(cuda.threadIdx.x)
        if element < p.n_elements:
            row = i64(divide(u64(element), p.multiplier, p.shift))
            position = element - row * p.axis_size
            x_row, _, _ = row_offsets(p.layout, offsets, row)
            bits = element_type(p.filler)
            if position < row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format):
                bits = load_element(x + (x_row + position * p.x_stride) * element_size)
            store_element(masked + element * element_size, bits)

    return mask_rows


def pad_kernel(element_size: int) -> Any:
    """Make the kernel that fills the output up where a row has fewer elements, one thread per output."""
    pad_row = pad_function(element_size)
    _, _, divide = arithmetic(wide=True)

    @cuda.jit
    def pad_rows(lengths, values, indices, offsets, p: PadParameters):
        grid_dependency_wait()
        output = p.first + i64(cuda.blockIdx.x) * LENGTHS_THREADS + i64(cuda.threadIdx.x)
        if output < p.n_outputs:
            row = i64(divide(u64(output), p.multiplier, p.shift))
            rank = output - row * p.k
            if rank >= row_length(lengths, p.layout, offsets, row, p.k, p.length_format):
                _, value_row, index_row = row_offsets(p.layout, offsets, row)
                pad_row(
                    values + value_row * element_size,
                    indices + index_row * p.index_size,
                    p.strides,
                    p.index_size,
                    p.length_format.padding,
                    rank,
                    i64(1),
                    rank + 1,
                )

    return pad_rows
