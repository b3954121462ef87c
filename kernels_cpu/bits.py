"""Elements that are not zero as bits, 64 to a word, and the positions of bits that are set.

All arrays are pointers.
"""

from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.unsigned import EIGHT, FOUR, ONE, SIX, TWO, ZERO

LOW: Any = np.uint64(63)
LANES: Any = np.uint64(64)
VECTORS = simd.WIDTH > 0
LISTED: Any = np.uint64(2048)  # positions after which a list is full
ALL_POSITIONS = moves.BIT_POSITIONS[255]  # of a byte whose bits are all set
LIST = 2048 + 64 + 8  # a word's positions may follow, and the last store of 8 may reach beyond them


@inlined
def short_word(x: Any, index: Any, stride: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of up to 64 elements."""
    bits = ZERO
    for lane in range(n):
        is_set: Any = (np.uint64(x[index + lane * stride]) & magnitude) != ZERO
        bits |= np.uint64(is_set) << np.uint64(lane)
    return bits


@inlined
def whole_word(x: Any, index: Any, magnitude: Any) -> Any:
    """Return the bits of 64 contiguous elements."""
    if VECTORS:
        return moves.lane_mask(x, index, magnitude)
    return short_word(x, index, ONE, LANES, magnitude)


@kernel
def mark_words(x: Any, index: Any, n: Any, words: Any, magnitude: Any) -> Any:
    """Write the `n` words of the contiguous elements from `index` on; return how many bits are set."""
    quarter = n // FOUR
    count = ZERO
    # Memory is read faster from several places at a time.
    for i in range(quarter):
        for place in range(FOUR):
            word = place * quarter + i
            bits = whole_word(x, index + word * LANES, magnitude)
            words[word] = bits
            count += moves.popcount(bits)
    for word in range(quarter * FOUR, n):
        bits = whole_word(x, index + word * LANES, magnitude)
        words[word] = bits
        count += moves.popcount(bits)
    return count


@inlined
def _list_word(bits: Any, base: Any, positions: Any, n: Any) -> Any:
    """Append the positions of set bits, counted from `base`, to the `n` that there are; return the sum."""
    count = moves.popcount(bits)
    if VECTORS and count == LANES:
        for shift in range(ZERO, LANES, EIGHT):
            moves.store_positions(positions, n + shift, ALL_POSITIONS, base + shift)
        return n + LANES
    if VECTORS and count > TWO:
        for shift in range(ZERO, LANES, EIGHT):
            byte = (bits >> shift) & np.uint64(255)
            moves.store_positions(positions, n, moves.BIT_POSITIONS[byte], base + shift)
            n += moves.popcount(byte)
        return n
    # Most words of a sparse input have up to two: then no branch depends on how many.
    positions[n] = base + moves.trailing_zeros(bits)
    bits &= bits - ONE
    positions[n + ONE] = base + moves.trailing_zeros(bits)
    if not VECTORS:
        for i in range(TWO, count):
            bits &= bits - ONE
            positions[n + i] = base + moves.trailing_zeros(bits)
    return n + count


@inlined
def _between(bits: Any, position: Any, first: Any, last: Any) -> Any:
    """Return the bits of the word at `position` that are from `first` to `last`."""
    if position < first:
        bits = bits >> (first - position) << (first - position)
    if last - position < LANES:
        unused = LANES - (last - position)
        bits = bits << unused >> unused
    return bits


@kernel
def list_words(words: Any, first: Any, last: Any, positions: Any) -> Any:
    """List which bits from `first` to `last` are set, counted from the word of `first`.

    Return how many are listed, and where the list became full.
    """
    start = first & ~LOW
    position = start
    n = ZERO
    not_empty = start
    while position < last and n < LISTED:
        word = position >> SIX
        if position >= not_empty:
            not_empty = position + EIGHT * LANES
            if not_empty <= last:
                any_set = ZERO
                for i in range(EIGHT):
                    any_set |= words[word + i]
                if any_set == ZERO:
                    position = not_empty
                    continue
        n = _list_word(_between(words[word], position, first, last), position - start, positions, n)
        position += LANES
    return n, min(position, last)
