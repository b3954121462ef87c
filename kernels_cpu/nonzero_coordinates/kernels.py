"""The kernels of NONZERO_COORDINATES, which list the coordinates of all non-zero elements in element order.

Each element becomes one bit, 64 to a word. The set bits of a chunk are listed as 16-bit positions, and the
rows of the chunk are written from that list. If one thread works on a contiguous input, this is one pass, and
the words never leave the registers. Otherwise, a first pass over an input of any layout writes the words to
the workspace and counts. A second pass knows from the counts where its rows go, and reads nothing but words.
Parts of both passes run in parallel. Bytes moved: the input once, 1/4 byte per element in two passes, and the
output once.
"""

import functools
from typing import Any

import numpy as np

from kernels_cpu.intrinsics import bitops, memory
from kernels_cpu.intrinsics.pointers import (
    element_size,
    integers_at,
    stack_like,
    stack_positions,
    stack_words,
    tail,
    words_at,
)
from kernels_cpu.jit import inline, int64, njit, uint64
from kernels_cpu.nonzero_coordinates import bits
from kernels_cpu.nonzero_coordinates.bits import LIST, WORD_BITS
from kernels_cpu.nonzero_coordinates.plan import (
    CAPACITY,
    COLUMN_STRIDE,
    COUNTS,
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
from kernels_cpu.nonzero_coordinates.problem_words import ONE_FILL
from kernels_cpu.streaming import flush, stream_copy

ROW_CHUNK = 1 << 16  # elements of one logical row whose positions fit 16 bits
CHUNK = 2048  # elements of a chunk that spans several logical rows
TILE_BYTES = 1 << 17  # of the input, read as four streams of a page or more each
TILE_WORDS = (1 << 17) // 64  # for elements of a single byte
PROBES = 64  # words from which the number of rows is estimated


@njit
def mark(table: Any, part: Any, x: Any, workspace: Any) -> None:
    """Write the words of one part to the workspace, and their count behind all words."""
    x = tail(x, -table[X_OFFSET])
    words = words_at(workspace)
    counts = tail(integers_at(workspace), table[COUNTS])
    magnitude = uint64(table[MAGNITUDE])
    word = part * table[PART_WORDS]
    position = word * WORD_BITS
    end = min(position + table[PART_WORDS] * WORD_BITS, table[N_ELEMENTS])
    inner = TABLES + 2 * (table[N_DIMS] - 1)
    n_inner = table[inner]
    stride = table[inner + 1]
    count = 0
    pending = uint64(0)
    n_pending = 0
    while position < end:
        outer = position // n_inner
        i = position - outer * n_inner
        n = min(n_inner, i + (end - position))
        position += n - i
        index = table[X_OFFSET] + i * stride
        entry = inner
        while entry > TABLES:
            entry -= 2
            quotient = outer // table[entry]
            index += (outer - quotient * table[entry]) * table[entry + 1]
            outer = quotient
        if n_pending == 0 and stride == 1:
            while i + WORD_BITS <= n:
                n_words = min((n - i) >> 6, TILE_BYTES // WORD_BITS // element_size(x))
                count += bits.mark_words(x, index, n_words, tail(words, word), magnitude)
                word += n_words
                index += n_words * WORD_BITS
                i += n_words * WORD_BITS
        while i < n:
            n_bits = min(WORD_BITS, n - i)
            if stride == 1 and i + n_bits >= WORD_BITS:
                # All 64 elements that end here are in this row, and only the last of them are new.
                added = bits.whole_word(x, index + n_bits - WORD_BITS, magnitude) >> uint64(
                    WORD_BITS - n_bits
                )
            elif stride == 1 and n_bits >= 16:
                added = bits.row_end_word(x, index, n_bits, magnitude)
            else:
                added = bits.short_word(x, index, stride, n_bits, magnitude)
            index += n_bits * stride
            i += n_bits
            count += bitops.set_bits(added)
            pending |= added << uint64(n_pending)
            n_pending += n_bits
            if n_pending >= WORD_BITS:
                words[word] = pending
                word += 1
                n_pending -= WORD_BITS
                # n_bits - n_pending of the new bits went into the word
                pending = added >> uint64(n_bits - n_pending) if n_pending else uint64(0)
    if n_pending:
        words[word] = pending
    counts[part] = count


@njit
def _write_columns(coordinates: Any, target: Any, n: Any, positions: Any, chunk: Any, table: Any) -> Any:
    """Write `n` rows column by column, from the last to the first; overwrites `positions`.

    `positions` count from flat position `chunk`. After each column they count its carries into the next one.
    """
    row_stride = table[ROW_STRIDE]
    sizes = TABLES + 2 * table[N_DIMS]
    column = table[N_SIZES]
    carries = True
    while column:
        column -= 1
        size = table[sizes + column]
        start = chunk % size
        chunk //= size
        cell = target + column * table[COLUMN_STRIDE]
        if not carries:
            for i in range(n):
                coordinates[cell + i * row_stride] = start
        elif start + positions[n - 1] < size:
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
            reciprocal = (1 << 32) // size + 1
            for i in range(n):
                value = start + positions[i]
                quotient = (value * reciprocal) >> 32
                coordinates[cell + i * row_stride] = value - quotient * size
                positions[i] = quotient


@njit
def _fill_rows(coordinates: Any, first: Any, last: Any, table: Any) -> Any:
    """Write the fill values to rows `first` to `last`."""
    n_columns = table[N_SIZES]
    fills = TABLES + 2 * table[N_DIMS] + n_columns
    row_stride = table[ROW_STRIDE]
    column_stride = table[COLUMN_STRIDE]
    if table[FILLS] == ONE_FILL and row_stride == n_columns and column_stride == 1:
        value = table[fills]
        for cell in range(first * n_columns, last * n_columns):
            coordinates[cell] = value
    else:
        for row in range(first, last):
            for column in range(n_columns):
                coordinates[row * row_stride + column * column_stride] = table[fills + column]


@njit
def _probe(x: Any, table: Any) -> Any:
    """Return about how many elements of a large input are not zero."""
    step = table[N_ELEMENTS] // PROBES
    count = 0
    for i in range(PROBES):
        count += bitops.set_bits(bits.whole_word(x, i * step, uint64(table[MAGNITUDE])))
    return count * step // WORD_BITS


@inline
def _last_word(x: Any, elements: Any, table: Any) -> Any:
    """Return the bits of the elements behind all whole words; `elements` is room for a word of them."""
    n = table[N_ELEMENTS] % WORD_BITS
    for i in range(WORD_BITS):
        elements[i] = 0
    memory.copy(x, table[N_ELEMENTS] - n, elements, 0, n)
    return bits.whole_word(elements, 0, uint64(table[MAGNITUDE]))


@inline
def _count_of(counts: Any, part: Any, table: Any) -> Any:
    """Return how many elements of a part are not zero; another thread may write to the workspace."""
    return int64(min(uint64(counts[part]), uint64(table[PART_WORDS] * WORD_BITS)))


@functools.cache
def expand_kernel(from_elements: bool, columns: int) -> Any:
    """Return the kernel that lists elements as it reads the input, or from words in the workspace.

    It writes `columns` columns, one to four, of packed rows, one logical row after the other; 0 is for all
    other outputs.
    """

    @njit
    def expand(table: Any, part: Any, x: Any, coordinates: Any, count: Any, workspace: Any) -> Any:
        """Write the rows of one part, and its share of the rows that are filled; return the full count.

        The count is written where one part does all the work.
        """
        n_parts = table[N_PARTS]
        magnitude = uint64(table[MAGNITUDE])
        sizes = TABLES + 2 * table[N_DIMS]
        capacity = table[CAPACITY]
        row = 0
        n_rows = capacity
        origin = 0
        if from_elements:
            last_word = _last_word(x, stack_like(x, 64), table)
            words = stack_words(TILE_WORDS)
            tile_end = 0
            total = 0
            if n_rows >= table[STREAM_ROWS]:
                n_rows = min(_probe(x, table), capacity)
        else:
            words = words_at(workspace)
            total = 0
            counts = tail(integers_at(workspace), table[COUNTS])
            for other in range(n_parts):
                size = _count_of(counts, other, table)
                if other < part:
                    row += size
                total += size
            n_rows = min(total, capacity)
        positions = stack_positions(LIST)
        position = part * table[PART_WORDS] * WORD_BITS
        end = min(position + table[PART_WORDS] * WORD_BITS, table[N_ELEMENTS])
        if columns:
            row_size = table[sizes + columns - 1]
            a = position // row_size
            row_end = (a + 1) * row_size
            b = c = size_b = size_c = 0
            if columns == 4:
                size_c = table[sizes + 2]
                c = a % size_c
                a //= size_c
            if columns >= 3:
                size_b = table[sizes + 1]
                b = a % size_b
                a //= size_b
            cells = coordinates
            line = memory.stack_line(coordinates)
            filled = int64(0)
            cursor = 0
            n_staged = bits.LISTED + WORD_BITS
            streams = n_rows >= table[STREAM_ROWS] and n_rows >= table[N_ELEMENTS] >> 3
            if streams:
                cells = memory.stack_lines(coordinates, 128)
                n_staged = 128 // columns * memory.line_elements(coordinates)
        while position < end and (from_elements or row < capacity):
            if from_elements:
                if position == tile_end:
                    origin = position
                    n_words = min((end - position) >> 6, TILE_BYTES // WORD_BITS // element_size(x))
                    tile_end = position + n_words * WORD_BITS
                    total += bits.mark_words(x, position, n_words, words, magnitude)
                    if n_words == 0:
                        tile_end = end
                        words[0] = last_word
                        total += bitops.set_bits(last_word)
                if row >= capacity:
                    position = tile_end
                    continue
            chunk = position & -WORD_BITS
            stop = min(chunk + (ROW_CHUNK if columns else CHUNK), tile_end if from_elements else end)
            if columns:
                if position == row_end:
                    row_end += row_size
                    c += 1
                    if c >= size_c:
                        c = 0
                        b += 1
                        if b >= size_b:
                            b = 0
                            a += 1
                stop = min(stop, row_end)
            n, position = bits.list_words(words, position - origin, stop - origin, positions)
            n = min(n, capacity - row)
            position += origin
            target = row * table[ROW_STRIDE]
            row += n
            if columns:
                start = chunk + row_size - row_end
                for skip in range(0, n, n_staged):
                    size = min(n - skip, n_staged)
                    to = 0 if streams else target
                    for i in range(size):
                        cell = to + i * columns
                        if columns >= 2:
                            cells[cell] = a
                        if columns >= 3:
                            cells[cell + 1] = b
                        if columns == 4:
                            cells[cell + 2] = c
                        cells[cell + columns - 1] = start + positions[skip + i]
                    if streams:
                        size *= columns
                        filled = stream_copy(coordinates, target, size, cells, 0, line, filled)
                        target += size
                        cursor = target
            elif n:
                _write_columns(coordinates, target, n, positions, chunk, table)
        if columns:
            flush(coordinates, cursor, line, filled)
        if table[FILLS] and total < capacity:
            missing = capacity - total
            share = missing // n_parts + 1
            first = min(share * part, missing)
            _fill_rows(coordinates, total + first, total + min(first + share, missing), table)
        if from_elements:
            count[0] = total
        return total

    return expand


@njit
def total_count(table: Any, count: Any, workspace: Any) -> Any:
    """Write and return the sum of all parts' counts."""
    counts = tail(integers_at(workspace), table[COUNTS])
    total = 0
    for part in range(table[N_PARTS]):
        total += _count_of(counts, part, table)
    count[0] = total
    return total
