"""What kernels do with the layout of `rows`: find a row, and fill the table of rows."""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import load_u32, load_u64, store_u32, store_u64, take_turn
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.rows import OFFSETS_BYTES, OFFSETS_THREADS

u32 = types.uint32
u64 = types.uint64
i64 = types.int64


@device_function
def row_offsets(layout, offsets, row):
    """Return the offsets of a row in x, values and indices, from the table if `offsets` is not 0."""
    x_offset = i64(0)
    value_offset = i64(0)
    index_offset = i64(0)
    if offsets != 0:
        # A launch before has written the table.
        take_turn()
        entry = offsets + row * OFFSETS_BYTES
        x_offset = i64(load_u64(entry))
        value_offset = i64(load_u64(entry + 8))
        index_offset = i64(load_u64(entry + 16))
    else:
        outer = row
        # A 64-bit division takes longer than all else here.
        if layout[0] != 1:
            outer = row // layout[0]
            inner = row - outer * layout[0]
            x_offset = inner * layout[4]
            value_offset = inner * layout[5]
            index_offset = inner * layout[6]
        x_offset += outer * layout[1]
        value_offset += outer * layout[2]
        index_offset += outer * layout[3]
    return x_offset, value_offset, index_offset


@device_function
def store_index(address, index_size, index):
    """Store an index as 4 or 8 bytes."""
    if index_size == 4:
        store_u32(address, u32(index))
    else:
        store_u64(address, u64(index))


@device_function
def load_index(address, index_size):
    """Load an index of 4 or 8 bytes."""
    return i64(load_u32(address)) if index_size == 4 else i64(load_u64(address))


def offsets_source() -> Any:
    """Make the kernel that adds one dimension to the table of offsets; the first launch starts the table."""

    @cuda.jit
    def add_dimension(offsets, n_rows, is_first, rows_below, size, x_stride, value_stride, index_stride):
        take_turn()
        row = i64(cuda.blockIdx.x) * OFFSETS_THREADS + i64(cuda.threadIdx.x)
        if row < n_rows:
            at = row // rows_below
            at = at - (at // size) * size
            entry = offsets + row * OFFSETS_BYTES
            x_offset = at * x_stride
            value_offset = at * value_stride
            index_offset = at * index_stride
            if is_first == 0:
                x_offset += i64(load_u64(entry))
                value_offset += i64(load_u64(entry + 8))
                index_offset += i64(load_u64(entry + 16))
            store_u64(entry, u64(x_offset))
            store_u64(entry + 8, u64(value_offset))
            store_u64(entry + 16, u64(index_offset))

    return add_dimension
