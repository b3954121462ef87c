"""Keys of a row in shared memory, each thread with its own: for blocks that go over them again and again.

In each step, a thread has a vector of the row. The keys of a warp lie together, in the order of steps, lanes
and elements, wherever in the row they are from.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import vectors_at
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.unaligned import is_readable, read_unaligned

# From a thread's vector to its next.
STEP_BYTES = WARP_LANES * VECTOR_BYTES
# Unaligned vectors that a thread loads before it uses the first.
_UNALIGNED_AHEAD = 4


class KeyFunctions(NamedTuple):
    """Device functions for one element width; a vector is a local array of `n_words` words, of any keys."""

    n_words: int
    load_vector: Any
    key_at: Any
    load_key: Any
    load_elements: Any
    load_keys: Any


@functools.cache
def key_functions(element_size: int) -> KeyFunctions:
    """Make the functions for one element width; keys of less than 32 bits share a word.

    `places` are the number of the first element of a thread's first vector, and the advance from step to
    step. Vectors may be beyond the end of the row.
    """
    functions = element_functions(element_size)
    key_type, ordered_key = functions.key_type, functions.ordered_key
    read_if = ptx.READ_IF[element_size]
    per_vector = VECTOR_BYTES // element_size
    load_shared = ptx.LOAD_SHARED[element_size]
    per_word = max(1, 4 // element_size)
    n_words = per_vector // per_word
    n_unaligned_words = 4 * _UNALIGNED_AHEAD
    bits = 8 * element_size
    ones = (1 << bits) - 1
    _, load_vector, store_vector = vectors_at(key_type)

    @device_function
    def key_at(words, place):
        """Return key number `place` of a vector."""
        word = words[place // per_word]
        if per_word > 1:
            word = (word >> u32(place % per_word * bits)) & ones
        return word

    @device_function
    def load_key(at, place):
        """Return key number `place`, which is known only now, of the vector at an address."""
        return load_shared(at + place * element_size)

    @linked_function
    def load_unaligned(own, row, places, n_steps):
        """Copy vectors that begin between two boundaries, and of which all is to be read."""
        address, _, count, extent = row
        begin, advance = places
        words = cuda.local.array(n_unaligned_words, u32)
        step = u32(0)
        while step < n_steps:
            for ahead in range(_UNALIGNED_AHEAD):
                first = begin + (step + u32(ahead)) * advance
                at = address + i64(first) * element_size
                is_read = max(count, first) - first >= per_vector and is_readable(at, extent)
                word = 4 * ahead
                words[word], words[word + 1], words[word + 2], words[word + 3] = read_unaligned(at, is_read)
            for ahead in range(_UNALIGNED_AHEAD):
                word = 4 * ahead
                if step + u32(ahead) < n_steps:
                    to = own + u32(ahead * STEP_BYTES)
                    ptx.store_shared_u32x4(to, words[word], words[word + 1], words[word + 2], words[word + 3])
            own += _UNALIGNED_AHEAD * STEP_BYTES
            step += _UNALIGNED_AHEAD

    @linked_function
    def load_elements(own, row, places, n_steps):
        """Copy a thread's elements, those of `n_steps` vectors, to shared memory from `own` on.

        `row` is ``(address, stride, count, extent)``, the last of which are the addresses between which all
        rows of x lie. Elements that are not in the row become zeros.
        """
        address, stride, count, extent = row
        is_aligned = address & (VECTOR_BYTES - 1) == 0
        if stride == 1 and not is_aligned:
            load_unaligned(own, row, places, n_steps)
        begin, advance = places
        step_bytes = stride * element_size
        words = cuda.local.array(n_words, key_type)
        step = u32(0)
        while step < n_steps:
            first = begin + step * advance
            vector = address + i64(first) * element_size
            is_whole = stride == 1 and max(count, first) - first >= per_vector
            if is_whole and is_aligned:
                ptx.copy_async_u32x4(own, vector)
            elif not is_whole or not is_readable(vector, extent):
                for word in range(n_words):
                    packed = key_type(0)
                    for part in range(per_word):
                        at = first + u32(word * per_word + part)
                        element = read_if(address + i64(at) * step_bytes, at < count)
                        packed |= element << key_type(part * bits)
                    words[word] = packed
                store_vector(words, own)
            own += STEP_BYTES
            step = ptx.next_pass(step)
        ptx.copy_async_wait()

    @linked_function
    def make_keys(own, count, places, n_steps, key_format):
        """Turn a thread's elements into keys; what is not in the row gets the lowest."""
        begin, advance = places
        words = cuda.local.array(n_words, key_type)
        step = u32(0)
        while step < n_steps:
            first = begin + step * advance
            load_vector(words, own)
            for word in range(n_words):
                packed = key_type(0)
                for part in range(per_word):
                    key = ordered_key(key_at(words, word * per_word + part), key_format)
                    if first + u32(word * per_word + part) < count:
                        packed |= key << key_type(part * bits)
                words[word] = packed
            store_vector(words, own)
            own += STEP_BYTES
            step = ptx.next_pass(step)

    @device_function
    def load_keys(own, row, places, n_steps, key_format):
        _, _, count, _ = row
        load_elements(own, row, places, n_steps)
        make_keys(own, count, places, n_steps, key_format)

    return KeyFunctions(n_words, load_vector, key_at, load_key, load_elements, load_keys)
