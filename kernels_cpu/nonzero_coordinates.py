"""NONZERO_COORDINATES: the coordinates of all elements that are not zero, in element order.

The first pass turns the input into one bit an element, 64 to a word, whatever its layout, and counts. The second
pass knows from the counts where its rows go, skips empty words, and reads nothing but bits: it lists the set bits of
a chunk as 16-bit positions, and writes the chunk's rows from that list. Parts of both passes run side by side.
Moves the input once, 1/4 byte an element, and the output once.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.threads import run

WORD = (1 << 64) - 1
CHUNK = 2048  # elements whose positions are listed at a time: 4 KiB of stack
LIST = CHUNK + 8  # the last store of 8 positions may reach beyond the list
SPARSE_BITS = 6  # up to so many set bits in a word, finding them one by one is faster than eight at a time
PART_BYTES = 1 << 20  # of input and full output, some 100 us of work
UNIFORM_COLUMNS = 64  # logical rows at least so long are written one by one

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, VECTORS, MAGNITUDE, N_DIMS, N_SIZES = range(7)
X_OFFSET, COORDINATE_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE, FILLS, FILL, TABLES = range(7, 15)
# Then (size, x_stride) for each dimension of the input, then the logical sizes, then their reciprocals.


@inlined
def _word(x, index, magnitude, vectors):  # type: ignore[no-untyped-def]
    """Return the bits of 64 contiguous elements."""
    if vectors:
        return moves.lane_mask(x, index, magnitude)
    bits = np.uint64(0)
    for lane in range(np.uint64(64)):
        bits |= np.uint64((np.uint64(x[index + lane]) & magnitude) != np.uint64(0)) << lane
    return bits


@inlined
def _short_word(x, index, stride, n, magnitude):  # type: ignore[no-untyped-def]
    """Return the bits of up to 64 elements."""
    bits = np.uint64(0)
    for lane in range(n):
        bits |= np.uint64((np.uint64(x[index + lane * stride]) & magnitude) != np.uint64(0)) << lane
    return bits


@kernel
def _mark(x, workspace, table, part):  # type: ignore[no-untyped-def]
    """Write the words of one part to the workspace, and their count behind all words."""
    x = moves.pointer(x)
    words = moves.word_pointer(workspace)
    table = moves.pointer(table)
    zero = np.uint64(0)
    one = np.uint64(1)
    lanes = np.uint64(64)
    magnitude = table[MAGNITUDE]
    vectors = table[VECTORS] != zero
    word = np.uint64(part) * table[PART_WORDS]
    position = word * lanes
    end = min(position + table[PART_WORDS] * lanes, table[N_ELEMENTS])
    inner = np.uint64(TABLES) + np.uint64(2) * (table[N_DIMS] - one)
    n_inner = table[inner]
    stride = table[inner + one]
    count = zero
    pending = zero
    n_pending = zero
    while position < end:
        outer = position // n_inner
        i = position - outer * n_inner
        n = min(n_inner, i + (end - position))
        position += n - i
        index = table[X_OFFSET] + i * stride
        entry = inner
        while entry > np.uint64(TABLES):
            entry -= np.uint64(2)
            quotient = outer // table[entry]
            index += (outer - quotient * table[entry]) * table[entry + one]
            outer = quotient
        if n_pending == zero and stride == one:
            while i + lanes <= n:
                bits = _word(x, index, magnitude, vectors)
                words[word] = bits
                count += moves.popcount(bits)
                word += one
                index += lanes
                i += lanes
        while i < n:
            n_bits = min(lanes, n - i)
            if n_bits == lanes and stride == one:
                bits = _word(x, index, magnitude, vectors)
            else:
                bits = _short_word(x, index, stride, n_bits, magnitude)
            index += n_bits * stride
            i += n_bits
            count += moves.popcount(bits)
            pending |= bits << n_pending
            n_pending += n_bits
            if n_pending >= lanes:
                words[word] = pending
                word += one
                n_pending -= lanes
                # n_bits - n_pending of the new bits went into the word
                pending = bits >> (n_bits - n_pending) if n_pending else zero
    if n_pending:
        words[word] = pending
    words[table[N_PARTS] * table[PART_WORDS] + np.uint64(part)] = count


@inlined
def _list_bits(words, first, last, positions, vectors):  # type: ignore[no-untyped-def]
    """List which bits from `first` to `last` are set, relative to the word of `first`; return their number."""
    low = np.uint64(63)
    word = first >> np.uint64(6)
    last_word = (last - np.uint64(1)) >> np.uint64(6)
    bits = words[word] >> (first & low) << (first & low)
    base = np.uint64(0)
    n = np.uint64(0)
    while True:
        if word == last_word:
            unused = (np.uint64(0) - last) & low
            bits = bits << unused >> unused
        if vectors and moves.popcount(bits) > np.uint64(SPARSE_BITS):
            for shift in range(np.uint64(0), np.uint64(64), np.uint64(8)):
                byte = (bits >> shift) & np.uint64(255)
                moves.store_positions(positions, n, BIT_POSITIONS[byte], base + shift)
                n += moves.popcount(byte)
        else:
            while bits:
                positions[n] = base + moves.trailing_zeros(bits)
                bits &= bits - np.uint64(1)
                n += np.uint64(1)
        if word == last_word:
            return n
        word += np.uint64(1)
        base += np.uint64(64)
        bits = words[word]


@kernel
def _write_uniform(coordinates, target, n, positions, base, start, n_sizes, prefix):  # type: ignore[no-untyped-def]
    """Write packed rows that differ in the last of up to four columns only: it is ``base`` plus the position."""
