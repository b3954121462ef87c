"""Maxima of groups of neighbouring elements: the first pass over a row.

A warp takes a chunk of 256 vectors, which lie together: lane `l` loads the vectors ``32 * j + l``, all eight
of them before it uses the first, and in the place of each that it has used, one of the next chunk.
A group is 1, 2, 4 or 8 neighbouring vectors of a chunk; its maximum is found by exchanging halves, so that
the lanes share the work and each ends with 8, 4, 2 or 1 maxima. All this is done with unfolded keys (`keys`).

Groups are numbered by position. The elements of the k groups that come first by (maximum, number), numbers
ascending, contain the first k elements of the row by (key, position): an element of any other group comes
after the maximum of each of these.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import shared_vectors
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import CHUNK_VECTORS, MAXIMA_WARPS, VECTOR_BYTES, VECTORS_PER_LANE

CHUNK_WORDS = 4 * VECTORS_PER_LANE
# Vectors of keys that a thread has under way.
_COPIED = 4
_COPIED_WORDS = 4 * _COPIED


class GroupFunctions(NamedTuple):
    """Device functions for local arrays of `VECTORS_PER_LANE` maxima, one a vector and then one a group."""

    load_first: Any
    next_maxima: Any
    load_strided_maxima: Any
    reduce_maxima: Any


@device_function
def coarse_groups(n_vectors, vector_bits, most):
    """Return how many of `most` coarse groups a row has, of ``1 << vector_bits`` vectors each."""
    n_groups = (n_vectors + ((1 << vector_bits) - 1)) >> vector_bits
    return min((n_groups + (MAXIMA_WARPS - 1)) & ~(MAXIMA_WARPS - 1), most)


@functools.cache
def group_functions(element_size: int) -> GroupFunctions:
    """Make the device functions for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    unfolded_maximum = functions.unfolded_maximum
    unfolded_element = functions.unfolded_element
    per_vector = VECTOR_BYTES // element_size
    shuffle_xor = ptx.SHUFFLE_XOR[key_type]

    # The maxima of 8-byte elements leave no registers for vectors that are under way, and older instruction
    # sets need more of them for all others.
    may_load_ahead = element_size < 8

    @device_function
    def load(words, at, address, n_left):
        word = 4 * at
        words[word], words[word + 1], words[word + 2], words[word + 3] = ptx.load_if_u32x4(
            address + 32 * VECTOR_BYTES * at, u32(32 * at) < n_left
        )

    @linked_function
    def load_first(words, address, n_left):
        """Load a lane's vectors ``32 * j`` from `address` on, up to `n_left`, if that is done ahead."""
        if may_load_ahead and ptx.is_compute_90():
            for at in range(VECTORS_PER_LANE):
                load(words, at, address, n_left)

    @linked_function
    def next_maxima(words, maxima, address, n_left, step, n_next, unfolding):
        """Fill in the maxima of a chunk, at `address`; where it was, load the one that is `step` further."""
        is_loaded = may_load_ahead and ptx.is_compute_90()
        if not is_loaded:
            for at in range(VECTORS_PER_LANE):
                load(words, at, address, n_left)
        address += step
        for at in range(VECTORS_PER_LANE):
            maxima[at] = unfolded_maximum(words, 4 * at, unfolding)
            if is_loaded:
                load(words, at, address, n_next)
        if n_left < CHUNK_VECTORS:
            for at in range(VECTORS_PER_LANE):
                if u32(32 * at) >= n_left:
                    maxima[at] = key_type(0)

    @linked_function
    def load_strided_maxima(maxima, address, stride, n_left, unfolding):
        """Do the same for elements `stride` apart; those of a vector are loaded together."""
        elements = cuda.local.array(per_vector, key_type)
        step = stride * element_size
        # An opaque copy: compilers would unroll the loop, and run out of registers.
        n_vectors = ptx.shuffle_from_u32(u32(VECTORS_PER_LANE), u32(0))
        vector = u32(0)
        while vector < n_vectors:
            best = key_type(0)
            if vector * 32 < n_left:
                element_address = address
                for element in range(per_vector):
                    elements[element] = load_element(element_address)
                    element_address += step
                for element in range(per_vector):
                    best = max(best, unfolded_element(elements[element], unfolding))
            for at in range(VECTORS_PER_LANE):
                if vector == u32(at):
                    maxima[at] = best
            address += 32 * per_vector * step
            vector += 1

    exchange_eight, exchange_four, exchange_two = (
        _exchange_halves(VECTORS_PER_LANE >> bit, bit, shuffle_xor) for bit in range(3)
    )

    @linked_function
    def reduce_maxima(maxima, lane, lane_bits):
        """Reduce to groups of ``1 << lane_bits`` vectors, of which each lane has ``8 >> lane_bits``.

        Returns the number, within the chunk, of the lane's first group; its others are ``32 >> lane_bits``
        apart.
        """
        first = lane >> lane_bits
        apart = 32 >> lane_bits
        if lane_bits > 0:
            exchange_eight(maxima, lane)
            first += (lane & 1) * (apart << 2)
        if lane_bits > 1:
            exchange_four(maxima, lane)
            first += ((lane >> 1) & 1) * (apart << 1)
        if lane_bits > 2:
            exchange_two(maxima, lane)
            first += ((lane >> 2) & 1) * apart
        return first

    return GroupFunctions(load_first, next_maxima, load_strided_maxima, reduce_maxima)


def _exchange_halves(count: int, bit: int, shuffle_xor: Any) -> Any:
    half = count // 2

    @device_function
    def exchange(maxima, lane):
        """Leave the lower half of `count` maxima to lanes without `bit`, the upper to those with it."""
        is_upper = (lane >> bit) & 1 != 0
        for at in range(half):
            kept = maxima[at]
            given = maxima[at + half]
            if is_upper:
                kept = maxima[at + half]
                given = maxima[at]
            maxima[at] = max(kept, shuffle_xor(given, u32(1 << bit)))

    return exchange


@functools.cache
def block_maxima(element_size: int, n_threads: int) -> tuple[Any, Any, Any]:
    """Make `group_maxima` and `copy_keys`, first passes of a whole block, and `order_maxima` for either."""
    load_first, next_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size)
    functions = element_functions(element_size)
    key_type = functions.key_type
    fold = functions.fold
    keys_per_vector, load_vector, store_vector = shared_vectors(key_type)
    n_warps = n_threads // 32
    # The vectors that a block takes before a warp takes another chunk.
    round_vectors = n_warps * CHUNK_VECTORS

    @linked_function
    def keep_maxima(keys, maxima, first_group, bits, lane):
        apart = 32 >> bits
        group = reduce_maxima(maxima, lane, bits) + first_group
        keys[group] = maxima[0]
        if bits < 3:
            keys[group + apart] = maxima[1]
        if bits < 2:
            for at in range(2, 4):
                keys[group + apart * u32(at)] = maxima[at]
        if bits < 1:
            for at in range(4, 8):
                keys[group + apart * u32(at)] = maxima[at]

    @linked_function
    def group_maxima(keys, address, n_vectors, stride, unfolding, bits, lane, warp):
        """Write the unfolded maxima of groups of ``1 << bits`` vectors; elements are `stride` apart."""
        words = cuda.local.array(CHUNK_WORDS, u32)
        maxima = cuda.local.array(VECTORS_PER_LANE, key_type)
        chunk_groups = CHUNK_VECTORS >> bits
        first = warp * CHUNK_VECTORS
        vector = first + lane
        first_group = warp * chunk_groups
        first_left = max(n_vectors, first) - first
        available = max(n_vectors, vector) - vector
        if stride == 1:
            address += i64(vector) * VECTOR_BYTES
            load_first(words, address, available)
            while first_left > 0:
                available_next = max(available, u32(round_vectors)) - round_vectors
                next_maxima(
                    words, maxima, address, available, round_vectors * VECTOR_BYTES, available_next, unfolding
                )
                address += round_vectors * VECTOR_BYTES
                keep_maxima(keys, maxima, first_group, bits, lane)
                first_group += chunk_groups * n_warps
                first_left = max(first_left, u32(round_vectors)) - round_vectors
                available = available_next
        else:
            address += i64(vector) * VECTOR_BYTES * stride
            while first_left > 0:
                load_strided_maxima(maxima, address, stride, available, unfolding)
                address += round_vectors * VECTOR_BYTES * stride
                keep_maxima(keys, maxima, first_group, bits, lane)
                first_group += chunk_groups * n_warps
                first_left = max(first_left, u32(round_vectors)) - round_vectors
                available = max(available, u32(round_vectors)) - round_vectors

    @linked_function
    def copy_keys(keys, address, n_vectors, thread):
        """Take the unfolded keys of a stage as they are: every one is the maximum of a group."""
        words = cuda.local.array(_COPIED_WORDS, u32)
        at = ptx.shared_address(keys)
        vector = thread
        while vector < n_vectors:
            for ahead in range(_COPIED):
                other = vector + u32(ahead * n_threads)
                word = 4 * ahead
                words[word], words[word + 1], words[word + 2], words[word + 3] = ptx.load_if_u32x4(
                    address + i64(other) * VECTOR_BYTES, other < n_vectors
                )
            for ahead in range(_COPIED):
                other = vector + u32(ahead * n_threads)
                word = 4 * ahead
                if other < n_vectors:
                    ptx.store_shared_u32x4(
                        at + (other << 4), words[word], words[word + 1], words[word + 2], words[word + 3]
                    )
            vector += u32(_COPIED * n_threads)

    @linked_function
    def order_maxima(keys, n_groups, key_format, lowest, highest, thread):
        """Make keys of the unfolded maxima; return the least and the largest of these and the given ones."""
        vector = cuda.local.array(keys_per_vector, key_type)
        number = thread
        group = number * keys_per_vector
        while group < n_groups:
            load_vector(vector, keys, number)
            for at in range(keys_per_vector):
                vector[at] = fold(vector[at], key_format)
                if group + u32(at) < n_groups:
                    lowest = min(lowest, vector[at])
                    highest = max(highest, vector[at])
            store_vector(vector, keys, number)
            number += n_threads
            group = number * keys_per_vector
        return lowest, highest

    return group_maxima, copy_keys, order_maxima
