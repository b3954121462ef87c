"""Non-zero elements as bits, 64 to a word, and the positions of the bits that are set.

All arrays are pointers.
"""

from typing import Any

from kernels_cpu import processor
from kernels_cpu.intrinsics import bitops
from kernels_cpu.jit import inline, njit, uint64

WORD_BITS = 64
VECTORS = processor.WIDTH > 0
LISTED = 2048  # positions after which a list is full
ALL_POSITIONS = bitops.BIT_POSITIONS[255]  # those of a byte whose bits are all set
LIST = 2048 + 64 + 8  # the positions of a word may follow, and the last store of 8 may reach beyond them


@inline
def short_word(x: Any, index: Any, stride: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of up to 64 elements."""
    bits = uint64(0)
    for lane in range(n):
        is_set = (uint64(x[index + lane * stride]) & magnitude) != uint64(0)
        bits |= uint64(is_set) << uint64(lane)
    return bits


@inline
def whole_word(x: Any, index: Any, magnitude: Any) -> Any:
    """Return the bits of 64 contiguous elements."""
    if VECTORS:
        return bitops.lane_mask(64, x, index, magnitude)
    return short_word(x, index, 1, WORD_BITS, magnitude)


@inline
def row_end_word(x: Any, index: Any, n: Any, magnitude: Any) -> Any:
    """Return the bits of 16 to 64 contiguous elements, and read no others: those around may be no memory."""
    if VECTORS:
        word = uint64(0)
        last = n - 16
        for i in range(0, last, 16):
            word |= bitops.lane_mask(16, x, index + i, magnitude) << uint64(i)
        return word | bitops.lane_mask(16, x, index + last, magnitude) << uint64(last)
    return short_word(x, index, 1, n, magnitude)


@njit
def mark_words(x: Any, index: Any, n: Any, words: Any, magnitude: Any) -> Any:
    """Write the `n` words of the contiguous elements from `index` on; return how many bits are set."""
    quarter = n // 4
    count = 0
    # Memory is read faster as several streams.
    for i in range(quarter):
        for stream in range(4):
            word = stream * quarter + i
            bits = whole_word(x, index + word * WORD_BITS, magnitude)
            words[word] = bits
            count += bitops.set_bits(bits)
    for word in range(quarter * 4, n):
        bits = whole_word(x, index + word * WORD_BITS, magnitude)
        words[word] = bits
        count += bitops.set_bits(bits)
    return count


@inline
def _list_word(bits: Any, base: Any, positions: Any, n: Any) -> Any:
    """Append the positions of set bits, counted from `base`, to the `n` that there are; return the sum."""
    count = bitops.set_bits(bits)
    if VECTORS and count == WORD_BITS:
        for shift in range(0, WORD_BITS, 8):
            bitops.store_positions(positions, n + shift, ALL_POSITIONS, base + shift)
        return n + WORD_BITS
    if VECTORS and count > 2:
        for shift in range(0, WORD_BITS, 8):
            byte = (bits >> uint64(shift)) & uint64(255)
            bitops.store_positions(positions, n, bitops.BIT_POSITIONS[byte], base + shift)
            n += bitops.set_bits(byte)
        return n
    # Most words of a sparse input have up to two: then no branch depends on how many.
    positions[n] = base + bitops.trailing_zeros(bits)
    bits &= bits - uint64(1)
    positions[n + 1] = base + bitops.trailing_zeros(bits)
    if not VECTORS:
        for i in range(2, count):
            bits &= bits - uint64(1)
            positions[n + i] = base + bitops.trailing_zeros(bits)
    return n + count


@inline
def _between(bits: Any, position: Any, first: Any, last: Any) -> Any:
    """Return the bits of the word at `position` that are from `first` to `last`."""
    if position < first:
        unused = uint64(first - position)
        bits = bits >> unused << unused
    if last - position < WORD_BITS:
        unused = uint64(WORD_BITS - (last - position))
        bits = bits << unused >> unused
    return bits


@njit
def list_words(words: Any, first: Any, last: Any, positions: Any) -> Any:
    """List which bits from `first` to `last` are set, counted from the word of `first`.

    Return how many are listed, and where the list became full.
    """
    start = first & -WORD_BITS
    position = start
    n = 0
    not_empty = start
    while position < last and n < LISTED:
        word = position >> 6
        if position >= not_empty:
            not_empty = position + 8 * WORD_BITS
            if not_empty <= last:
                any_set = uint64(0)
                for i in range(8):
                    any_set |= words[word + i]
                if any_set == uint64(0):
                    position = not_empty
                    continue
        n = _list_word(_between(words[word], position, first, last), position - start, positions, n)
        position += WORD_BITS
    return n, min(position, last)
