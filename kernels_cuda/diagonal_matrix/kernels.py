"""The two kernels: vectors of rows, and elements of any layout."""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.sizes import THREADS, VECTOR, elements_a_thread
from kernels_cuda.diagonal_matrix.vectors import edge_function
from kernels_cuda.offsets import arithmetic, column_type, offset_functions

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64


def rows_source(element_size: int) -> Any:
    """Make the kernel that covers rows by vectors."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    is_long = element_size == 8
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    _, divide = arithmetic(wide=False)
    with_band = edge_function(element_size)

    @cuda.jit
    def rows(
        x,
        output,
        n_vectors,
        vectors_a_row,
        row_multiplier,
        row_shift,
        height,
        height_multiplier,
        height_shift,
        width,
        x_row,
        output_row,
        x_batch,
        output_batch,
        begin,
        end,
        inverted,
        has_input,
        low_value,
        high_value,
    ):
        elements = cuda.local.array(per_vector, scalar)
        position = u32(cuda.blockIdx.x) * THREADS + u32(cuda.threadIdx.x)
        if position >= u32(n_vectors):
            return
        row = divide(position, row_multiplier, row_shift)
        vector = position - row * u32(vectors_a_row)
        batch = divide(row, height_multiplier, height_shift)
        y = i32(row - batch * u32(height))
        target = output + i64(batch) * output_batch + i64(y) * output_row
        # Vectors lie on 16-byte boundaries: the first one of a row may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        target += i64(start)
        source = x + i64(batch) * x_batch + i64(y) * x_row + i64(start)
        # The band begins and ends here, in elements from the vector's first.
        low = i32(i32(begin) - i32(column - y))
        high = i32(i32(end) - i32(column - y))
        is_inside = low <= 0 and high >= per_vector
        is_outside = low >= per_vector or high <= 0
        is_set = is_outside if inverted else is_inside
        is_read = has_input and not is_set
        is_whole = column >= 0 and i32(column + per_vector) <= i32(width)
        if is_whole and (not is_read or source & 3 == 0):
            a = u32(low_value if is_set else 0)
            b = u32(high_value if is_set else 0)
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
                a, b, c, d = with_band(a, b, c, d, low, high, inverted, low_value, high_value)
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        value = u64(low_value) | (u64(high_value) << 32) if is_long else low_value
        for e in range(per_vector):
            in_band = low <= e < high
            elements[e] = scalar(0)
            if u32(in_band) != u32(inverted):
                elements[e] = scalar(value)
            elif has_input and column >= -e and i32(column + e) < i32(width):
                elements[e] = read(source + e * element_size)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < i32(width):
                store(target + e * element_size, elements[e])

    return rows


def elements_source(element_size: int, wide: bool) -> Any:
    """Make the kernel that goes element by element."""
    column = column_type(wide)
    register, divide = arithmetic(wide)
    _, two_offsets, _ = offset_functions(wide)
    read = ptx.READ[element_size]
    store = ptx.STORE_STREAM[element_size]
    scalar = ptx.REGISTER[element_size]
    n_units = elements_a_thread(wide)

    @cuda.jit
    def elements(
        x,
        output,
        n_elements,
        width,
        width_multiplier,
        width_shift,
        height,
        height_multiplier,
        height_shift,
        x_row,
        x_column,
        output_row,
        output_column,
        begin,
        end,
        inverted,
        has_input,
        value,
        n_dims,
        multipliers: column,
        shifts: column,
        sizes: column,
        x_strides: column,
        output_strides: column,
    ):
        targets = cuda.local.array(n_units, i64)
        results = cuda.local.array(n_units, scalar)
        first = i64(cuda.blockIdx.x) * (THREADS * n_units) + i64(cuda.threadIdx.x)
        for k in range(n_units):
            # Threads past the end repeat the last element and do not store it.
            position = register(min(first + k * THREADS, n_elements - 1))
            row = divide(position, width_multiplier, width_shift)
            column = i64(position - row * register(width))
            batch = divide(row, height_multiplier, height_shift)
            y = i64(row - batch * register(height))
            x_at, output_at = two_offsets(
                batch, n_dims, multipliers, shifts, sizes, x_strides, output_strides
            )
            targets[k] = output + output_at + y * output_row + column * output_column
            in_band = u32(begin <= column - y and column - y < end)
            results[k] = scalar(0)
            if in_band != u32(inverted):
                results[k] = scalar(value)
            elif has_input:
                results[k] = read(x + x_at + y * x_row + column * x_column)
        for k in range(n_units):
            if first + k * THREADS < n_elements:
                store(targets[k], results[k])

    return elements
