"""Order keys: what every top-k kernel compares instead of elements.

The order key of an element is an unsigned integer of its width, made so that the element which comes first
has the largest key: NaNs share one key, and so do -0.0 and +0.0. `masks` says how to make it, as six int64
(`elements.key_masks`):

    sign, flip, infinity   the format, as in `plan`
    positive, negative     what is XORed to an element without and with the sign bit
    unordered              the key of NaN

Because of the shared keys an element cannot always be told from its key; `restore` says when it can.

Of a vector only the largest key matters at first, and finding it must cost few instructions an element: its
elements become raw keys, which order elements as their keys do, except that the keys of NaNs, and those of
the zeros, differ but are neighbours. A raw key fills the register from the top; what an element of less than
32 bits leaves free below holds anything. The largest raw key of many becomes a key in the end.

A row is read in vectors of 16 bytes, whatever the width. `element_functions` makes the device functions for
one width; keys of 1, 2 and 4 bytes travel in a uint32, those of 8 bytes in a uint64.
"""

import functools
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.compiler import device_function
from kernels_cuda.ptx import (
    LOAD,
    REGISTER,
    STORE,
    bits_of_raw_key_u32,
    bits_of_raw_key_u64,
    order_key_u32,
    order_key_u64,
    raw_key_u32,
    raw_key_u64,
)

u32 = types.uint32
u64 = types.uint64


class ElementFunctions(NamedTuple):
    """Device functions for one element width; `words` are the four uint32 of a vector."""

    key_type: Any
    order_key: Any
    restore: Any
    load_element: Any
    store_element: Any
    spread_vector: Any
    raw_masks: Any
    raw_element: Any
    raw_maximum: Any
    integer_maximum: Any
    key_of_raw: Any
    raw_bounds: Any
    reaching: Any


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

    spread_vector = (
        _spread_wide_vector(order_key)
        if element_size == 8
        else _spread_narrow_vector(element_size, order_key)
    )
    return ElementFunctions(
        key_type,
        order_key,
        restore,
        load_element,
        store_element,
        spread_vector,
        *_raw_functions(element_size, order_key),
    )


def _spread_wide_vector(order_key: Any) -> Any:
    @device_function
    def spread_vector(words, keys, at, masks):
        for element in range(2):
            low = u64(words[2 * element])
            high = u64(words[2 * element + 1])
            keys[at + element] = order_key(low | (high << u64(32)), *masks)

    return spread_vector


def _spread_narrow_vector(element_size: int, order_key: Any) -> Any:
    per_word = 4 // element_size
    bits_each = 8 * element_size
    ones = (1 << bits_each) - 1

    @device_function
    def spread_vector(words, keys, at, masks):
        for word in range(4):
            for part in range(per_word):
                bits = u32(u32(words[word] >> u32(part * bits_each)) & u32(ones))
                keys[at + word * per_word + part] = order_key(bits, *masks)

    return spread_vector


def _raw_functions(element_size: int, order_key: Any) -> tuple[Any, ...]:
    """Make the functions of raw keys (see the module)."""
    key_type = REGISTER[element_size]
    raw_key = raw_key_u64 if element_size == 8 else raw_key_u32
    bits_of_raw_key = bits_of_raw_key_u64 if element_size == 8 else bits_of_raw_key_u32
    per_word = max(1, 4 // element_size)
    bits_each = 8 * element_size
    unused = 0 if element_size == 8 else 32 - bits_each
    ones = (1 << bits_each) - 1
    repeated = sum(1 << part * bits_each for part in range(per_word))

    @device_function
    def raw_masks(masks, are_keys):
        """Return flip, direction and offset of raw keys, of elements or of words that hold a key each.

        The keys of narrow elements fill the lowest bits of a word, and only them.
        """
        direction = key_type(masks[0] ^ masks[3])
        offset = key_type(masks[0])
        flip = key_type(masks[1])
        if masks[1] != 0:
            offset = key_type(key_type(masks[2]) ^ direction)
            if direction == key_type(0):
                offset = key_type(offset + key_type(1))
        if are_keys:
            flip = key_type(0)
            direction = key_type(0)
            offset = key_type(0)
        return (
            key_type(flip << key_type(unused)),
            key_type(direction << key_type(unused)),
            key_type(offset << key_type(unused)),
        )

    @device_function
    def key_of_raw(raw, raw_mask, is_key, masks):
        key = key_type(bits_of_raw_key(raw, *raw_mask) >> key_type(unused))
        if not is_key:
            key = order_key(key, *masks)
        return key

    @device_function
    def raw_element(bits, raw_mask):
        return raw_key(key_type(bits << key_type(unused)), *raw_mask)

    @device_function
    def raw_floor(key, masks):
        """Return the least raw key of elements with this key or above, or 0 if there can be none.

        Raw keys are order keys moved on by as much as brings the NaNs together; only zeros are out of order.
        """
        raw = key
        if masks[1] != 0:
            lowest = key_type(masks[1] ^ masks[2])
            highest = key_type(masks[0] ^ masks[2])
            inside = min(max(key, lowest), key_type(highest + key_type(1)))
            if masks[5] == 0:
                raw = key_type(inside + lowest)
                if key == key_type(key_type(masks[3]) + key_type(1)):
                    raw = key_type(raw + key_type(1))
                if key == key_type(0):
                    raw = key_type(0)
            else:
                raw = key_type(inside - lowest)
                if key == key_type(masks[3]):
                    raw = key_type(raw - key_type(1))
        return key_type(raw << key_type(unused))

    @device_function
    def raw_bounds(key, masks, is_key):
        """Return the least raw key of elements with this key or above, and of those above, 0 if none."""
        above = key_type(key + key_type(1))
        if is_key:
            first = key_type(key << key_type(unused))
            beyond = key_type(above << key_type(unused))
        else:
            first = raw_floor(key, masks)
            beyond = key_type(0)
            if key != key_type(ones):
                beyond = raw_floor(above, masks)
        return first, beyond

    if element_size == 8:

        @device_function
        def raw_maximum(words, at, raw_mask):
            """Return the largest raw key of a vector, the words from `at` on."""
            first = raw_key(u64(words[at]) | (u64(words[at + 1]) << u64(32)), *raw_mask)
            return max(first, raw_key(u64(words[at + 2]) | (u64(words[at + 3]) << u64(32)), *raw_mask))

        integer_maximum = raw_maximum

        @device_function
        def reaching(words, at, floor, raw_mask, are_keys):
            """Return a bit an element of a vector that is set where its raw key is at least `floor`."""
            first = raw_key(u64(words[at]) | (u64(words[at + 1]) << u64(32)), *raw_mask)
            second = raw_key(u64(words[at + 2]) | (u64(words[at + 3]) << u64(32)), *raw_mask)
            return u32(u32(first >= floor) | u32(u32(second >= floor) << u32(1)))

    else:

        @device_function
        def raw_maximum(words, at, raw_mask):
            """Return the largest raw key of a vector, the words from `at` on."""
            best = u32(0)
            for word in range(4):
                bits = u32(words[at + word])
                best = max(best, raw_key(bits, *raw_mask))
                for part in range(1, per_word):
                    best = max(best, raw_key(u32(bits << u32(part * bits_each)), *raw_mask))
            return best

        @device_function
        def integer_maximum(words, at, raw_mask):
            """Do the same for integers: a whole word is made raw at once; the offset is the sign bit."""
            change = u32(u32(u32(raw_mask[1] ^ raw_mask[2]) >> u32(unused)) * u32(repeated))
            best = u32(0)
            for word in range(4):
                raw = u32(words[at + word] ^ change)
                best = max(best, raw)
                for part in range(1, per_word):
                    best = max(best, u32(raw << u32(part * bits_each)))
            return best

        @device_function
        def reaching(words, at, floor, raw_mask, are_keys):
            """Return a bit an element of a vector that is set where its raw key is at least `floor`.

            Of keys there is one in each word, in its lowest bits.
            """
            found = u32(0)
            if per_word > 1 and are_keys:
                for word in range(4):
                    raw = u32(words[at + word] << u32(unused))
                    found = u32(found | (u32(raw >= floor) << u32(word)))
            else:
                for word in range(4):
                    for part in range(per_word):
                        bits = u32(words[at + word] << u32(unused - part * bits_each))
                        raw = raw_key(bits, *raw_mask)
                        found = u32(found | (u32(raw >= floor) << u32(word * per_word + part)))
            return found

    return raw_masks, raw_element, raw_maximum, integer_maximum, key_of_raw, raw_bounds, reaching
