"""NONZERO_COORDINATES: the coordinates of all elements that are not zero, in element order.

Elements become one bit each, 64 to a word; the set bits of a chunk are listed as 16-bit positions, and the
chunk's rows are written from that list. Where one thread works on a contiguous input that is one pass, and
words never leave the registers. Else a first pass leaves the words in the workspace, whatever the input's
layout, and counts; a second pass knows from the counts where its rows go, and reads nothing but words. Parts
of both passes run side by side. Moves the input once, 1/4 byte an element in two passes, and the output once.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import bits, moves, streaming
from kernels_cpu.addresses import Address
from kernels_cpu.bits import LANES, LIST, LOW
from kernels_cpu.jit import compiled, inlined, kernel
from kernels_cpu.memory import BYTES, INTEGER, UNSIGNED, WORDS
from kernels_cpu.streaming import flush, stream_copy
from kernels_cpu.threads import launcher, run
from kernels_cpu.unsigned import ONE, SIX, THREE, TWO, ZERO

WORD = (1 << 64) - 1
ROW_CHUNK: Any = np.uint64(1 << 16)  # elements of one logical row whose positions fit 16 bits
CHUNK: Any = np.uint64(2048)  # elements of a chunk that spans several logical rows
TILE_BYTES: Any = np.uint64(1 << 17)  # of the input, read in four places: a page or more each
TILE_WORDS = (1 << 17) // 64  # of single bytes
STREAM_BYTES = streaming.STREAM_BYTES
PROBES: Any = np.uint64(64)  # words that tell about how many rows there will be
PART_BYTES = 1 << 20  # of input and full output, some 100 us of work
UNIFORM_COLUMNS = 64  # logical rows at least so long are written one by one
PACKED_COLUMNS = 4  # at most, for that

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, MAGNITUDE, N_DIMS, N_SIZES = np.arange(6, dtype=np.uint64)
X_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE = np.arange(6, 10, dtype=np.uint64)
FILLS, FILL, STREAM_ROWS, TABLES = np.arange(10, 14, dtype=np.uint64)
# Then (size, x_stride) for each dimension of the input, then the logical sizes.


@kernel
def _mark(table: Any, part: Any, x: Any, workspace: Any) -> None:
    """Write the words of one part to the workspace, and their count behind all words."""
    table = moves.pointer(table)
    x = moves.at(moves.pointer(x), ZERO - table[X_OFFSET])
    words = moves.word_pointer(workspace)
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
                n_words = min((n - i) >> SIX, TILE_BYTES // LANES // moves.element_bytes(x))
                count += bits.mark_words(x, index, n_words, moves.at(words, word), magnitude)
                word += n_words
                index += n_words * LANES
                i += n_words * LANES
        while i < n:
            n_bits = min(LANES, n - i)
            after = index + n_bits
            if stride == ONE and n_bits >= np.uint64(16) and after >= LANES:
                # All 64 elements that end here are in the array, and only the last of them are new.
                added = bits.whole_word(x, after - LANES, magnitude) >> (LANES - n_bits)
            else:
                added = bits.short_word(x, index, stride, n_bits, magnitude)
            index += n_bits * stride
            i += n_bits
            count += moves.popcount(added)
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
    words[table[N_PARTS] * table[PART_WORDS] + np.uint64(part)] = count


@kernel
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


@kernel
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


@kernel
def _probe(x: Any, table: Any) -> Any:
    """Return about how many elements of a large input are not zero."""
    step = table[N_ELEMENTS] // PROBES
    count = ZERO
    for i in range(PROBES):
        count += moves.popcount(bits.whole_word(x, i * step, table[MAGNITUDE]))
    return count * step // LANES


@inlined
def _last_word(x: Any, elements: Any, table: Any) -> Any:
    """Return the bits of the elements behind all whole words; `elements` is room for a word of them."""
    n = table[N_ELEMENTS] & LOW
    for i in range(LANES):
        elements[i] = 0
    moves.copy(x, table[N_ELEMENTS] - n, elements, ZERO, n)
    return bits.whole_word(elements, ZERO, table[MAGNITUDE])


@functools.cache
def _expand_kernel(from_elements: bool, columns: int) -> Any:
    """Return the kernel that lists what to write from the input's elements, or from the workspace.

    It writes `columns` columns, one to four, of packed rows, one logical row after the other; 0 is for all
    other outputs.
    """

    @kernel
    def expand(table: Any, part: Any, x: Any, coordinates: Any, count: Any, workspace: Any) -> Any:
        """Write the rows of one part, and its share of the rows that are filled; return the full count.

        The count is written where one part does all the work.
        """
        coordinates = moves.pointer(coordinates)
        table = moves.pointer(table)
        n_parts = table[N_PARTS]
        sizes = TABLES + TWO * table[N_DIMS]
        capacity = table[CAPACITY]
        row = ZERO
        n_rows = capacity
        origin = ZERO
        if from_elements:
            last_word = _last_word(moves.pointer(x), moves.stack_like(x, 64), table)
            x = moves.pointer(x)
            words = moves.stack_uint64(TILE_WORDS)
            tile_end = ZERO
            total = ZERO
            if n_rows >= table[STREAM_ROWS]:
                n_rows = min(_probe(x, table), capacity)
        else:
            words = moves.word_pointer(workspace)
            total = ZERO
            counts = n_parts * table[PART_WORDS]
            for other in range(n_parts):
                if other < np.uint64(part):
                    row += words[counts + other]
                total += words[counts + other]
            n_rows = min(total, capacity)
        positions = moves.stack_uint16(LIST)
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
            line = moves.stack_line(coordinates)
            filled = ZERO
            cursor = ZERO
            n_staged = bits.LISTED + LANES
            streams = n_rows >= table[STREAM_ROWS] and n_rows >= table[N_ELEMENTS] >> THREE
            if streams:
                cells = moves.stack_lines(coordinates, 128)
                n_staged = np.uint64(128 // columns) * moves.line_elements(coordinates)
        while position < end and (from_elements or row < capacity):
            if from_elements:
                if position == tile_end:
                    origin = position
                    n_words = min((end - position) >> SIX, TILE_BYTES // LANES // moves.element_bytes(x))
                    tile_end = position + n_words * LANES
                    total += bits.mark_words(x, position, n_words, words, table[MAGNITUDE])
                    if n_words == ZERO:
                        tile_end = end
                        words[0] = last_word
                        total += moves.popcount(last_word)
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
            moves.pointer(count)[0] = total
        return total

    return expand


@kernel
def _total(table: Any, count: Any, workspace: Any) -> Any:
    """Write and return the sum of all parts' counts."""
    table = moves.pointer(table)
    words = moves.word_pointer(workspace)
    counts = table[N_PARTS] * table[PART_WORDS]
    total = ZERO
    for part in range(table[N_PARTS]):
        total += words[counts + part]
    moves.pointer(count)[0] = total
    return total


@dataclass(frozen=True, slots=True)
class Plan:
    """A nonzero-coordinates problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    launch: Callable[[Address, Address, Address, Address], int]
    """Writes the first rows up to the capacity, and writes and returns the full count.

    Called as ``launch(x, coordinates, count, workspace)``.
    """
    in_one_pass: bool
    """Whether `launch` reads the input once, and needs no workspace."""
    _table: Any
    _parts: range
    _threads: int
    _operands: tuple[Any, Any, Any]

    def count(self, x: Address, count: Address, workspace: Address) -> int:
        """Write and return the full count, and leave in the workspace what `expand` needs."""
        x_type, _, count_type = self._operands
        return _count(self._table, self._parts, self._threads, x_type, count_type)(x, count, workspace)

    def expand(
        self,
        x: Address,
        coordinates: Address,
        capacity: int,
        row_stride: int,
        column_stride: int,
        workspace: Address,
    ) -> None:
        """Write the first `capacity` rows, after `count` with the same workspace."""
        table = self._table.copy()
        table[CAPACITY] = capacity
        table[ROW_STRIDE] = row_stride & WORD
        table[COLUMN_STRIDE] = column_stride & WORD
        sizes = [int(size) for size in table[len(table) - int(table[N_SIZES]) :]]
        kernel = _expand_kernel(False, _packed_columns(sizes, row_stride, column_stride))
        write = compiled(kernel, WORDS, INTEGER, *self._operands, BYTES)
        parts = [(table, part, x, coordinates, 0, workspace) for part in self._parts]
        run(write, parts, self._threads)


def _count(
    table: Any, parts: range, threads: int, x_type: Any, count_type: Any
) -> Callable[[Address, Address, Address], int]:
    """Return the first of two passes: ``count(x, count, workspace)``."""
    mark = compiled(_mark, WORDS, INTEGER, x_type, BYTES)
    total = compiled(_total, WORDS, count_type, BYTES)

    def count(x: Address, count: Address, workspace: Address) -> int:
        run(mark, [(table, part, x, workspace) for part in parts], threads)
        found: int = total(table, count, workspace)
        return found

    return count


def _two_passes(
    count: Callable[[Address, Address, Address], int], write: Callable[..., Any]
) -> Callable[[Address, Address, Address, Address], int]:
    def launch(x: Address, coordinates: Address, counted: Address, workspace: Address) -> int:
        found = count(x, counted, workspace)
        write(x, coordinates, counted, workspace)
        return found

    return launch


def _packed_columns(sizes: Sequence[int], row_stride: int, column_stride: int) -> int:
    """Return how many columns there are, if rows are packed, and long ones differ in the last column only."""
    packed = row_stride == len(sizes) and column_stride == 1
    return len(sizes) if packed and 0 < len(sizes) <= PACKED_COLUMNS and sizes[-1] >= UNIFORM_COLUMNS else 0


def plan(
    *,
    element_size: int,
    magnitude: int,
    sizes: tuple[int, ...],
    dims: tuple[tuple[int, int], ...],
    capacity: int,
    coordinate_strides: tuple[int, int],
    coordinate_size: int,
    count_size: int,
    fill: int | None,
    x_offset: int = 0,
    coordinate_offset: int = 0,
    threads: int,
) -> Plan:
    """Prepare listing the coordinates of all elements with ``bits & magnitude != 0``.

    Parameters
    ----------
    element_size : int
        Bytes of an element.
    magnitude : int
        The bits of an element that make it count.
    sizes : tuple of int
        The logical dimensions, slowest first: one output column each.
    dims : tuple of (size, x_stride)
        The input's layout, in the same element order.
    capacity : int
        Rows that may be written.
    coordinate_strides : (row, column)
        Of the output.
    coordinate_size, count_size : int
        Bytes of a coordinate, and of the count.
    fill : int or None
        Bits for the rows from the count to the capacity; None leaves those alone.
    x_offset : int
        How many elements the input has below its first one in memory: none is read beyond them.
    coordinate_offset : int
        Ignored: `launch` takes the addresses of first elements.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Its workspace holds one bit an element and one word a part.
    """
    del coordinate_offset
    n_elements = math.prod(sizes)
    n_words = -(-n_elements // 64)
    n_bytes = n_elements * (element_size + len(sizes) * coordinate_size)
    n_parts = 1
    if threads > 1:
        # More parts than threads, as parts with more non-zero elements take longer.
        n_parts = max(min(4 * threads, n_bytes // PART_BYTES, n_words), 1)
    part_words = -(-n_words // n_parts)
    layout = dims or ((1, 1),)
    fields = [n_elements, n_parts, part_words, magnitude, len(layout), len(sizes)]
    fields += [x_offset, capacity, *coordinate_strides, fill is not None, fill or 0]
    fields.append(STREAM_BYTES // max(len(sizes) * coordinate_size, 1))
    for entry in layout:
        fields += entry
    fields += sizes
    contiguous = len(layout) == 1 and layout[0][1] == 1
    in_one_pass = contiguous and n_parts == 1
    table = np.array([int(field) & WORD for field in fields], np.uint64)
    operands = UNSIGNED[element_size], UNSIGNED[coordinate_size], UNSIGNED[count_size]
    kernel = _expand_kernel(in_one_pass, _packed_columns(sizes, *coordinate_strides))
    write = compiled(kernel, WORDS, INTEGER, *operands, BYTES)
    parts = range(n_parts)
    launch = launcher(write, [(table, part) for part in parts], threads)
    if not in_one_pass:
        launch = _two_passes(_count(table, parts, threads, operands[0], operands[2]), launch)
    return Plan(
        variant="one pass" if in_one_pass else f"two passes, {n_parts} parts",
        workspace_size=8 * (part_words * n_parts + n_parts),
        launch=launch,
        in_one_pass=in_one_pass,
        _table=table,
        _parts=parts,
        _threads=threads,
        _operands=operands,
    )
