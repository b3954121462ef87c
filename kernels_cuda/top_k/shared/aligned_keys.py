"""Keys that fill the register from the top: what threads compare that hold a row in registers.

They are ordered keys (`keys`), moved to the top; the low bits are 0 if the element has less than 32.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.key_formats import KeyFormat
from kernels_cuda.top_k.shared.keys import are_integers
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES
from kernels_cuda.top_k.shared.unaligned import is_readable, read_unaligned


class AlignedFunctions(NamedTuple):
    """Device functions for one element width; `unused` bits of a register are free."""

    unused: int
    spread: Any
    format_of: Any
    float_key: Any


@functools.cache
def aligned_functions(element_size: int) -> AlignedFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = ptx.REGISTER[element_size]
    signed_type = i64 if element_size == 8 else i32
    register_bits = max(32, 8 * element_size)
    unused = register_bits - 8 * element_size
    per_vector = VECTOR_BYTES // element_size
    element_mask = ((1 << register_bits) - 1) >> unused << unused

    @linked_function
    def spread(words, elements, at):
        """Put the elements of a vector, four words, at the top of those of a local array from `at` on."""
        if element_size == 8:
            for element in range(2):
                elements[at + element] = u64(words[2 * element]) | (u64(words[2 * element + 1]) << 32)
        else:
            per_word = 4 // element_size
            for element in range(per_vector):
                bits = words[element // per_word] << u32(unused - element % per_word * element_size * 8)
                elements[at + element] = bits & element_mask

    @device_function
    def format_of(key_format, are_codes):
        """Return a `KeyFormat` for elements at the top of a register, or for the complements of keys."""
        direction = key_type(key_format.direction) << unused
        if are_codes:
            direction = ~direction & key_type(element_mask)
        return KeyFormat(
            key_type(key_format.sign) << unused,
            key_type(key_format.magnitude) << unused,
            key_type(key_format.negation),
            key_type(key_format.infinity) << unused,
            key_type(key_format.unordered) << unused,
            direction,
        )

    @device_function
    def float_key(bits, aligned):
        negative = key_type(signed_type(bits) >> (register_bits - 1)) ^ aligned.negation
        number = ((bits & aligned.magnitude) ^ negative) - negative
        return min(number + aligned.infinity, aligned.unordered) ^ aligned.direction

    return AlignedFunctions(unused, spread, format_of, float_key)


@functools.cache
def register_functions(
    element_size: int, n_keys: int, vector_step: int, takes_unaligned: bool, are_codes: bool = False
) -> Any:
    """Make the device functions `load_elements` and `make_keys` for rows in registers.

    A thread has `n_keys` elements: of several vectors of 16 bytes, from each to the next of which it is
    `vector_step` elements. Vectors are loaded whole where all of the row's are aligned in memory.

    `takes_unaligned` tells whether vectors are loaded from between two boundaries, too, or single elements.

    Instead of keys, there may be codes, their complements: elements that come first have the smallest ones.
    Codes of 16 bits lie in registers by twos, as elements do in memory.
    """
    read_if = ptx.READ_IF[element_size]
    unused, spread, format_of, float_key = aligned_functions(element_size)
    per_vector = VECTOR_BYTES // element_size
    n_vectors = n_keys // per_vector
    is_paired = are_codes and element_size == 2
    if is_paired:
        spread = aligned_functions(4).spread
    per_register = 2 if is_paired else 1
    vector_registers = per_vector // per_register

    @device_function
    def element_at(elements, number, bits):
        """Return a register that holds an element beside those before it."""
        bits <<= u32(number % 2 * 16 if is_paired else unused)
        if is_paired and number % 2 != 0:
            bits |= elements[number // 2]
        return bits

    @linked_function
    def load_unaligned(elements, address, extent, n_dead, n_live):
        """Load the elements of vectors that begin anywhere, from number `n_dead` on before `n_live`."""
        words = cuda.local.array((n_vectors, 4), u32)
        for vector in range(n_vectors):
            at = address + vector * vector_step * element_size
            is_read = n_live > vector * per_vector and is_readable(at, extent)
            words[vector, 0], words[vector, 1], words[vector, 2], words[vector, 3] = read_unaligned(
                at, is_read
            )
        for vector in range(n_vectors):
            spread(words[vector], elements, vector * vector_registers)
        for vector in range(n_vectors):
            at = address + vector * vector_step * element_size
            if n_live > vector * per_vector and not is_readable(at, extent):
                for number in range(vector * per_vector, (vector + 1) * per_vector):
                    exists = n_dead <= number < n_live
                    bits = read_if(at + number % per_vector * element_size, exists)
                    elements[number // per_register] = element_at(elements, number, bits)

    @device_function
    def load_elements(elements, row, extent, first, n_live, p):
        """Load a thread's elements from number `first` on of a row; only `n_live` come before its end.

        `row` are the address from which on numbers count, and from and up to which number the row lies; its
        first vector may begin before it. `extent` are the addresses between which all rows of x lie.
        """
        base, begin, end = row
        words = cuda.local.array((n_vectors, 4), u32)
        n_bytes = i64(end) * element_size
        n_bytes += -n_bytes & (VECTOR_BYTES - 1)
        is_aligned = (base & (VECTOR_BYTES - 1)) == 0 and extent[0] <= base and base + n_bytes <= extent[1]
        address = base + i64(first) * element_size
        if p.strides.x == 1 and is_aligned:
            for vector in range(n_vectors):
                words[vector, 0], words[vector, 1], words[vector, 2], words[vector, 3] = ptx.read_if_u32x4(
                    address + vector * vector_step * element_size, n_live > vector * per_vector
                )
            for vector in range(n_vectors):
                spread(words[vector], elements, vector * vector_registers)
        elif takes_unaligned and p.strides.x == 1:
            load_unaligned(elements, address, extent, max(begin, first) - first, n_live)
        else:
            step = p.strides.x * element_size
            for number in range(n_keys):
                position = first + u32(number // per_vector * vector_step + number % per_vector)
                bits = read_if(base + i64(position) * step, n_live > number and position >= begin)
                elements[number // per_register] = element_at(elements, number, bits)

    @device_function
    def twice(aligned):
        return aligned | (aligned >> 16)

    @device_function
    def float_keys(word, aligned):
        """Return the keys of two floats of 16 bits."""
        negative = ptx.permute(word, word, 0xBB99) ^ twice(aligned.negation)
        number = (word & twice(aligned.magnitude)) ^ negative
        # A negative number is its magnitude's complement plus one. Infinity is even.
        distance = ptx.add_u16x2(number, (negative & 0x10001) | twice(aligned.infinity))
        return ptx.min_u16x2(distance, twice(aligned.unordered)) ^ twice(aligned.direction)

    key_of = float_keys if is_paired else float_key

    @linked_function
    def make_keys(elements, n_used, key_format):
        """Turn the elements of the vectors before `n_used` into keys, or codes, in place."""
        aligned = format_of(key_format, are_codes)
        direction = aligned.direction
        if is_paired:
            direction = twice(direction)
        for vector in range(n_vectors):
            if u32(vector) < n_used:
                first = vector * vector_registers
                if are_integers(key_format):
                    for number in range(first, first + vector_registers):
                        elements[number] ^= direction
                else:
                    for number in range(first, first + vector_registers):
                        elements[number] = key_of(elements[number], aligned)

    return load_elements, make_keys
