"""Elements as unsigned keys in the order of their values: how a team reads a row.

A key is 2^(bits - 1) plus or minus the magnitude bits, so that both zeros have the same key, and NaN has 0.
Elements that do not exist read as NaN.

Rows are read in vectors of 16 bytes on 16-byte boundaries. Places count elements from the boundary before the
row: the first element has place `skipped`. The warps of a row's blocks have segments of places, one after the
other.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.parameters import GROUP, PAIR, VECTOR, WARPS
from kernels_cuda.sample.shared import COUNT, team_functions, warp_largest

_HALF_MANTISSA = 10  # of float16
_NEGATIVE_INFINITY = 0xFF800000
_UPPER = 0xFFFF0000


class Groups(NamedTuple):
    """The groups of a warp's segment. A group has `GROUP` vectors, of which each thread has every 32nd.

    In whole groups, all vectors lie within the row. Whole groups follow each other.
    """

    address: Any
    """Of the thread's vector in the first group; it may lie before the row."""
    begin: Any
    """The number of the first whole group: 1 if the row begins within this segment's first vector, else 0."""
    n_whole: Any
    """How many groups are whole: none where elements are not contiguous."""


class KeyFunctions(NamedTuple):
    """The device functions for one element width."""

    register: Any
    per_vector: int
    skipped: Any
    element_at: Any
    key_of: Any
    element_of: Any
    value_of: Any
    segment_of: Any
    load: Any
    groups_of: Any
    group_at: Any
    any_pair: Any
    whole_pair: Any
    pair_at: Any
    element_in: Any
    values_in: Any
    shifted: Any
    signed: Any
    key_of_value: Any
    """The key of an element as `values_in` gives it."""
    lowest: Any
    """What the search for the largest element begins with."""
    larger_in: Any
    """The larger of the largest element so far and those of a vector."""
    key_of_largest: Any
    """What the search for the largest element ends with: a key, that of -inf for NaN."""
    largest: Any
    largest_in_warp: Any
    """The largest key, or distance, of a warp."""
    largest_of_row: Any
    """The largest key of a row, by those of its threads."""
    has_weight: Any
    """Whether any element of a row has a weight: the largest key is neither that of -inf nor that of NaN."""


def _reduction(element_size: int, key_of: Any) -> tuple[Any, ...]:
    """Make the functions that begin, go on with and end the search for the largest element.

    Those of 64 bits are compared as their keys, and others as floats of 32 bits.
    """
    register = ptx.REGISTER[element_size]
    is_wide = element_size == 8

    @device_function
    def lowest(p):
        return register(0) if is_wide else register(_NEGATIVE_INFINITY)

    @device_function
    def larger(best, value, p):
        if is_wide:
            return max(best, key_of(value, p))
        return ptx.max_f32(best, value)

    @device_function
    def key_of_value(value, p):
        element = value
        if element_size == 2:
            element = value >> 16
            if p.mantissa == _HALF_MANTISSA:
                element = ptx.f16_of_f32(value)
        return key_of(element, p)

    @device_function
    def key_of_largest(best, p):
        return best if is_wide else key_of_value(best, p)

    return lowest, larger, key_of_value, key_of_largest


def _unpacking(element_size: int) -> Any:
    """Make the function that returns the elements of a vector as floats of 32 bits at least."""

    @device_function
    def halves(words):
        a, b = words
        return u32(a), u32(a >> 32), u32(b), u32(b >> 32)

    @device_function
    def wide(words, p):
        return words

    @device_function
    def plain(words, p):
        return halves(words)

    @device_function
    def narrow(words, p):
        a, b, c, d = halves(words)
        if p.mantissa == _HALF_MANTISSA:
            values = (
                ptx.f32_of_f16(a),
                ptx.f32_of_f16(a >> 16),
                ptx.f32_of_f16(b),
                ptx.f32_of_f16(b >> 16),
                ptx.f32_of_f16(c),
                ptx.f32_of_f16(c >> 16),
                ptx.f32_of_f16(d),
                ptx.f32_of_f16(d >> 16),
            )
        else:
            values = (
                u32(a << 16),
                u32(a & _UPPER),
                u32(b << 16),
                u32(b & _UPPER),
                u32(c << 16),
                u32(c & _UPPER),
                u32(d << 16),
                u32(d & _UPPER),
            )
        return values

    return {2: narrow, 4: plain, 8: wide}[element_size]


@functools.cache
def key_functions(element_size: int, cluster: int) -> KeyFunctions:
    """Make the functions for one element width."""
    register = ptx.REGISTER[element_size]
    read = ptx.READ[element_size]
    bits, bias = 8 * element_size, 1 << (8 * element_size - 1)
    per_vector = VECTOR // element_size
    mask, ones = (1 << bits) - 1, (1 << 64) - 1
    team = team_functions(cluster)

    @device_function
    def key_of(element, p):
        magnitude = element & register(bias - 1)
        key = register(bias) + magnitude
        if element & register(bias) != 0:
            key = register(bias) - magnitude
        if magnitude > register(p.infinity):
            key = register(0)
        return key

    @device_function
    def element_of(key):
        """Return an element that has a key."""
        element = register(key - register(bias))
        if key < register(bias):
            element = (register(bias) - key) | register(bias)
        return element

    @device_function
    def value_of(element, p):
        """Return an element as a float of 32 bits at least."""
        if element_size == 2:
            value = element << 16
            if p.mantissa == _HALF_MANTISSA:
                value = ptx.f32_of_f16(element)
            return value
        return element

    @device_function
    def element_at(at, p, i):
        return read(at + i64(i) * p.x_step)

    @device_function
    def skipped(at, p):
        """Return how many elements are before the row in its first vector."""
        skip = u32(0)
        if p.x_step == element_size:
            skip = u32(at & (VECTOR - 1)) // u32(element_size)
        return skip

    @device_function
    def segment_of(at, p, rank, thread):
        """Return the first vector of a thread, and the end of those of its warp."""
        end = p.n + i64(skipped(at, p))
        first = i64(rank * WARPS + (thread >> 5)) * p.segment
        last = min(first + p.segment, end)
        return u32(first // per_vector) + (thread & 31), u32((last + per_vector - 1) // per_vector)

    @device_function
    def load(at, p, vector, end):
        """Return the words of a vector; all bits of elements that do not exist are set."""
        low, high = u64(ones), u64(ones)
        first = i64(vector) * per_vector - i64(skipped(at, p))
        if vector < end:
            if p.x_step == element_size and first >= 0 and first + per_vector <= p.n:
                low, high = ptx.read_u64x2(at + first * element_size)
            else:
                # From the last to the first, by a loop that is not unrolled.
                left = ptx.same_u32(u32(per_vector))
                while left > 0:
                    left -= 1
                    element = u64(mask)
                    i = first + i64(left)
                    if 0 <= i < p.n:
                        element = u64(read(at + i * p.x_step))
                    if element_size == 8:
                        high = low
                        low = element
                    else:
                        high = (high << (bits & 63)) | (low >> (64 - bits & 63))
                        low = (low << (bits & 63)) | element
        return low, high

    @device_function
    def whole_or_none(address, exists):
        """Return the words of a vector, without a branch."""
        a, b, c, d = ptx.read_if_u32x4(address, u32(exists))
        others = u64(0) if exists else u64(ones)
        return ptx.join_u32(a, b) | others, ptx.join_u32(c, d) | others

    @device_function
    def any_pair(at, p, vector, end):
        """Return the words of two vectors, 32 vectors apart."""
        if p.x_step == element_size and at & (VECTOR - 1) == 0 and p.n & (per_vector - 1) == 0:
            # All vectors of the row are whole.
            address = at + i64(vector) * VECTOR
            words = (
                whole_or_none(address, vector < end),
                whole_or_none(address + 32 * VECTOR, vector + 32 < end),
            )
        else:
            words = load(at, p, vector, end), load(at, p, vector + 32, end)
        return words

    @device_function
    def groups_of(at, p, vector, end):
        """Return the `Groups` of a thread, whose first vector is given, and the end of its warp's segment."""
        first = u32(vector - (u32(cuda.threadIdx.x) & 31))
        skip = skipped(at, p)
        begin = u32(first * per_vector < skip)
        last = min(end, u32((p.n + i64(skip)) // per_vector))
        n_whole = u32(0)
        if p.x_step == element_size and last > first + begin * GROUP:
            n_whole = u32(last - first) // u32(GROUP) - begin
        return Groups(at - i64(skip) * element_size + i64(vector) * VECTOR, begin, u32(n_whole))

    @device_function
    def whole_pair(address):
        """Return the words of two vectors that exist, 32 vectors apart."""
        return ptx.read_u64x2(address), ptx.read_u64x2(address + 32 * VECTOR)

    @device_function
    def pair_at(at, p, vector, end, groups, number):
        """Return the words of half a group, of which a thread has two vectors, by its number in the segment.

        `vector` is the thread's first one.
        """
        # Before the first whole group, the difference wraps around, to more than any number of groups.
        if u32((number >> 1) - groups.begin) < groups.n_whole:
            words = whole_pair(groups.address + i64(number) * (PAIR * VECTOR))
        else:
            words = any_pair(at, p, vector + number * PAIR, end)
        return words

    @device_function
    def group_at(at, p, vector, end, groups, number):
        """Return the words of the vectors of a group by its number in the segment."""
        a, b = pair_at(at, p, vector, end, groups, number * 2)
        c, d = pair_at(at, p, vector, end, groups, number * 2 + 1)
        return a, b, c, d

    @device_function
    def element_in(words, i):
        """Return element i of a vector."""
        per_word = per_vector // 2
        word = words[0] if i < per_word else words[1]
        return register(word >> ((i & (per_word - 1)) * bits) & u64(mask))

    values_in = _unpacking(element_size)

    @device_function
    def shifted(words):
        """Return a vector without its first element."""
        low, high = words
        if element_size == 8:
            low = high
        else:
            low = (low >> (bits & 63)) | (high << (64 - bits & 63))
            high >>= bits & 63
        return low, high

    @device_function
    def signed(key):
        """Return a key as `sampling` has it: less that of zero, by unsigned integers, which may wrap."""
        return i64(u64(key) - u64(bias))

    lowest, larger, key_of_value, key_of_largest = _reduction(element_size, key_of)

    @device_function
    def larger_in(words, best, p):
        values = values_in(words, p)
        for i in range(per_vector):
            best = larger(best, values[i], p)
        return best

    @device_function
    def largest(at, p, rank, thread):
        """Return the largest key of a thread; that of -inf stands for NaN.

        While a pair is compared, the next one is read.
        """
        vector, end = segment_of(at, p, rank, thread)
        groups = groups_of(at, p, vector, end)
        best = lowest(p)
        first = pair_at(at, p, vector, end, groups, u32(0))
        second = pair_at(at, p, vector, end, groups, u32(1))
        number = u32(0)
        while vector + number * PAIR < end:
            number += 2
            best = larger_in(first[1], larger_in(first[0], best, p), p)
            first = pair_at(at, p, vector, end, groups, number)
            best = larger_in(second[1], larger_in(second[0], best, p), p)
            second = pair_at(at, p, vector, end, groups, number + 1)
        return key_of_largest(best, p)

    @device_function
    def largest_in_warp(own):
        """Return the largest of the keys, or distances, of a warp, in 64 bits."""
        return warp_largest(own) if element_size == 8 else u64(ptx.warp_max(own))

    @device_function
    def largest_of_row(own, warp, lane, maxima):
        """Return the largest key of a row; `maxima` is a shared array of a u64 for each warp of the team."""
        team.put_all(maxima, warp, largest_in_warp(own), lane)
        team.meet()
        return register(largest_in_warp(register(team.largest_report(maxima, COUNT, lane))))

    @device_function
    def has_weight(largest, p):
        return u64(largest) > u64(bias) - u64(p.infinity)

    return KeyFunctions(
        register,
        per_vector,
        skipped,
        element_at,
        key_of,
        element_of,
        value_of,
        segment_of,
        load,
        groups_of,
        group_at,
        any_pair,
        whole_pair,
        pair_at,
        element_in,
        values_in,
        shifted,
        signed,
        key_of_value,
        lowest,
        larger_in,
        key_of_largest,
        largest,
        largest_in_warp,
        largest_of_row,
        has_weight,
    )
