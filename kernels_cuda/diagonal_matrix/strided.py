"""Rows of 16-byte vectors from matrices whose columns lie apart, with any few batch dimensions.

It works as `rows` does, but gathers the elements of a vector from the input.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.parameters import THREADS, VECTOR, Dims, StridedParameters
from kernels_cuda.diagonal_matrix.vectors import edge_function
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.strided import LOADED_WORDS, strided_functions

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64


def strided_kernel(element_size: int) -> Any:
    """Make the kernel."""
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

    @cuda.jit
    def diagonal_strided(x, output, p: StridedParameters, dims: dims_type(Dims, wide=False)):
        band = p.band
        elements = cuda.local.array(per_vector, scalar)
        words = cuda.local.array(LOADED_WORDS, u32)
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
        target = output + output_at + i64(y) * p.output_row
        # Vectors lie on 16-byte boundaries: the first one of a row may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        behind = i32(column + per_vector)
        target += i64(start)
        source = x + x_at + i64(y) * p.x_row + i64(column) * p.x_column
        # The band begins and ends here, in elements from the vector's first.
        low = i32(i32(band.begin) - i32(column - y))
        high = i32(i32(band.end) - i32(column - y))
        is_inside = low <= 0 and high >= per_vector
        is_outside = low >= per_vector or high <= 0
        is_set = is_outside if band.inverted else is_inside
        if column >= 0 and behind <= i32(p.width):
            a = u32(band.low_value if is_set else 0)
            b = u32(band.high_value if is_set else 0)
            c = a
            d = b
            if band.has_input and not is_set:
                (
                    words[0],
                    words[1],
                    words[2],
                    words[3],
                    words[4],
                    words[5],
                    words[6],
                    words[7],
                    is_odd,
                ) = read_strided(source, p.x_column, column > 0, behind < i32(p.width))
                a, b, c, d = pack(words, 0, is_odd)
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
                elements[e] = read(source + e * p.x_column)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < i32(p.width):
                store(target + e * element_size, elements[e])

    return diagonal_strided
