"""Rows that are contiguous in the output: a thread covers one vector of 16 bytes on a 16-byte boundary.

Where columns lie apart in the input, it gathers the elements of the vector from there.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.parameters import THREADS, VECTOR, Dims, RowsParameters
from kernels_cuda.diagonal_matrix.vectors import edge_function
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.strided import LOADED_WORDS, strided_functions


def rows_kernel(element_size: int, are_strided: bool) -> Any:
    """Make the kernel for rows that are contiguous in the input, too, or `are_strided` there."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    is_long = element_size == 8
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    _, divide, _ = arithmetic(wide=False)
    _, two_offsets, _ = offset_functions(wide=False)
    read_strided, pack = strided_functions(element_size)
    with_band = edge_function(element_size)

    @device_function
    def vector_of_strided(source, step, has_before, has_after):
        words = cuda.local.array(LOADED_WORDS, u32)
        (words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], is_odd) = (
            read_strided(source, step, has_before, has_after)
        )
        return pack(words, 0, is_odd)

    @device_function
    def vector_of_words(source, step, has_before, has_after):
        if source & (VECTOR - 1) == 0:
            return ptx.stream_u32x4(source)
        return (
            ptx.read_u32(source),
            ptx.read_u32(source + 4),
            ptx.read_u32(source + 8),
            ptx.read_u32(source + 12),
        )

    read_vector = vector_of_strided if are_strided else vector_of_words

    @cuda.jit
    def diagonal_rows(x, output, p: RowsParameters, dims: dims_type(Dims, wide=False)):
        matrix = p.matrix
        band = matrix.band
        elements = cuda.local.array(per_vector, scalar)
        position = u32(cuda.blockIdx.x) * THREADS + u32(cuda.threadIdx.x)
        if position >= u32(p.n_vectors):
            return
        row = divide(position, p.vectors_per_row)
        vector = position - row * u32(p.vectors_per_row.size)
        batch = divide(row, p.height)
        y = i32(row - batch * u32(p.height.size))
        x_at = i64(batch) * dims.x_strides[0]
        output_at = i64(batch) * dims.output_strides[0]
        if dims.n_dims > 1:
            x_at, output_at = two_offsets(batch, dims, dims.x_strides, dims.output_strides)
        target = output + output_at + i64(y) * matrix.output_row
        # Vectors lie on 16-byte boundaries: the first one of a row may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        behind = i32(column + per_vector)
        target += i64(start)
        step = matrix.x_column if are_strided else i64(element_size)
        source = x + x_at + i64(y) * matrix.x_row + i64(column) * step
        # The band begins and ends here, in elements from the vector's first.
        low = i32(i32(band.begin) - i32(column - y))
        high = i32(i32(band.end) - i32(column - y))
        is_inside = low <= 0 and high >= per_vector
        is_outside = low >= per_vector or high <= 0
        is_set = is_outside if band.inverted else is_inside
        is_read = band.has_input and not is_set
        is_whole = column >= 0 and behind <= i32(p.width)
        if is_whole and (are_strided or not is_read or source & 3 == 0):
            a = u32(band.low_value if is_set else 0)
            b = u32(band.high_value if is_set else 0)
            c = a
            d = b
            if is_read:
                a, b, c, d = read_vector(source, step, column > 0, behind < i32(p.width))
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
                elements[e] = read(source + e * step)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < i32(p.width):
                store(target + e * element_size, elements[e])

    return diagonal_rows
