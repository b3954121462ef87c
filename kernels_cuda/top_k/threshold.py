"""A threshold that at least as many keys reach as are wanted, found by histograms of ever narrower ranges.

The range of the keys is cut into as many bins as the block has threads, whatever its width, so that a pass
or two suffice unless the keys crowd in a small part of it; a pass that ends with bins of one key is the last.
"""

import functools
from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    count_shared_if,
    leading_zeros_u32,
    leading_zeros_u64,
    shared_address,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cooperate import block_inclusive_sum, quad_functions, warp_maximum

u32 = types.uint32
u64 = types.uint64

# Places of the shared counters.
FOUND = 0
DIGIT = 1
ABOVE = 2
AMOUNT = 3
CROWDED = 4
N_COUNTERS = 8


@device_function
def bit_length_u32(value):
    """Return the number of bits that a value needs."""
    return 32 - leading_zeros_u32(value)


@device_function
def bit_length_u64(value):
    """Return the number of bits that a value needs."""
    return 64 - leading_zeros_u64(value)


def bit_length(key_type: Any) -> Any:
    """Return the device function for the bits that a key needs."""
    return bit_length_u64 if key_type is u64 else bit_length_u32


@functools.cache
def threshold_functions(n_threads: int, key_type: Any) -> tuple[Any, Any, Any, Any]:
    """Make `find_digit`, `block_extremes`, `find_threshold` and `list_groups`.

    `histogram` is a shared array of a uint32 a thread, all 0 between calls; `sums` has 64 of them, `extremes`
    64 keys.
    """
    n_warps = n_threads // 32
    digit_bits = n_threads.bit_length() - 1
    warp_max = warp_maximum(key_type)
    needed_bits = bit_length(key_type)
    per_quad, load_quad, _ = quad_functions(key_type)
    inclusive_sum = block_inclusive_sum(n_threads)

    @linked_function
    def find_digit(histogram, sums, counters, needed, thread, lane, warp):
        """Find the digit of the element number `needed`, from 1, counting from the largest digit.

        Returns it, how many elements have larger ones, and how many have it.
        """
        cuda.syncthreads()
        digit = u32(n_threads - 1) - thread
        amount = histogram[digit]
        through = warp_inclusive_sum(amount)
        if lane == 31:
            sums[warp] = through
        cuda.syncthreads()
        histogram[digit] = u32(0)
        before = u32(0)
        if lane < warp:
            before = sums[lane]
        through += warp_add(before)
        above = through - amount
        if above < needed <= through:
            counters[DIGIT] = digit
            counters[ABOVE] = above
            counters[AMOUNT] = amount
        cuda.syncthreads()
        return counters[DIGIT], counters[ABOVE], counters[AMOUNT]

    @linked_function
    def block_extremes(extremes, lowest, highest, lane, warp):
        """Return the smallest and the largest of the threads' keys."""
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
    def find_threshold(
        maxima, n_groups, lowest, highest, wanted, enough, histogram, sums, counters, thread, lane, warp
    ):
        """Return a key, how many maxima are larger, and how many are at least as large.

        The last is at least `wanted`; if it is more than `enough`, the other is less. There must
        be `wanted` maxima, all of them from `lowest` to `highest`.
        """
        quad = cuda.local.array(per_quad, key_type)
        bins = shared_address(histogram)
        low = lowest
        high = highest
        above = u32(0)
        reaching = u32(0)
        searching = True
        while searching:
            width = high - low
            span_bits = needed_bits(width)
            shift = max(span_bits, u32(digit_bits)) - digit_bits
            number = thread
            group = number * per_quad
            while group < n_groups:
                load_quad(quad, maxima, number)
                for at in range(per_quad):
                    beyond = quad[at] - low
                    counts = beyond <= width and group + u32(at) < n_groups
                    digit = u32(beyond >> key_type(shift))
                    count_shared_if(bins + (digit << 2), counts)
                number += n_threads
                group = number * per_quad
            digit, larger, amount = find_digit(histogram, sums, counters, wanted - above, thread, lane, warp)
            low += key_type(digit) << key_type(shift)
            # The end of the last bin may lie beyond what a key can be.
            width = min(high - low, (1 << key_type(shift)) - 1)
            high = low + width
            above += larger
            reaching = above + amount
            searching = shift > 0 and reaching > enough
        return low, above, reaching

    @linked_function
    def list_groups(maxima, n_groups, low, n_ties, listed, sums, thread, lane, warp):
        """List the groups above `low` and the first `n_ties` that equal it, in ascending order."""
        quad = cuda.local.array(per_quad, key_type)
        # A thread has neighbouring groups. It counts those above in the lower half of a word, and those that
        # equal in the upper one.
        quads_each = (n_groups - 1) // u32(per_quad * n_threads) + 1
        first = thread * quads_each
        end = first + quads_each
        amounts = u32(0)
        number = first
        group = number * per_quad
        while number < end and group < n_groups:
            load_quad(quad, maxima, number)
            for at in range(per_quad):
                exists = group + u32(at) < n_groups
                if exists and quad[at] > low:
                    amounts += 1
                if exists and quad[at] == low:
                    amounts += 1 << 16
            number += 1
            group += per_quad
        before = inclusive_sum(sums, u32(0), amounts, lane, warp) - amounts
        above = before & 0xFFFF
        equal = before >> 16
        if amounts != 0:
            number = first
            group = number * per_quad
            while number < end and group < n_groups:
                load_quad(quad, maxima, number)
                for at in range(per_quad):
                    exists = group + u32(at) < n_groups
                    is_equal = quad[at] == low
                    if exists and (quad[at] > low or (is_equal and equal < n_ties)):
                        listed[above + min(equal, n_ties)] = group + u32(at)
                    if exists and quad[at] > low:
                        above += 1
                    if exists and is_equal:
                        equal += 1
                number += 1
                group += per_quad
        cuda.syncthreads()

    return find_digit, block_extremes, find_threshold, list_groups
