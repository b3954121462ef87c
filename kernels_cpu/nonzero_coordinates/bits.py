"""Elements that are not zero as bits, 64 to a word, and the positions of bits that are set.

All arrays are pointers.
"""

from typing import Any

import numpy as np

from kernels_cpu import intrinsics, processor
from kernels_cpu.jit import helper, inline
from kernels_cpu.unsigned import EIGHT, FOUR, ONE, SIX, TWO, ZERO

LOW: Any = np.uint64(63)
LANES: Any = np.uint64(64)
SIXTEEN: Any = np.uint64(16)
VECTORS = processor.WIDTH > 0
LISTED: Any = np.uint64(2048)  # positions after which a list is full
ALL_POSITIONS = intrinsics.BIT_POSITIONS[255]  # of a byte whose bits are all set
LIST = 2048 + 64 + 8  # a word's positions may follow, and the last store of 8 may reach beyond them


@inline
def short_word(x: Any, index: Any, stride: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of up to 64 elements."""
    bits = ZERO
    for lane in range(n):
        is_set: Any = (np.uint64(x[index + lane * stride]) & magnitude) != ZERO
        bits |= np.uint64(is_set) << np.uint64(lane)
    return bits


@inline
def whole_word(x: Any, index: Any, magnitude: Any) -> Any:
    """Return the bits of 64 contiguous elements."""
    if VECTORS:
        return intrinsics.lane_mask(64, x, index, magnitude)
    return short_word(x, index, ONE, LANES, magnitude)


@inline
def row_end_word(x: Any, index: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of 16 to 64 contiguous elements, and read no others: those around may be no memory."""
    if VECTORS:
        word = ZERO
        last = n - SIXTEEN
        for i in range(ZERO, last, SIXTEEN):
            word |= intrinsics.lane_mask(16, x, index + i, magnitude) << i
        return word | intrinsics.lane_mask(16, x, index + last, magnitude) << last
    return short_word(x, index, ONE, n, magnitude)


@helper
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
            count += intrinsics.popcount(bits)
    for word in range(quarter * FOUR, n):
        bits = whole_word(x, index + word * LANES, magnitude)
        words[word] = bits
        count += intrinsics.popcount(bits)
    return count


@inline
def _list_word(bits: Any, base: Any, positions: Any, n: Any) -> Any:
    """Append the positions of set bits, counted from `base`, to the `n` that there are; return the sum."""
    count = intrinsics.popcount(bits)
    if VECTORS and count == LANES:
        for shift in range(ZERO, LANES, EIGHT):
            intrinsics.store_positions(positions, n + shift, ALL_POSITIONS, base + shift)
        return n + LANES
    if VECTORS and count > TWO:
        for shift in range(ZERO, LANES, EIGHT):
            byte = (bits >> shift) & np.uint64(255)
            intrinsics.store_positions(positions, n, intrinsics.BIT_POSITIONS[byte], base + shift)
            n += intrinsics.popcount(byte)
        return n
    # Most words of a sparse input have up to two: then no branch depends on how many.
    positions[n] = base + intrinsics.trailing_zeros(bits)
    bits &= bits - ONE
    positions[n + ONE] = base + intrinsics.trailing_zeros(bits)
    if not VECTORS:
        for i in range(TWO, count):
            bits &= bits - ONE
            positions[n + i] = base + intrinsics.trailing_zeros(bits)
    return n + count


@inline
def _between(bits: Any, position: Any, first: Any, last: Any) -> Any:
    """Return the bits of the word at `position` that are from `first` to `last`."""
    if position < first:
        bits = bits >> (first - position) << (first - position)
    if last - position < LANES:
        unused = LANES - (last - position)
        bits = bits << unused >> unused
    return bits


@helper
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
