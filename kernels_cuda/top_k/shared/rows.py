"""Where rows and their parts lie: kernels find them by a `problem.RowLayout`, or in a table filled before."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.launches import OFFSETS_BYTES, OFFSETS_THREADS, OffsetsParameters
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES

# The index of padding: all bits are set.
NO_INDEX = -1
_LARGEST = (1 << 63) - 1


@device_function
def row_offsets(layout, offsets, row):
    """Return the offsets of a row in x, values and indices, from the table if `offsets` is not 0."""
    x_offset = i64(0)
    value_offset = i64(0)
    index_offset = i64(0)
    if offsets != 0:
        # The launch before has written the table.
        ptx.grid_dependency_wait()
        entry = offsets + row * OFFSETS_BYTES
        x_offset = i64(ptx.load_u64(entry))
        value_offset = i64(ptx.load_u64(entry + 8))
        index_offset = i64(ptx.load_u64(entry + 16))
    else:
        outer = row
        # A 64-bit division takes longer than all else here.
        if layout.inner_size != 1:
            outer = row // layout.inner_size
            inner = row - outer * layout.inner_size
            x_offset = inner * layout.x_inner
            value_offset = inner * layout.value_inner
            index_offset = inner * layout.index_inner
        x_offset += outer * layout.x_outer
        value_offset += outer * layout.value_outer
        index_offset += outer * layout.index_outer
    return x_offset, value_offset, index_offset


@device_function
def load_raw(address, size):
    """Load an integer of 4 or 8 bytes; the upper half of the former is 0."""
    return u64(ptx.load_u32(address)) if size == 4 else ptx.load_u64(address)


@device_function
def as_signed(bits, size, is_signed):
    """Return an integer of 4 or 8 bytes as an int64: unsigned ones from 2^63 on are as large as it can be."""
    number = i64(bits)
    if size == 4:
        if is_signed != 0:
            number = i64(i32(u32(bits)))
    elif is_signed == 0 and number < 0:
        number = i64(_LARGEST)
    return number


@linked_function
def row_window(windows, layout, offsets, row, axis_size, window_format):
    """Return at which position a row begins, and how many elements it has, at most `axis_size`.

    It has all of them if there are neither lengths nor starts.
    """
    start = i64(0)
    length = i64(axis_size)
    if windows.lengths != 0 or windows.starts != 0:
        if offsets != 0:
            ptx.grid_dependency_wait()
            length_at = i64(ptx.load_u64(offsets + row * OFFSETS_BYTES + 24))
            start_at = i64(ptx.load_u64(offsets + row * OFFSETS_BYTES + 32))
        else:
            outer = row
            length_at = i64(0)
            start_at = i64(0)
            if layout.inner_size != 1:
                outer = row // layout.inner_size
                inner = row - outer * layout.inner_size
                length_at = inner * layout.length_inner
                start_at = inner * layout.start_inner
            length_at += outer * layout.length_outer
            start_at += outer * layout.start_outer
        # Both loads before the first use of either.
        length_bits = u64(_LARGEST)
        start_bits = u64(0)
        if windows.lengths != 0:
            size = window_format.length_size
            length_bits = load_raw(windows.lengths + length_at * size, size)
        if windows.starts != 0:
            size = window_format.start_size
            start_bits = load_raw(windows.starts + start_at * size, size)
        length = i64(_LARGEST)
        if windows.lengths != 0:
            length = as_signed(length_bits, window_format.length_size, window_format.length_signed)
            length = max(length, i64(0))
        if windows.starts != 0:
            start = as_signed(start_bits, window_format.start_size, window_format.start_signed)
            if windows.lengths != 0:
                # The sum does not overflow: a length is not negative.
                length += min(start, i64(0))
            start = min(max(start, i64(0)), i64(window_format.bound))
            length = max(min(length, window_format.bound - start), i64(0))
        length = min(length, i64(axis_size))
    return start, length


@device_function
def row_start(windows, offsets, row, p):
    """Return at which position a row begins."""
    start = i64(0)
    if windows.starts != 0:
        start, _ = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
    return start


@device_function
def store_index(address, index_size, index):
    """Store an index as 4 or 8 bytes."""
    if index_size == 4:
        ptx.store_u32(address, u32(index))
    else:
        ptx.store_u64(address, u64(index))


@device_function
def load_index(address, index_size):
    """Load an index of 4 or 8 bytes."""
    return i64(ptx.load_u32(address)) if index_size == 4 else i64(ptx.load_u64(address))


def offsets_kernel() -> Any:
    """Make the kernel that adds one dimension to the table of offsets; the first launch starts the table."""

    @cuda.jit
    def add_dimension(offsets, p: OffsetsParameters):
        ptx.grid_dependency_wait()
        row = i64(cuda.blockIdx.x) * OFFSETS_THREADS + i64(cuda.threadIdx.x)
        if row < p.n_rows:
            at = row // p.dimension.rows_below
            at = at - (at // p.dimension.size) * p.dimension.size
            entry = offsets + row * OFFSETS_BYTES
            x_offset = at * p.dimension.x_stride
            value_offset = at * p.dimension.value_stride
            index_offset = at * p.dimension.index_stride
            length_offset = at * p.dimension.length_stride
            start_offset = at * p.dimension.start_stride
            if p.is_first == 0:
                x_offset += i64(ptx.load_u64(entry))
                value_offset += i64(ptx.load_u64(entry + 8))
                index_offset += i64(ptx.load_u64(entry + 16))
                length_offset += i64(ptx.load_u64(entry + 24))
                start_offset += i64(ptx.load_u64(entry + 32))
            ptx.store_u64(entry, u64(x_offset))
            ptx.store_u64(entry + 8, u64(value_offset))
            ptx.store_u64(entry + 16, u64(index_offset))
            ptx.store_u64(entry + 24, u64(length_offset))
            ptx.store_u64(entry + 32, u64(start_offset))

    return add_dimension


@device_function
def part_of(unit, n_parts):
    """Return the row and the part of it that are number `unit` of all rows' parts."""
    row = unit
    part = i64(0)
    if n_parts > 1:
        row = unit // n_parts
        part = unit - row * n_parts
    return row, part


@linked_function
def locate(x, offsets, row, part, length, part_size, x_stride, element_size, layout):
    """Find a part of a row of `length` elements.

    Returns the row's offsets in values and indices, how many elements the part has, the address of the first,
    that of the first whole vector, how many elements lie before that, and how many whole vectors there are.
    Vectors start on 16-byte boundaries; those of elements with gaps between are any that follow each other.
    """
    begin = part * part_size
    count = max(min(part_size, length - begin), i64(0))
    x_row, value_row, index_row = row_offsets(layout, offsets, row)
    base = x + (x_row + begin * x_stride) * element_size
    head = i64(0)
    if x_stride == 1:
        head = min(count, (-base & (VECTOR_BYTES - 1)) // element_size)
    n_vectors = (count - head) // (VECTOR_BYTES // element_size)
    return value_row, index_row, count, base, base + head * element_size, head, n_vectors
