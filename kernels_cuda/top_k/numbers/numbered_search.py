"""The elements of a row at or above a threshold by (key, number, position): a block lists few more than k.

Where many elements have the key of the last one, a sample of their numbers gives a threshold that hardly
more than k reach. If it does not, the threshold is found field by field: by key; then, of those that have the
key of the last one, by number; then by position, which no two elements share. The range of a field is
narrowed by histograms until what is at or above it fits into shared memory. Each step reads the row, and the
numbers of those of its elements whose keys reach the range.

Larger keys come first: numbers and positions are complemented.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan, scan_of_warps
from kernels_cuda.top_k.numbers.numbered_launches import ITEMS_PER_THREAD, PAIR_BYTES
from kernels_cuda.top_k.numbers.numbered_rows import first_of_tile, number_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import WARP_LANES
from kernels_cuda.top_k.shared.threshold import bit_length_u64, threshold_functions

# Elements of a sample for each thread, and those that it loads before it uses the first.
_SAMPLED = 16
_AHEAD = 8
# Elements of a sample that follow each other in the row: numbers of 8 bytes in 32, which are read at once.
_NEIGHBOURS = 4
# Its multiples, modulo 2^32, are spread evenly and without a period.
_GOLDEN_RATIO = 0x9E3779B1
# A sample is used only if at least so many of its elements are expected among the first k.
_FEWEST_SAMPLED = 16
# The fields of what elements are ordered by.
_KEY, _NUMBER, _POSITION = range(3)


class Threshold(NamedTuple):
    """What elements are compared with: a key; the key of a number; the inverted position."""

    key: Any
    number: Any
    low: Any


@functools.cache
def _sample_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, read_if = functions.key_type, functions.ordered_key, ptx.READ_IF[element_size]
    load_number, number_key, _, _ = number_functions(element_size)
    finding = threshold_functions(n_threads, u64)
    block_extremes, find_threshold = finding.block_extremes, finding.find_threshold
    n_sampled = _SAMPLED * n_threads
    n_groups = n_sampled // _NEIGHBOURS

    @device_function
    def sampled_position(number, row):
        """Return where an element of a sample is: neighbours lie anywhere in one of parts of equal size."""
        group, length = u64(number // _NEIGHBOURS), u64(u32(row.length))
        first = u32((group * length) // n_groups)
        width = u32(((group + 1) * length) // n_groups) - first
        first += ptx.multiply_high_u32(u32(group) * u32(_GOLDEN_RATIO), width)
        return first // _NEIGHBOURS * _NEIGHBOURS + number % _NEIGHBOURS

    @linked_function
    def sampled_number(room, key, n_elements, row, scratch, p, m, ids):
        """Return the key of a number that about `n_elements` of the row's elements with a key reach.

        It is 0 if all do, as far as the sample tells. Also returns whether it tells enough. `room` is for all
        of the sample.
        """
        thread, _, _ = ids
        rank = u32(i64(n_elements) * n_sampled // row.length)
        number = u64(0)
        if rank >= _FEWEST_SAMPLED:
            elements = cuda.local.array(_AHEAD, key_type)
            most = u64(0)
            for first in range(0, _SAMPLED, _AHEAD):
                for item in range(_AHEAD):
                    position = sampled_position(u32((first + item) * n_threads) + thread, row)
                    address = row.base + i64(position) * (p.strides.x * element_size)
                    elements[item] = read_if(address, u32(position < u32(row.length)))
                for item in range(_AHEAD):
                    at = u32((first + item) * n_threads) + thread
                    position = sampled_position(at, row)
                    has_key = ordered_key(elements[item], p.key_format) == key
                    bits = load_number(row, i64(position), has_key and position < u32(row.length), m)
                    sampled = u64(0)
                    if bits != u64(m.excluded):
                        sampled = number_key(bits, m)
                    room[at] = sampled
                    most = max(most, sampled)
            _, most = block_extremes(scratch, most, most, ids)
            enough = rank + (rank >> 4)
            number, _, _ = find_threshold(room, u32(n_sampled), (u64(0), most), rank, enough, scratch, ids)
            cuda.syncthreads()
        return number, rank >= _FEWEST_SAMPLED

    return sampled_number


@functools.cache
def search_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, read_if = functions.key_type, functions.ordered_key, ptx.READ_IF[element_size]
    _, number_key, pack, _ = number_functions(element_size)
    read_if_4, read_if_8 = ptx.READ_IF[4], ptx.READ_IF[8]
    finding = threshold_functions(n_threads, u64)
    find_digit, block_extremes = finding.find_digit, finding.block_extremes
    sampled_number = _sample_function(element_size, n_threads)
    sum_of_warps, exclusive_sum = scan_of_warps(n_threads), block_scan(n_threads)
    digit_bits = n_threads.bit_length() - 1
    tile = ITEMS_PER_THREAD * n_threads

    @linked_function
    def load_tile(elements, first, row, p):
        """Load a thread's elements of a tile, of which the first is number `first` of the row."""
        step = p.strides.x * element_size
        address = row.base + i64(first) * step
        n_left = max(u32(row.length), first) - first
        for item in range(ITEMS_PER_THREAD):
            elements[item] = read_if(address, u32(u32(item * WARP_LANES) < n_left))
            address += WARP_LANES * step

    @linked_function
    def load_reached(keys, numbers, elements, first, threshold, row, p, m):
        """Load the numbers of those of a thread's elements that reach a key.

        Returns a bit for each of them that takes part. Then elements are those of the next tile.
        """
        n_left = max(u32(row.length), first) - first
        reached = u32(0)
        for item in range(ITEMS_PER_THREAD):
            keys[item] = ordered_key(elements[item], p.key_format)
            is_reached = u32(item * WARP_LANES) < n_left and keys[item] >= threshold
            reached |= u32(is_reached) << u32(item)
        step = m.step * m.size
        address = row.numbers + i64(first) * step
        if m.size == 8:
            for item in range(ITEMS_PER_THREAD):
                numbers[item] = read_if_8(address, reached & u32(1 << item))
                address += WARP_LANES * step
        else:
            for item in range(ITEMS_PER_THREAD):
                numbers[item] = u64(read_if_4(address, reached & u32(1 << item)))
                address += WARP_LANES * step
        # The next elements are on their way while numbers are.
        load_tile(elements, first + u32(tile), row, p)
        takes_part = u32(0)
        for item in range(ITEMS_PER_THREAD):
            takes_part |= u32(numbers[item] != u64(m.excluded)) << u32(item)
        return reached & takes_part

    @linked_function
    def list_reaching(pairs, threshold, row, scratch, p, m, ids):
        """List the elements that reach a threshold, in order of position; return how many they are."""
        thread, _, _ = ids
        elements = cuda.local.array(ITEMS_PER_THREAD, key_type)
        keys = cuda.local.array(ITEMS_PER_THREAD, key_type)
        numbers = cuda.local.array(ITEMS_PER_THREAD, u64)
        least = key_type(threshold.key)
        below = ptx.lanes_below()
        n_found = u32(0)
        half = u32(0)
        first = first_of_tile(thread)
        load_tile(elements, first, row, p)
        n_read = u32(0)
        while n_read < u32(row.length):
            listed = load_reached(keys, numbers, elements, first, least, row, p, m)
            for item in range(ITEMS_PER_THREAD):
                if keys[item] == least and number_key(numbers[item], m) < threshold.number:
                    listed &= u32(~(1 << item))
            if threshold.low != 0:
                for item in range(ITEMS_PER_THREAD):
                    is_last = keys[item] == least and number_key(numbers[item], m) == threshold.number
                    if is_last and ~(first + u32(item * WARP_LANES)) < threshold.low:
                        listed &= u32(~(1 << item))
            of_warp = ptx.warp_add(ptx.popcount_u32(listed))
            before, n_listed = sum_of_warps(of_warp, thread, ptx.shared_from(scratch.sums, half))
            half = 32 - half
            slot = n_found + before
            for item in range(ITEMS_PER_THREAD):
                lanes = ptx.ballot(listed & u32(1 << item))
                if lanes != 0:
                    own_slot = slot + ptx.popcount_u32(lanes & below)
                    packed = pack(keys[item], first + u32(item * WARP_LANES))
                    fits = listed & u32(1 << item) != 0 and own_slot < u32(m.capacity)
                    at = pairs + own_slot * PAIR_BYTES
                    ptx.store_shared_if_u64x2(at, number_key(numbers[item], m), packed, u32(fits))
                    slot += ptx.popcount_u32(lanes)
            n_found += n_listed
            first += u32(tile)
            n_read += u32(tile)
        cuda.syncthreads()
        return n_found

    @linked_function
    def read_field(field, before, extent, is_counting, row, scratch, p, m, ids):
        """Return how many elements are equal in the fields before one, and the extremes of this field.

        Or count the digits of those whose field is in a range, from the bits `shift` on.
        """
        thread, _, _ = ids
        low, high, shift = extent
        bins = ptx.shared_address(scratch.histogram)
        elements = cuda.local.array(ITEMS_PER_THREAD, key_type)
        keys = cuda.local.array(ITEMS_PER_THREAD, key_type)
        numbers = cuda.local.array(ITEMS_PER_THREAD, u64)
        amount = u32(0)
        least = ~u64(0)
        most = u64(0)
        least_key = key_type(before.key)
        if field == _KEY:
            least_key = key_type(low)
        first = first_of_tile(thread)
        load_tile(elements, first, row, p)
        n_read = u32(0)
        while n_read < u32(row.length):
            reached = load_reached(keys, numbers, elements, first, least_key, row, p, m)
            for item in range(ITEMS_PER_THREAD):
                number = number_key(numbers[item], m)
                value = u64(keys[item])
                is_equal = reached & u32(1 << item) != 0
                if field != _KEY:
                    is_equal = is_equal and keys[item] == before.key
                    value = number
                if field == _POSITION:
                    is_equal = is_equal and number == before.number
                    value = u64(~(first + u32(item * WARP_LANES)))
                is_equal = is_equal and low <= value <= high
                if is_counting:
                    digit = u32((value - low) >> u64(shift))
                    ptx.count_shared_if(bins + (digit << 2), u32(is_equal))
                elif is_equal:
                    amount += 1
                    least = min(least, value)
                    most = max(most, value)
            first += u32(tile)
            n_read += u32(tile)
        return amount, least, most

    @linked_function
    def find_exactly(row, scratch, p, m, ids):
        """Return a threshold that at least `p.k` elements reach, and no more than there is room for.

        All that take part, if they are fewer.
        """
        thread, _, _ = ids
        n_left = u32(p.k)
        spare = u32(m.capacity) - u32(p.k)
        key = u64(0)
        number = u64(0)
        last = u64(0)
        field = u32(_KEY)
        searching = True
        while searching:
            before = Threshold(key_type(key), number, u32(0))
            extent = u64(0), ~u64(0), u32(0)
            amount, low, high = read_field(field, before, extent, False, row, scratch, p, m, ids)
            low, high = block_extremes(scratch, low, high, ids)
            _, amount = exclusive_sum(amount, thread, scratch.sums)
            while low < high and amount > n_left + spare:
                shift = max(bit_length_u64(high - low), u32(digit_bits)) - digit_bits
                extent = low, high, shift
                read_field(field, before, extent, True, row, scratch, p, m, ids)
                digit, larger, amount = find_digit(scratch, n_left, ids)
                low += u64(digit) << u64(shift)
                # The end of the last bin may lie beyond what a key can be.
                high = low + min(high - low, (u64(1) << u64(shift)) - 1)
                n_left -= larger
            if field == _KEY:
                key = low
            elif field == _NUMBER:
                number = low
            else:
                last = low
            field += 1
            searching = amount > n_left + spare and field <= _POSITION
            # Others have read the extremes and the sums.
            cuda.syncthreads()
        return Threshold(key_type(key), number, u32(last))

    @linked_function
    def search(areas, key, n_left, row, scratch, p, m, ids):
        """List at least the first `p.k` elements of a row, in order of position; return how many these are.

        First, those with a larger key than a given one, to which `n_left` are to be added, and those with
        this one and a number that a sample tells. `areas` are the address of the pairs, and an array there.
        """
        pairs, room = areas
        # The spare room absorbs the error of the sample in both directions.
        n_expected = n_left + (u32(m.capacity) - u32(p.k)) // 2
        number, is_sampled = sampled_number(room, key, n_expected, row, scratch, p, m, ids)
        threshold = Threshold(key, number, u32(0))
        n_found = u32(0)
        searching = True
        while searching:
            if not is_sampled:
                threshold = find_exactly(row, scratch, p, m, ids)
            n_found = list_reaching(pairs, threshold, row, scratch, p, m, ids)
            searching = is_sampled and not u32(p.k) <= n_found <= u32(m.capacity)
            is_sampled = False
        return min(n_found, u32(m.capacity))

    return search
