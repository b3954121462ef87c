"""Keys: what every top-k kernel compares instead of elements.

The ordered key of an element is an unsigned integer of its width, made so that the element which comes first
has the largest key: NaNs share one key, and so do -0.0 and +0.0. `problem.KeyFormat` says how to make it.
Because of the shared keys an element cannot always be told from its key; `restore` says when it can.

Of a vector only the largest key matters at first, and finding it must cost few instructions per element: its
elements become unfolded keys, which order elements as their ordered keys do, except that those of NaNs, and
those of the zeros, differ but are neighbours. An unfolded key fills the register from the top; what an
element of less than 32 bits leaves free below holds anything. The largest unfolded keys become ordered keys
in the end (`fold`). `problem.UnfoldedFormat` says how.

A row is read in vectors of 16 bytes, whatever the width. `element_functions` makes the device functions for
one width; keys of 1, 2 and 4 bytes travel in a uint32, those of 8 bytes in a uint64.
"""

import functools
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.ptx import (
    LOAD,
    REGISTER,
    STORE,
    order_key_u32,
    order_key_u64,
    raw_key_u32,
    raw_key_u64,
)
from kernels_cuda.runtime.compiler import device_function, linked_function

u32 = types.uint32
u64 = types.uint64


class ElementFunctions(NamedTuple):
    """Device functions for one element width; `words` are the four uint32 of a vector."""

    key_type: Any
    ordered_key: Any
    restore: Any
    load_element: Any
    store_element: Any
    raw_mask: Any
    raw_element: Any
    raw_maximum: Any
    integer_maximum: Any
    spread_raw_keys: Any
    first_of_equals: Any
    whole_raw_key: Any
    key_of_raw: Any
    raw_floor: Any
    raw_beyond: Any
    reaching: Any


@functools.cache
def element_functions(element_size: int) -> ElementFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = REGISTER[element_size]
    load_element = LOAD[element_size]
    store_element = STORE[element_size]
    make_key = order_key_u64 if element_size == 8 else order_key_u32

    @device_function
    def ordered_key(element, key_format):
        return make_key(
            element,
            key_format.sign,
            key_format.flip,
            key_format.infinity,
            key_format.positive,
            key_format.negative,
            key_format.unordered,
        )

    @linked_function
    def restore(key, key_format, address):
        """Return the element at `address`, read from there only if its key does not tell it."""
        bits = key ^ key_type(key_format.positive)
        if (bits & key_type(key_format.sign)) != 0:
            bits ^= key_type(key_format.flip)
        if key == key_type(key_format.positive) or key == key_type(key_format.unordered):
            bits = load_element(address)
        return bits

    return ElementFunctions(
        key_type,
        ordered_key,
        restore,
        load_element,
        store_element,
        *_raw_functions(element_size, ordered_key),
    )


def _raw_functions(element_size: int, ordered_key: Any) -> tuple[Any, ...]:
    """Make the functions of raw keys (see the module)."""
    key_type = REGISTER[element_size]
    raw_key = raw_key_u64 if element_size == 8 else raw_key_u32
    per_word = max(1, 4 // element_size)
    bits_each = 8 * element_size
    unused = 0 if element_size == 8 else 32 - bits_each
    ones = (1 << bits_each) - 1
    # A factor, but of 64 bits a mask.
    unturned = 0 if element_size == 8 else 1

    @linked_function
    def raw_mask(unfolded_format, are_raw):
        """Return flip, turn, offset and change of elements, or of words that hold a raw key each."""
        flip = key_type(unfolded_format.flip)
        turn = key_type(unfolded_format.turn)
        offset = key_type(unfolded_format.offset)
        change = key_type(unfolded_format.change)
        if are_raw:
            flip = key_type(0)
            turn = key_type(unturned)
            offset = key_type(0)
            change = key_type(0)
        return flip, turn, offset, change

    @linked_function
    def key_of_raw(raw, unfolded_format, key_format):
        moved = raw >> unused
        key = (moved + key_type(unfolded_format.shift)) & ones
        if key == key_type(unfolded_format.lone_zero):
            key = key_type(key_format.positive)
        if key_type(unfolded_format.first_nan) <= moved <= key_type(unfolded_format.last_nan):
            key = key_type(key_format.unordered)
        return key

    @linked_function
    def first_of_equals(raw, unfolded_format, key_format):
        """Return the least raw key of elements that have the same key."""
        moved = raw >> unused
        key = (moved + key_type(unfolded_format.shift)) & ones
        if key_format.flip != 0 and key == max(
            key_type(unfolded_format.lone_zero), key_type(key_format.positive)
        ):
            moved -= 1
        if key_type(unfolded_format.first_nan) <= moved <= key_type(unfolded_format.last_nan):
            moved = key_type(unfolded_format.first_nan)
        return moved << unused

    @linked_function
    def whole_raw_key(raw):
        """Clear what an element of less than 32 bits leaves free."""
        return raw & (key_type(ones) << key_type(unused))

    @linked_function
    def raw_element(bits, mask):
        return raw_key(bits << unused, mask[0], mask[1], mask[2])

    @linked_function
    def raw_floor(key, key_format):
        """Return the least raw key of elements with this key or above, or 0 if there can be none.

        They are ordered keys moved on by as much as brings the NaNs together; only zeros are out of order.
        """
        raw = key
        if key_format.flip != 0:
            lowest = key_type(key_format.flip ^ key_format.infinity)
            highest = key_type(key_format.sign ^ key_format.infinity)
            inside = min(max(key, lowest), highest + 1)
            if key_format.unordered == 0:
                raw = inside + lowest
                if key == key_type(key_format.positive) + 1:
                    raw += 1
                if key == 0:
                    raw = key_type(0)
            else:
                raw = inside - lowest
                if key == key_type(key_format.positive):
                    raw -= 1
        return raw << unused

    @linked_function
    def raw_beyond(key, key_format):
        """Return the least raw key of elements with a larger key than this, 0 if there are none."""
        beyond = key_type(0)
        if key != ones:
            beyond = raw_floor(key + 1, key_format)
        return beyond

    if element_size == 8:

        @linked_function
        def spread_raw_keys(words, raws, at, mask):
            """Put the raw keys of a vector, four words, into a local array from `at` on."""
            for element in range(2):
                low = u64(words[2 * element])
                raws[at + element] = raw_key(
                    low | (u64(words[2 * element + 1]) << 32), mask[0], mask[1], mask[2]
                )

        @linked_function
        def raw_maximum(words, at, mask):
            """Return the largest raw key of a vector, the words from `at` on."""
            first = raw_key(u64(words[at]) | (u64(words[at + 1]) << 32), mask[0], mask[1], mask[2])
            return max(
                first,
                raw_key(u64(words[at + 2]) | (u64(words[at + 3]) << 32), mask[0], mask[1], mask[2]),
            )

        integer_maximum = raw_maximum

        @linked_function
        def reaching(words, at, floor, mask, are_raw):
            """Return a bit an element of a vector that is set where its raw key is at least `floor`."""
            first = raw_key(u64(words[at]) | (u64(words[at + 1]) << 32), mask[0], mask[1], mask[2])
            second = raw_key(u64(words[at + 2]) | (u64(words[at + 3]) << 32), mask[0], mask[1], mask[2])
            return u32(first >= floor) | (u32(second >= floor) << 1)

    else:

        @linked_function
        def spread_raw_keys(words, raws, at, mask):
            """Put the raw keys of a vector, four words, into a local array from `at` on."""
            for word in range(4):
                for part in range(per_word):
                    bits = words[word] << u32(unused - part * bits_each)
                    raws[at + word * per_word + part] = raw_key(bits, mask[0], mask[1], mask[2])

        @linked_function
        def raw_maximum(words, at, mask):
            """Return the largest raw key of a vector, the words from `at` on."""
            best = u32(0)
            for word in range(4):
                bits = words[at + word]
                best = max(best, raw_key(bits, mask[0], mask[1], mask[2]))
                for part in range(1, per_word):
                    best = max(best, raw_key(bits << u32(part * bits_each), mask[0], mask[1], mask[2]))
            return best

        @linked_function
        def integer_maximum(words, at, mask):
            """Do the same for integers: a whole word is made raw at once."""
            best = u32(0)
            for word in range(4):
                raw = words[at + word] ^ mask[3]
                best = max(best, raw)
                for part in range(1, per_word):
                    best = max(best, raw << u32(part * bits_each))
            return best

        @linked_function
        def reaching(words, at, floor, mask, are_raw):
            """Return a bit an element of a vector that is set where its raw key is at least `floor`.

            Of words that hold a raw key each there are four, whatever the width.
            """
            found = u32(0)
            if are_raw:
                for word in range(4):
                    found |= u32(words[at + word] >= floor) << u32(word)
            else:
                for word in range(4):
                    for part in range(per_word):
                        bits = words[at + word] << u32(unused - part * bits_each)
                        raw = raw_key(bits, mask[0], mask[1], mask[2])
                        found |= u32(raw >= floor) << u32(word * per_word + part)
            return found

    return (
        raw_mask,
        raw_element,
        raw_maximum,
        integer_maximum,
        spread_raw_keys,
        first_of_equals,
        whole_raw_key,
        key_of_raw,
        raw_floor,
        raw_beyond,
        reaching,
    )
