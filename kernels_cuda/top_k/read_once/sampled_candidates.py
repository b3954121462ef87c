"""A row's candidates in shared memory, by ascending position: those that `sampled` has listed.

Where the sample has misled, they are the first k elements of the row, which a block finds by itself.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.read_once.sampled_launches import SAMPLED_THREADS, SEGMENT_BYTES, segment_elements
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import group_key_bytes
from kernels_cuda.top_k.shared.threshold import bit_length, threshold_functions

# Elements that each thread loads at a time.
_N_ITEMS = 8
_TILE = _N_ITEMS * SAMPLED_THREADS


def candidate_functions(element_size: int) -> tuple[Any, Any]:
    """Make `take_listed` and `read_row`, device functions that fill in `rank.Candidates`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    find_digit = threshold_functions(SAMPLED_THREADS, key_type).find_digit
    exclusive_sum = block_scan(SAMPLED_THREADS)
    needed_bits = bit_length(key_type)
    key_bytes = group_key_bytes(element_size)
    store_shared_key = ptx.STORE_SHARED[key_bytes]
    digit_bits = SAMPLED_THREADS.bit_length() - 1
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @linked_function
    def take_listed(
        candidates, places, lists, segments, n_segments, n_listed, prefix, sums, key_format, thread
    ):
        """Bring what is listed into shared memory; return the thread's largest key.

        `lists` are the addresses of a row's elements and lows, and `prefix` tells how many elements of the
        first segment come before the row. `places` is a shared array of a uint32 per segment.
        """
        n_placed = u32(0)
        first = u32(0)
        while first < n_segments:
            segment = first + thread
            known = u64(0)
            if segment < n_segments:
                known = ptx.load_u64(segments + i64(segment) * SEGMENT_BYTES)
            before, of_all = exclusive_sum(u32(known >> 32), thread, sums)
            if segment < n_segments:
                # From a place in the list to that in shared memory.
                places[segment] = n_placed + before - u32(known)
            n_placed += of_all
            first += SAMPLED_THREADS
            cuda.syncthreads()

        first_element = lists[0] + i64(thread) * key_bytes
        first_low = lists[1] + i64(thread) * 4
        listed = cuda.local.array(_N_ITEMS, key_type)
        listed_low = cuda.local.array(_N_ITEMS, u32)
        keys_at = ptx.shared_address(candidates.keys)
        lows_at = ptx.shared_address(candidates.lows)
        places_at = ptx.shared_address(places)
        highest = key_type(0)
        slot = thread
        while slot < n_listed:
            for item in range(_N_ITEMS):
                if slot + u32(item * SAMPLED_THREADS) < n_listed:
                    listed[item] = load_element(first_element + item * SAMPLED_THREADS * key_bytes)
                    listed_low[item] = ptx.load_u32(first_low + item * SAMPLED_THREADS * 4)
            for item in range(_N_ITEMS):
                if slot < n_listed:
                    segment = (u32(prefix) + ~listed_low[item]) // n_elements
                    place = slot + ptx.load_shared_u32(places_at + (segment << 2))
                    key = ordered_key(listed[item], key_format)
                    store_shared_key(keys_at + place * key_bytes, key)
                    ptx.store_shared_u32(lows_at + (place << 2), listed_low[item])
                    highest = max(highest, key)
                slot += SAMPLED_THREADS
            first_element += _TILE * key_bytes
            first_low += _TILE * 4
        return highest

    @linked_function
    def threshold_of_row(row, n_selected, scratch, key_format, ids):
        """Return a key and a number: the first elements are all those above it, and so many of its equals."""
        base, count = row
        thread, _, _ = ids
        elements = cuda.local.array(_N_ITEMS, key_type)
        bins = ptx.shared_address(scratch.histogram)
        low = key_type(0)
        high = key_type(ones)
        n_left = n_selected
        searching = True
        while searching:
            width = high - low
            shift = max(needed_bits(width), u32(digit_bits)) - digit_bits
            position = i64(thread)
            while position < count:
                for item in range(_N_ITEMS):
                    at = position + item * SAMPLED_THREADS
                    elements[item] = key_type(0)
                    if at < count:
                        elements[item] = load_element(base + at * element_size)
                for item in range(_N_ITEMS):
                    above_low = ordered_key(elements[item], key_format) - low
                    exists = position + item * SAMPLED_THREADS < count
                    digit = u32(above_low >> key_type(shift))
                    ptx.count_shared_if(bins + (digit << 2), above_low <= width and exists)
                position += _TILE
            digit, larger, amount = find_digit(scratch, n_left, ids)
            low += key_type(digit) << key_type(shift)
            # The end of the last bin may lie beyond what a key can be.
            high = low + min(high - low, (1 << key_type(shift)) - 1)
            n_left -= larger
            searching = shift > 0 and amount > n_left
        return low, n_left

    @linked_function
    def read_row(candidates, row, n_selected, scratch, key_format, ids):
        """Bring the first elements of a row into shared memory; return their threshold, and how many."""
        base, count = row
        thread, _, _ = ids
        # The histogram has been cleared.
        cuda.syncthreads()
        threshold, n_equals = threshold_of_row(row, n_selected, scratch, key_format, ids)
        keys = cuda.local.array(_N_ITEMS, key_type)
        n_above = u32(0)
        n_equal = u32(0)
        own = i64(thread) * _N_ITEMS
        first = i64(0)
        while first < count and n_above + min(n_equal, n_equals) < n_selected:
            # A thread has neighbouring elements. It counts those above in the lower half of a word, and those
            # that equal the threshold in the upper one.
            amounts = u32(0)
            for item in range(_N_ITEMS):
                at = first + own + item
                if at < count:
                    keys[item] = ordered_key(load_element(base + at * element_size), key_format)
                    amounts += u32(keys[item] > threshold) | (u32(keys[item] == threshold) << 16)
            before, of_tile = exclusive_sum(amounts, thread, scratch.sums)
            above = n_above + (before & 0xFFFF)
            equal = n_equal + (before >> 16)
            for item in range(_N_ITEMS):
                at = first + own + item
                if at < count:
                    is_above = keys[item] > threshold
                    is_equal = keys[item] == threshold
                    slot = above + min(equal, n_equals)
                    # Elements that have changed since they were counted may be more.
                    if (is_above or (is_equal and equal < n_equals)) and slot < n_selected:
                        candidates.keys[slot] = keys[item]
                        candidates.lows[slot] = ~u32(at)
                    above += u32(is_above)
                    equal += u32(is_equal)
            n_above += of_tile & 0xFFFF
            n_equal += of_tile >> 16
            first += _TILE
            # The next tile's sums take the same shared memory.
            cuda.syncthreads()
        return threshold, min(n_above + min(n_equal, n_equals), n_selected)

    return take_listed, read_row
