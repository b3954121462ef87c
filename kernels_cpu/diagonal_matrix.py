"""DIAGONAL_MATRIX1: write a value on a band of diagonals (or everywhere else) of matrices, copy the rest.

A row is at most three segments, so no element is tested: each segment is one fill or one copy, and what the
value overwrites is not read. Large contiguous outputs are written past the cache (non-temporal stores), which
saves reading each line before it is written. Moves the output, and the part of the input that is kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.streaming import flush, stream
from kernels_cpu.threads import run, split

ZERO: Any = np.uint64(0)
ONE: Any = np.uint64(1)
TWO: Any = np.uint64(2)
THREE: Any = np.uint64(3)
WORD = (1 << 64) - 1
STREAM_BYTES = 4 << 20  # a smaller output may stay in the cache for whoever reads it next
PART_BYTES = 1 << 20  # some 100 us of work, worth handing to another thread
TILE_COLUMNS = 256  # of inputs whose columns are far apart, so that their lines serve the next rows too

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernel.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES, STREAMS = np.arange(8, dtype=np.uint64)
X_OFFSET, X_ROW, X_COLUMN, OUTPUT_OFFSET, OUTPUT_ROW, OUTPUT_COLUMN = np.arange(8, 14, dtype=np.uint64)
VALUE, N_BATCH, BATCH = np.arange(14, 17, dtype=np.uint64)
# then (size, x_stride, output_stride) for every batch dimension


@inlined
def _fill(output: Any, start: Any, stride: Any, n: Any, value: Any) -> Any:
    if stride == ONE:
        for i in range(start, start + n):
            output[i] = value
    else:
        for i in range(n):
            output[start + i * stride] = value


@inlined
def _copy(x: Any, x_start: Any, x_stride: Any, output: Any, start: Any, stride: Any, n: Any) -> Any:
    if stride == ONE and x_stride == ONE:
        for i in range(n):
            output[start + i] = x[x_start + i]
    else:
        for i in range(n):
            output[start + i * stride] = x[x_start + i * x_stride]


@kernel
def _write_rows(x: Any, output: Any, table: Any, first: Any, last: Any) -> Any:
    """Write rows `first` to `last`, counted through all matrices."""
    x = moves.pointer(x)
    output = moves.pointer(output)
    table = moves.pointer(table)
    height = table[HEIGHT]
    width = table[WIDTH]
    inverted = table[INVERTED] != ZERO
    copies = table[COPIES] != ZERO
    streams = table[STREAMS] != ZERO
    x_column = table[X_COLUMN]
    output_column = table[OUTPUT_COLUMN]
    line = moves.stack_lines(output, 1)
    filled = ZERO
    cursor = ZERO
    row = np.uint64(first)
    while row < np.uint64(last):
        matrix = row // height
        y_begin = row - matrix * height
        y_end = min(height, y_begin + np.uint64(last) - row)
        row += y_end - y_begin
        x_start = table[X_OFFSET]
        output_start = table[OUTPUT_OFFSET]
        for d in range(table[N_BATCH], ZERO, -1):
            field = BATCH + THREE * (np.uint64(d) - ONE)
            quotient = matrix // table[field]
            position = matrix - quotient * table[field]
            x_start += position * table[field + ONE]
            output_start += position * table[field + TWO]
            matrix = quotient
        for tile in range(ZERO, width, table[TILE]):
            tile_end = min(width, tile + table[TILE])
            for y in range(y_begin, y_end):
                x_row = x_start + y * table[X_ROW]
                output_row = output_start + y * table[OUTPUT_ROW]
                band_begin = max(np.int64(y) + np.int64(table[BEGIN]), np.int64(0))
                band_end = max(np.int64(y) + np.int64(table[END]), np.int64(0))
                column = tile
                for segment in range(3):
                    segment_end = tile_end
                    if segment == 0:
                        segment_end = min(np.uint64(band_begin), tile_end)
                    elif segment == 1:
                        segment_end = min(np.uint64(band_end), tile_end)
                    if segment_end <= column:
                        continue
                    n = segment_end - column
                    start = output_row + column * output_column
                    is_value = (segment == 1) != inverted
                    from_x = copies and not is_value
                    value = table[VALUE] if is_value else ZERO
                    x_segment = x_row + column * x_column
                    if streams:
                        if start != cursor:
                            flush(output, cursor, line, filled)
                            filled = ZERO
                        filled = stream(output, start, n, x, x_segment, x_column, from_x, value, line, filled)
                        cursor = start + n
                    elif from_x:
                        _copy(x, x_segment, x_column, output, start, output_column, n)
                    else:
                        _fill(output, start, output_column, n, value)
                    column = segment_end
    flush(output, cursor, line, filled)


@dataclass(frozen=True, slots=True)
class Plan:
    """A diagonal-matrix problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    table: Any
    parts: list[tuple[int, int]]
    threads: int

    def launch(self, x: Any, output: Any, workspace: Any) -> None:
        """Write `output` from `x` (an empty array where there is no input)."""
        parts = self.parts
        if len(parts) == 1:
            _write_rows(x, output, self.table, *parts[0])
        elif parts:
            table = self.table
            run(_write_rows, [(x, output, table, *part) for part in parts], self.threads)


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
    x_offset: int = 0,
    output_offset: int = 0,
    threads: int,
) -> Plan:
    """Prepare ``out[y, x] = value if (begin <= x - y < end) != inverted else input[y, x]``.

    Parameters
    ----------
    element_size : int
        Bytes of an element.
    has_input : bool
        Without one, zero bits stand for its elements.
    value : int
        The bits to write.
    batch : tuple of (size, x_stride, output_stride)
        The dimensions before the last two, slowest first.
    height, width : int
        Of each matrix.
    x_strides, output_strides : (row, column)
        In elements.
    begin, end : int
        With ``-height <= begin <= end <= width``.
    inverted : bool
        Write the value off the band instead of on it.
    x_offset, output_offset : int
        Where the first element of each array's first matrix lies.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Needs no workspace.
    """
    if abs(output_strides[0]) < abs(output_strides[1]) and height > 1:
        # The transposed problem: x - y in [begin, end) is y - x in [1 - end, 1 - begin).
        height, width = width, height
        begin, end = 1 - end, 1 - begin
        x_strides = x_strides[::-1]
        output_strides = output_strides[::-1]
    n_rows = height
    for size, _, _ in batch:
        n_rows *= size
    n_bytes = n_rows * width * element_size
    contiguous = output_strides[1] == 1
    streams = simd.WIDTH > 0 and contiguous and n_bytes >= STREAM_BYTES
    tile = width if not has_input or x_strides[1] in (0, 1) else min(width, TILE_COLUMNS)
    fields = [height, width, tile, begin, end, inverted, has_input, streams, x_offset, *x_strides]
    fields += [output_offset, *output_strides, value, len(batch)]
    for dimension in batch:
        fields += dimension
    n_parts = 1
    if threads > 1 and n_bytes >= 2 * PART_BYTES:
        # More parts than threads, as rows that are filled take less time than rows that are copied.
        n_parts = min(4 * threads, n_bytes // PART_BYTES)
    return Plan(
        variant="row segments, " + ("streamed" if streams else "contiguous" if contiguous else "strided"),
        workspace_size=0,
        table=np.array([int(field) & WORD for field in fields], np.uint64),
        parts=split(n_rows, n_parts) if width else [],
        threads=threads,
    )
