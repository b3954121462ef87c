"""Order keys: what every top-k kernel compares instead of elements.

The order key of an element is an unsigned integer of its width, made so that the element which comes first
has the largest key: NaNs share one key, and so do -0.0 and +0.0. `masks` says how to make it, as six int64:

    sign, flip, infinity   the format, as in `plan`
    positive, negative     what is XORed to an element without and with the sign bit
    unordered              the key of NaN

Because of the shared keys an element cannot always be told from its key; `restore` says when it can.

A row is read in vectors of 16 bytes, whatever the width. `element_functions` makes the device functions for
one width; keys of 1, 2 and 4 bytes travel in a uint32, those of 8 bytes in a uint64.
"""

import functools
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.compiler import device_function
from kernels_cuda.launch import as_signed
from kernels_cuda.ptx import (
    LOAD,
    REGISTER,
    STORE,
    order_key_u32,
    order_key_u64,
)

u32 = types.uint32
u64 = types.uint64

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


class ElementFunctions(NamedTuple):
    """Device functions for one element width; `words` are the four uint32 of a vector."""

    key_type: Any
    order_key: Any
    restore: Any
    load_element: Any
    store_element: Any
    vector_maximum: Any
    spread_vector: Any


@functools.cache
def element_functions(element_size: int) -> ElementFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = REGISTER[element_size]
    load_element = LOAD[element_size]
    store_element = STORE[element_size]
    order_key = order_key_u64 if element_size == 8 else order_key_u32

    @device_function
    def restore(key, masks, address):
        """Return the element at `address`, read from there only if its key does not tell it."""
        bits = key_type(key ^ key_type(masks[3]))
        if (bits & key_type(masks[0])) != key_type(0):
            bits = key_type(bits ^ key_type(masks[1]))
        if key == key_type(masks[3]) or key == key_type(masks[5]):
            bits = load_element(address)
        return bits

    vector_maximum, spread_vector = (
        _wide_vector_functions(order_key)
        if element_size == 8
        else _narrow_vector_functions(element_size, order_key)
    )
    return ElementFunctions(
        key_type, order_key, restore, load_element, store_element, vector_maximum, spread_vector
    )


def _wide_vector_functions(order_key: Any) -> tuple[Any, Any]:
    @device_function
    def vector_maximum(words, at, masks):
        first = order_key(u64(words[at]) | (u64(words[at + 1]) << u64(32)), *masks)
        second = order_key(u64(words[at + 2]) | (u64(words[at + 3]) << u64(32)), *masks)
        return max(first, second)

    @device_function
    def spread_vector(words, keys, at, masks):
        for element in range(2):
            low = u64(words[2 * element])
            high = u64(words[2 * element + 1])
            keys[at + element] = order_key(low | (high << u64(32)), *masks)

    return vector_maximum, spread_vector


def _narrow_vector_functions(element_size: int, order_key: Any) -> tuple[Any, Any]:
    per_word = 4 // element_size
    bits_each = 8 * element_size
    ones = (1 << bits_each) - 1

    @device_function
    def vector_maximum(words, at, masks):
        best = u32(0)
        for word in range(4):
            for part in range(per_word):
                bits = u32(u32(words[at + word] >> u32(part * bits_each)) & u32(ones))
                best = max(best, order_key(bits, *masks))
        return best

    @device_function
    def spread_vector(words, keys, at, masks):
        for word in range(4):
            for part in range(per_word):
                bits = u32(u32(words[word] >> u32(part * bits_each)) & u32(ones))
                keys[at + word * per_word + part] = order_key(bits, *masks)

    return vector_maximum, spread_vector
