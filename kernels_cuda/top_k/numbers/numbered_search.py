"""The elements of a row at or above a threshold by (key, number, position): a block lists few more than k.

The threshold is found field by field: by key; then, of those that have the key of the last one, by number;
then by position, which no two elements share. The range of a field is narrowed by histograms, and as soon as
what is at or above the range fits into shared memory, it is listed. Each step reads the row, and the numbers
of those of its elements whose keys reach the range.

Larger keys come first: numbers and positions are complemented.

Where more elements than fit have the key of the last one, a sample of their numbers tells a threshold that
hardly more than k reach; if it does not, all begins with the key.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.numbers.numbered_launches import PAIR_BYTES
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.rows import row_offsets
from kernels_cuda.top_k.shared.threshold import CROWDED, FOUND, bit_length_u64, threshold_functions

# Elements that a thread loads before it uses the first, and those of a sample.
_AHEAD = 8
_SAMPLED = 16
# Elements of a sample that follow each other in the row: numbers of 8 bytes in 32, which are read at once.
_NEIGHBOURS = 4
# A sample is used only if at least so many of its elements are expected among the first k.
_FEWEST_SAMPLED = 32
# More than enough if elements stay as they are.
_MOST_ROUNDS = 100


class NumberedRow(NamedTuple):
    """Where a row's elements and their numbers begin, its first position, and how many elements it has."""

    base: Any
    numbers: Any
    start: Any
    length: Any


class NumberFunctions(NamedTuple):
    """Device functions for one element width.

    ``load_number(row, position, exists, m)`` returns the number of an element, or `m.excluded` if it does not
    exist; ``number_key(bits, m)`` makes a key of a number. ``pack(key, position)`` makes one word of an
    element, whose lower half is the position, and ``key_of(packed, row, p)`` returns its key.
    """

    load_number: Any
    number_key: Any
    pack: Any
    key_of: Any


@device_function
def find_numbers(base, row_indices, length, numbers, tables, row, m):
    """Return a row with its numbers, the others as `results.row_functions` found them."""
    number_row, _, _ = row_offsets(m.layout, tables.numbers, row)
    start = row_indices.start
    return NumberedRow(base, numbers + (number_row + start * m.step) * m.size, start, length)


@functools.cache
def number_functions(element_size: int) -> NumberFunctions:
    """Make the functions for one element width."""
    functions = element_functions(element_size)
    ordered_key, load_element, key_type = functions.ordered_key, functions.load_element, functions.key_type
    read_if_4, read_if_8 = ptx.READ_IF[4], ptx.READ_IF[8]
    has_room = element_size <= 4

    @device_function
    def load_number(row, position, exists, m):
        # Without branches: compilers would wait for each load.
        address = row.numbers + position * m.step * m.size
        bits = u64(read_if_4(address, u32(exists and m.size == 4)))
        bits |= read_if_8(address, u32(exists and m.size == 8))
        return bits if exists else u64(m.excluded)

    @device_function
    def number_key(bits, m):
        return ~(bits ^ u64(m.flip))

    @device_function
    def key_at(row, position, p):
        return u64(ordered_key(load_element(row.base + position * p.strides.x * element_size), p.key_format))

    if has_room:

        @device_function
        def pack(key, position):
            return u64(key) << 32 | u64(position)

        @device_function
        def key_of(packed, row, p):
            return key_type(packed >> 32)

    else:

        @device_function
        def pack(key, position):
            return u64(position)

        @device_function
        def key_of(packed, row, p):
            return key_at(row, i64(packed), p)

    return NumberFunctions(load_number, number_key, pack, key_of)


@functools.cache
def search_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, read_if = functions.key_type, functions.ordered_key, ptx.READ_IF[element_size]
    load_number, number_key, pack, _ = number_functions(element_size)
    finding = threshold_functions(n_threads, u64)
    find_digit, block_extremes = finding.find_digit, finding.block_extremes
    find_threshold = finding.find_threshold
    digit_bits = n_threads.bit_length() - 1
    tile, n_sampled = _AHEAD * n_threads, _SAMPLED * n_threads
    ones = (1 << 8 * element_size) - 1

    @device_function
    def list_one(pairs, counters, packed, is_listed, m, lane):
        """List an element of each lane, as far as there is room."""
        listed = ptx.ballot(u32(is_listed))
        if listed != 0:
            slot = u32(0)
            if lane == 0:
                slot = ptx.add_shared_if(counters + (FOUND << 2), ptx.popcount_u32(listed), u32(1))
            slot = ptx.shuffle_from_u32(slot, u32(0)) + ptx.popcount_u32(listed & ptx.lanes_below())
            if is_listed and slot < u32(m.capacity):
                ptx.store_shared_u64x2(pairs + slot * PAIR_BYTES, u64(0), packed)

    @linked_function
    def read_row(pairs, prefix, extent, is_counting, shift, row, scratch, p, m, ids):
        """List what is at or above a range, or count the digits of what is in it.

        `prefix` is the number of the field that the range is of, and the values of the fields before it.
        Returns the extremes of the next field among the thread's elements with the lowest value of the range.
        """
        field, key_before, number_before = prefix
        low, high = extent
        thread, lane, _ = ids
        bins, counters = ptx.shared_address(scratch.histogram), ptx.shared_address(scratch.counters)
        elements = cuda.local.array(_AHEAD, key_type)
        numbers = cuda.local.array(_AHEAD, u64)
        step = p.strides.x * element_size
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
                elements[item] = read_if(row.base + position * step, u32(position < row.length))
            for item in range(_AHEAD):
                position = first + item * n_threads + i64(thread)
                elements[item] = ordered_key(elements[item], p.key_format)
                is_reached = u64(elements[item]) >= first_key
                has_below = has_below or (position < row.length and not is_reached)
                numbers[item] = load_number(row, position, position < row.length and is_reached, m)
            for item in range(_AHEAD):
                position = first + item * n_threads + i64(thread)
                key, bits = u64(elements[item]), numbers[item]
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
                    is_listed = is_above or (takes_part and value >= low)
                    list_one(pairs, counters, pack(elements[item], position), is_listed, m, lane)
                    if takes_part and value == low:
                        least = min(least, after)
                        most = max(most, after)
            first += tile
        if has_below:
            scratch.counters[CROWDED] = u32(1)
        return least, most

    @device_function
    def sampled_position(number, apart):
        """Return where an element of a sample is: neighbours are read together."""
        among = number & (_NEIGHBOURS - 1)
        return (number - among) * apart + among

    @linked_function
    def sampled_number(room, lowest, n_left, row, scratch, p, m, ids):
        """Return a number that about as many elements with the key `lowest` reach as there is room for.

        Return 0 if these elements are not many.
        """
        thread, _, _ = ids
        elements = cuda.local.array(_AHEAD, key_type)
        most = u64(0)
        apart = max(row.length // n_sampled, i64(1))
        for first in range(0, _SAMPLED, _AHEAD):
            for item in range(_AHEAD):
                position = sampled_position((first + item) * n_threads + i64(thread), apart)
                address = row.base + position * p.strides.x * element_size
                elements[item] = read_if(address, u32(position < row.length))
            for item in range(_AHEAD):
                at = u32((first + item) * n_threads) + thread
                has_key = u64(ordered_key(elements[item], p.key_format)) == lowest
                position = sampled_position(i64(at), apart)
                bits = load_number(row, position, has_key and position < row.length, m)
                sampled = u64(0)
                if bits != u64(m.excluded):
                    sampled = number_key(bits, m)
                room[at] = sampled
                most = max(most, sampled)
        _, most = block_extremes(scratch, most, most, ids)
        # The spare room absorbs the error of the sample in both directions.
        rank = u32(i64(n_left + (u32(m.capacity) - u32(p.k)) // 2) // apart)
        number = u64(0)
        if _FEWEST_SAMPLED <= rank <= n_sampled:
            number, _, _ = find_threshold(room, u32(n_sampled), (u64(0), most), rank, rank + 1, scratch, ids)
        cuda.syncthreads()
        return number

    @linked_function
    def search(areas, lowest, n_above, row, scratch, p, m, ids):
        """List at least the first `p.k` elements of a row, in any order; return how many these are.

        At least `p.k` elements have the key `lowest` or a larger one, and `n_above` of those with a larger
        one take part. At first, all of these are listed, or those that a sample tells. `areas` are the
        address of the pairs, and an array there.
        """
        thread, _, _ = ids
        pairs, room = areas
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
        sampled = sampled_number(room, low, n_left, row, scratch, p, m, ids)
        is_sampled = sampled != 0
        if is_sampled:
            field, key_before, low, high = u32(1), u64(lowest), sampled, ~u64(0)
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
                is_counting = n_found > u32(m.capacity) and not is_sampled
                # Too few of them take part: those below may be selected, too.
                begins_anew = n_found < u32(p.k) and scratch.counters[CROWDED] != 0
                begins_anew = begins_anew and not is_sampled
                is_wrong = is_sampled and not u32(p.k) <= n_found <= u32(m.capacity)
                searching = (is_counting or begins_anew or is_wrong) and n_rounds < _MOST_ROUNDS
                if is_sampled:
                    field, key_before, low, high = u32(0), u64(0), u64(lowest), u64(lowest)
                    is_sampled = False
                elif begins_anew:
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
