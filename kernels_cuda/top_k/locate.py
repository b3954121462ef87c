"""Where a part of a row and its vectors lie."""

from numba import types

from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.row_offsets import row_offsets

i64 = types.int64


@linked_function
def locate(x, offsets, unit, axis_size, part_size, n_parts, x_stride, element_size, layout):
    """Find part number `unit` of all rows' parts.

    Returns the row, the part, the row's offsets in values and indices, the address of the part's first
    element, that of its first whole vector, how many elements lie before that, and how many whole vectors
    there are. Vectors start on 16-byte boundaries; those of elements with gaps between are any that follow
    each other.
    """
    row = unit
    part = i64(0)
    if n_parts > 1:
        row = unit // n_parts
        part = unit - row * n_parts
    begin = part * part_size
    count = min(part_size, axis_size - begin)
    x_row, value_row, index_row = row_offsets(layout, offsets, row)
    base = x + (x_row + begin * x_stride) * element_size
    head = i64(0)
    if x_stride == 1:
        head = min(count, (-base & (VECTOR_BYTES - 1)) // element_size)
    n_vectors = (count - head) // (VECTOR_BYTES // element_size)
    return row, part, value_row, index_row, base, base + head * element_size, head, n_vectors
