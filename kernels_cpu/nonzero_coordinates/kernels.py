"""The kernels of NONZERO_COORDINATES, which list the coordinates of all non-zero elements in element order.

Elements become one bit each, 64 to a word; the set bits of a chunk are listed as 16-bit positions, and the
chunk's rows are written from that list. Where one thread works on a contiguous input that is one pass, and
words never leave the registers. Else a first pass leaves the words in the workspace, whatever the input's
layout, and counts; a second pass knows from the counts where its rows go, and reads nothing but words. Parts
of both passes run side by side. Moves the input once, 1/4 byte an element in two passes, and the output once.
"""

import functools
from typing import Any

import numpy as np

from kernels_cpu import intrinsics
from kernels_cpu.jit import helper, inline, kernel
from kernels_cpu.nonzero_coordinates import bits
from kernels_cpu.nonzero_coordinates.bits import LANES, LIST, LOW
from kernels_cpu.nonzero_coordinates.table import (
    CAPACITY,
    COLUMN_STRIDE,
    COUNTS,
    FILL,
    FILLS,
    MAGNITUDE,
    N_DIMS,
    N_ELEMENTS,
    N_PARTS,
    N_SIZES,
    PART_WORDS,
    ROW_STRIDE,
    STREAM_ROWS,
    TABLES,
    X_OFFSET,
)
from kernels_cpu.streaming import flush, stream_copy
from kernels_cpu.unsigned import ONE, SIX, THREE, TWO, ZERO

ROW_CHUNK: Any = np.uint64(1 << 16)  # elements of one logical row whose positions fit 16 bits
CHUNK: Any = np.uint64(2048)  # elements of a chunk that spans several logical rows
TILE_BYTES: Any = np.uint64(1 << 17)  # of the input, read in four places: a page or more each
TILE_WORDS = (1 << 17) // 64  # of single bytes
PROBES: Any = np.uint64(64)  # words that tell about how many rows there will be


@kernel
def mark(table: Any, part: Any, x: Any, workspace: Any) -> None:
    """Write the words of one part to the workspace, and their count behind all words."""
    table = intrinsics.pointer(table)
    x = intrinsics.at(intrinsics.pointer(x), ZERO - table[X_OFFSET])
    words = intrinsics.word_pointer(workspace)
    magnitude = table[MAGNITUDE]
    word = np.uint64(part) * table[PART_WORDS]
    position = word * LANES
    end = min(position + table[PART_WORDS] * LANES, table[N_ELEMENTS])
    inner = TABLES + TWO * (table[N_DIMS] - ONE)
    n_inner = table[inner]
    stride = table[inner + ONE]
    count = ZERO
    pending = ZERO
    n_pending = ZERO
    while position < end:
        outer = position // n_inner
        i = position - outer * n_inner
        n = min(n_inner, i + (end - position))
        position += n - i
        index = table[X_OFFSET] + i * stride
        entry = inner
        while entry > TABLES:
            entry -= TWO
            quotient = outer // table[entry]
            index += (outer - quotient * table[entry]) * table[entry + ONE]
            outer = quotient
        if n_pending == ZERO and stride == ONE:
            while i + LANES <= n:
                n_words = min((n - i) >> SIX, TILE_BYTES // LANES // intrinsics.element_bytes(x))
                count += bits.mark_words(x, index, n_words, intrinsics.at(words, word), magnitude)
                word += n_words
                index += n_words * LANES
                i += n_words * LANES
        while i < n:
            n_bits = min(LANES, n - i)
            if stride == ONE and i + n_bits >= LANES:
                # All 64 elements that end here are in this row, and only the last of them are new.
                added = bits.whole_word(x, index + n_bits - LANES, magnitude) >> (LANES - n_bits)
            elif stride == ONE and n_bits >= bits.SIXTEEN:
                added = bits.row_end_word(x, index, n_bits, magnitude)
            else:
                added = bits.short_word(x, index, stride, n_bits, magnitude)
            index += n_bits * stride
            i += n_bits
            count += intrinsics.popcount(added)
            pending |= added << n_pending
            n_pending += n_bits
            if n_pending >= LANES:
                words[word] = pending
                word += ONE
                n_pending -= LANES
                # n_bits - n_pending of the new bits went into the word
                pending = added >> (n_bits - n_pending) if n_pending else ZERO
    if n_pending:
        words[word] = pending
    words[table[COUNTS] + np.uint64(part)] = count


@helper
def _write_columns(coordinates: Any, target: Any, n: Any, positions: Any, chunk: Any, table: Any) -> Any:
    """Write `n` rows column by column, from the last to the first; overwrites `positions`.

    `positions` count from flat position `chunk`. After each column they count its carries into the next one.
    """
    row_stride = table[ROW_STRIDE]
    sizes = TABLES + TWO * table[N_DIMS]
    column = table[N_SIZES]
    carries = True
    while column:
        column -= ONE
        size = table[sizes + column]
        start = chunk % size
        chunk //= size
        cell = target + column * table[COLUMN_STRIDE]
        if not carries:
            for i in range(n):
                coordinates[cell + i * row_stride] = start
        elif start + positions[n - ONE] < size:
            for i in range(n):
                coordinates[cell + i * row_stride] = start + positions[i]
            carries = False
        elif size > CHUNK:
            for i in range(n):
                value = start + positions[i]
                carry = value >= size
                coordinates[cell + i * row_stride] = value - size if carry else value
                positions[i] = np.uint16(carry)
        else:
            # Exact, as value is below 2 * CHUNK and the reciprocal is rounded up from 32 fractional bits.
            reciprocal = np.uint64(1 << 32) // size + ONE
            for i in range(n):
                value = start + positions[i]
                quotient = (value * reciprocal) >> np.uint64(32)
                coordinates[cell + i * row_stride] = value - quotient * size
                positions[i] = quotient


@helper
def _fill_rows(coordinates: Any, first: Any, last: Any, table: Any) -> Any:
    """Write the fill value to rows `first` to `last`."""
    value = table[FILL]
    n_columns = table[N_SIZES]
    row_stride = table[ROW_STRIDE]
    column_stride = table[COLUMN_STRIDE]
    if row_stride == n_columns and column_stride == ONE:
        for cell in range(first * n_columns, last * n_columns):
            coordinates[cell] = value
    else:
        for row in range(first, last):
            for column in range(n_columns):
                coordinates[row * row_stride + column * column_stride] = value


@helper
def _probe(x: Any, table: Any) -> Any:
    """Return about how many elements of a large input are not zero."""
    step = table[N_ELEMENTS] // PROBES
    count = ZERO
    for i in range(PROBES):
        count += intrinsics.popcount(bits.whole_word(x, i * step, table[MAGNITUDE]))
    return count * step // LANES


@inline
def _last_word(x: Any, elements: Any, table: Any) -> Any:
    """Return the bits of the elements behind all whole words; `elements` is room for a word of them."""
    n = table[N_ELEMENTS] & LOW
    for i in range(LANES):
        elements[i] = 0
    intrinsics.copy(x, table[N_ELEMENTS] - n, elements, ZERO, n)
    return bits.whole_word(elements, ZERO, table[MAGNITUDE])


@functools.cache
def expand_kernel(from_elements: bool, columns: int) -> Any:
    """Return the kernel that lists what to write from the input's elements, or from the workspace.

    It writes `columns` columns, one to four, of packed rows, one logical row after the other; 0 is for all
    other outputs.
    """

    @kernel
    def expand(table: Any, part: Any, x: Any, coordinates: Any, count: Any, workspace: Any) -> Any:
        """Write the rows of one part, and its share of the rows that are filled; return the full count.

        The count is written where one part does all the work.
        """
        coordinates = intrinsics.pointer(coordinates)
        table = intrinsics.pointer(table)
        n_parts = table[N_PARTS]
        sizes = TABLES + TWO * table[N_DIMS]
        capacity = table[CAPACITY]
        row = ZERO
        n_rows = capacity
        origin = ZERO
        if from_elements:
            last_word = _last_word(intrinsics.pointer(x), intrinsics.stack_like(x, 64), table)
            x = intrinsics.pointer(x)
            words = intrinsics.stack_uint64(TILE_WORDS)
            tile_end = ZERO
            total = ZERO
            if n_rows >= table[STREAM_ROWS]:
                n_rows = min(_probe(x, table), capacity)
        else:
            words = intrinsics.word_pointer(workspace)
            total = ZERO
            counts = table[COUNTS]
            for other in range(n_parts):
                if other < np.uint64(part):
                    row += words[counts + other]
                total += words[counts + other]
            n_rows = min(total, capacity)
        positions = intrinsics.stack_uint16(LIST)
        position = np.uint64(part) * table[PART_WORDS] * LANES
        end = min(position + table[PART_WORDS] * LANES, table[N_ELEMENTS])
        if columns:
            row_size = table[sizes + np.uint64(columns - 1)]
            a = position // row_size
            row_end = (a + ONE) * row_size
            b = c = size_b = size_c = ZERO
            if columns == 4:
                size_c = table[sizes + TWO]
                c = a % size_c
                a //= size_c
            if columns >= 3:
                size_b = table[sizes + ONE]
                b = a % size_b
                a //= size_b
            cells = coordinates
            line = intrinsics.stack_line(coordinates)
            filled = ZERO
            cursor = ZERO
            n_staged = bits.LISTED + LANES
            streams = n_rows >= table[STREAM_ROWS] and n_rows >= table[N_ELEMENTS] >> THREE
            if streams:
                cells = intrinsics.stack_lines(coordinates, 128)
                n_staged = np.uint64(128 // columns) * intrinsics.line_elements(coordinates)
        while position < end and (from_elements or row < capacity):
            if from_elements:
                if position == tile_end:
                    origin = position
                    n_words = min((end - position) >> SIX, TILE_BYTES // LANES // intrinsics.element_bytes(x))
                    tile_end = position + n_words * LANES
                    total += bits.mark_words(x, position, n_words, words, table[MAGNITUDE])
                    if n_words == ZERO:
                        tile_end = end
                        words[0] = last_word
                        total += intrinsics.popcount(last_word)
                if row >= capacity:
                    position = tile_end
                    continue
            chunk = position & ~LOW
            stop = min(chunk + (ROW_CHUNK if columns else CHUNK), tile_end if from_elements else end)
            if columns:
                if position == row_end:
                    row_end += row_size
                    c += ONE
                    if c >= size_c:
                        c = ZERO
                        b += ONE
                        if b >= size_b:
                            b = ZERO
                            a += ONE
                stop = min(stop, row_end)
            n, position = bits.list_words(words, position - origin, stop - origin, positions)
            n = min(n, capacity - row)
            position += origin
            target = row * table[ROW_STRIDE]
            row += n
            if columns:
                start = chunk + row_size - row_end
                for skip in range(ZERO, n, n_staged):
                    size = min(n - skip, n_staged)
                    to = ZERO if streams else target
                    for i in range(size):
                        cell = to + i * np.uint64(columns)
                        if columns >= 2:
                            cells[cell] = a
                        if columns >= 3:
                            cells[cell + ONE] = b
                        if columns == 4:
                            cells[cell + TWO] = c
                        cells[cell + np.uint64(columns - 1)] = start + positions[skip + i]
                    if streams:
                        size *= np.uint64(columns)
                        filled = stream_copy(coordinates, target, size, cells, ZERO, line, filled)
                        target += size
                        cursor = target
            elif n:
                _write_columns(coordinates, target, n, positions, chunk, table)
        if columns:
            flush(coordinates, cursor, line, filled)
        if table[FILLS] and total < capacity:
            missing = capacity - total
            share = missing // n_parts + ONE
            first = min(share * np.uint64(part), missing)
            _fill_rows(coordinates, total + first, total + min(first + share, missing), table)
        if from_elements:
            intrinsics.pointer(count)[0] = total
        return total

    return expand


@kernel
def total_count(table: Any, count: Any, workspace: Any) -> Any:
    """Write and return the sum of all parts' counts."""
    table = intrinsics.pointer(table)
    words = intrinsics.word_pointer(workspace)
    counts = table[COUNTS]
    total = ZERO
    for part in range(table[N_PARTS]):
        total += words[counts + part]
    intrinsics.pointer(count)[0] = total
    return total
