"""Which of a thread's elements reach a threshold: one bit, a mark, for each, in the order of positions.

A thread's eight vectors are neighbours that have been copied to shared memory (`swizzled` tells where).
Floats take one comparison each, those of 16 bits one for two of them; keys are only made of elements that are
marked.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.read_once.sampled_launches import SEGMENT_VECTORS_PER_LANE
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES

_FLOAT16_INFINITY = 0x7C00
# Vectors of which the marks of 16-bit elements fill half a word.
_PART_VECTORS = 2
# Selectors of the lower and of the upper halves of two words.
_LOWER_HALVES = 0x5410
_UPPER_HALVES = 0x7632


class Bound(NamedTuple):
    """Operands of the test whether an element has at least a certain key.

    Attributes
    ----------
    unfolded : uint32 or uint64
        The least unfolded key of such elements. Of a bound above a key, 0 if there are none; the others mean
        nothing then.
    number : uint32
        A float that elements are compared with, twice if it has 16 bits.
    inverted : uint32 or uint64
        It is XORed with the marks of elements that are less than the number.
    is_number : bool
        Whether the number decides: for integers and, at some thresholds, for NaNs the unfolded key does.
    """

    unfolded: Any
    number: Any
    inverted: Any
    is_number: Any


class MarkFunctions(NamedTuple):
    """The type of marks, and device functions for one element width."""

    mark_type: Any
    bound_of: Any
    bound_above: Any
    marks_at_or_above: Any
    marks_before: Any
    count: Any
    first: Any
    swizzled: Any
    element_address: Any


@functools.cache
def mark_functions(element_size: int) -> MarkFunctions:
    """Make the device functions; the vectors of all threads begin at a multiple of `STAGE_ALIGNMENT`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    unfold_threshold, unfold_next_above = functions.unfold_threshold, functions.unfold_next_above
    at_or_above, element_of = functions.at_or_above, functions.element_of
    per_vector = VECTOR_BYTES // element_size
    n_own = SEGMENT_VECTORS_PER_LANE * per_vector
    mark_bits = max(n_own, 32)
    mark_type = u64 if mark_bits == 64 else u32
    all_marks, own_marks = (1 << mark_bits) - 1, (1 << n_own) - 1
    swizzled_bits = (SEGMENT_VECTORS_PER_LANE - 1) * VECTOR_BYTES

    @device_function
    def swizzled(offset):
        """Return where a vector lies whose place would be at `offset`, from where all threads' vectors begin.

        So threads that each read one of their vectors find them in different banks.
        """
        return offset ^ ((offset >> 3) & u32(swizzled_bits))

    @device_function
    def element_address(own, number):
        """Return the address of one of a thread's elements; `own` is that of its first vector."""
        return (own ^ (number // u32(per_vector) * VECTOR_BYTES)) + number % u32(per_vector) * element_size

    @device_function
    def marks_before(n_first):
        """Return the marks of a thread's first elements: so many, and none or all beyond these numbers."""
        within = min(max(n_first, i64(0)), i64(n_own))
        marks = mark_type(0)
        if within > 0:
            marks = mark_type(all_marks) >> mark_type(mark_bits - within)
        return marks

    @linked_function
    def number_of(key, key_format):
        """Return a `Bound`'s number, what marks are XORed with, and whether the number decides.

        NaNs are not less than any float. Where they come first, these elements are those that are not less
        than a float; where they come last, those that are less, or greater, than the next one.
        """
        distance = key ^ u32(key_format.direction)
        unordered = u32(key_format.unordered)
        inverted = mark_type(own_marks)
        if key_format.direction != 0:
            if distance >= unordered:
                # All elements, which are not less than the least one.
                distance = u32(0)
            else:
                distance += 1
                inverted = mark_type(0)
        is_number = key_format.sign != 0 and distance < unordered
        number = element_of(distance ^ u32(key_format.direction), key_format)
        if element_size == 2:
            number |= number << 16
        return number, inverted, is_number

    if element_size == 8:

        @device_function
        def make_bound(key, unfolded, key_format):
            return Bound(unfolded, u32(0), u32(0), False)

        @device_function
        def marks_below(own, number, key_format):
            return u32(0)

    else:

        @device_function
        def make_bound(key, unfolded, key_format):
            number, inverted, is_number = number_of(key, key_format)
            return Bound(unfolded, number, inverted, is_number)

        if element_size == 4:
            marks_less, marks_greater = _marks_of_words(False), _marks_of_words(True)

            @device_function
            def marks_below(own, number, key_format):
                """Return the marks of elements that are less than a float, or greater where NaN is last."""
                is_last = key_format.negation != 0
                return marks_greater(own, number) if is_last else marks_less(own, number)

        else:
            marks_of_f16 = _marks_of_halves(ptx.below_f16x2, False), _marks_of_halves(ptx.below_f16x2, True)
            marks_of_bf16 = (
                _marks_of_halves(ptx.below_bf16x2, False),
                _marks_of_halves(ptx.below_bf16x2, True),
            )
            less_f16, greater_f16 = marks_of_f16
            less_bf16, greater_bf16 = marks_of_bf16

            @device_function
            def marks_below(own, numbers, key_format):
                """Return the marks of elements that are less than a float, or greater where NaN is last."""
                is_last = key_format.negation != 0
                if key_format.infinity == _FLOAT16_INFINITY:
                    marks = greater_f16(own, numbers) if is_last else less_f16(own, numbers)
                else:
                    marks = greater_bf16(own, numbers) if is_last else less_bf16(own, numbers)
                return marks

    @device_function
    def bound_of(key, key_format):
        """Return the bound of elements that have this key or above."""
        return make_bound(key, unfold_threshold(key, key_format), key_format)

    @device_function
    def bound_above(key, key_format):
        """Return the bound of elements that have a larger key than this."""
        return make_bound(key + key_type(1), unfold_next_above(key, key_format), key_format)

    @linked_function
    def marks_at_or_above(own, bound, key_format, unfolding):
        """Return the marks of elements that have at least the key of the bound.

        `own` is the address of the thread's first vector.
        """
        if bound.is_number:
            marks = marks_below(own, bound.number, key_format) ^ bound.inverted
        else:
            words = cuda.local.array(4, u32)
            marks = mark_type(0)
            vector = u32(0)
            while vector < SEGMENT_VECTORS_PER_LANE:
                words[0], words[1], words[2], words[3] = ptx.load_shared_u32x4(own ^ (vector * VECTOR_BYTES))
                found = at_or_above(words, 0, bound.unfolded, unfolding, False)
                marks |= mark_type(found) << mark_type(vector * per_vector)
                vector = ptx.next_pass(vector)
        return marks

    marking = mark_type, bound_of, bound_above, marks_at_or_above, marks_before
    count, first = ptx.popcount_u32, ptx.trailing_zeros_u32
    if mark_bits == 64:
        count, first = ptx.popcount_u64, ptx.trailing_zeros_u64
    return MarkFunctions(*marking, count, first, swizzled, element_address)


def _marks_of_words(is_greater: bool) -> Any:
    """Make the function for elements of 32 bits: it marks those that are less than a float, or greater."""

    @linked_function
    def marks_below(own, number):
        marks = u32(0)
        for vector in range(SEGMENT_VECTORS_PER_LANE):
            words = ptx.load_shared_u32x4(own ^ u32(vector * VECTOR_BYTES))
            of_vector = u32(0)
            for word in range(4):
                mark = u32(1 << (vector * 4 + word))
                if is_greater:
                    of_vector = ptx.mark_if_below_f32(of_vector, mark, number, words[word])
                else:
                    of_vector = ptx.mark_if_below_f32(of_vector, mark, words[word], number)
            marks |= of_vector
        return marks

    return marks_below


def _marks_of_halves(below: Any, is_greater: bool) -> Any:
    """Do the same for elements of 16 bits; `below` compares two at a time."""

    @device_function
    def marks_of_part(own, numbers, part):
        """Return marks in which the lower half has those of even elements, and the upper half the others."""
        marks = u32(0)
        for vector in range(_PART_VECTORS):
            words = ptx.load_shared_u32x4(own ^ u32((part * _PART_VECTORS + vector) * VECTOR_BYTES))
            for word in range(4):
                found = below(numbers, words[word]) if is_greater else below(words[word], numbers)
                marks |= found & u32(0x20001 << (2 * (vector * 4 + word)))
        return marks

    @linked_function
    def marks_below(own, numbers):
        """Return the marks of elements that are less than a float."""
        joined = cuda.local.array(2, u32)
        for half in range(2):
            first = marks_of_part(own, numbers, 2 * half)
            second = marks_of_part(own, numbers, 2 * half + 1)
            even = ptx.permute(first, second, u32(_LOWER_HALVES))
            joined[half] = even | ptx.permute(first, second, u32(_UPPER_HALVES))
        return ptx.join_u32(joined[0], joined[1])

    return marks_below
