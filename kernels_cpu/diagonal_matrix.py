"""DIAGONAL_MATRIX1: write a value on a band of diagonals (or everywhere else) of matrices, copy the rest.

A row is at most three segments, so no element is tested: each segment is one fill or one copy, and what the
value overwrites is not read. Large contiguous outputs are written past the cache (non-temporal stores), which
saves reading each line before it is written. Moves the output, and the part of the input that is kept.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd, streaming
from kernels_cpu.addresses import Address
from kernels_cpu.jit import compiled, inlined, kernel
from kernels_cpu.memory import BYTES, INTEGER, UNSIGNED, WORDS
from kernels_cpu.streaming import flush, stream_copy, stream_fill, stream_strided
from kernels_cpu.threads import launcher, split
from kernels_cpu.unsigned import ONE, THREE, TWO, ZERO

WORD = (1 << 64) - 1
STREAM_BYTES = streaming.STREAM_BYTES
PART_BYTES = 1 << 20  # some 100 us of work, worth handing to another thread
NARROW: Any = np.uint64(256)  # elements: branches, which depend on where the band is, cost so short rows more
TILE_COLUMNS = 256  # of inputs whose columns are far apart, so that their lines serve the next rows too

# How the columns of the output lie. Each has its own kernel.
CONTIGUOUS, STREAMED, STRIDED = range(3)
KINDS = ("contiguous", "streamed", "strided")

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernel.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES = np.arange(7, dtype=np.uint64)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN = np.arange(7, 11, dtype=np.uint64)
VALUE, N_BATCH, BATCH = np.arange(11, 14, dtype=np.uint64)
# then (size, x_stride, output_stride) for every batch dimension


@inlined
def _fill(output: Any, start: Any, n: Any, value: Any) -> Any:
    n_line = moves.line_elements(output)
    if n >= n_line:
        moves.fill_line(output, start, value)
        for done in range(moves.elements_to_line(output, start), n - n_line, n_line):
            moves.fill_line(output, start + done, value)
        moves.fill_line(output, start + n - n_line, value)
    else:
        for i in range(start, start + n):
            output[i] = value


@inlined
def _copy(x: Any, x_start: Any, output: Any, start: Any, n: Any) -> Any:
    n_line = moves.line_elements(output)
    if n >= n_line:
        moves.move_bytes(64, x, x_start, output, start)
        for done in range(moves.elements_to_line(output, start), n - n_line, n_line):
            moves.move_bytes(64, x, x_start + done, output, start + done)
        moves.move_bytes(64, x, x_start + n - n_line, output, start + n - n_line)
    else:
        for i in range(n):
            output[start + i] = x[x_start + i]


@inlined
def _blend(x: Any, x_row: Any, output: Any, output_row: Any, y: Any, table: Any) -> Any:
    """Write a row of at least a line by a choice for each element: no branch depends on where the band is."""
    n_line = moves.line_elements(output)
    first = y + table[BEGIN]
    n_values = table[END] - table[BEGIN]
    if table[INVERTED]:  # what is not in the band is in the one that begins where it ends, and wraps around
        first += n_values
        n_values = ZERO - n_values
    n = table[WIDTH]
    for column in range(ZERO, n - n_line, n_line):
        moves.blend_line(
            x, x_row + column, output, output_row + column, table[VALUE], column - first, n_values
        )
    column = n - n_line
    moves.blend_line(x, x_row + column, output, output_row + column, table[VALUE], column - first, n_values)


@functools.cache
def _kernel_of(kind: int, x_is_contiguous: bool) -> Any:
    """Return the kernel for one layout."""

    @kernel
    def write_rows(table: Any, first: Any, last: Any, x: Any, output: Any, workspace: Any) -> None:
        """Write rows `first` to `last`, counted through all matrices."""
        x = moves.pointer(x)
        output = moves.pointer(output)
        table = moves.pointer(table)
        height = table[HEIGHT]
        width = table[WIDTH]
        inverted = table[INVERTED] != ZERO
        copies = table[COPIES] != ZERO
        has_band = table[BEGIN] != table[END]
        blends = copies and has_band and moves.line_elements(output) <= width and width <= NARROW
        x_column = table[X_COLUMN]
        output_column = table[OUTPUT_COLUMN]
        if kind == STREAMED:
            line = moves.stack_line(output)
            filled = ZERO
            cursor = ZERO
        row = np.uint64(first)
        while row < np.uint64(last):
            matrix = row // height
            y_begin = row - matrix * height
            y_end = min(height, y_begin + np.uint64(last) - row)
            row += y_end - y_begin
            x_start = ZERO
            output_start = ZERO
            for d in range(table[N_BATCH], ZERO, -1):
                field = BATCH + THREE * (np.uint64(d) - ONE)
                quotient = matrix // table[field]
                position = matrix - quotient * table[field]
                x_start += position * table[field + ONE]
                output_start += position * table[field + TWO]
                matrix = quotient
            if kind == CONTIGUOUS and x_is_contiguous and blends:
                for y in range(y_begin, y_end):
                    x_row = x_start + y * table[X_ROW]
                    _blend(x, x_row, output, output_start + y * table[OUTPUT_ROW], y, table)
                continue
            for tile in range(ZERO, width, table[TILE]):
                tile_end = min(width, tile + table[TILE])
                for y in range(y_begin, y_end):
                    x_row = x_start + y * table[X_ROW]
                    output_row = output_start + y * table[OUTPUT_ROW]
                    column = tile
                    end = max(np.int64(y) + np.int64(table[BEGIN]), np.int64(0))
                    next_end = max(np.int64(y) + np.int64(table[END]), np.int64(0))
                    is_value = inverted
                    while column < tile_end:
                        segment_end = min(np.uint64(end), tile_end)
                        if segment_end > column:
                            n = segment_end - column
                            start = output_row + column * output_column
                            x_segment = x_row + column * x_column
                            value = table[VALUE] if is_value else ZERO
                            from_x = copies and not is_value
                            if kind == STREAMED:
                                if start != cursor:
                                    flush(output, cursor, line, filled)
                                    filled = ZERO
                                if not from_x:
                                    filled = stream_fill(output, start, n, value, line, filled)
                                elif x_is_contiguous:
                                    filled = stream_copy(output, start, n, x, x_segment, line, filled)
                                else:
                                    filled = stream_strided(
                                        output, start, n, x, x_segment, x_column, line, filled
                                    )
                                cursor = start + n
                            elif kind == CONTIGUOUS:
                                if not from_x:
                                    _fill(output, start, n, value)
                                elif x_is_contiguous:
                                    _copy(x, x_segment, output, start, n)
                                else:
                                    for i in range(n):
                                        output[start + i] = x[x_segment + i * x_column]
                            elif from_x:
                                for i in range(n):
                                    output[start + i * output_column] = x[x_segment + i * x_column]
                            else:
                                for i in range(n):
                                    output[start + i * output_column] = value
                            column = segment_end
                        # From before the band onto it, and from there to the end of the row.
                        end = next_end
                        next_end = np.int64(width)
                        is_value = not is_value
        if kind == STREAMED:
            flush(output, cursor, line, filled)

    return write_rows


@dataclass(frozen=True, slots=True)
class Plan:
    """A diagonal-matrix problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    launch: Callable[[Address, Address, Address], None]
    """Writes the output: ``launch(x, output, workspace)``, with 0 for an input that there is not."""


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
        Ignored: `launch` takes the addresses of first elements.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Needs no workspace.
    """
    del x_offset, output_offset
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
    kind = CONTIGUOUS if output_strides[1] == 1 else STRIDED
    if kind == CONTIGUOUS and simd.WIDTH and n_bytes >= STREAM_BYTES:
        kind = STREAMED
    tile = width if not has_input or x_strides[1] in (0, 1) else min(width, TILE_COLUMNS)
    fields = [height, width, tile, begin, end, inverted, has_input, *x_strides, *output_strides]
    fields += [value, len(batch)]
    for dimension in batch:
        fields += dimension
    n_parts = 1
    if threads > 1 and n_bytes >= 2 * PART_BYTES:
        # More parts than threads, as rows that are filled take less time than rows that are copied.
        n_parts = min(4 * threads, n_bytes // PART_BYTES)
    elements = UNSIGNED[element_size]
    arguments = (WORDS, INTEGER, INTEGER, elements, elements, BYTES)
    kernel = compiled(_kernel_of(kind, not has_input or x_strides[1] == 1), *arguments)
    table = np.array([int(field) & WORD for field in fields], np.uint64)
    parts = [(table, *part) for part in split(n_rows, n_parts)] if width else []
    return Plan(f"row segments, {KINDS[kind]}", 0, launcher(kernel, parts, threads))
