"""NONZERO_COORDINATES: the coordinates of all elements that are not zero, in element order.

The first pass turns the input into one bit an element, 64 to a word, whatever its layout, and counts. The
second pass knows from the counts where its rows go, skips empty words, and reads nothing but bits: it lists
the set bits of a chunk as 16-bit positions, and writes the chunk's rows from that list. Parts of both passes
run side by side. Moves the input once, 1/4 byte an element, and the output once.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.streaming import flush, stream
from kernels_cpu.threads import run

ZERO: Any = np.uint64(0)
ONE: Any = np.uint64(1)
TWO: Any = np.uint64(2)
THREE: Any = np.uint64(3)
FOUR: Any = np.uint64(4)
SIX: Any = np.uint64(6)
LOW: Any = np.uint64(63)
LANES: Any = np.uint64(64)
WORD = (1 << 64) - 1
CHUNK: Any = np.uint64(2048)  # elements whose positions are listed at a time: 4 KiB of stack
LIST = 2048 + 8  # the last store of 8 positions may reach beyond the list
SPARSE_BITS: Any = np.uint64(
    6
)  # up to so many set bits in a word, finding them ONE by ONE is faster than eight at a time
STREAM_BYTES = 16 << 20  # smaller outputs are better off in the cache
PART_BYTES = 1 << 20  # of input and full output, some 100 us of work
UNIFORM_COLUMNS: Any = np.uint64(64)  # logical rows at least so long are written ONE by ONE

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, VECTORS, MAGNITUDE, N_DIMS, N_SIZES = np.arange(7, dtype=np.uint64)
X_OFFSET, COORDINATE_OFFSET, CAPACITY, ROW_STRIDE = np.arange(7, 11, dtype=np.uint64)
COLUMN_STRIDE, FILLS, FILL, STREAM_ROWS, TABLES = np.arange(11, 16, dtype=np.uint64)
# Then (size, x_stride) for each dimension of the input, then the logical sizes.


@inlined
def _word(x: Any, index: Any, magnitude: Any, vectors: Any) -> Any:
    """Return the bits of 64 contiguous elements."""
    if vectors:
        return moves.lane_mask(x, index, magnitude)
    bits = ZERO
    for lane in range(LANES):
        is_set: Any = (np.uint64(x[index + lane]) & magnitude) != ZERO
        bits |= np.uint64(is_set) << np.uint64(lane)
    return bits


@inlined
def _short_word(x: Any, index: Any, stride: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of up to 64 elements."""
    bits = ZERO
    for lane in range(n):
        is_set: Any = (np.uint64(x[index + lane * stride]) & magnitude) != ZERO
        bits |= np.uint64(is_set) << np.uint64(lane)
    return bits


@kernel
def _mark(x: Any, workspace: Any, table: Any, part: Any) -> Any:
    """Write the words of one part to the workspace, and their count behind all words."""
    x = moves.pointer(x)
    words = moves.word_pointer(workspace)
    table = moves.pointer(table)
    magnitude = table[MAGNITUDE]
    vectors = table[VECTORS] != ZERO
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
                bits = _word(x, index, magnitude, vectors)
                words[word] = bits
                count += moves.popcount(bits)
                word += ONE
                index += LANES
                i += LANES
        while i < n:
            n_bits = min(LANES, n - i)
            after = index + n_bits
            if stride == ONE and n_bits >= np.uint64(16) and after >= LANES:
                # All 64 elements that end here are in the array, and only the last of them are new.
                bits = _word(x, after - LANES, magnitude, vectors) >> (LANES - n_bits)
            else:
                bits = _short_word(x, index, stride, n_bits, magnitude)
            index += n_bits * stride
            i += n_bits
            count += moves.popcount(bits)
            pending |= bits << n_pending
            n_pending += n_bits
            if n_pending >= LANES:
                words[word] = pending
                word += ONE
                n_pending -= LANES
                # n_bits - n_pending of the new bits went into the word
                pending = bits >> (n_bits - n_pending) if n_pending else ZERO
    if n_pending:
        words[word] = pending
    words[table[N_PARTS] * table[PART_WORDS] + np.uint64(part)] = count
    return count


@inlined
def _list_bits(words: Any, first: Any, last: Any, positions: Any, vectors: Any) -> Any:
    """List which bits from `first` to `last` are set, counted from the word of `first`; return how many."""
    low = LOW
    word = first >> SIX
    last_word = (last - ONE) >> SIX
    bits = words[word] >> (first & low) << (first & low)
    base = ZERO
    n = ZERO
    while True:
        if word == last_word:
            unused = (ZERO - last) & low
            bits = bits << unused >> unused
        if vectors and moves.popcount(bits) > SPARSE_BITS:
            for shift in range(ZERO, LANES, np.uint64(8)):
                byte = (bits >> shift) & np.uint64(255)
                moves.store_positions(positions, n, moves.BIT_POSITIONS[byte], base + shift)
                n += moves.popcount(byte)
        else:
            while bits:
                positions[n] = base + moves.trailing_zeros(bits)
                bits &= bits - ONE
                n += ONE
        if word == last_word:
            return n
        word += ONE
        base += LANES
        bits = words[word]


@kernel
def _write_uniform(
    coordinates: Any, target: Any, n: Any, positions: Any, skip: Any, first: Any, chunk: Any, table: Any
) -> Any:
    """Write `n` packed rows of one to four columns that differ in the last column only.

    They are what ``positions[skip:]``, counted from flat position `chunk`, names in the logical row of
    `first`.
    """
    n_sizes = table[N_SIZES]
    sizes = TABLES + TWO * table[N_DIMS]
    last_size = table[sizes + n_sizes - ONE]
    rest = first // last_size
    start = chunk - rest * last_size
    a = b = c = ZERO
    if n_sizes == 4:
        size = table[sizes + TWO]
        c = rest % size
        rest //= size
    if n_sizes >= 3:
        size = table[sizes + ONE]
        b = rest % size
        rest //= size
    a = rest
    if n_sizes == 1:
        for i in range(n):
            coordinates[target + i] = start + positions[skip + i]
    elif n_sizes == 2:
        for i in range(n):
            coordinates[target + TWO * i] = a
            coordinates[target + TWO * i + ONE] = start + positions[skip + i]
    elif n_sizes == 3:
        for i in range(n):
            coordinates[target + THREE * i] = a
            coordinates[target + THREE * i + ONE] = b
            coordinates[target + THREE * i + TWO] = start + positions[skip + i]
    else:
        for i in range(n):
            coordinates[target + FOUR * i] = a
            coordinates[target + FOUR * i + ONE] = b
            coordinates[target + FOUR * i + TWO] = c
            coordinates[target + FOUR * i + THREE] = start + positions[skip + i]


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
    start = table[COORDINATE_OFFSET]
    if row_stride == n_columns and column_stride == ONE:
        for cell in range(start + first * n_columns, start + last * n_columns):
            coordinates[cell] = value
    else:
        for row in range(first, last):
            for column in range(n_columns):
                coordinates[start + row * row_stride + column * column_stride] = value


@kernel
def _expand(coordinates: Any, workspace: Any, table: Any, part: Any) -> Any:
    """Write the rows of one part, and its share of the rows that are filled."""
    coordinates = moves.pointer(coordinates)
    words = moves.word_pointer(workspace)
    table = moves.pointer(table)
    n_parts = table[N_PARTS]
    n_sizes = table[N_SIZES]
    capacity = table[CAPACITY]
    vectors = table[VECTORS] != ZERO
    counts = n_parts * table[PART_WORDS]
    row = ZERO
    total = ZERO
    for other in range(n_parts):
        if other < np.uint64(part):
            row += words[counts + other]
        total += words[counts + other]
    if table[FILLS] and total < capacity:
        missing = capacity - total
        share = missing // n_parts + ONE
        first = min(share * np.uint64(part), missing)
        _fill_rows(coordinates, total + first, total + min(first + share, missing), table)
    positions = moves.stack_uint16(LIST)
    stage = moves.stack_lines(coordinates, 128)
    line = moves.stack_lines(coordinates, 1)
    filled = ZERO
    cursor = ZERO
    packed = table[ROW_STRIDE] == n_sizes and table[COLUMN_STRIDE] == ONE
    row_size = ZERO
    if n_sizes:
        row_size = table[TABLES + TWO * table[N_DIMS] + n_sizes - ONE]
    by_rows = packed and n_sizes <= FOUR and row_size >= UNIFORM_COLUMNS
    stage_rows = np.uint64(128) * moves.line_elements(coordinates) // max(n_sizes, ONE)
    n_rows = min(total, capacity)
    streams = by_rows and vectors and n_rows >= table[STREAM_ROWS] and n_rows >= table[N_ELEMENTS] >> THREE
    position = np.uint64(part) * table[PART_WORDS] * LANES
    end = min(position + table[PART_WORDS] * LANES, table[N_ELEMENTS])
    while position < end and row < capacity:
        word = position >> SIX
        while words[word] == ZERO and (word + ONE) << SIX < end:
            word += ONE
            position = word << SIX
        chunk = position & ~LOW
        stop = min(chunk + CHUNK, end)
        if by_rows:
            stop = min(stop, (position // row_size + ONE) * row_size)
        n = min(_list_bits(words, position, stop, positions, vectors), capacity - row)
        if n:
            target = table[COORDINATE_OFFSET] + row * table[ROW_STRIDE]
            if streams:
                for skip in range(ZERO, n, stage_rows):
                    n_staged = min(n - skip, stage_rows)
                    _write_uniform(stage, ZERO, n_staged, positions, skip, position, chunk, table)
                    size = n_staged * n_sizes
                    filled = stream(coordinates, target, size, stage, ZERO, ONE, True, ZERO, line, filled)
                    target += size
                    cursor = target
            elif by_rows:
                _write_uniform(coordinates, target, n, positions, ZERO, position, chunk, table)
            else:
                _write_columns(coordinates, target, n, positions, chunk, table)
        row += n
        position = stop
    flush(coordinates, cursor, line, filled)


@kernel
def _total(workspace: Any, table: Any) -> Any:
    """Return the sum of all parts' counts."""
    words = moves.word_pointer(workspace)
    counts = table[N_PARTS] * table[PART_WORDS]
    total = ZERO
    for part in range(table[N_PARTS]):
        total += words[counts + part]
    return total


@dataclass(frozen=True, slots=True)
class Plan:
    """A nonzero-coordinates problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    table: Any
    parts: range
    threads: int

    def launch(self, x: Any, coordinates: Any, count: Any, workspace: Any) -> None:
        """Write the first rows up to the capacity, and the full count."""
        if len(self.parts) == 1:
            table = self.table
            count[0] = _mark(x, workspace, table, 0)
            _expand(coordinates, workspace, table, 0)
        else:
            self.count(x, count, workspace)
            self._expand(coordinates, workspace, self.table)

    def count(self, x: Any, count: Any, workspace: Any) -> None:
        """Write the full count, and leave in the workspace what `expand` needs."""
        table = self.table
        run(_mark, [(x, workspace, table, part) for part in self.parts], self.threads)
        count[0] = _total(workspace, table)

    def expand(
        self, x: Any, coordinates: Any, capacity: int, row_stride: int, column_stride: int, workspace: Any
    ) -> None:
        """Write the first `capacity` rows, after `count` with the same workspace."""
        table = self.table.copy()
        table[CAPACITY] = capacity
        table[ROW_STRIDE] = row_stride & WORD
        table[COLUMN_STRIDE] = column_stride & WORD
        self._expand(coordinates, workspace, table)

    def _expand(self, coordinates: Any, workspace: Any, table: Any) -> None:
        run(_expand, [(coordinates, workspace, table, part) for part in self.parts], self.threads)


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
    x_offset, coordinate_offset : int
        Where each array's first element lies.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Its workspace holds one bit an element and one word a part.
    """
    n_elements = math.prod(sizes)
    n_words = -(-n_elements // 64)
    n_bytes = n_elements * (element_size + len(sizes) * coordinate_size)
    n_parts = 1
    if threads > 1:
        # More parts than threads, as parts with more non-zero elements take longer.
        n_parts = max(min(4 * threads, n_bytes // PART_BYTES, n_words), 1)
    part_words = -(-n_words // n_parts)
    layout = dims or ((1, 1),)
    fields = [n_elements, n_parts, part_words, simd.WIDTH > 0, magnitude, len(layout), len(sizes)]
    fields += [x_offset, coordinate_offset, capacity, *coordinate_strides, fill is not None, fill or 0]
    fields.append(STREAM_BYTES // max(len(sizes) * coordinate_size, 1))
    for entry in layout:
        fields += entry
    fields += sizes
    contiguous = len(layout) == 1 and layout[0][1] == 1
    return Plan(
        variant=f"bit mask, {'contiguous' if contiguous else 'strided'}, {n_parts} parts",
        workspace_size=8 * (part_words * n_parts + n_parts),
        table=np.array([int(field) & WORD for field in fields], np.uint64),
        parts=range(n_parts),
        threads=threads,
    )
