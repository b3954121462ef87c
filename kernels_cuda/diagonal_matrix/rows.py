"""Rows of 16-byte vectors: a thread covers one on a 16-byte boundary."""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.parameters import THREADS, VECTOR, RowsParameters
from kernels_cuda.diagonal_matrix.vectors import edge_function
from kernels_cuda.offsets import arithmetic

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64


def rows_kernel(element_size: int) -> Any:
    """Make the kernel that covers rows by vectors."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    is_long = element_size == 8
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    _, divide, _ = arithmetic(wide=False)
    with_band = edge_function(element_size)

    @cuda.jit
    def diagonal_rows(x, output, p: RowsParameters):
        band = p.band
        elements = cuda.local.array(per_vector, scalar)
        position = u32(cuda.blockIdx.x) * THREADS + u32(cuda.threadIdx.x)
        if position >= u32(p.n_vectors):
            return
        row = divide(position, p.vectors_per_row)
        vector = position - row * u32(p.vectors_per_row.size)
        batch = divide(row, p.height)
        y = i32(row - batch * u32(p.height.size))
        target = output + i64(batch) * p.output_batch + i64(y) * p.output_row
        # Vectors lie on 16-byte boundaries: the first one of a row may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        target += i64(start)
        source = x + i64(batch) * p.x_batch + i64(y) * p.x_row + i64(start)
        # The band begins and ends here, in elements from the vector's first.
        low = i32(i32(band.begin) - i32(column - y))
        high = i32(i32(band.end) - i32(column - y))
        is_inside = low <= 0 and high >= per_vector
        is_outside = low >= per_vector or high <= 0
        is_set = is_outside if band.inverted else is_inside
        is_read = band.has_input and not is_set
        is_whole = column >= 0 and i32(column + per_vector) <= i32(p.width)
        if is_whole and (not is_read or source & 3 == 0):
            a = u32(band.low_value if is_set else 0)
            b = u32(band.high_value if is_set else 0)
            c = a
            d = b
            if is_read and source & (VECTOR - 1) == 0:
                a, b, c, d = ptx.stream_u32x4(source)
            elif is_read:
                a = ptx.read_u32(source)
                b = ptx.read_u32(source + 4)
                c = ptx.read_u32(source + 8)
                d = ptx.read_u32(source + 12)
            if not (is_inside or is_outside):
                a, b, c, d = with_band(a, b, c, d, low, high, band)
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        value = u64(band.low_value) | (u64(band.high_value) << 32) if is_long else band.low_value
        for e in range(per_vector):
            in_band = low <= e < high
            elements[e] = scalar(0)
            if u32(in_band) != u32(band.inverted):
                elements[e] = scalar(value)
            elif band.has_input and column >= -e and i32(column + e) < i32(p.width):
                elements[e] = read(source + e * element_size)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < i32(p.width):
                store(target + e * element_size, elements[e])

    return diagonal_rows
