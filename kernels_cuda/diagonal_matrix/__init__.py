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

from kernels_cuda.diagonal_matrix.sizes import THREADS, VECTOR, elements_a_thread
from kernels_cuda.launch import Kernel, Launches, as_signed, load
from kernels_cuda.layout import (
    NARROW_LIMIT,
    TABLE_WRITER,
    Table,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
)
from kernels_cuda.variant import Target, Variant

_MIN_ROW_BYTES = 64  # shorter rows are mostly ends
_MAX_ROW_BYTES = 1 << 30  # columns and diagonals are counted in 31 bits
_MAX_VECTORS = NARROW_LIMIT - THREADS  # of one launch


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    for element_size in (1, 2, 4, 8):
        yield _rows(element_size)
        for wide in (False, True):
            yield _elements(element_size, wide)


def _rows(element_size: int) -> Variant:
    return Variant("diagonal_rows", "kernels_cuda.diagonal_matrix.kernels:rows_source", (element_size,))


def _elements(element_size: int, wide: bool) -> Variant:
    factory = "kernels_cuda.diagonal_matrix.kernels:elements_source"
    return Variant("diagonal_elements", factory, (element_size, wide))


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
        kernel = load(_rows(element_size), target)
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
    kernel = load(_elements(element_size, wide), target)
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
