"""A threshold that at least k keys are at or above, found by histograms of ever narrower ranges.

The range of the keys is cut into as many bins as the block has threads, whatever its width, so that a pass
or two suffice unless the keys crowd in a small part of it; a pass that ends with bins of one key is the last.
Keys that crowd are often equal: this is found by their extremes.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import shared_vectors, warp_maximum
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan

# Indices of the shared counters.
FOUND = 0
DIGIT = 1
ABOVE = 2
AMOUNT = 3
CROWDED = 4
N_COUNTERS = 8


@device_function
def bit_length_u32(value):
    """Return the number of bits that a value needs."""
    return 32 - ptx.leading_zeros_u32(value)


@device_function
def bit_length_u64(value):
    """Return the number of bits that a value needs."""
    return 64 - ptx.leading_zeros_u64(value)


def bit_length(key_type: Any) -> Any:
    """Return the device function for the bits that a key needs."""
    return bit_length_u64 if key_type is u64 else bit_length_u32


class Scratch(NamedTuple):
    """Shared arrays in which the threads of a block count together.

    Attributes
    ----------
    histogram : array of uint32
        One per thread; all are 0 between calls.
    sums : array of uint32
        64 of them.
    extremes : array of keys
        64 of them.
    counters : array of uint32
        `N_COUNTERS` of them.
    """

    histogram: Any
    sums: Any
    extremes: Any
    counters: Any


class ThresholdFunctions(NamedTuple):
    """Device functions for one block size and key."""

    new_scratch: Any
    find_digit: Any
    block_extremes: Any
    find_threshold: Any
    list_groups: Any


@functools.cache
def threshold_functions(n_threads: int, key_type: Any) -> ThresholdFunctions:
    """Make the functions that find a threshold, and list what is at or above it.

    `scratch` is a `Scratch`, such as `new_scratch` returns with undefined contents, and `ids` are ``(thread,
    lane, warp)``.
    """
    n_warps = n_threads // 32
    digit_bits = n_threads.bit_length() - 1
    warp_max = warp_maximum(key_type)
    needed_bits = bit_length(key_type)
    exclusive_sum = block_scan(n_threads)
    keys_per_vector, load_vector, _ = shared_vectors(key_type)

    @device_function
    def new_scratch():
        histogram, sums = cuda.shared.array(n_threads, u32), cuda.shared.array(64, u32)
        extremes, counters = cuda.shared.array(64, key_type), cuda.shared.array(N_COUNTERS, u32)
        return Scratch(histogram, sums, extremes, counters)

    @linked_function
    def find_digit(scratch, needed, ids):
        """Find the digit of the element number `needed`, from 1, counting from the largest digit.

        Returns it, how many elements have larger ones, and how many have it.
        """
        histogram, sums, _, counters = scratch
        thread, _, _ = ids
        cuda.syncthreads()
        digit = u32(n_threads - 1) - thread
        amount = histogram[digit]
        histogram[digit] = u32(0)
        above, _ = exclusive_sum(amount, thread, sums)
        if above < needed <= above + amount:
            counters[DIGIT] = digit
            counters[ABOVE] = above
            counters[AMOUNT] = amount
        cuda.syncthreads()
        return counters[DIGIT], counters[ABOVE], counters[AMOUNT]

    @linked_function
    def block_extremes(scratch, lowest, highest, ids):
        """Return the smallest and the largest of the threads' keys."""
        extremes = scratch.extremes
        _, lane, warp = ids
        inverse = warp_max(~lowest)
        best = warp_max(highest)
        if lane == 0:
            extremes[warp] = inverse
            extremes[warp + 32] = best
        cuda.syncthreads()
        inverse = key_type(0)
        best = key_type(0)
        if lane < n_warps:
            inverse = extremes[lane]
            best = extremes[lane + 32]
        return ~warp_max(inverse), warp_max(best)

    @linked_function
    def find_threshold(maxima, n_groups, extent, n_selected, most_groups, scratch, ids):
        """Return a key, how many maxima are larger, and how many are at least as large.

        The last is at least `n_selected`; if it is more than `most_groups`, the other is less. There must
        be `n_selected` maxima; `extent` are keys from which and up to which all of them are.
        """
        vector = cuda.local.array(keys_per_vector, key_type)
        bins = ptx.shared_address(scratch.histogram)
        thread, _, _ = ids
        low, high = extent
        above = u32(0)
        at_or_above = u32(0)
        n_within = n_groups
        searching = True
        while searching:
            width = high - low
            span_bits = needed_bits(width)
            shift = max(span_bits, u32(digit_bits)) - digit_bits
            number = thread
            group = number * keys_per_vector
            while group < n_groups:
                load_vector(vector, maxima, number)
                for at in range(keys_per_vector):
                    above_low = vector[at] - low
                    counts = above_low <= width and group + u32(at) < n_groups
                    digit = u32(above_low >> key_type(shift))
                    ptx.count_shared_if(bins + (digit << 2), counts)
                number += n_threads
                group = number * keys_per_vector
            digit, larger, amount = find_digit(scratch, n_selected - above, ids)
            low += key_type(digit) << key_type(shift)
            # The end of the last bin may lie beyond what a key can be.
            width = min(high - low, (1 << key_type(shift)) - 1)
            high = low + width
            above += larger
            at_or_above = above + amount
            searching = shift > 0 and at_or_above > most_groups
            if searching and amount > n_within >> 1:
                # Most of them have the same digit, perhaps because they are equal.
                least = ~key_type(0)
                most = key_type(0)
                number = thread
                group = number * keys_per_vector
                while group < n_groups:
                    load_vector(vector, maxima, number)
                    for at in range(keys_per_vector):
                        if group + u32(at) < n_groups and low <= vector[at] <= high:
                            least = min(least, vector[at])
                            most = max(most, vector[at])
                    number += n_threads
                    group = number * keys_per_vector
                low, high = block_extremes(scratch, least, most, ids)
                searching = low != high
            n_within = amount
        return low, above, at_or_above

    @linked_function
    def list_groups(maxima, n_groups, low, n_ties, candidate_groups, scratch, ids):
        """List the groups above `low` and the first `n_ties` that equal it, in ascending order."""
        vector = cuda.local.array(keys_per_vector, key_type)
        thread, _, _ = ids
        # A thread has neighbouring groups. It counts those above in the lower half of a word, and those that
        # equal in the upper one.
        vectors_each = (n_groups - 1) // u32(keys_per_vector * n_threads) + 1
        first = thread * vectors_each
        end = first + vectors_each
        amounts = u32(0)
        number = first
        group = number * keys_per_vector
        while number < end and group < n_groups:
            load_vector(vector, maxima, number)
            for at in range(keys_per_vector):
                exists = group + u32(at) < n_groups
                if exists and vector[at] > low:
                    amounts += 1
                if exists and vector[at] == low:
                    amounts += 1 << 16
            number += 1
            group += keys_per_vector
        before, _ = exclusive_sum(amounts, thread, scratch.sums)
        above = before & 0xFFFF
        equal = before >> 16
        if amounts != 0:
            number = first
            group = number * keys_per_vector
            while number < end and group < n_groups:
                load_vector(vector, maxima, number)
                for at in range(keys_per_vector):
                    exists = group + u32(at) < n_groups
                    is_equal = vector[at] == low
                    if exists and (vector[at] > low or (is_equal and equal < n_ties)):
                        candidate_groups[above + min(equal, n_ties)] = group + u32(at)
                    if exists and vector[at] > low:
                        above += 1
                    if exists and is_equal:
                        equal += 1
                number += 1
                group += keys_per_vector
        cuda.syncthreads()

    return ThresholdFunctions(new_scratch, find_digit, block_extremes, find_threshold, list_groups)
