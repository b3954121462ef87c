"""Set a band of diagonals, or all but a band, and copy or clear the rest.

Where columns lie side by side, `rows` covers every row of the output by 16-byte vectors on 16-byte
boundaries, each wholly outside the band (copied), wholly inside (written, not read) or on its edge (read,
and merged by a mask of bytes). Vectors that stick out at the ends of a row are stored element by element,
and so is input loaded that lies differently between its boundaries. All else, and rows of a few vectors,
goes element by element in `elements`.

Bytes moved: the output once, and the input outside the band once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.launch import Kernel, Target, Variant, as_signed, load
from kernels_cuda.layout import (
    TABLE_WRITER,
    Table,
    arithmetic,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
    offset_functions,
    table_lengths,
)

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

THREADS = 256
UNITS = 4  # vectors or elements of a thread, a block apart
VECTOR = 16
_VALUES = 4 * UNITS
_MIN_ROW_BYTES = 64  # shorter rows are mostly ends
_MAX_ROW_VECTORS = (1 << 31) - 2 * THREADS * UNITS  # a block's offsets are added in 31 bits


def _rows(element_size: int) -> KernelSource:
    per_vector = VECTOR // element_size
    per_word = max(1, 4 // element_size)
    size_shift = element_size.bit_length() - 1
    is_long = element_size == 8
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    narrow = arithmetic(wide=False)
    long = arithmetic(wide=True)
    divide = narrow.divide
    divide_long = long.divide

    @device_function
    def load_elements(words, at, address, first, last):
        """Read the elements of a vector from byte `first` to `last`; the others are 0."""
        for q in range(4):
            words[at + q] = u32(0)
        for e in range(per_vector):
            if first <= e * element_size and e * element_size < last:
                element = read(address + e * element_size)
                if is_long:
                    words[at + 2 * e] = u32(element)
                    words[at + 2 * e + 1] = u32(u64(element) >> u64(32))
                else:
                    q = e // per_word
                    bits = u32(u32(element) << u32(8 * element_size * (e % per_word)))
                    words[at + q] = u32(words[at + q] | bits)

    @device_function
    def store_elements(words, at, address, first, last):
        """Write the elements of a vector from byte `first` to `last`."""
        for e in range(per_vector):
            if first <= e * element_size and e * element_size < last:
                if is_long:
                    low = u64(words[at + 2 * e])
                    store(address + e * 8, u64(low | u64(u64(words[at + 2 * e + 1]) << u64(32))))
                else:
                    word = words[at + e // per_word]
                    bits = u32(word >> u32(8 * element_size * (e % per_word)))
                    store(address + e * element_size, bits)

    @device_function
    def bytes_below(n):
        """Return the mask of the lowest `n` bytes of a word, for any n."""
        inside = min(max(n, 0), 4)
        return u32((i64(1) << (8 * inside)) - 1)

    def rows(
        x,
        output,
        n_vectors,
        vectors_a_row,
        row_multiplier,
        row_shift,
        long_row_multiplier,
        long_row_shift,
        height,
        height_multiplier,
        height_shift,
        long_height_multiplier,
        long_height_shift,
        row_bytes,
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
        words = cuda.local.array(_VALUES, u32)
        addresses = cuda.local.array(UNITS, i64)
        first_bytes = cuda.local.array(UNITS, i32)
        last_bytes = cuda.local.array(UNITS, i32)
        band_first = cuda.local.array(UNITS, i32)
        band_last = cuda.local.array(UNITS, i32)
        # Where the block begins takes 64 bits; where its threads are from there does not.
        block_first = i64(cuda.blockIdx.x) * (THREADS * UNITS)
        first_row = i64(divide_long(u64(block_first), long_row_multiplier, long_row_shift))
        first_vector = block_first - first_row * vectors_a_row
        first_batch = i64(divide_long(u64(first_row), long_height_multiplier, long_height_shift))
        first_y = first_row - first_batch * height
        thread = i64(cuda.threadIdx.x)
        for k in range(UNITS):
            vector = u32(first_vector + thread + k * THREADS)
            rows_on = divide(vector, row_multiplier, row_shift)
            vector = u32(vector - u32(rows_on * u32(vectors_a_row)))
            y = u32(u32(first_y) + rows_on)
            batches_on = divide(y, height_multiplier, height_shift)
            y = u32(y - u32(batches_on * u32(height)))
            batch = first_batch + i64(batches_on)
            row = output + batch * output_batch + i64(y) * output_row
            # Bytes from the start of the row to the start of the vector: negative for one that sticks out.
            start = i64(vector) * VECTOR - (row & (VECTOR - 1))
            addresses[k] = row + start
            diagonal = (start >> size_shift) - i64(y)
            first = max(-start, 0)
            last = min(row_bytes - start, VECTOR)
            if block_first + thread + k * THREADS >= n_vectors:
                last = i64(0)
            first_bytes[k] = i32(first)
            last_bytes[k] = i32(max(last, 0))
            low = min(max((begin - diagonal) << size_shift, 0), VECTOR)
            high = min(max((end - diagonal) << size_shift, 0), VECTOR)
            band_first[k] = i32(low)
            band_last[k] = i32(high)
            for q in range(4):
                words[4 * k + q] = u32(0)
            is_inside = low == 0 and high == VECTOR
            is_outside = high <= low
            is_kept = is_outside if inverted else is_inside
            if has_input and not is_kept and first < last:
                address = x + batch * x_batch + i64(y) * x_row + start
                if first == 0 and last == VECTOR and (address & (VECTOR - 1)) == 0:
                    words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3] = ptx.stream_u32x4(
                        address
                    )
                else:
                    load_elements(words, 4 * k, address, first, last)
        for k in range(UNITS):
            for q in range(4):
                kept = u32(
                    bytes_below(i64(band_last[k]) - 4 * q) & u32(~bytes_below(i64(band_first[k]) - 4 * q))
                )
                if inverted:
                    kept = u32(~kept)
                value = u32(high_value if q % 2 == 1 else low_value)
                words[4 * k + q] = u32(u32(words[4 * k + q] & u32(~kept)) | u32(value & kept))
            if first_bytes[k] == 0 and last_bytes[k] == VECTOR:
                ptx.store_stream_u32x4(
                    addresses[k], words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]
                )
            elif last_bytes[k] > first_bytes[k]:
                store_elements(words, 4 * k, addresses[k], first_bytes[k], last_bytes[k])

    return KernelSource(rows)


def elements_a_thread(wide: bool) -> int:
    """Return how many elements a thread of `elements` writes; wide kernels loop over dimensions instead."""
    return 1 if wide else UNITS


def _elements(element_size: int, wide: bool) -> KernelSource:
    register, divide = arithmetic(wide)
    _, two_offsets, _ = offset_functions(wide)
    read = ptx.READ[element_size]
    store = ptx.STORE_STREAM[element_size]
    scalar = ptx.REGISTER[element_size]
    n_units = elements_a_thread(wide)

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
        multipliers,
        shifts,
        sizes,
        x_strides,
        output_strides,
    ):
        targets = cuda.local.array(n_units, i64)
        results = cuda.local.array(n_units, scalar)
        first = i64(cuda.blockIdx.x) * (THREADS * n_units) + i64(cuda.threadIdx.x)
        for k in range(n_units):
            # Threads past the end repeat the last element and do not store it.
            position = register(min(first + k * THREADS, n_elements - 1))
            row = divide(position, width_multiplier, width_shift)
            column = i64(register(position - register(row * register(width))))
            batch = divide(row, height_multiplier, height_shift)
            y = i64(register(row - register(batch * register(height))))
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

    names = ("multipliers", "shifts", "sizes", "x_strides", "output_strides")
    return KernelSource(elements, table_lengths(names, wide))


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    for element_size in (1, 2, 4, 8):
        yield Variant("diagonal_rows", _rows, (element_size,))
        for wide in (False, True):
            yield Variant("diagonal_elements", _elements, (element_size, wide))


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernel; see `plan`.

    Where rows of the output may begin anywhere, a vector more covers them, hence two launches to choose from:
    `_aligned` for an output on a 16-byte boundary, `_anywhere`.
    """

    variant: str
    workspace_size: int
    _kernel: Kernel | None
    _aligned: tuple[int, tuple[int, ...]]
    _anywhere: tuple[int, tuple[int, ...]]
    _table: Table | None

    def launch(self, stream: Any, x: int, output: int, workspace: int) -> None:
        """Write the output."""
        if self._kernel is not None:
            n_blocks, arguments = self._aligned if output % VECTOR == 0 else self._anywhere
            if self._table is not None:
                arguments = (*arguments, *self._table.arguments(stream, workspace))
            self._kernel.launch(stream, n_blocks, THREADS, 0, x, output, *arguments)


def plan(
    *,
    element_size: int,
    has_input: bool,
    value: int,
    batch: tuple[tuple[int, int, int], ...],
    height: int,
    width: int,
    x_strides: tuple[int, int],
    output_strides: tuple[int, int],
    begin: int,
    end: int,
    inverted: bool,
    x_offset: int,
    output_offset: int,
    target: Target,
) -> Plan:
    """Choose and load the kernel that writes a band.

    Parameters
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    has_input : bool
        Whether elements that are not set are copied; otherwise they become 0.
    value : int
        The bits to set.
    batch : tuple of (size, x_stride, output_stride)
        All dimensions but rows and columns.
    height, width : int
        Rows and columns of a matrix.
    x_strides, output_strides : tuple of two ints
        Elements from row to row and from column to column.
    begin, end : int
        Diagonals of the band, x - y, `end` not included.
    inverted : bool
        Whether the elements outside the band are set instead.
    x_offset, output_offset : int
        Not used: addresses are those of the first elements.
    target : Target
        The device.
    """
    del x_offset, output_offset
    n_matrices = prod(size for size, *_ in batch)
    n_elements = n_matrices * height * width
    if n_elements == 0:
        return Plan("diagonal_matrix: nothing to write", 0, None, (0, ()), (0, ()), None)
    x_row, x_column, output_row, output_column = (s * element_size for s in (*x_strides, *output_strides))
    row_bytes = width * element_size
    band = (begin, end, int(inverted), int(has_input))
    has_rows = (
        output_strides[1] == 1
        and (x_strides[1] == 1 or not has_input)
        and row_bytes >= _MIN_ROW_BYTES
        and max(row_bytes // VECTOR + 2, height) <= _MAX_ROW_VECTORS
        and len(batch) <= 1
    )
    if has_rows:
        _, x_batch, output_batch = batch[0] if batch else (1, 0, 0)
        x_batch, output_batch = x_batch * element_size, output_batch * element_size
        splat = value if element_size == 8 else value * (0xFFFFFFFF // ((1 << (8 * element_size)) - 1))
        high = splat >> 32 if element_size == 8 else splat
        launches = []
        any_row_aligned = output_row % VECTOR == 0 and output_batch % VECTOR == 0
        for head in (0 if any_row_aligned else VECTOR - element_size, VECTOR - element_size):
            vectors = -(-(row_bytes + head) // VECTOR)
            n_vectors = n_matrices * height * vectors
            arguments = (
                n_vectors,
                vectors,
                *divisor(vectors, wide=False),
                *divisor(vectors, wide=True),
                height,
                *divisor(height, wide=False),
                *divisor(height, wide=True),
                row_bytes,
                x_row,
                output_row,
                x_batch,
                output_batch,
                *band,
                splat & 0xFFFFFFFF,
                high,
            )
            launches.append((-(-n_vectors // (THREADS * UNITS)), arguments))
        return Plan(
            variant=f"diagonal_matrix {8 * element_size}-bit, rows of 16-byte vectors",
            workspace_size=0,
            _kernel=load(Variant("diagonal_rows", _rows, (element_size,)), target),
            _aligned=launches[0],
            _anywhere=launches[1],
            _table=None,
        )

    wide = is_wide(n_elements, len(batch))
    numbers = (
        n_elements,
        width,
        *divisor(width, wide),
        height,
        *divisor(height, wide),
        x_row,
        x_column,
        output_row,
        output_column,
        *band,
        as_signed(value),
        max(len(batch), 1),
    )
    everything = (-(-n_elements // (THREADS * elements_a_thread(wide))), numbers)
    table = make_table(dimension_columns(batch, wide, (element_size, element_size)), wide, target)
    return Plan(
        variant=f"diagonal_matrix {8 * element_size}-bit, element by element",
        workspace_size=table.workspace_size,
        _kernel=load(Variant("diagonal_elements", _elements, (element_size, wide)), target),
        _aligned=everything,
        _anywhere=everything,
        _table=table,
    )
