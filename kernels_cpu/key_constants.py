"""The constants that turn bit patterns into keys; `keys` has the formula."""

import sys

from kernels_cpu.plan_words import Words, put_value

KEY_WORDS = 8
"""Words that the constants take: a line of the cache, whose rest stays empty."""

_N_CONSTANTS = 7
_BIG_ENDIAN = int(sys.byteorder == "big")


def put_key_constants(
    out: Words, element_size: int, sign: int, flip: int, infinity: int, largest: int, nan_last: int
) -> None:
    """Put the seven constants of `keys.KeyFormula` as they lie in memory, in `KEY_WORDS` words.

    Parameters
    ----------
    out : words
        The plan.
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    sign, flip, infinity : int
        The bit that is inverted to order bits as unsigned integers, the bits of the magnitude (0 for
        integers), and the magnitude of infinity (all ones for integers). For bools, 0, all ones and 0. Those
        of 64 bits are signed.
    largest : int
        Whether the greatest elements come first.
    nan_last : int
        Whether NaN comes last, though the greatest floats come first.
    """
    width = 8 * element_size
    top, quarter = -1 << (width - 1), 1 << (width - 2)
    # To XOR the top bit is to add it, which turns the order of unsigned integers into the order of signed
    # ones. Only the low `width` bits of each constant count.
    negative, plus, limit = 0, sign ^ top, infinity ^ top
    if flip != 0:
        # 0 lets kernels compute an element from its key. For bools, any bit but the top one serves.
        negative = sign if sign != 0 else 1
        plus = infinity ^ top
        # 2 * infinity + 1, with the top bit inverted
        limit = (infinity & (quarter - 1)) << 1 | 1
        if infinity & quarter == 0:
            limit |= top
    minus, direction, swap = infinity, 0 if largest != 0 else -1, 0
    if nan_last != 0:
        minus, plus, direction, swap = plus, minus, -1, top
    border = -1
    if flip == 0 or sign == 0:
        # Subtracting the least integer is adding it.
        border, minus = top, plus
    constants = (negative, plus, minus, limit, direction, border, swap)
    per_word = 8 // element_size
    mask = -1 if width == 64 else (1 << width) - 1
    for at in range(0, KEY_WORDS * per_word, per_word):
        word = 0
        for number in range(at, min(at + per_word, _N_CONSTANTS)):
            place = number - at
            if _BIG_ENDIAN > 0:
                place = per_word - 1 - place
            bits = constants[number] & mask
            if place == per_word - 1 and bits & top != 0:
                bits |= top  # the sign of the word
            word |= bits << (width * place)
        put_value(out, word)
