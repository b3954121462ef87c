"""Rows that end early: each has its first ``lengths[row]`` elements only.

1. `mask_rows` copies x into the workspace, where every row has all of its elements: those from the length on
   are fillers, which come after every element of the row, or tie with it and have a larger index. It writes
   the lengths down too, clamped to the size of the axis and one after the other, so that no other kernel
   needs to know how the caller keeps them.
2. An algorithm selects from the copy. It takes a filler only where it has taken all elements of the row.
3. `pad_rows` overwrites these fillers, and their indices.

No length is known before the kernels run. The copy costs one pass over x and as much workspace.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.offsets import arithmetic
from kernels_cuda.ptx import LOAD, REGISTER, STORE, grid_dependency_wait, load_u32, load_u64, store_u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.parameters import MaskParameters, PadParameters
from kernels_cuda.top_k.rows import row_offsets, store_index
from kernels_cuda.top_k.shapes import LENGTH_BYTES, LENGTHS_THREADS

u64 = types.uint64
i32 = types.int32
i64 = types.int64


@device_function
def clamped_length(address, length_size, is_signed, axis_size):
    """Return the length at an address, from 0 to `axis_size`."""
    if length_size == 4:
        bits = load_u32(address)
        length = i64(bits)
        if is_signed != 0:
            length = i64(i32(bits))
    else:
        length = i64(load_u64(address))
        # As a signed number, an unsigned length of 2^63 or more is negative.
        if is_signed == 0 and length < 0:
            length = i64(axis_size)
    return min(max(length, i64(0)), i64(axis_size))


def mask_kernel(element_size: int) -> Any:
    """Make the kernel that copies rows and fills them up, one thread per element."""
    element_type = REGISTER[element_size]
    load_element, store_element = LOAD[element_size], STORE[element_size]
    _, _, divide = arithmetic(wide=True)

    @cuda.jit
    def mask_rows(x, lengths, masked, clamped_lengths, offsets, p: MaskParameters):
        grid_dependency_wait()
        element = p.first + i64(cuda.blockIdx.x) * LENGTHS_THREADS + i64(cuda.threadIdx.x)
        if element < p.n_elements:
            row = i64(divide(u64(element), p.multiplier, p.shift))
            position = element - row * p.axis_size
            x_row, length_row, _ = row_offsets(p.layout, offsets, row)
            address = lengths + length_row * p.length_size
            length = clamped_length(address, p.length_size, p.is_signed, p.axis_size)
            if position == 0:
                store_u64(clamped_lengths + row * LENGTH_BYTES, u64(length))
            bits = element_type(p.filler)
            if position < length:
                bits = load_element(x + (x_row + position * p.x_stride) * element_size)
            store_element(masked + element * element_size, bits)

    return mask_rows


def pad_kernel(element_size: int) -> Any:
    """Make the kernel that fills the output up where a row has fewer elements, one thread per output."""
    element_type, store_element = REGISTER[element_size], STORE[element_size]
    _, _, divide = arithmetic(wide=True)

    @cuda.jit
    def pad_rows(values, indices, clamped_lengths, offsets, p: PadParameters):
        grid_dependency_wait()
        output = p.first + i64(cuda.blockIdx.x) * LENGTHS_THREADS + i64(cuda.threadIdx.x)
        if output < p.n_outputs:
            row = i64(divide(u64(output), p.multiplier, p.shift))
            rank = output - row * p.k
            if rank >= i64(load_u64(clamped_lengths + row * LENGTH_BYTES)):
                _, value_row, index_row = row_offsets(p.layout, offsets, row)
                at = values + (value_row + rank * p.strides.values) * element_size
                store_element(at, element_type(p.padding))
                at = indices + (index_row + rank * p.strides.indices) * p.index_size
                store_index(at, p.index_size, i64(-1))

    return pad_rows
