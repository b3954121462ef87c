"""Set a band of diagonals, or all but a band, and copy or clear the rest.

Where columns lie side by side, `rows` covers every row of the output by 16-byte vectors on 16-byte
boundaries, each wholly outside the band (copied), wholly inside (written, not read) or on its edge (read,
and merged by a mask of bytes). A thread has one, and takes so few registers that many are in flight. Vectors
that stick out at the ends of a row go element by element.

Where columns lie side by side in the output alone, `strided` packs a thread's vector from the input, and
`turned` turns tiles in shared memory if rows lie side by side there. Where the output's rows do, matrices are
transposed in thought. Other layouts and rows of a few vectors go element by element, in `elements`.

Bytes moved: the output once, and the input outside the band once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from kernels_cuda.diagonal_matrix import plan_turned
from kernels_cuda.diagonal_matrix.band import Band, Part
from kernels_cuda.diagonal_matrix.plan_strided import strided_parts, strided_variant
from kernels_cuda.diagonal_matrix.sizes import THREADS, VECTOR, elements_a_thread
from kernels_cuda.layout import (
    NARROW_DEPTH,
    NARROW_LIMIT,
    TABLE_WRITER,
    Table,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
)
from kernels_cuda.runtime.launch import Kernel, LaunchList, as_signed, load
from kernels_cuda.runtime.variant import Target, Variant

_MIN_ROW_BYTES = 64  # shorter rows are mostly ends
_MAX_ROW_BYTES = 1 << 30  # columns and diagonals are counted in 31 bits
_MAX_VECTORS = NARROW_LIMIT - THREADS  # of one launch


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    for element_size in (1, 2, 4, 8):
        yield _rows(element_size)
        yield strided_variant(element_size)
        yield plan_turned.turned_variant(element_size)
        for wide in (False, True):
            yield _elements(element_size, wide)


def _rows(element_size: int) -> Variant:
    return Variant("diagonal_rows", "kernels_cuda.diagonal_matrix.kernels:rows_source", (element_size,))


def _elements(element_size: int, wide: bool) -> Variant:
    factory = "kernels_cuda.diagonal_matrix.kernels:elements_source"
    return Variant("diagonal_elements", factory, (element_size, wide))


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernel; see `plan`.

    Where rows of the output may begin anywhere, a vector more covers them, hence two ways to choose from:
    `_aligned` for an output on a 16-byte boundary, `_anywhere`. `_wide` is for what narrow kernels
    cannot count.
    """

    variant: str
    workspace_size: int
    _aligned: tuple[Part, ...] = ()
    _anywhere: tuple[Part, ...] = ()
    _wide: "_Wide | None" = None

    def launches(self, x: int, output: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        parts = self._anywhere if output % VECTOR else self._aligned
        is_one = self._wide is None and len(parts) == 1 and parts[0].x == parts[0].output == 0
        return parts[0].launch if is_one else None

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
    band = Band(begin, end, inverted, has_input, value)
    if output_strides[1] != 1 and output_strides[0] == 1:
        # Rows are what lies side by side in the output.
        band = band.turned(height)
        height, width = width, height
        x_strides, output_strides = x_strides[::-1], output_strides[::-1]
    has_rows = output_strides[1] == 1 and _MIN_ROW_BYTES <= width * element_size <= _MAX_ROW_BYTES
    is_plain = len(batch) <= 1 and (x_strides[1] == 1 or not has_input)
    name = f"diagonal_matrix {8 * element_size}-bit"
    strides = x_strides, output_strides[0]
    if has_rows and has_input and plan_turned.serves(element_size, batch, height, width, x_strides):
        part = plan_turned.turned_part(element_size, batch, height, width, *strides, band, target)
        return Plan(f"{name}, turned tiles", 0, (part,), (part,))
    if has_rows and len(batch) <= NARROW_DEPTH:
        any_row_aligned = all(
            stride * element_size % VECTOR == 0
            for stride in (output_strides[0], *(stride for *_, stride in batch))
        )
        heads = (0 if any_row_aligned else VECTOR - element_size, VECTOR - element_size)
        if is_plain:
            kernel = load(_rows(element_size), target)
            shape = _Shape(
                *(batch[0] if batch else (1, 0, 0)), height, width, x_strides[0], output_strides[0]
            )
            ways = [tuple(_row_parts(kernel, element_size, shape, band, head)) for head in heads]
            return Plan(f"{name}, rows of 16-byte vectors", 0, ways[0], ways[1])
        ways = [
            tuple(
                strided_parts(element_size, batch, height, width, *strides, band, head, _MAX_VECTORS, target)
            )
            for head in heads
        ]
        return Plan(f"{name}, strided rows of 16-byte vectors", 0, ways[0], ways[1])

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
        band.begin,
        band.end,
        int(inverted),
        int(has_input),
        as_signed(value),
        max(len(batch), 1),
    )
    variant = f"{name}, element by element"
    if wide:
        everything = _Wide(kernel, n_blocks, numbers, table)
        return Plan(variant, table.workspace_size, _wide=everything)
    launch = kernel.prepare(n_blocks, THREADS, 0, 2, *numbers, *table.arguments(None, 0))
    parts = (Part(0, 0, launch),)
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


def _row_parts(kernel: Kernel, element_size: int, shape: _Shape, band: Band, head: int) -> Iterator[Part]:
    """Make the launches of `rows`: one, or as many as it takes to count vectors in 31 bits.

    A row may begin `head` bytes after a 16-byte boundary.
    """
    vectors_a_row = -(-(shape.width * element_size + head) // VECTOR)
    fitting_rows = _MAX_VECTORS // vectors_a_row
    fitting_matrices = fitting_rows // shape.height
    if shape.n_matrices == 1 and fitting_matrices == 0:
        for y in range(0, shape.height, fitting_rows):
            some = shape._replace(height=min(fitting_rows, shape.height - y))
            for part in _row_parts(
                kernel, element_size, some, band.seen_from(y, some.height, some.width), head
            ):
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
        *band.numbers(element_size),
    )
    yield Part(0, 0, launch)
