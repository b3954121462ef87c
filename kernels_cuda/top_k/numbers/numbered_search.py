"""The elements of a row at or above a threshold by (key, number, position): a block lists few more than k.

The threshold is found field by field: by key; then, of those that have the key of the last one, by number;
then by position, which no two elements share. The range of a field is narrowed by histograms, and as soon as
what is at or above the range fits into shared memory, it is listed. Each step reads the row, and the numbers
of those of its elements whose keys reach the range.

Larger keys come first: numbers and positions are complemented.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.numbers.numbered_launches import PAIR_BYTES
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.rows import load_raw
from kernels_cuda.top_k.shared.threshold import CROWDED, FOUND, bit_length_u64, threshold_functions

# Elements that a thread loads before it uses the first.
_AHEAD = 8
# More than enough if elements stay as they are.
_MOST_ROUNDS = 100


class Row(NamedTuple):
    """Where a row's elements and their numbers begin, its first position, and how many elements it has."""

    base: Any
    numbers: Any
    start: Any
    length: Any


@functools.cache
def number_functions(element_size: int) -> tuple[Any, Any, Any]:
    """Make what loads the number of an element, and what makes keys of a number and of an element."""
    functions = element_functions(element_size)
    ordered_key, load_element = functions.ordered_key, functions.load_element

    @device_function
    def load_number(row, position, m):
        return load_raw(row.numbers + position * m.step * m.size, m.size)

    @device_function
    def number_key(bits, m):
        return ~(bits ^ u64(m.flip))

    @device_function
    def key_at(row, position, p):
        return u64(ordered_key(load_element(row.base + position * p.strides.x * element_size), p.key_format))

    return load_number, number_key, key_at


@functools.cache
def search_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, load_element = functions.key_type, functions.ordered_key, functions.load_element
    load_number, number_key, _ = number_functions(element_size)
    finding = threshold_functions(n_threads, u64)
    find_digit, block_extremes = finding.find_digit, finding.block_extremes
    digit_bits = n_threads.bit_length() - 1
    tile = _AHEAD * n_threads
    ones = (1 << 8 * element_size) - 1

    @device_function
    def list_one(pairs, counters, position, is_listed, m, lane):
        """List an element of each lane, as far as there is room."""
        listed = ptx.ballot(u32(is_listed))
        if listed != 0:
            slot = u32(0)
            if lane == 0:
                slot = ptx.add_shared_if(counters + (FOUND << 2), ptx.popcount_u32(listed), u32(1))
            slot = ptx.shuffle_from_u32(slot, u32(0)) + ptx.popcount_u32(listed & ptx.lanes_below())
            if is_listed and slot < u32(m.capacity):
                ptx.store_shared_u64x2(pairs + slot * PAIR_BYTES, u64(0), u64(position))

    @linked_function
    def read_row(pairs, prefix, extent, is_counting, shift, row, scratch, p, m, ids):
        """List what is at or above a range, or count the digits of what is in it.

        `prefix` are the number of the field that has the range, and what the fields before it are. Returns
        the extremes of the next field, of the thread's elements that have the lowest value of the range.
        """
        field, key_before, number_before = prefix
        low, high = extent
        thread, lane, _ = ids
        bins, counters = ptx.shared_address(scratch.histogram), ptx.shared_address(scratch.counters)
        elements = cuda.local.array(_AHEAD, key_type)
        least = ~u64(0)
        most = u64(0)
        has_below = False
        first_key = key_before
        if field == 0:
            first_key = low
        first = i64(0)
        while first < row.length:
            for item in range(_AHEAD):
                position = first + item * n_threads + i64(thread)
                elements[item] = key_type(0)
                if position < row.length:
                    elements[item] = load_element(row.base + position * p.strides.x * element_size)
            for item in range(_AHEAD):
                position = first + item * n_threads + i64(thread)
                key = u64(ordered_key(elements[item], p.key_format))
                bits = u64(m.excluded)
                if position < row.length and key >= first_key:
                    bits = load_number(row, position, m)
                elif position < row.length:
                    has_below = True
                takes_part = bits != u64(m.excluded)
                value, after = key, number_key(bits, m)
                is_above = False
                if field > 0:
                    is_above = takes_part and key > key_before
                    takes_part = takes_part and key == key_before
                    value, after = after, ~u64(position)
                if field > 1:
                    is_above = is_above or (takes_part and value > number_before)
                    takes_part = takes_part and value == number_before
                    value, after = after, u64(0)
                if is_counting:
                    is_within = takes_part and low <= value <= high
                    digit = u32((value - low) >> u64(shift))
                    ptx.count_shared_if(bins + (digit << 2), u32(is_within))
                else:
                    list_one(pairs, counters, position, is_above or (takes_part and value >= low), m, lane)
                    if takes_part and value == low:
                        least = min(least, after)
                        most = max(most, after)
            first += tile
        if has_below:
            scratch.counters[CROWDED] = u32(1)
        return least, most

    @linked_function
    def search(pairs, lowest, n_above, row, scratch, p, m, ids):
        """List at least the first `p.k` elements of a row, in any order; return how many these are.

        At least `p.k` elements have the key `lowest` or a larger one, and `n_above` of those with a larger
        one take part. At first, all of these are listed.
        """
        thread, _, _ = ids
        low = u64(lowest)
        high = low
        n_left = u32(p.k) - n_above
        field = u32(0)
        key_before = u64(0)
        number_before = u64(0)
        n_found = u32(0)
        is_counting = False
        searching = True
        n_rounds = u32(0)
        while searching:
            if thread == 0:
                scratch.counters[FOUND] = u32(0)
                scratch.counters[CROWDED] = u32(0)
            cuda.syncthreads()
            shift = max(bit_length_u64(high - low), u32(digit_bits)) - digit_bits
            prefix = field, key_before, number_before
            least, most = read_row(pairs, prefix, (low, high), is_counting, shift, row, scratch, p, m, ids)
            if is_counting:
                digit, larger, amount = find_digit(scratch, n_left, ids)
                low += u64(digit) << u64(shift)
                # The end of the last bin may lie beyond what a key can be.
                high = low + min(high - low, (u64(1) << u64(shift)) - 1)
                n_left -= larger
                is_counting = shift > 0 and u32(p.k) - n_left + amount > u32(m.capacity)
            else:
                least, most = block_extremes(scratch, least, most, ids)
                n_found = scratch.counters[FOUND]
                is_counting = n_found > u32(m.capacity)
                # Too few of them take part: those below may be selected, too.
                begins_anew = n_found < u32(p.k) and scratch.counters[CROWDED] != 0
                searching = (is_counting or begins_anew) and n_rounds < _MOST_ROUNDS
                if begins_anew:
                    low, high = u64(0), u64(ones)
                    n_left = u32(p.k)
                elif low == high:
                    if field == 0:
                        key_before = low
                    else:
                        number_before = low
                    field += 1
                    low, high = least, most
                # All have read the number of what is found.
                cuda.syncthreads()
            n_rounds += 1
        return min(n_found, u32(m.capacity))

    return search
