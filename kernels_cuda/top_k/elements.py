"""How elements are read, in vectors, and compared: masks of order keys and numbers of raw ones (`keys`)."""

from kernels_cuda.runtime.launch import as_signed

VECTOR_BYTES = 16
N_MASKS = 6
N_NUMBERS = 8


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


def last_element(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> int:
    """Return the bits of an element that comes before no other.

    Examples
    --------
    >>> [hex(last_element(2, 0x8000, 0x7FFF, 0x7C00, largest)) for largest in (True, False)]
    ['0xfc00', '0x7fff']
    >>> [hex(last_element(1, 0x80, 0, 0xFF, largest)) for largest in (True, False)]
    ['0x80', '0x7f']
    """
    if flip:
        # Minus infinity, or a NaN.
        return sign | infinity if largest else flip
    ones = (1 << 8 * element_size) - 1
    return sign if largest else sign ^ ones


def raw_numbers(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> tuple[int, ...]:
    """Return the `numbers` of raw keys (see the module).

    Examples
    --------
    >>> [hex(number) for number in raw_numbers(4, 1 << 31, (1 << 31) - 1, 0x7F800000, True)]
    ['0x7fffff', '0x7fffffff', '0xff000002', '0xffffffff', '0x7fffffff', '0x1', '0x7f800001', '0x0']
    """
    bits = 8 * element_size
    ones = (1 << bits) - 1
    direction = 0 if largest else ones
    zero = sign ^ direction
    shift, lone_zero, first_nan, last_nan, offset = 0, zero, ones, 0, sign
    if flip:
        lowest = flip ^ infinity
        if largest:
            shift, lone_zero = lowest, zero - 1
            first_nan, last_nan = (sign ^ infinity) - lowest + 1, ones
            offset = infinity + 1
        else:
            shift, lone_zero = -lowest & ones, zero + 1
            first_nan, last_nan = 0, 2 * lowest - 1
            offset = infinity ^ ones
    unused = max(32 - bits, 0)
    repeated = sum(1 << at for at in range(0, max(32, bits), bits))
    change = 0 if flip else (direction ^ sign) * repeated
    if element_size == 8:
        turn = direction
    else:
        # As a factor of a 32-bit product, whose sum with -1 is the complement.
        turn = 1 if largest else 0xFFFFFFFF
        offset = ((offset << unused) - (not largest)) & 0xFFFFFFFF
    numbers = (shift, lone_zero, first_nan, last_nan, flip << unused, turn, offset, change)
    return tuple(as_signed(number) for number in numbers)
