"""Bit patterns to keys: signed integers whose ascending order is the order that is wanted.

One formula serves unsigned and signed integers and every float format; what differs are five constants.
For floats, ``infinity + magnitude`` (``infinity - magnitude`` below zero) puts -inf at 0, both zeros at
`infinity`, +inf at ``2 * infinity`` and, as the sum wraps around, every NaN beyond that, where one minimum
makes them equal.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import part
from kernels_cpu.memory import structure

SIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.int8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}


class KeyMasks(NamedTuple):
    """The constants of the formula, integers of the element's width."""

    negative: Any
    """The bit that tells negative floats; 0 for integers."""
    plus: Any
    """What bits are added to."""
    minus: Any
    """What the bits of negative floats are subtracted from."""
    limit: Any
    """The key of NaN before `direction`; the greatest integer for integers."""
    direction: Any
    """-1 (all ones) where the greatest come first, else 0."""


def key_masks(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> NDArray[Any]:
    """Return the five constants of `KeyMasks` as an array.

    Parameters
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    sign, flip, infinity : int
        The bit that is inverted to order bits as unsigned integers, the bits of the magnitude (0 for
        integers), and the magnitude of infinity (all ones for integers).
    largest : bool
        Whether the greatest elements come first.

    Returns
    -------
    ndarray
        Five signed integers of `element_size` bytes, in the order of `KeyMasks`.
    """
    width = 8 * element_size
    top = 1 << (width - 1)
    to_signed = top  # adding it turns the order of unsigned integers into that of signed ones
    negative = sign if flip else 0
    plus = (infinity if flip else sign) + to_signed
    minus = infinity + top + to_signed
    limit = (2 * infinity + 1 if flip else infinity) + to_signed
    constants = (negative, plus, minus, limit, -1 if largest else 0)
    wrapped = [(value + top) % (1 << width) - top for value in constants]
    return np.array(wrapped, dtype=SIGNED[element_size])


unpack_masks = structure(KeyMasks)
"""Return the array of `key_masks` as scalars, which loops keep in registers."""


@part
def key(bits: Any, masks: KeyMasks) -> Any:
    """Return the key of an element, or the keys of a vector of elements."""
    above = simd.add(bits, simd.fill(bits, masks.plus))
    below = simd.subtract(simd.fill(bits, masks.minus), bits)
    is_negative = simd.both(bits, simd.fill(bits, masks.negative))
    ordered = simd.minimum(simd.where_negative(is_negative, below, above), simd.fill(bits, masks.limit))
    return simd.differ(ordered, simd.fill(bits, masks.direction))
