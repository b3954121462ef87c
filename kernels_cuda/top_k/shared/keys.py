"""Keys: what every top-k kernel compares instead of elements.

The ordered key of an element is an unsigned integer of its width, made so that the element which comes first
has the largest key: NaNs share one key, and so do -0.0 and +0.0. `problem.KeyFormat` says how to make it.
Because of the shared keys an element cannot always be told from its key; `restore` says when it can.

Of a vector only the largest key matters at first, and finding it must cost few instructions per element: its
elements become unfolded keys, which order elements as their ordered keys do, except that those of NaNs, and
those of the zeros, differ but are neighbours. An unfolded key fills the register from the top; the low bits
are undefined if the element has less than 32. The largest unfolded keys become ordered keys in the end
(`fold`). `problem.UnfoldedFormat` says how.

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
    """How words become unfolded keys: as a `problem.UnfoldedFormat` says, or not at all if they are such."""

    flip: Any
    turn: Any
    offset: Any
    change: Any


class ElementFunctions(NamedTuple):
    """Device functions for one element width; `words` are the four uint32 of a vector."""

    key_type: Any
    ordered_key: Any
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
def puts_nan_last(key_format):
    """Return whether the largest floats come first, but NaN last."""
    is_last = key_format.unordered == 0 and key_format.infinity != 0
    return is_last and key_format.positive == key_format.sign


@functools.cache
def element_functions(element_size: int) -> ElementFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = ptx.REGISTER[element_size]
    load_element = ptx.LOAD[element_size]
    store_element = ptx.STORE[element_size]
    make_key = ptx.ordered_key_u64 if element_size == 8 else ptx.ordered_key_u32

    @device_function
    def ordered_key(element, key_format):
        sign, flip, infinity, positive, negative, unordered = key_format
        return make_key(element, sign, flip, infinity, positive, negative, unordered)

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
        key_type, ordered_key, restore, load_element, store_element, *_unfolded_functions(element_size)
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
    # `turn` is a factor, or a mask of 64 bits.
    unturned = 0 if element_size == 8 else 1

    @device_function
    def unfold(element, unfolding):
        return make_unfolded(element, unfolding.flip, unfolding.turn, unfolding.offset)

    @linked_function
    def unfolding_of(unfolded_format, are_unfolded):
        """Return flip, turn, offset and change of elements, or of words that hold an unfolded key each."""
        flip = key_type(unfolded_format.flip)
        turn = key_type(unfolded_format.turn)
        offset = key_type(unfolded_format.offset)
        change = key_type(unfolded_format.change)
        if are_unfolded:
            flip = key_type(0)
            turn = key_type(unturned)
            offset = key_type(0)
            change = key_type(0)
        return Unfolding(flip, turn, offset, change)

    @linked_function
    def fold(unfolded, unfolded_format, key_format):
        moved = unfolded >> unused
        key = (moved + key_type(unfolded_format.shift)) & ones
        if key == key_type(unfolded_format.lone_zero):
            key = key_type(key_format.positive)
        if key_type(unfolded_format.first_nan) <= moved <= key_type(unfolded_format.last_nan):
            key = key_type(key_format.unordered)
        return key

    @linked_function
    def first_of_equals(unfolded, unfolded_format, key_format):
        """Return the least unfolded key of elements that have the same key."""
        moved = unfolded >> unused
        key = (moved + key_type(unfolded_format.shift)) & ones
        if key_format.flip != 0 and key == max(
            key_type(unfolded_format.lone_zero), key_type(key_format.positive)
        ):
            moved -= 1
        if key_type(unfolded_format.first_nan) <= moved <= key_type(unfolded_format.last_nan):
            moved = key_type(unfolded_format.first_nan)
        return moved << unused

    @linked_function
    def whole_key(unfolded):
        """Clear the undefined low bits."""
        return unfolded & (key_type(ones) << key_type(unused))

    @linked_function
    def unfolded_element(bits, unfolding):
        return unfold(bits << unused, unfolding)

    @linked_function
    def unfold_threshold(key, key_format):
        """Return the least unfolded key of elements with this key or above, or 0 if there can be none.

        They are ordered keys moved on by as much as brings the NaNs together; only zeros are out of order.
        """
        unfolded = key
        if key_format.flip != 0:
            lowest = key_type(key_format.flip ^ key_format.infinity)
            highest = key_type(key_format.sign ^ key_format.infinity)
            inside = min(max(key, lowest), highest + 1)
            is_smallest = key_format.unordered == 0 and not puts_nan_last(key_format)
            unfolded = inside - lowest
            if key_format.unordered == 0:
                unfolded = inside + lowest
            if is_smallest and key == key_type(key_format.positive) + 1:
                unfolded += 1
            if not is_smallest and key == key_type(key_format.positive):
                unfolded -= 1
            if key_format.unordered == 0 and key == 0:
                unfolded = key_type(0)
        return unfolded << unused

    @linked_function
    def unfold_next_above(key, key_format):
        """Return the least unfolded key of elements with a larger key than this, 0 if there are none."""
        next_above = key_type(0)
        if key != ones:
            next_above = unfold_threshold(key + 1, key_format)
        return next_above

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
            if unfolding.turn != 1:
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
