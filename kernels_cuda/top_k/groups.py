"""Maxima of groups of neighbouring elements: the first look at a row.

The lanes of a warp have neighbouring vectors. Each loads eight, from `apart` to `apart`, all before it
looks at the first, and in the place of each that it has looked at, one of the next eight. A warp that works
by itself takes a chunk of 256 vectors, 32 apart; a block shares the row evenly, as many apart as it has
threads. A group is 1, 2, 4 or 8 neighbouring vectors; its maximum is found by exchanging halves, so that the
lanes share the work and each ends with 8, 4, 2 or 1 maxima. All this is done with raw keys (`keys`).

Groups are numbered by position. The elements of the k groups that come first by (maximum, number), numbers
ascending, contain the first k elements of the row by (key, position): an element of any other group comes
after the maximum of each of these.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.compiler import device_function, linked_function
from kernels_cuda.ptx import is_compute_90, load_if_u32x4, shuffle_xor_u32, shuffle_xor_u64
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.group_shape import VECTORS_A_LANE
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.quads import quad_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

CHUNK_WORDS = 4 * VECTORS_A_LANE


class GroupFunctions(NamedTuple):
    """Device functions for local arrays of `VECTORS_A_LANE` maxima, one a vector and then one a group."""

    load_first: Any
    next_maxima: Any
    load_strided_maxima: Any
    reduce_maxima: Any


@functools.cache
def group_functions(element_size: int, apart: int) -> GroupFunctions:
    """Make the device functions for one element width, and vectors of a lane that are `apart`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    raw_maximum = functions.raw_maximum
    integer_maximum = functions.integer_maximum
    raw_element = functions.raw_element
    per_vector = VECTOR_BYTES // element_size
    shuffle_xor = shuffle_xor_u64 if element_size == 8 else shuffle_xor_u32

    # The maxima of 8-byte elements leave no registers for vectors that are under way, and older instruction
    # sets need more of them for all others.
    may_load_ahead = element_size < 8

    @device_function
    def load(words, at, address, n_left):
        word = 4 * at
        words[word], words[word + 1], words[word + 2], words[word + 3] = load_if_u32x4(
            address + apart * VECTOR_BYTES * at, u32(apart * at) < n_left
        )

    @linked_function
    def load_first(words, address, n_left):
        """Load a lane's vectors from `address` on, those before `n_left`, if that is done ahead."""
        if may_load_ahead and is_compute_90():
            for at in range(VECTORS_A_LANE):
                load(words, at, address, n_left)

    @linked_function
    def next_maxima(words, maxima, address, n_left, step, n_next, mask):
        """Fill in the maxima of a chunk, at `address`; where it was, load the one that is `step` further."""
        is_loaded = may_load_ahead and is_compute_90()
        if not is_loaded:
            for at in range(VECTORS_A_LANE):
                load(words, at, address, n_left)
        address += step
        are_integers = mask[0] == key_type(0)
        if are_integers:
            for at in range(VECTORS_A_LANE):
                maxima[at] = integer_maximum(words, 4 * at, mask)
                if is_loaded:
                    load(words, at, address, n_next)
        else:
            for at in range(VECTORS_A_LANE):
                maxima[at] = raw_maximum(words, 4 * at, mask)
                if is_loaded:
                    load(words, at, address, n_next)
        if n_left < u32(apart * VECTORS_A_LANE):
            for at in range(VECTORS_A_LANE):
                if u32(apart * at) >= n_left:
                    maxima[at] = key_type(0)

    @linked_function
    def load_strided_maxima(maxima, address, stride, n_left, mask):
        """Do the same for elements `stride` apart."""
        ahead = u32(0)
        while ahead < u32(VECTORS_A_LANE):
            best = key_type(0)
            element = i64(u32(ahead * u32(apart * per_vector)))
            end = element
            if u32(ahead * u32(apart)) < n_left:
                end = element + per_vector
            while element < end:
                bits = key_type(load_element(address + element * stride * element_size))
                best = max(best, key_type(raw_element(bits, mask)))
                element += 1
            for at in range(VECTORS_A_LANE):
                if ahead == u32(at):
                    maxima[at] = best
            ahead = u32(ahead + u32(1))

    exchange_eight, exchange_four, exchange_two = (
        _exchange_halves(VECTORS_A_LANE >> bit, bit, key_type, shuffle_xor) for bit in range(3)
    )

    @linked_function
    def reduce_maxima(maxima, lane, lane_bits):
        """Reduce to groups of ``1 << lane_bits`` vectors, of which each lane has ``8 >> lane_bits``.

        Returns the number of the lane's first group, from that of the warp's first vector on; its others are
        ``apart >> lane_bits`` further each.
        """
        first = u32(lane >> lane_bits)
        further = u32(u32(apart) >> lane_bits)
        if lane_bits > u32(0):
            exchange_eight(maxima, lane)
            first = u32(first + u32(u32(lane & u32(1)) * u32(further << u32(2))))
        if lane_bits > u32(1):
            exchange_four(maxima, lane)
            first = u32(first + u32(u32((lane >> u32(1)) & u32(1)) * u32(further << u32(1))))
        if lane_bits > u32(2):
            exchange_two(maxima, lane)
            first = u32(first + u32(u32((lane >> u32(2)) & u32(1)) * further))
        return first

    return GroupFunctions(load_first, next_maxima, load_strided_maxima, reduce_maxima)


def _exchange_halves(count: int, bit: int, key_type: Any, shuffle_xor: Any) -> Any:
    half = count // 2

    @device_function
    def exchange(maxima, lane):
        """Leave the lower half of `count` maxima to lanes without `bit`, the upper to those with it."""
        is_upper = (lane >> u32(bit)) & u32(1) != u32(0)
        for at in range(half):
            kept = key_type(maxima[at])
            given = key_type(maxima[at + half])
            if is_upper:
                kept = key_type(maxima[at + half])
                given = key_type(maxima[at])
            maxima[at] = max(kept, key_type(shuffle_xor(given, u32(1 << bit))))

    return exchange


@functools.cache
def block_maxima(element_size: int, n_threads: int) -> tuple[Any, Any]:
    """Make `group_maxima`, the first look of a whole block, and `order_maxima`, which makes keys of it."""
    load_first, next_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size, n_threads)
    functions = element_functions(element_size)
    key_type = functions.key_type
    key_of_raw = functions.key_of_raw
    per_quad, load_quad, store_quad = quad_functions(key_type)
    round_vectors = VECTORS_A_LANE * n_threads

    @linked_function
    def keep_maxima(keys, maxima, first_group, n_groups, bits, lane):
        further = u32(u32(n_threads) >> bits)
        group = u32(reduce_maxima(maxima, lane, bits) + first_group)
        if group < n_groups:
            keys[group] = maxima[0]
        group = u32(group + further)
        if bits < u32(3) and group < n_groups:
            keys[group] = maxima[1]
        if bits < u32(2):
            for at in range(2, 4):
                group = u32(group + further)
                if group < n_groups:
                    keys[group] = maxima[at]
        if bits < u32(1):
            for at in range(4, 8):
                group = u32(group + further)
                if group < n_groups:
                    keys[group] = maxima[at]

    @linked_function
    def group_maxima(keys, address, n_vectors, stride, mask, bits, thread, lane):
        """Write the raw maxima of groups of ``1 << bits`` vectors of elements that are `stride` apart."""
        words = cuda.local.array(CHUNK_WORDS, u32)
        maxima = cuda.local.array(VECTORS_A_LANE, key_type)
        n_groups = u32(u32(n_vectors + u32(u32(u32(1) << bits) - u32(1))) >> bits)
        round_groups = u32(u32(round_vectors) >> bits)
        first_group = u32(u32(thread - lane) >> bits)
        available = u32(max(n_vectors, thread) - thread)
        if stride == 1:
            address += i64(thread) * VECTOR_BYTES
            load_first(words, address, available)
            while first_group < n_groups:
                beyond = u32(max(available, u32(round_vectors)) - u32(round_vectors))
                next_maxima(words, maxima, address, available, round_vectors * VECTOR_BYTES, beyond, mask)
                address += round_vectors * VECTOR_BYTES
                keep_maxima(keys, maxima, first_group, n_groups, bits, lane)
                first_group = u32(first_group + round_groups)
                available = beyond
        else:
            address += i64(thread) * VECTOR_BYTES * stride
            while first_group < n_groups:
                load_strided_maxima(maxima, address, stride, available, mask)
                address += round_vectors * VECTOR_BYTES * stride
                keep_maxima(keys, maxima, first_group, n_groups, bits, lane)
                first_group = u32(first_group + round_groups)
                available = u32(max(available, u32(round_vectors)) - u32(round_vectors))

    @linked_function
    def order_maxima(keys, n_groups, numbers, masks, lowest, highest, thread):
        """Make keys of the raw maxima; return the least and the largest of these and the given ones."""
        quad = cuda.local.array(per_quad, key_type)
        number = thread
        group = u32(number * u32(per_quad))
        while group < n_groups:
            load_quad(quad, keys, number)
            for at in range(per_quad):
                quad[at] = key_of_raw(quad[at], numbers, masks)
                if u32(group + u32(at)) < n_groups:
                    lowest = min(lowest, quad[at])
                    highest = max(highest, quad[at])
            store_quad(quad, keys, number)
            number = u32(number + u32(n_threads))
            group = u32(number * u32(per_quad))
        return lowest, highest

    return group_maxima, order_maxima
