"""Keys: what every top-k kernel compares instead of elements.

The ordered key of an element is an unsigned integer of its width, made so that the element which comes first
has the largest key. `key_formats.KeyFormat` says how to make it. That of a float is its distance from minus
infinity, counted in floats: with `magnitude` m and `infinity` I, it is I + m, or I - m if the float is
negative. So -0.0 and +0.0 share the key I, and plus infinity has 2 I. The distances of NaNs are larger than
that, or negative and wrap around: all become ``2 I + 1``. Where the smallest come first, or NaN last, it is
the complement (and where NaN is last though the largest come first, that of the negated float). An integer's
key is the integer, whose sign bit is inverted. `restore` returns the element that has a key; of zeros and
NaNs it must read it.

Of a vector only the largest key matters at first, and finding it must cost few instructions per element: its
elements become unfolded keys, by one conditional complement and one sum. Before the complement (`direction`),
the unfolded key of a negative float is its distance, and that of a positive one its distance plus one: both
zeros are neighbours. NaNs have larger ones than all numbers. `fold` makes an ordered key of it:
``min(u - (u > I), 2 I + 1)``, and `unfold_threshold` finds the least unfolded key of an ordered one. An
unfolded key fills the register from the top; the low bits are undefined if the element has less than 32.
`key_formats.UnfoldedFormat` says how to make it.

A row is read in vectors of 16 bytes, whatever the width. `element_functions` makes the device functions for
one width; keys of 1, 2 and 4 bytes travel in a uint32, those of 8 bytes in a uint64.
"""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.rows import store_index


class Unfolding(NamedTuple):
    """How words become unfolded keys: by a `key_formats.UnfoldedFormat`, or not at all if they are such."""

    flip: Any
    factor: Any
    offset: Any
    change: Any


class ElementFunctions(NamedTuple):
    """Device functions for one element width; `words` are the four uint32 of a vector."""

    key_type: Any
    ordered_key: Any
    element_of: Any
    restore: Any
    load_element: Any
    store_element: Any
    unfolding_of: Any
    unfolded_element: Any
    unfolded_maximum: Any
    spread_unfolded_keys: Any
    first_of_equals: Any
    whole_key: Any
    fold: Any
    unfold_threshold: Any
    unfold_next_above: Any
    at_or_above: Any


@device_function
def are_integers(key_format):
    """Return whether elements with the same key have the same bits: they are integers."""
    return key_format.unordered == key_format.magnitude


@functools.cache
def element_functions(element_size: int) -> ElementFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = ptx.REGISTER[element_size]
    load_element = ptx.LOAD[element_size]
    store_element = ptx.STORE[element_size]
    ones = (1 << max(32, 8 * element_size)) - 1

    @device_function
    def ordered_key(element, key_format):
        negative = key_type(key_format.negation)
        if element & key_type(key_format.sign) != 0:
            negative = ~negative
        number = ((element & key_type(key_format.magnitude)) ^ negative) - negative
        distance = min(number + key_type(key_format.infinity), key_type(key_format.unordered))
        return distance ^ key_type(key_format.direction)

    @device_function
    def element_of(key, key_format):
        """Return the element that has a key, or one of those that have it: a zero, but no NaN."""
        number = (key ^ key_type(key_format.direction)) - key_type(key_format.infinity)
        negative = key_type(0)
        if key_type(key_format.infinity) > key ^ key_type(key_format.direction):
            negative = key_type(ones)
        sign = key_type(key_format.sign) & (negative ^ key_type(key_format.negation))
        return ((number ^ negative) - negative) | sign

    @linked_function
    def restore(key, key_format, address):
        """Return the element at `address`, read from there only if its key does not tell it."""
        bits = element_of(key, key_format)
        distance = key ^ key_type(key_format.direction)
        if distance == key_type(key_format.infinity) or distance == key_type(key_format.unordered):
            bits = load_element(address)
        return bits

    return ElementFunctions(
        key_type,
        ordered_key,
        element_of,
        restore,
        load_element,
        store_element,
        *_unfolded_functions(element_size),
    )


@functools.cache
def result_function(element_size: int) -> Any:
    """Make the device function that writes an element, known by its key, and its position."""
    functions = element_functions(element_size)
    restore, store_element = functions.restore, functions.store_element

    @device_function
    def write_result(row, output, rank, key, position, key_format):
        """Write result number `rank`.

        `row` is ``(address, stride)``, and `output` ``(values, indices, value_stride, index_stride,
        index_size)``, of which `indices` are `results.RowIndices`.
        """
        address, stride = row
        values, indices, value_stride, index_stride, index_size = output
        bits = restore(key, key_format, address + position * stride * element_size)
        store_element(values + i64(rank) * value_stride * element_size, bits)
        at = indices.address + i64(rank) * index_stride * index_size
        store_index(at, index_size, position + indices.start)

    return write_result


def _unfolded_functions(element_size: int) -> tuple[Any, ...]:
    """Make the functions of unfolded keys (see the module)."""
    key_type = ptx.REGISTER[element_size]
    make_unfolded = ptx.unfolded_key_u64 if element_size == 8 else ptx.unfolded_key_u32
    per_word = max(1, 4 // element_size)
    bits_each = 8 * element_size
    unused = 0 if element_size == 8 else 32 - bits_each
    ones = (1 << bits_each) - 1
    unchanged = 0 if element_size == 8 else 1

    @device_function
    def unfold(element, unfolding):
        return make_unfolded(element, unfolding.flip, unfolding.factor, unfolding.offset)

    @linked_function
    def unfolding_of(unfolded_format, are_unfolded):
        """Return flip, factor, offset and change of elements, or of words that hold an unfolded key each."""
        flip = key_type(unfolded_format.flip)
        factor = key_type(unfolded_format.factor)
        offset = key_type(unfolded_format.offset)
        change = key_type(unfolded_format.change)
        if are_unfolded:
            flip = key_type(0)
            factor = key_type(unchanged)
            offset = key_type(0)
            change = key_type(0)
        return Unfolding(flip, factor, offset, change)

    @device_function
    def border_of(key_format):
        """Return the distance of zeros, beyond which unfolded keys are one more; of integers, none are."""
        border = key_type(ones)
        if key_format.sign != 0:
            border = key_type(key_format.infinity)
        return border

    @linked_function
    def fold(unfolded, key_format):
        direction = key_type(key_format.direction)
        distance = (unfolded >> unused) ^ direction
        if distance > border_of(key_format):
            distance -= 1
        return min(distance, key_type(key_format.unordered)) ^ direction

    @linked_function
    def whole_key(unfolded):
        """Clear the undefined low bits."""
        return unfolded & (key_type(ones) << key_type(unused))

    @linked_function
    def unfolded_element(bits, unfolding):
        return unfold(bits << unused, unfolding)

    @linked_function
    def unfold_threshold(key, key_format):
        """Return the least unfolded key of elements with this key or above.

        No element has a larger key than the NaNs that come first, and none a smaller one than those that come
        last: of these, any unfolded key will do.
        """
        direction = key_type(key_format.direction)
        distance = min(key ^ direction, key_type(key_format.unordered))
        are_complements = direction & 1
        unfolded = distance
        if distance + are_complements > border_of(key_format):
            unfolded += 1
        if are_complements != 0 and distance == key_type(key_format.unordered):
            unfolded = key_type(ones)
        return (unfolded ^ direction) << unused

    @linked_function
    def unfold_next_above(key, key_format):
        """Return the least unfolded key of elements with a larger key than this, 0 if there are none."""
        highest = key_type(ones)
        if key_type(key_format.direction) & 1 == 0:
            highest = key_type(key_format.unordered)
        next_above = key_type(0)
        if key < highest:
            next_above = unfold_threshold(key + 1, key_format)
        return next_above

    @linked_function
    def first_of_equals(unfolded, key_format):
        """Return the least unfolded key of elements that have the same key."""
        return unfold_threshold(fold(unfolded, key_format), key_format)

    if element_size == 8:

        @linked_function
        def spread_unfolded_keys(words, unfolded_keys, at, unfolding):
            """Put the unfolded keys of a vector, four words, into a local array from `at` on."""
            for element in range(2):
                low = u64(words[2 * element])
                unfolded_keys[at + element] = unfold(low | (u64(words[2 * element + 1]) << 32), unfolding)

        @linked_function
        def unfolded_maximum(words, at, unfolding):
            """Return the largest unfolded key of a vector, the words from `at` on."""
            first = unfold(u64(words[at]) | (u64(words[at + 1]) << 32), unfolding)
            return max(first, unfold(u64(words[at + 2]) | (u64(words[at + 3]) << 32), unfolding))

        @linked_function
        def at_or_above(words, at, threshold, unfolding, are_unfolded):
            """Return one bit per element of a vector, set where its unfolded key is at least `threshold`."""
            first = unfold(u64(words[at]) | (u64(words[at + 1]) << 32), unfolding)
            second = unfold(u64(words[at + 2]) | (u64(words[at + 3]) << 32), unfolding)
            return u32(first >= threshold) | (u32(second >= threshold) << 1)

    else:

        @linked_function
        def spread_unfolded_keys(words, unfolded_keys, at, unfolding):
            """Put the unfolded keys of a vector, four words, into a local array from `at` on."""
            for word in range(4):
                for part in range(per_word):
                    bits = words[word] << u32(unused - part * bits_each)
                    unfolded_keys[at + word * per_word + part] = unfold(bits, unfolding)

        @device_function
        def largest_half(word):
            return max(word & u32(0xFFFF0000), word << 16)

        @device_function
        def maximum_of_pairs(words, at, unfolding):
            """Do the same as `unfolded_maximum`, for both elements of a word at a time."""
            change = u32(0)
            flip = unfolding.flip | (unfolding.flip >> 16)
            offset = unfolding.offset | (unfolding.offset >> 16)
            if unfolding.factor != 1:
                # The key subtracted from the offset: its complement, plus one, added to it.
                change = ~flip
                offset = ((unfolding.offset + 1) >> 16) * 0x10001
            best = u32(0)
            for word in range(4):
                # The sign bits of the changed word say where it is flipped.
                changed = words[at + word] ^ change
                flipped = (ptx.permute(changed, changed, 0xBB99) & flip) ^ changed
                best = ptx.max_u16x2(best, ptx.add_u16x2(flipped, offset))
            return largest_half(best)

        @linked_function
        def unfolded_maximum(words, at, unfolding):
            """Return the largest unfolded key of a vector, the words from `at` on."""
            if element_size == 2 and ptx.is_compute_90():
                return maximum_of_pairs(words, at, unfolding)
            best = u32(0)
            for word in range(4):
                bits = words[at + word]
                if element_size == 1:
                    # Bytes are integers: a whole word is made unfolded at once.
                    bits ^= unfolding.change
                for part in range(per_word):
                    unfolded = bits << u32(part * bits_each)
                    if element_size != 1:
                        unfolded = unfold(unfolded, unfolding)
                    best = max(best, unfolded)
            return best

        @linked_function
        def at_or_above(words, at, threshold, unfolding, are_unfolded):
            """Return one bit per element of a vector, set where its unfolded key is at least `threshold`.

            Of words that hold an unfolded key each there are four, whatever the width.
            """
            found = u32(0)
            if are_unfolded:
                for word in range(4):
                    found |= u32(words[at + word] >= threshold) << u32(word)
            else:
                for word in range(4):
                    for part in range(per_word):
                        bits = words[at + word] << u32(unused - part * bits_each)
                        unfolded = unfold(bits, unfolding)
                        found |= u32(unfolded >= threshold) << u32(word * per_word + part)
            return found

    return (
        unfolding_of,
        unfolded_element,
        unfolded_maximum,
        spread_unfolded_keys,
        first_of_equals,
        whole_key,
        fold,
        unfold_threshold,
        unfold_next_above,
        at_or_above,
    )
