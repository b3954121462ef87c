"""How elements are read, in vectors, and compared, by the masks of order keys (`keys`)."""

from kernels_cuda.launch import as_signed

VECTOR_BYTES = 16
N_MASKS = 6


def key_masks(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> tuple[int, ...]:
    """Return the `masks` of a format and a direction.

    Examples
    --------
    >>> [hex(mask) for mask in key_masks(2, 0x8000, 0x7FFF, 0x7C00, True)]
    ['0x8000', '0x7fff', '0x7c00', '0x8000', '0xffff', '0xffff']
    """
    ones = (1 << 8 * element_size) - 1
    direction = 0 if largest else ones
    masks = (sign, flip, infinity, sign ^ direction, sign ^ flip ^ direction, ones ^ direction)
    return tuple(as_signed(mask) for mask in masks)
