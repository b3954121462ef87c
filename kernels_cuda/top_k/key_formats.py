"""How the elements of a data type are compared, in plain integers: formats of keys, and the last element."""

from typing import NamedTuple

from kernels_cpu.plan_words import Words
from kernels_cpu.top_k.problem_words import ELEMENT_SIZE, FLIP, INFINITY, LARGEST, NAN_LAST, SIGN


class ElementWords(NamedTuple):
    """The words of a problem that tell how elements compare."""

    element_size: int
    sign: int
    flip: int
    infinity: int
    largest: int
    nan_last: int


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


def element_words(problem: Words) -> ElementWords:
    """Return how the elements of a problem compare."""
    return ElementWords(
        problem[ELEMENT_SIZE],
        problem[SIGN],
        problem[FLIP],
        problem[INFINITY],
        problem[LARGEST],
        problem[NAN_LAST],
    )


def set_element_words(problem: Words, words: ElementWords) -> None:
    """Have a problem be of other elements."""
    problem[ELEMENT_SIZE] = words.element_size
    problem[SIGN] = words.sign
    problem[FLIP] = words.flip
    problem[INFINITY] = words.infinity
    problem[LARGEST] = words.largest
    problem[NAN_LAST] = words.nan_last


def all_bits(element_size: int) -> int:
    """Return an element of which all bits are set; that of 8 bytes is -1."""
    return -1 if element_size == 8 else (1 << 8 * element_size) - 1


def key_format(words: ElementWords) -> KeyFormat:
    """Return how elements of a data type become ordered keys.

    Examples
    --------
    >>> [hex(mask) for mask in key_format(ElementWords(2, 0x8000, 0x7FFF, 0x7C00, 1, 0))]
    ['0x8000', '0x7fff', '0x0', '0x7c00', '0xf801', '0x0']
    """
    ones = all_bits(words.element_size)
    if words.flip == 0:
        return KeyFormat(0, ones, 0, 0, ones, words.sign if words.largest else words.sign ^ ones)
    are_complements = words.nan_last != 0 or words.largest == 0
    # Of 64 bits, as an int64.
    unordered = 2 * (words.infinity + words.sign if words.element_size == 8 else words.infinity) + 1
    negation, direction = -1 if words.nan_last else 0, ones if are_complements else 0
    return KeyFormat(words.sign, words.flip, negation, words.infinity, unordered, direction)


def key_format_of(problem: Words) -> KeyFormat:
    """Return the key format of a problem."""
    return key_format(element_words(problem))


def unfolded_format_of(problem: Words) -> UnfoldedFormat:
    """Return the unfolded format of a problem."""
    return unfolded_format(element_words(problem))


def filler(problem: Words) -> int:
    """Return the bits of an element before which all others come, to fill up what a part of a row selects."""
    return last_element(element_words(problem))


def last_element(words: ElementWords) -> int:
    """Return the bits of an element that comes before no other.

    Examples
    --------
    >>> float16, int8 = ElementWords(2, 0x8000, 0x7FFF, 0x7C00, 0, 0), ElementWords(1, 0x80, 0, 0xFF, 0, 0)
    >>> [hex(last_element(float16._replace(largest=largest))) for largest in (1, 0)]
    ['0xfc00', '0x7fff']
    >>> [hex(last_element(int8._replace(largest=largest))) for largest in (1, 0)]
    ['0x80', '0x7f']
    """
    if words.flip != 0:
        # Minus infinity, or a NaN; of bools, False or True.
        return words.sign | words.infinity if words.largest and not words.nan_last else words.flip
    return words.sign if words.largest else words.sign ^ all_bits(words.element_size)


def unfolded_format(words: ElementWords) -> UnfoldedFormat:
    """Return how elements of a data type become unfolded keys.

    Examples
    --------
    >>> float32 = ElementWords(4, 1 << 31, (1 << 31) - 1, 0x7F800000, 1, 0)
    >>> [hex(number) for number in unfolded_format(float32)]
    ['0x7fffffff', '0x1', '0x7f800001', '0x0']

    Bools of which the smallest come first are treated as integers, a whole word at a time:

    >>> [hex(number) for number in unfolded_format(ElementWords(1, 0, 0xFF, 0, 0, 0))]
    ['0x0', '0xffffffff', '0xffffffff', '0xffffffff']
    """
    element_size, flip, ones = words.element_size, words.flip, all_bits(words.element_size)
    direction = 0 if words.largest else ones
    # The offset of integers, and of bools, which are treated as integers here.
    offset = words.sign
    if flip != 0 and words.sign == 0:
        flip = 0
    elif flip != 0:
        offset = words.infinity + 1 if words.largest and not words.nan_last else words.infinity ^ ones
    change = 0 if flip != 0 else direction ^ words.sign
    if element_size == 8:
        return UnfoldedFormat(flip, direction, offset, change)
    unused = max(32 - 8 * element_size, 0)
    # The factor of a 32-bit product; -1 times a number, minus 1, is its complement.
    factor = 1 if words.largest else 0xFFFFFFFF
    offset = ((offset << unused) - (0 if words.largest else 1)) & 0xFFFFFFFF
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
