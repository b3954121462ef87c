"""The constants that turn bit patterns into keys; `keys` has the formula."""

import functools
import struct
import sys

KEY_WORDS = 8
"""Words that the constants take: a line of the cache, whose rest stays empty."""


@functools.cache
def key_constants(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> tuple[int, ...]:
    """Return the five constants of `keys.KeyMasks` as they lie in memory.

    Parameters
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    sign, flip, infinity : int
        The bit that is inverted to order bits as unsigned integers, the bits of the magnitude (0 for
        integers), and the magnitude of infinity (all ones for integers). For bools, 0, all ones and 0.
    largest : bool
        Whether the greatest elements come first.

    Returns
    -------
    tuple of int
        `KEY_WORDS` words of 64 bits, which begin with five integers of `element_size` bytes in the order of
        `keys.KeyMasks`.
    """
    width = 8 * element_size
    top = 1 << (width - 1)
    to_signed = top  # adding it turns the order of unsigned integers into that of signed ones
    # 0 lets kernels compute an element from its key. For bools, any bit but the top one serves.
    negative = (sign or 1) if flip else 0
    plus = (infinity if flip else sign) + to_signed
    minus = infinity + top + to_signed
    limit = (2 * infinity + 1 if flip else infinity) + to_signed
    constants = (negative, plus, minus, limit, -1 if largest else 0)
    packed = b"".join((value % (1 << width)).to_bytes(element_size, sys.byteorder) for value in constants)
    return struct.unpack(f"={KEY_WORDS}q", packed.ljust(8 * KEY_WORDS, b"\0"))
