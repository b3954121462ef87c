"""How the elements of a data type are compared, in plain integers: formats of keys, and the last element."""

from typing import NamedTuple

from kernels_cpu.plan_words import Words
from kernels_cpu.top_k.problem_words import ELEMENT_SIZE, FLIP, INFINITY, LARGEST, NAN_LAST, SIGN


class KeyFormat(NamedTuple):
    """How an element becomes its ordered key, and the key its element again (see `shared.keys`).

    Attributes
    ----------
    sign, magnitude : int
        The sign bit of floats, or 0; and the bits of the magnitude, which are all bits of an integer.
    negation : int
        All bits are set (-1) where floats are negated first, for NaN to come last; else 0.
    infinity : int
        The distance of zero from the least number: the bits of infinity, or 0 if elements have no sign bit.
    unordered : int
        The distance of all NaNs, or of True; it is also the largest distance.
    direction : int
        The bits that are XORed with the distance of a float, or with the bits of an integer.
    """

    sign: int
    magnitude: int
    negation: int
    infinity: int
    unordered: int
    direction: int


class UnfoldedFormat(NamedTuple):
    """How an element becomes its unfolded key (`ptx.unfolded_key_u32`).

    `factor` is 1 or -1; for 64-bit elements, it is 0, or all bits for a complement. A word of integers is
    XORed with `change` to make it one of their unfolded keys.
    """

    flip: int
    factor: int
    offset: int
    change: int


def all_bits(element_size: int) -> int:
    """Return an element of which all bits are set; that of 8 bytes is -1."""
    return -1 if element_size == 8 else (1 << 8 * element_size) - 1


def key_format(
    element_size: int, sign: int, flip: int, infinity: int, largest: int, nan_last: int
) -> KeyFormat:
    """Return how elements of a data type become ordered keys.

    Examples
    --------
    >>> [hex(mask) for mask in key_format(2, 0x8000, 0x7FFF, 0x7C00, True, False)]
    ['0x8000', '0x7fff', '0x0', '0x7c00', '0xf801', '0x0']
    """
    ones = all_bits(element_size)
    if flip == 0:
        return KeyFormat(0, ones, 0, 0, ones, sign if largest else sign ^ ones)
    are_complements = nan_last != 0 or largest == 0
    # Of 64 bits, as an int64.
    unordered = 2 * (infinity + sign if element_size == 8 else infinity) + 1
    return KeyFormat(sign, flip, -1 if nan_last else 0, infinity, unordered, ones if are_complements else 0)


def key_format_of(problem: Words) -> KeyFormat:
    """Return the key format of a problem."""
    return key_format(
        problem[ELEMENT_SIZE],
        problem[SIGN],
        problem[FLIP],
        problem[INFINITY],
        problem[LARGEST],
        problem[NAN_LAST],
    )


def unfolded_format_of(problem: Words) -> UnfoldedFormat:
    """Return the unfolded format of a problem."""
    return unfolded_format(
        problem[ELEMENT_SIZE],
        problem[SIGN],
        problem[FLIP],
        problem[INFINITY],
        problem[LARGEST],
        problem[NAN_LAST],
    )


def filler(problem: Words) -> int:
    """Return the bits of an element before which all others come, to fill up what a part of a row selects."""
    return last_element(
        problem[ELEMENT_SIZE],
        problem[SIGN],
        problem[FLIP],
        problem[INFINITY],
        problem[LARGEST],
        problem[NAN_LAST],
    )


def last_element(element_size: int, sign: int, flip: int, infinity: int, largest: int, nan_last: int) -> int:
    """Return the bits of an element that comes before no other.

    Examples
    --------
    >>> [hex(last_element(2, 0x8000, 0x7FFF, 0x7C00, largest, False)) for largest in (True, False)]
    ['0xfc00', '0x7fff']
    >>> [hex(last_element(1, 0x80, 0, 0xFF, largest, False)) for largest in (True, False)]
    ['0x80', '0x7f']
    """
    if flip != 0:
        # Minus infinity, or a NaN; of bools, False or True.
        return sign | infinity if largest and not nan_last else flip
    return sign if largest else sign ^ all_bits(element_size)


def unfolded_format(
    element_size: int, sign: int, flip: int, infinity: int, largest: int, nan_last: int
) -> UnfoldedFormat:
    """Return how elements of a data type become unfolded keys.

    Examples
    --------
    >>> [hex(number) for number in unfolded_format(4, 1 << 31, (1 << 31) - 1, 0x7F800000, True, 0)]
    ['0x7fffffff', '0x1', '0x7f800001', '0x0']

    Bools of which the smallest come first are treated as integers, a whole word at a time:

    >>> [hex(number) for number in unfolded_format(1, 0, 0xFF, 0, False, 0)]
    ['0x0', '0xffffffff', '0xffffffff', '0xffffffff']
    """
    ones = all_bits(element_size)
    direction = 0 if largest else ones
    # The offset of integers, and of bools, which are treated as integers here.
    offset = sign
    if flip != 0 and sign == 0:
        flip = 0
    elif flip != 0:
        offset = infinity + 1 if largest and not nan_last else infinity ^ ones
    change = 0 if flip != 0 else direction ^ sign
    if element_size == 8:
        return UnfoldedFormat(flip, direction, offset, change)
    unused = max(32 - 8 * element_size, 0)
    # The factor of a 32-bit product; -1 times a number, minus 1, is its complement.
    factor = 1 if largest else 0xFFFFFFFF
    offset = ((offset << unused) - (0 if largest else 1)) & 0xFFFFFFFF
    return UnfoldedFormat(flip << unused, factor, offset, repeated(change, element_size))


def repeated(element: int, element_size: int) -> int:
    """Return a word of 4 bytes of which each element is the same.

    Examples
    --------
    >>> hex(repeated(0x80, 1)), hex(repeated(0x8000, 2)), hex(repeated(0x80, 4))
    ('0x80808080', '0x80008000', '0x80')
    """
    if element_size == 1:
        return element * 0x01010101
    return element * 0x00010001 if element_size == 2 else element
