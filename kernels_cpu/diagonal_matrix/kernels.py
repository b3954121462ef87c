"""The kernel of DIAGONAL_MATRIX1: fill a band of diagonals, or everything else, and copy the rest.

A row has at most three segments, so no element is tested: each segment is one fill or one copy, and input
that the value overwrites is not read. Large contiguous outputs are written past the cache (non-temporal
stores), which saves reading each line before it is written. Bytes moved: the output, and the part of the
input that is kept.
"""

import functools
from typing import Any

from kernels_cpu.diagonal_matrix import CONTIGUOUS, STREAMED, STRIDED
from kernels_cpu.diagonal_matrix.plan import (
    BATCH,
    BEGIN,
    COPIES,
    END,
    HEIGHT,
    INVERTED,
    N_BATCH,
    OUTPUT_COLUMN,
    OUTPUT_ROW,
    STEP,
    TILE,
    VALUE,
    WIDTH,
    X_COLUMN,
    X_ROW,
)
from kernels_cpu.intrinsics import memory
from kernels_cpu.jit import inline, njit
from kernels_cpu.streaming import flush, stream_copy, stream_fill, stream_strided

NARROW = 256  # elements: in such short rows, branches on the position of the band cost more


@inline
def _fill(output: Any, start: Any, n: Any, value: Any) -> Any:
    n_line = memory.line_elements(output)
    if n >= n_line:
        memory.fill_line(output, start, value)
        for done in range(memory.elements_to_line(output, start), n - n_line, n_line):
            memory.fill_line(output, start + done, value)
        memory.fill_line(output, start + n - n_line, value)
    else:
        for i in range(start, start + n):
            output[i] = value


@inline
def _copy(x: Any, x_start: Any, output: Any, start: Any, n: Any) -> Any:
    n_line = memory.line_elements(output)
    if n >= n_line:
        memory.move_bytes(64, x, x_start, output, start)
        for done in range(memory.elements_to_line(output, start), n - n_line, n_line):
            memory.move_bytes(64, x, x_start + done, output, start + done)
        memory.move_bytes(64, x, x_start + n - n_line, output, start + n - n_line)
    else:
        for i in range(n):
            output[start + i] = x[x_start + i]


@inline
def _blend(x: Any, x_row: Any, output: Any, output_row: Any, y: Any, table: Any) -> Any:
    """Write a row of at least a line by a choice for each element: no branch depends on where the band is."""
    n_line = memory.line_elements(output)
    first = y * table[STEP] + table[BEGIN]
    n_values = table[END] - table[BEGIN]
    if table[INVERTED]:  # the elements outside a band are a band that begins where it ends, and wraps around
        first += n_values
        n_values = -n_values
    n = table[WIDTH]
    for column in range(0, n - n_line, n_line):
        memory.blend_line(
            x, x_row + column, output, output_row + column, table[VALUE], column - first, n_values
        )
    column = n - n_line
    memory.blend_line(x, x_row + column, output, output_row + column, table[VALUE], column - first, n_values)


@functools.cache
def band_kernel(kind: int, x_is_contiguous: bool) -> Any:
    """Return the kernel for one layout."""

    @njit
    def write_rows(table: Any, first: Any, last: Any, x: Any, output: Any) -> None:
        """Write rows `first` to `last`, counted through all matrices."""
        height = table[HEIGHT]
        width = table[WIDTH]
        step = table[STEP]
        inverted = table[INVERTED] != 0
        copies = table[COPIES] != 0
        has_band = table[BEGIN] != table[END]
        blends = copies and has_band and memory.line_elements(output) <= width and width <= NARROW
        x_column = table[X_COLUMN]
        output_column = table[OUTPUT_COLUMN] if kind == STRIDED else 1
        if kind == STREAMED:
            line = memory.stack_line(output)
            filled = 0
            cursor = 0
        row = first
        while row < last:
            matrix = row // height
            y_begin = row - matrix * height
            y_end = min(height, y_begin + last - row)
            row += y_end - y_begin
            x_start = 0
            output_start = 0
            for d in range(table[N_BATCH], 0, -1):
                field = BATCH + 3 * (d - 1)
                quotient = matrix // table[field]
                position = matrix - quotient * table[field]
                x_start += position * table[field + 1]
                output_start += position * table[field + 2]
                matrix = quotient
            if kind == CONTIGUOUS and x_is_contiguous and blends:
                for y in range(y_begin, y_end):
                    x_row = x_start + y * table[X_ROW]
                    _blend(x, x_row, output, output_start + y * table[OUTPUT_ROW], y, table)
                continue
            for tile in range(0, width, table[TILE]):
                tile_end = min(width, tile + table[TILE])
                for y in range(y_begin, y_end):
                    x_row = x_start + y * table[X_ROW]
                    output_row = output_start + y * table[OUTPUT_ROW]
                    column = tile
                    end = max(y * step + table[BEGIN], 0)
                    next_end = max(y * step + table[END], 0)
                    is_value = inverted
                    while column < tile_end:
                        segment_end = min(end, tile_end)
                        if segment_end > column:
                            n = segment_end - column
                            start = output_row + column * output_column
                            x_segment = x_row + column * x_column
                            value = table[VALUE] if is_value else 0
                            from_x = copies and not is_value
                            if kind == STREAMED:
                                if start != cursor:
                                    flush(output, cursor, line, filled)
                                    filled = 0
                                if not from_x:
                                    filled = stream_fill(output, start, n, value, line, filled)
                                elif x_is_contiguous:
                                    filled = stream_copy(output, start, n, x, x_segment, line, filled)
                                else:
                                    filled = stream_strided(
                                        output, start, n, x, x_segment, x_column, line, filled
                                    )
                                cursor = start + n
                            elif kind == CONTIGUOUS and not from_x:
                                _fill(output, start, n, value)
                            elif kind == CONTIGUOUS and x_is_contiguous:
                                _copy(x, x_segment, output, start, n)
                            elif from_x:
                                for i in range(n):
                                    output[start + i * output_column] = x[x_segment + i * x_column]
                            else:
                                for i in range(n):
                                    output[start + i * output_column] = value
                            column = segment_end
                        # From before the band onto it, and from there to the end of the row.
                        end = next_end
                        next_end = width
                        is_value = not is_value
        if kind == STREAMED:
            flush(output, cursor, line, filled)

    return write_rows
