"""Keys of a row that the threads of a block hold in registers, for blocks that go over them again and again.

In each step, a warp reads neighbouring vectors, one per lane; those of all its steps are neighbours, too. So
the keys of a warp lie together in the row, in the order of steps, lanes and elements.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import READ_IF, load_if_u32x4
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.shapes import CLUSTER_VECTORS, VECTOR_BYTES, WARP_LANES

u32 = types.uint32
u64 = types.uint64
i64 = types.int64


class KeyFunctions(NamedTuple):
    """Device functions for the keys that a thread holds: an array of `n_words` words."""

    n_words: int
    n_vectors: int
    load: Any
    key_at: Any


@functools.cache
def key_functions(element_size: int) -> KeyFunctions:
    """Make the functions for one element width; keys of less than 32 bits share a word."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    read_if = READ_IF[element_size]
    n_vectors = CLUSTER_VECTORS[element_size]
    per_vector = VECTOR_BYTES // element_size
    per_word = max(1, 4 // element_size)
    words_per_vector = per_vector // per_word
    bits = 8 * element_size
    ones = (1 << bits) - 1

    @device_function
    def key_at(words, place):
        """Return the key of element number `place` of a thread."""
        word = words[place // per_word]
        if per_word > 1:
            word = (word >> u32(place % per_word * bits)) & ones
        return word

    @device_function
    def end_of(first, n_steps):
        """Return where a thread's elements end."""
        return first + ((n_steps - 1) * WARP_LANES + 1) * per_vector

    @linked_function
    def load_elements(words, address, stride, first, n_steps, count):
        """Load a thread's elements, `n_steps` vectors from number `first` of `count` elements on."""
        is_aligned = stride == 1 and address & (VECTOR_BYTES - 1) == 0
        raw = cuda.local.array((n_vectors, 4), u32)
        for vector in range(n_vectors):
            position = first + u32(vector * WARP_LANES * per_vector)
            is_whole = is_aligned and vector < n_steps and position + per_vector <= count
            raw[vector, 0], raw[vector, 1], raw[vector, 2], raw[vector, 3] = load_if_u32x4(
                address + i64(position) * element_size, is_whole
            )
        for vector in range(n_vectors):
            for word in range(words_per_vector):
                at = vector * words_per_vector + word
                if element_size == 8:
                    words[at] = u64(raw[vector, 2 * word]) | (u64(raw[vector, 2 * word + 1]) << 32)
                else:
                    words[at] = raw[vector, word]
        if not is_aligned or end_of(first, n_steps) > count:
            step = stride * element_size
            for vector in range(n_vectors):
                position = first + u32(vector * WARP_LANES * per_vector)
                if vector < n_steps and (not is_aligned or position < count < position + per_vector):
                    for word in range(words_per_vector):
                        packed = key_type(0)
                        for part in range(per_word):
                            at = position + u32(word * per_word + part)
                            element = read_if(address + i64(at) * step, at < count)
                            packed |= element << key_type(part * bits)
                        words[vector * words_per_vector + word] = packed

    @linked_function
    def make_keys(words, key_format, first, n_steps, count):
        """Turn a thread's elements into keys; what is beyond the last of `count` elements gets the lowest."""
        for vector in range(n_vectors):
            if vector < n_steps:
                for word in range(vector * words_per_vector, (vector + 1) * words_per_vector):
                    packed = key_type(0)
                    for part in range(per_word):
                        key = ordered_key(key_at(words, word * per_word + part), key_format)
                        packed |= key << key_type(part * bits)
                    words[word] = packed
        if end_of(first, n_steps) > count:
            for vector in range(n_vectors):
                position = first + u32(vector * WARP_LANES * per_vector)
                for word in range(words_per_vector):
                    kept = key_type(0)
                    for part in range(per_word):
                        if position + u32(word * per_word + part) < count:
                            kept |= key_type(ones) << key_type(part * bits)
                    words[vector * words_per_vector + word] &= kept

    @device_function
    def load(words, address, stride, first, n_steps, count, key_format):
        load_elements(words, address, stride, first, n_steps, count)
        make_keys(words, key_format, first, n_steps, count)

    return KeyFunctions(n_vectors * words_per_vector, n_vectors, load, key_at)
