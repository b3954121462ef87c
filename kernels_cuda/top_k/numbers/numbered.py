"""Ties by the caller's numbers: one block per row orders candidates by (key, number, position).

Elements numbered -1 take no part. Of a row that a block holds, elements at or above a threshold of keys are
candidates. Of a longer one, another algorithm has found some more than k of the first elements by (key,
position), whatever their numbers; those with a larger key than the last one are candidates: all elements with
such keys have been found. If fewer than k candidates take part, all elements of a row that the block holds
are candidates; a longer one is read again, and what is at or above a threshold is listed (`numbered_search`).

Candidates are sorted by key, in shared memory; few that have the same key are ordered by comparing each with
each. If many have, they are sorted by number first. The first k by key are the answer. If results are to come
by number, candidates are sorted by number alone, and those at or above a threshold of keys are the answer.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.scan import block_scan, scan_of_warps
from kernels_cuda.top_k.numbers.numbered_launches import (
    ITEMS_PER_THREAD,
    PAIR_BYTES,
    Found,
    NumberParameters,
    Tables,
)
from kernels_cuda.top_k.numbers.numbered_rows import find_numbers, first_of_tile, number_functions
from kernels_cuda.top_k.numbers.numbered_search import search_function
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.pair_sort import pair_sort
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import load_index
from kernels_cuda.top_k.shared.shapes import WARP_LANES, pair_bytes
from kernels_cuda.top_k.shared.threshold import FOUND, threshold_functions

# Runs of up to so many equal keys are ordered by comparing each with each.
_LONGEST_RUN = 32
# Two large blocks share a multiprocessor.
_REGISTERS = 64


def numbered_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, restore = functions.key_type, functions.ordered_key, functions.restore
    read_if = ptx.READ_IF[element_size]
    find_row, write_result, pad_results = row_functions(element_size)
    load_number, number_key, pack, key_of = number_functions(element_size)
    search = search_function(element_size, n_threads)
    wide, narrow = threshold_functions(n_threads, u64), threshold_functions(n_threads, key_type)
    new_scratch, wide_extremes = wide.new_scratch, wide.block_extremes
    new_key_scratch, key_extremes, find_threshold = (
        narrow.new_scratch,
        narrow.block_extremes,
        narrow.find_threshold,
    )
    exclusive_sum, sum_of_warps = block_scan(n_threads), scan_of_warps(n_threads)
    most = n_threads * ITEMS_PER_THREAD
    sort_narrow = pair_sort(max(element_size, 4), n_threads, most)
    narrow_bytes, key_bytes = pair_bytes(element_size), max(element_size, 4)
    load_narrow, store_narrow = ptx.LOAD_SHARED_PAIR[narrow_bytes], ptx.STORE_SHARED_PAIR[narrow_bytes]

    @linked_function
    def load_keys(keys, positions, sources, n_given, row, p, m, thread):
        """Load keys and positions of a thread's share of what was found, or of the whole row."""
        found, found_values = sources
        step = p.strides.x * element_size
        first = first_of_tile(thread)
        for item in range(ITEMS_PER_THREAD):
            number = first + u32(item * WARP_LANES)
            positions[item] = number
            address = row.base + i64(number) * step
            if found != 0:
                address = found_values + i64(number) * element_size
                if number < n_given:
                    index = load_index(found + i64(number) * m.found_size, m.found_size) - row.start
                    # Clamped: if elements have changed meanwhile, the index may lie outside the row.
                    positions[item] = u32(min(max(index, i64(0)), row.length - 1))
            keys[item] = read_if(address, u32(number < n_given))
        for item in range(ITEMS_PER_THREAD):
            keys[item] = ordered_key(keys[item], p.key_format)

    @linked_function
    def lowest_key(keys, n_given, scratch, ids):
        thread, _, _ = ids
        lowest = ~key_type(0)
        first = first_of_tile(thread)
        for item in range(ITEMS_PER_THREAD):
            if first + u32(item * WARP_LANES) < n_given:
                lowest = min(lowest, keys[item])
        lowest, _ = key_extremes(scratch, lowest, key_type(0), ids)
        return lowest

    @linked_function
    def threshold_of_row(room, keys, n_given, n_selected, scratch, ids):
        """Return a key that at least `n_selected` keys of the row reach, and hardly more unless they tie."""
        thread, _, _ = ids
        lowest = ~key_type(0)
        highest = key_type(0)
        first = first_of_tile(thread)
        for item in range(ITEMS_PER_THREAD):
            number = first + u32(item * WARP_LANES)
            if number < n_given:
                room[number] = keys[item]
                lowest = min(lowest, keys[item])
                highest = max(highest, keys[item])
        extent = key_extremes(scratch, lowest, highest, ids)
        enough = n_selected + (n_selected >> 3) + 8
        threshold, _, _ = find_threshold(room, n_given, extent, n_selected, enough, scratch, ids)
        cuda.syncthreads()
        return threshold

    @linked_function
    def take(pairs, keys, positions, n_given, bound, row, sums, m, ids):
        """List the candidates in order: elements that take part and reach a bound. Return how many they are.

        `bound` is ``(key, takes_equal)``: larger keys reach it, and that key if `takes_equal`.
        """
        thread, _, _ = ids
        threshold, takes_equal = bound
        numbers = cuda.local.array(ITEMS_PER_THREAD, u64)
        first = first_of_tile(thread)
        for item in range(ITEMS_PER_THREAD):
            is_reached = keys[item] > threshold or (keys[item] == threshold and takes_equal)
            is_reached = first + u32(item * WARP_LANES) < n_given and is_reached
            numbers[item] = load_number(row, i64(positions[item]), is_reached, m)
        amount = u32(0)
        for item in range(ITEMS_PER_THREAD):
            amount += u32(numbers[item] != u64(m.excluded))
        slot, n_taken = sum_of_warps(ptx.warp_add(amount), thread, sums)
        for item in range(ITEMS_PER_THREAD):
            is_taken = numbers[item] != u64(m.excluded)
            lanes = ptx.ballot(u32(is_taken))
            own_slot = slot + ptx.popcount_u32(lanes & ptx.lanes_below())
            packed = pack(keys[item], positions[item])
            at = pairs + own_slot * PAIR_BYTES
            ptx.store_shared_if_u64x2(at, number_key(numbers[item], m), packed, u32(is_taken))
            slot += ptx.popcount_u32(lanes)
        cuda.syncthreads()
        return n_taken

    @linked_function
    def sort_by_number(areas, counters, n_pairs, scratch, key_scratch, ids):
        """Order the slots of candidates by number; those that tie stay as they are."""
        pairs, key_pairs = areas
        thread, _, _ = ids
        lowest = ~u64(0)
        highest = u64(0)
        slot = thread
        while slot < n_pairs:
            number, _ = ptx.load_shared_u64x2(pairs + slot * PAIR_BYTES)
            lowest = min(lowest, number)
            highest = max(highest, number)
            slot += n_threads
        lowest, highest = wide_extremes(scratch, lowest, highest, ids)
        left = highest - lowest
        shift = u32(0)
        # Numbers that differ in more bits than a key has are sorted by their lower halves first.
        while left != 0:
            place = thread
            while place < n_pairs:
                at = key_pairs + place * narrow_bytes
                _, slot_of_place = load_narrow(at)
                number, _ = ptx.load_shared_u64x2(pairs + u32(slot_of_place) * PAIR_BYTES)
                store_narrow(at, key_type((number - lowest) >> u64(shift)), slot_of_place)
                place += n_threads
            cuda.syncthreads()
            extremes, sums = key_scratch.extremes, key_scratch.sums
            sort_narrow(key_pairs, counters, n_pairs, key_type(0), extremes, sums, thread)
            cuda.syncthreads()
            left = left >> u64(8 * key_bytes - 1) >> u64(1)
            shift += u32(8 * key_bytes)

    @linked_function
    def sort_by_key(areas, counters, n_pairs, row, scratch, p, ids):
        """Order the slots of candidates by key; return whether more than some have the same one."""
        pairs, key_pairs = areas
        thread, _, _ = ids
        lowest = ~key_type(0)
        place = thread
        while place < n_pairs:
            at = key_pairs + place * narrow_bytes
            _, slot = load_narrow(at)
            _, packed = ptx.load_shared_u64x2(pairs + u32(slot) * PAIR_BYTES)
            key = key_type(key_of(packed, row, p))
            store_narrow(at, key, slot)
            lowest = min(lowest, key)
            place += n_threads
        lowest, _ = key_extremes(scratch, lowest, key_type(0), ids)
        if thread == 0:
            scratch.counters[FOUND] = u32(0)
        cuda.syncthreads()
        sort_narrow(key_pairs, counters, n_pairs, lowest, scratch.extremes, scratch.sums, thread)
        cuda.syncthreads()
        place = thread
        while place + _LONGEST_RUN < n_pairs:
            key, _ = load_narrow(key_pairs + place * narrow_bytes)
            other, _ = load_narrow(key_pairs + (place + _LONGEST_RUN) * narrow_bytes)
            if key == other:
                scratch.counters[FOUND] = u32(1)
            place += n_threads
        cuda.syncthreads()
        return scratch.counters[FOUND] != 0

    @linked_function
    def rank_in_run(areas, n_pairs, place, key, slot):
        """Return the rank by number and position of what has a place by key."""
        pairs, key_pairs = areas
        own, _ = ptx.load_shared_u64x2(pairs + u32(slot) * PAIR_BYTES)
        rank = place
        other = place
        searching = other > 0
        while searching:
            other -= 1
            other_key, other_slot = load_narrow(key_pairs + other * narrow_bytes)
            number, _ = ptx.load_shared_u64x2(pairs + u32(other_slot) * PAIR_BYTES)
            # Equal numbers stay in order of position.
            rank -= u32(other_key == key and number < own)
            searching = other > 0 and other_key == key
        other = place + 1
        searching = other < n_pairs
        while searching:
            other_key, other_slot = load_narrow(key_pairs + other * narrow_bytes)
            number, _ = ptx.load_shared_u64x2(pairs + u32(other_slot) * PAIR_BYTES)
            rank += u32(other_key == key and number > own)
            other += 1
            searching = other < n_pairs and other_key == key
        return rank

    @device_function
    def count_of(key, threshold):
        return u32(key > threshold) | (u32(key == threshold) << 16)

    @linked_function
    def keep_first(areas, room, counts, row, scratch, p, ids):
        """Keep the first candidates by key, of those in order of number, in this order, with their keys.

        `room` is an array in the place of the slots.
        """
        pairs, key_pairs = areas
        n_pairs, n_selected = counts
        thread, _, _ = ids
        # Places that follow each other.
        slots = cuda.local.array(ITEMS_PER_THREAD, key_type)
        keys = cuda.local.array(ITEMS_PER_THREAD, key_type)
        n_each = (n_pairs + u32(n_threads - 1)) // u32(n_threads)
        first = thread * n_each
        n_own = min(max(n_pairs, first) - first, n_each)
        lowest = ~key_type(0)
        highest = key_type(0)
        for item in range(ITEMS_PER_THREAD):
            if u32(item) < n_own:
                _, slots[item] = load_narrow(key_pairs + (first + u32(item)) * narrow_bytes)
                _, packed = ptx.load_shared_u64x2(pairs + u32(slots[item]) * PAIR_BYTES)
                keys[item] = key_type(key_of(packed, row, p))
                lowest = min(lowest, keys[item])
                highest = max(highest, keys[item])
        extent = key_extremes(scratch, lowest, highest, ids)
        # All that reach a threshold, or the first of those that equal it.
        threshold = key_type(0)
        n_ties = n_pairs
        if n_selected < n_pairs:
            for item in range(ITEMS_PER_THREAD):
                if u32(item) < n_own:
                    room[first + u32(item)] = keys[item]
            cuda.syncthreads()
            threshold, above, reached = find_threshold(
                room, n_pairs, extent, n_selected, n_selected, scratch, ids
            )
            if reached > n_selected:
                n_ties = n_selected - above
        # Counts of larger keys are in the lower half of a word, those of ties in the upper one.
        amount = u32(0)
        for item in range(ITEMS_PER_THREAD):
            if u32(item) < n_own:
                amount += count_of(keys[item], threshold)
        cuda.syncthreads()
        rank, _ = exclusive_sum(amount, thread, scratch.sums)
        for item in range(ITEMS_PER_THREAD):
            if u32(item) < n_own:
                own = count_of(keys[item], threshold)
                if own == 1 or (own != 0 and rank >> 16 < n_ties):
                    place = (rank & 0xFFFF) + min(rank >> 16, n_ties)
                    store_narrow(key_pairs + place * narrow_bytes, keys[item], slots[item])
                rank += own
        cuda.syncthreads()

    @cuda.jit(max_registers=_REGISTERS)
    def numbered_top_k(
        x,
        windows: Windows,
        numbers,
        values,
        indices,
        found: Found,
        tables: Tables,
        p: RowParameters,
        m: NumberParameters,
    ):
        ptx.grid_dependency_wait()
        room = dynamic_shared_array(key_type)
        pairs = ptx.shared_address(dynamic_shared_array(u64))
        areas = pairs, pairs + u32(m.capacity) * PAIR_BYTES
        counters = pairs + u32(m.counters_offset)
        scratch = new_scratch()
        key_scratch = new_key_scratch()
        thread = u32(cuda.threadIdx.x)
        ids = thread, thread & 31, thread >> 5
        scratch.histogram[thread] = u32(0)
        key_scratch.histogram[thread] = u32(0)
        row_number = p.first + i64(cuda.blockIdx.x)
        base, values, row_indices, length = find_row(x, windows, values, indices, tables.rows, row_number, p)
        row = find_numbers(base, row_indices, length, numbers, tables, row_number, m)
        n_selected = u32(p.k)

        keys = cuda.local.array(ITEMS_PER_THREAD, key_type)
        positions = cuda.local.array(ITEMS_PER_THREAD, u32)
        is_held = length <= m.capacity
        n_given = u32(length)
        sources = i64(0), i64(0)
        if not is_held:
            n_given = u32(m.n_found)
            before = row_number * m.n_found
            sources = found.indices + before * m.found_size, found.values + before * element_size
        load_keys(keys, positions, sources, n_given, row, p, m, thread)
        bound = key_type(0), True
        if not is_held:
            bound = lowest_key(keys, n_given, key_scratch, ids), False
        elif n_selected < n_given:
            bound = threshold_of_row(room, keys, n_given, n_selected, key_scratch, ids), True
        n_pairs = take(pairs, keys, positions, n_given, bound, row, scratch.sums, m, ids)
        is_complete = n_pairs >= n_selected or (is_held and bound[0] == 0)
        if is_held and not is_complete:
            bound = key_type(0), True
            n_pairs = take(pairs, keys, positions, n_given, bound, row, scratch.sums, m, ids)
            is_complete = True
        # Of short elements, many have the same key.
        by_number = m.is_sorted == 0 or element_size <= 2 or not is_complete
        if not is_complete:
            n_left = n_selected - n_pairs
            found_areas = pairs, dynamic_shared_array(u64)
            n_pairs = search(found_areas, bound[0], n_left, row, scratch, p, m, ids)

        place = thread
        while place < n_pairs:
            store_narrow(areas[1] + place * narrow_bytes, key_type(0), key_type(place))
            place += n_threads
        working = True
        while working:
            if by_number:
                sort_by_number(areas, counters, n_pairs, scratch, key_scratch, ids)
            working = False
            if m.is_sorted != 0:
                crowds = sort_by_key(areas, counters, n_pairs, row, key_scratch, p, ids)
                working = crowds and not by_number
                by_number = by_number or crowds

        outputs = RowIndices(row_indices.address, i64(0))
        n_written = min(n_pairs, n_selected)
        step = p.strides.x * element_size
        if m.is_sorted == 0:
            key_room = ptx.shared_from(room, m.capacity * PAIR_BYTES // key_bytes)
            keep_first(areas, key_room, (n_pairs, n_written), row, key_scratch, p, ids)
            n_pairs = n_written
        place = thread
        while place < n_pairs:
            key, slot = load_narrow(areas[1] + place * narrow_bytes)
            rank = place
            if not by_number:
                rank = rank_in_run(areas, n_pairs, place, key, slot)
            if rank < n_written:
                number, packed = ptx.load_shared_u64x2(pairs + u32(slot) * PAIR_BYTES)
                bits = restore(key, p.key_format, base + i64(u32(packed)) * step)
                write_result(values, outputs, rank, bits, i64(~number ^ u64(m.flip)), p)
            place += n_threads
        pad_results(values, outputs, n_written + thread, n_threads, p.k, p)

    return numbered_top_k
