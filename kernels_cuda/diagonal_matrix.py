"""Set a band of diagonals, or all but a band, and copy or clear the rest.

Where columns lie side by side, `rows` covers every row of the output by 16-byte vectors on 16-byte
boundaries, each wholly outside the band (copied), wholly inside (written, not read) or on its edge (read,
and merged by a mask of bytes). A thread has one, and takes so few registers that many are in flight. Vectors
that stick out at the ends of a row go element by element, as do, in `elements`, matrices of other layouts
and rows of a few vectors.

Bytes moved: the output once, and the input outside the band once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.launch import Kernel, Launches, Target, Variant, as_signed, load
from kernels_cuda.layout import (
    NARROW_LIMIT,
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
ELEMENTS = 4  # of a thread of `elements`, a block apart
VECTOR = 16
_MIN_ROW_BYTES = 64  # shorter rows are mostly ends
_MAX_ROW_BYTES = 1 << 30  # columns and diagonals are counted in 31 bits
_MAX_VECTORS = NARROW_LIMIT - THREADS  # of one launch


def _rows(element_size: int) -> KernelSource:
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    is_long = element_size == 8
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    _, divide = arithmetic(wide=False)

    @device_function
    def bytes_below(n):
        """Return the mask of the lowest `n` bytes of a word, for any n."""
        inside = u32(min(max(n, 0), 4))
        return u32((u64(1) << u64(inside << u32(3))) - u64(1))

    @device_function
    def merged(word, value, first, last, inverted):
        """Replace the bytes of a word from `first` to `last`, or all others."""
        kept = u32(bytes_below(last) & u32(~bytes_below(first)))
        if inverted:
            kept = u32(~kept)
        return u32(u32(word & u32(~kept)) | u32(u32(value) & kept))

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
        position = u32(u32(u32(cuda.blockIdx.x) * u32(THREADS)) + u32(cuda.threadIdx.x))
        if position >= u32(n_vectors):
            return
        row = divide(position, row_multiplier, row_shift)
        vector = u32(position - u32(row * u32(vectors_a_row)))
        batch = divide(row, height_multiplier, height_shift)
        y = i32(u32(row - u32(batch * u32(height))))
        target = output + i64(batch) * output_batch + i64(y) * output_row
        # Vectors lie on 16-byte boundaries: the first one of a row may begin ahead of it.
        start = i32(i32(vector << u32(4)) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        target += i64(start)
        source = x + i64(batch) * x_batch + i64(y) * x_row + i64(start)
        # Where the band begins and ends, in elements from the vector's first.
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
                first = i32(min(max(low, 0), per_vector) << size_shift)
                last = i32(min(max(high, 0), per_vector) << size_shift)
                a = merged(a, low_value, first, last, inverted)
                b = merged(b, high_value, i32(first - 4), i32(last - 4), inverted)
                c = merged(c, low_value, i32(first - 8), i32(last - 8), inverted)
                d = merged(d, high_value, i32(first - 12), i32(last - 12), inverted)
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        value = u64(u64(low_value) | u64(u64(high_value) << u64(32))) if is_long else low_value
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

    return KernelSource(rows)


def elements_a_thread(wide: bool) -> int:
    """Return how many elements a thread of `elements` writes; wide kernels loop over dimensions instead."""
    return 1 if wide else ELEMENTS


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


class _Part(NamedTuple):
    """A launch for some of the rows, and how many bytes they are from the first ones."""

    x: int
    output: int
    launch: Launches


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernel; see `plan`.

    Where rows of the output may begin anywhere, a vector more covers them, hence two ways to choose from:
    `_aligned` for an output on a 16-byte boundary, `_anywhere`. `_wide` is for what narrow kernels
    cannot count.
    """

    variant: str
    workspace_size: int
    _aligned: tuple[_Part, ...] = ()
    _anywhere: tuple[_Part, ...] = ()
    _wide: "_Wide | None" = None

    def launch(self, stream: Any, x: int, output: int, workspace: int) -> None:
        """Write the output."""
        if self._wide is not None:
            kernel, n_blocks, numbers, table = self._wide
            columns = table.arguments(stream, workspace)
            kernel.launch(stream, n_blocks, THREADS, 0, x, output, *numbers, *columns)
            return
        parts = self._anywhere if output % VECTOR else self._aligned
        for part in parts:
            part.launch(stream, x + part.x, output + part.output)


class _Wide(NamedTuple):
    kernel: Kernel
    n_blocks: int
    numbers: tuple[int, ...]
    table: Table


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
    n_elements = prod(size for size, *_ in batch) * height * width
    if n_elements == 0:
        return Plan("diagonal_matrix: nothing to write", 0)
    row_bytes = width * element_size
    has_rows = (
        output_strides[1] == 1
        and (x_strides[1] == 1 or not has_input)
        and _MIN_ROW_BYTES <= row_bytes <= _MAX_ROW_BYTES
        and len(batch) <= 1
    )
    if has_rows:
        kernel = load(Variant("diagonal_rows", _rows, (element_size,)), target)
        shape = _Shape(*(batch[0] if batch else (1, 0, 0)), height, width, x_strides[0], output_strides[0])
        band = _Band(begin, end, inverted, has_input, value)
        any_row_aligned = all(
            stride * element_size % VECTOR == 0 for stride in (shape.output_row, shape.output_batch)
        )
        head = 0 if any_row_aligned else VECTOR - element_size
        return Plan(
            variant=f"diagonal_matrix {8 * element_size}-bit, rows of 16-byte vectors",
            workspace_size=0,
            _aligned=tuple(_row_parts(kernel, element_size, shape, band, head)),
            _anywhere=tuple(_row_parts(kernel, element_size, shape, band, VECTOR - element_size)),
        )

    wide = is_wide(n_elements, len(batch))
    kernel = load(Variant("diagonal_elements", _elements, (element_size, wide)), target)
    n_blocks = -(-n_elements // (THREADS * elements_a_thread(wide)))
    table = make_table(dimension_columns(batch, wide, (element_size, element_size)), wide, target)
    numbers = (
        n_elements,
        width,
        *divisor(width, wide),
        height,
        *divisor(height, wide),
        *(stride * element_size for stride in (*x_strides, *output_strides)),
        begin,
        end,
        int(inverted),
        int(has_input),
        as_signed(value),
        max(len(batch), 1),
    )
    variant = f"diagonal_matrix {8 * element_size}-bit, element by element"
    if wide:
        everything = _Wide(kernel, n_blocks, numbers, table)
        return Plan(variant, table.workspace_size, _wide=everything)
    launch = kernel.prepare(n_blocks, THREADS, 0, 2, *numbers, *table.arguments(None, 0))
    parts = (_Part(0, 0, launch),)
    return Plan(variant, 0, parts, parts)


class _Shape(NamedTuple):
    """Matrices whose columns lie side by side; strides in elements."""

    n_matrices: int
    x_batch: int
    output_batch: int
    height: int
    width: int
    x_row: int
    output_row: int


class _Band(NamedTuple):
    begin: int
    end: int
    inverted: bool
    has_input: bool
    value: int


def _row_parts(kernel: Kernel, element_size: int, shape: _Shape, band: _Band, head: int) -> Iterator[_Part]:
    """Make the launches of `rows`: one, or as many as it takes to count vectors in 31 bits.

    A row may begin `head` bytes after a 16-byte boundary.
    """
    vectors_a_row = -(-(shape.width * element_size + head) // VECTOR)
    fitting_rows = _MAX_VECTORS // vectors_a_row
    fitting_matrices = fitting_rows // shape.height
    if shape.n_matrices == 1 and fitting_matrices == 0:
        for y in range(0, shape.height, fitting_rows):
            some = shape._replace(height=min(fitting_rows, shape.height - y))
            # Seen from row y, diagonals are y further on.
            begin, end = (max(-some.height, min(bound + y, some.width)) for bound in (band.begin, band.end))
            for part in _row_parts(kernel, element_size, some, band._replace(begin=begin, end=end), head):
                x, output = (y * row * element_size for row in (shape.x_row, shape.output_row))
                yield part._replace(x=x, output=output)
        return
    if fitting_matrices < shape.n_matrices:
        step = max(fitting_matrices, 1)
        for first in range(0, shape.n_matrices, step):
            some = shape._replace(n_matrices=min(step, shape.n_matrices - first))
            x, output = (first * size * element_size for size in (shape.x_batch, shape.output_batch))
            for part in _row_parts(kernel, element_size, some, band, head):
                yield part._replace(x=x + part.x, output=output + part.output)
        return
    splat = band.value
    if element_size < 8:
        splat *= 0xFFFFFFFF // ((1 << (8 * element_size)) - 1)
    n_vectors = shape.n_matrices * shape.height * vectors_a_row
    rows = (shape.x_row, shape.output_row, shape.x_batch, shape.output_batch)
    launch = kernel.prepare(
        -(-n_vectors // THREADS),
        THREADS,
        0,
        2,
        n_vectors,
        vectors_a_row,
        *divisor(vectors_a_row, wide=False),
        shape.height,
        *divisor(shape.height, wide=False),
        shape.width,
        *(stride * element_size for stride in rows),
        band.begin,
        band.end,
        int(band.inverted),
        int(band.has_input),
        splat & 0xFFFFFFFF,
        splat >> 32 if element_size == 8 else splat,
    )
    yield _Part(0, 0, launch)
