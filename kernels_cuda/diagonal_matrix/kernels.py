"""The kernels of DIAGONAL_MATRIX1: each writes all elements of its matrices, in the band and outside.

Threads write vectors of 16 bytes on 16-byte boundaries where rows are contiguous (`rows_kernel`), also if
they are columns of the input (`transposed_kernel`), and single elements otherwise (`elements_kernel`).
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.diagonal_matrix.parameters import (
    THREADS,
    TILE_ROW_BYTES,
    TILE_ROWS,
    VECTOR,
    Dims,
    ElementsParameters,
    RowsParameters,
    TransposedParameters,
    elements_per_thread,
)
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.strided import LOADED_WORDS, strided_functions


@device_function
def bytes_below(n):
    """Return the mask of the lowest `n` bytes of a word, for any n."""
    inside = u32(min(max(n, 0), 4))
    return u32((1 << u64(inside << 3)) - 1)


@device_function
def merged(word, value, first, last, inverted):
    """Replace the bytes of a word from `first` to `last`, or all others."""
    kept = bytes_below(last) & ~bytes_below(first)
    if inverted:
        kept = ~kept
    return (word & ~kept) | (u32(value) & kept)


def edge_function(element_size: int) -> Any:
    """Make the function that sets the elements of a vector from `low` to `high`, or all others."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1

    @device_function
    def with_band(a, b, c, d, low, high, band):
        first = i32(min(max(low, 0), per_vector) << size_shift)
        last = i32(min(max(high, 0), per_vector) << size_shift)
        return (
            merged(a, band.low_value, first, last, band.inverted),
            merged(b, band.high_value, i32(first - 4), i32(last - 4), band.inverted),
            merged(c, band.low_value, i32(first - 8), i32(last - 8), band.inverted),
            merged(d, band.high_value, i32(first - 12), i32(last - 12), band.inverted),
        )

    return with_band


def rows_kernel(element_size: int, are_strided: bool) -> Any:
    """Make the kernel for rows that are contiguous in the input, too, or `are_strided` there.

    A thread covers one vector of a row of the output. If columns lie apart in the input, it gathers the
    elements of the vector from there.
    """
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
        """Read a vector of contiguous elements; the parameters are those of `vector_of_strided`."""
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


_VECTORS_PER_ROW = TILE_ROW_BYTES // VECTOR  # one per warp
_VECTORS_PER_THREAD = TILE_ROWS * _VECTORS_PER_ROW // THREADS
_TILE_WORDS = TILE_ROWS * TILE_ROW_BYTES // 4


def transposed_kernel(element_size: int) -> Any:
    """Make the kernel for rows that lie side by side in the input and columns in the output.

    A block has a tile of `TILE_ROWS` rows of 128 bytes. Lanes read along columns, each the four bytes or more
    of one or a few rows, from as many columns as fill a vector. So a thread holds whole vectors of the
    output, which change hands in shared memory: from there lanes write along rows. Vectors of a row are
    stored in an order that depends on the row, so that neither side meets in a bank. Elements that a lane
    would read from its rows are not read if the band overwrites all of them.
    """
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    # A lane reads a word of some rows, or an element of one row, from each column of a vector.
    rows_per_lane = max(4 // element_size, 1)
    lane_shift = rows_per_lane.bit_length() - 1
    rows_per_warp = 32 * rows_per_lane
    n_groups = TILE_ROWS // rows_per_warp
    n_words = 4 * rows_per_lane * n_groups
    tile_columns = TILE_ROW_BYTES // element_size
    column_shift = tile_columns.bit_length() - 1
    elements_per_thread = TILE_ROWS * tile_columns // THREADS
    is_long = element_size == 8
    is_word = element_size < 4
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    load_shared = ptx.LOAD_SHARED[element_size]
    scalar = ptx.REGISTER[element_size]
    _, divide, _ = arithmetic(wide=False)
    _, two_offsets, _ = offset_functions(wide=False)
    with_band = edge_function(element_size)

    @device_function
    def vector_at(row, vector):
        """Return where in the tile a vector is stored, in bytes."""
        stored = vector ^ ((row >> lane_shift) & u32(_VECTORS_PER_ROW - 1))
        return row * TILE_ROW_BYTES + stored * VECTOR

    @device_function
    def word_of_rows(address, row_bytes, last_row):
        """Return a column in the rows of a lane, read one by one; the last one stands for those after it."""
        word = u32(0)
        for r in range(rows_per_lane):
            bits = read(address + min(r, last_row) * row_bytes)
            word |= bits << u32(8 * element_size * r)
        return word

    @device_function
    def row_of_words_1(words, first, r):
        """Return row r of four: the bytes r of sixteen words."""
        near = u32(0x5140) if r < 2 else u32(0x7362)
        far = u32(0x5410) if r % 2 == 0 else u32(0x7632)
        return (
            four_bytes(words, first, near, far),
            four_bytes(words, first + 4, near, far),
            four_bytes(words, first + 8, near, far),
            four_bytes(words, first + 12, near, far),
        )

    @device_function
    def four_bytes(words, first, near, far):
        a = ptx.permute(words[first], words[first + 1], near)
        b = ptx.permute(words[first + 2], words[first + 3], near)
        return ptx.permute(a, b, far)

    @device_function
    def row_of_words_2(words, first, r):
        """Return row r of two: the halves r of eight words."""
        selector = u32(0x5410) if r == 0 else u32(0x7632)
        return (
            ptx.permute(words[first], words[first + 1], selector),
            ptx.permute(words[first + 2], words[first + 3], selector),
            ptx.permute(words[first + 4], words[first + 5], selector),
            ptx.permute(words[first + 6], words[first + 7], selector),
        )

    @device_function
    def row_of_words_4(words, first, r):
        """Return the only row, number 0."""
        return words[first], words[first + 1], words[first + 2], words[first + 3]

    vector_of_row = {1: row_of_words_1, 2: row_of_words_2}.get(element_size, row_of_words_4)

    @cuda.jit
    def diagonal_transposed(x, output, p: TransposedParameters, dims: dims_type(Dims, wide=False)):
        matrix = p.matrix
        band = matrix.band
        tile = ptx.shared_address(cuda.shared.array(_TILE_WORDS, u32, alignment=VECTOR))
        words = cuda.local.array(n_words, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row_of_tiles = divide(u32(cuda.blockIdx.x), p.tiles_per_row)
        batch = divide(row_of_tiles, p.rows_of_tiles)
        first_column = i32((u32(cuda.blockIdx.x) - row_of_tiles * u32(p.tiles_per_row.size)) << column_shift)
        first_row = i32((row_of_tiles - batch * u32(p.rows_of_tiles.size)) * TILE_ROWS)
        x_at = i64(batch) * dims.x_strides[0]
        output_at = i64(batch) * dims.output_strides[0]
        if dims.n_dims > 1:
            x_at, output_at = two_offsets(batch, dims, dims.x_strides, dims.output_strides)

        column = i32(first_column + i32(warp * per_vector))
        last_column = i32(min(i32(i32(p.width) - i32(1)) - column, per_vector - 1))
        for g in range(n_groups):
            for k in range(4 * rows_per_lane):
                words[g * 4 * rows_per_lane + k] = u32(0)
            y = i32(first_row + i32(g * rows_per_warp) + i32(lane << lane_shift))
            last_row = i32(min(i32(i32(p.height) - i32(1)) - y, rows_per_lane - 1))
            lowest = i32(column - i32(y + (rows_per_lane - 1)))
            highest = i32(i32(column + (per_vector - 1)) - y)
            is_inside = lowest >= band.begin and highest < band.end
            is_outside = lowest >= band.end or highest < band.begin
            is_set = is_outside if band.inverted else is_inside
            if band.has_input and last_row >= 0 and last_column >= 0 and not is_set:
                source = x + x_at + i64(y) * matrix.x_row + i64(column) * matrix.x_column
                if is_word:
                    is_whole = last_row == rows_per_lane - 1
                    if is_whole and matrix.x_row == element_size and (source | matrix.x_column) & 3 == 0:
                        for k in range(per_vector):
                            words[g * per_vector + k] = ptx.read_u32(
                                source + min(k, last_column) * matrix.x_column
                            )
                    else:
                        for k in range(per_vector):
                            words[g * per_vector + k] = word_of_rows(
                                source + min(k, last_column) * matrix.x_column, matrix.x_row, i64(last_row)
                            )
                else:
                    for k in range(per_vector):
                        bits = read(source + min(k, last_column) * matrix.x_column)
                        if is_long:
                            words[g * 4 + 2 * k] = u32(bits)
                            words[g * 4 + 2 * k + 1] = u32(bits >> 32)
                        else:
                            words[g * 4 + k] = bits
        for g in range(n_groups):
            row = u32(g * rows_per_warp) + (lane << lane_shift)
            for r in range(rows_per_lane):
                a, b, c, d = vector_of_row(words, g * 4 * rows_per_lane, r)
                ptx.store_shared_u32x4(tile + vector_at(row + u32(r), warp), a, b, c, d)
        cuda.syncthreads()

        target = output + output_at + i64(first_row) * matrix.output_row + i64(first_column) * element_size
        is_aligned = (target | matrix.output_row) & (VECTOR - 1) == 0
        if is_aligned and i32(first_column + tile_columns) <= i32(p.width):
            vector = thread & u32(_VECTORS_PER_ROW - 1)
            column = i32(first_column + i32(vector * per_vector))
            for k in range(_VECTORS_PER_THREAD):
                row = thread // _VECTORS_PER_ROW + u32(k * (THREADS // _VECTORS_PER_ROW))
                y = i32(first_row + i32(row))
                # The band begins and ends here, in elements from the vector's first.
                low = i32(i32(band.begin) - i32(column - y))
                high = i32(i32(band.end) - i32(column - y))
                is_inside = low <= 0 and high >= per_vector
                is_outside = low >= per_vector or high <= 0
                is_set = is_outside if band.inverted else is_inside
                if y < i32(p.height):
                    a = u32(band.low_value)
                    b = u32(band.high_value)
                    c = a
                    d = b
                    if not is_set:
                        a, b, c, d = ptx.load_shared_u32x4(tile + vector_at(row, vector))
                    if not (is_inside or is_outside):
                        a, b, c, d = with_band(a, b, c, d, low, high, band)
                    ptx.store_stream_u32x4(
                        target + i64(row) * matrix.output_row + i64(vector) * VECTOR, a, b, c, d
                    )
            return
        value = u64(band.low_value) | (u64(band.high_value) << 32) if is_long else band.low_value
        for k in range(elements_per_thread):
            position = thread + u32(k * THREADS)
            row = position >> column_shift
            at = position & u32(tile_columns - 1)
            y = i32(first_row + i32(row))
            column = i32(first_column + i32(at))
            if y < i32(p.height) and column < i32(p.width):
                in_band = band.begin <= column - y and column - y < band.end
                bits = scalar(value)
                if u32(in_band) == u32(band.inverted):
                    stored_at = vector_at(row, at >> u32(4 - size_shift))
                    within = (at & u32(per_vector - 1)) << size_shift
                    bits = load_shared(tile + stored_at + within)
                store(target + i64(row) * matrix.output_row + i64(at) * element_size, bits)

    return diagonal_transposed


def elements_kernel(element_size: int, wide: bool) -> Any:
    """Make the kernel for any layout: a thread writes a few elements, a block apart."""
    register, divide, _ = arithmetic(wide)
    _, two_offsets, _ = offset_functions(wide)
    read = ptx.READ[element_size]
    store = ptx.STORE_STREAM[element_size]
    scalar = ptx.REGISTER[element_size]
    n_units = elements_per_thread(wide)

    @cuda.jit
    def diagonal_elements(x, output, p: ElementsParameters, dims: dims_type(Dims, wide)):
        matrix = p.matrix
        band = matrix.band
        value = band.low_value
        if element_size == 8:
            value |= band.high_value << 32
        targets = cuda.local.array(n_units, i64)
        results = cuda.local.array(n_units, scalar)
        first = i64(cuda.blockIdx.x) * (THREADS * n_units) + i64(cuda.threadIdx.x)
        for k in range(n_units):
            # Threads past the end repeat the last element and do not store it.
            position = register(min(first + k * THREADS, p.n_elements - 1))
            row = divide(position, p.width)
            column = i64(position - row * register(p.width.size))
            batch = divide(row, p.height)
            y = i64(row - batch * register(p.height.size))
            x_at, output_at = two_offsets(batch, dims, dims.x_strides, dims.output_strides)
            targets[k] = output + output_at + y * matrix.output_row + column * matrix.output_column
            in_band = u32(band.begin <= column - y and column - y < band.end)
            results[k] = scalar(0)
            if in_band != u32(band.inverted):
                results[k] = scalar(value)
            elif band.has_input:
                results[k] = read(x + x_at + y * matrix.x_row + column * matrix.x_column)
        for k in range(n_units):
            if first + k * THREADS < p.n_elements:
                store(targets[k], results[k])

    return diagonal_elements
