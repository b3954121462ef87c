"""Arithmetic of plans, whose integers have 64 bits: results that are too large stay at the largest one."""

MAX_INTEGER = (1 << 63) - 1


def ceil_div(a: int, b: int) -> int:
    """Return the quotient rounded up; `b` is positive."""
    return -(-a // b)


def product(a: int, b: int) -> int:
    """Return the product of two integers that are not negative."""
    if b > 0 and a > MAX_INTEGER // b:
        return MAX_INTEGER
    return a * b


def total(a: int, b: int) -> int:
    """Return the sum of two integers that are not negative."""
    return MAX_INTEGER if a > MAX_INTEGER - b else a + b


def bit_length(number: int) -> int:
    """Return how many bits a number from 0 on has.

    Examples
    --------
    >>> [bit_length(number) for number in (0, 1, 255, 256, (1 << 63) - 1)]
    [0, 1, 8, 9, 63]
    """
    n_bits = 0
    while number > 0xFF:
        number >>= 8
        n_bits += 8
    while number > 0:
        number >>= 1
        n_bits += 1
    return n_bits


def signed(word: int) -> int:
    """Return the integer of which 64 bits are the low ones of `word`; for Python alone."""
    low = word & ((1 << 64) - 1)
    return low - (1 << 64) if low > MAX_INTEGER else low
