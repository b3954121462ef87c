"""Ties by the caller's numbers: one block per row orders candidates by (key, number, position).

Elements numbered -1 take no part. Of a short row, all others are candidates. Of a long one, another algorithm
has found some more than k of the first elements by (key, position), whatever their numbers. If at least k of
them take part and have a larger key than the last one, these are the candidates: all elements with such keys
have been found. Otherwise, too many tie at the cut-off, or take no part. The row is read again, and what is
at or above a threshold is listed (`numbered_search`).

Candidates are sorted in shared memory, by one key after the other: by position unless they are in that order,
by number, and by key. The first k are the answer. If they are to come by number, they are sorted by position
and number once more.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import dynamic_shared_array, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.numbers.numbered_launches import ITEMS_PER_THREAD, PAIR_BYTES, NumberParameters
from kernels_cuda.top_k.numbers.numbered_search import Row, number_functions, search_function
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.pair_sort import pair_sort
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import load_index, row_offsets
from kernels_cuda.top_k.shared.threshold import threshold_functions

# What candidates are sorted by, in this order.
_POSITION, _NUMBER, _KEY, _POSITION_OF_SELECTED, _NUMBER_OF_SELECTED, _N_STAGES = range(6)
# Two large blocks share a multiprocessor.
_REGISTERS = 64


def numbered_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    load_element = ptx.LOAD[element_size]
    ones = (1 << 8 * element_size) - 1
    find_row, write_result, pad_results = row_functions(element_size)
    load_number, number_key, key_at = number_functions(element_size)
    search = search_function(element_size, n_threads)
    finding = threshold_functions(n_threads, u64)
    new_scratch, block_extremes = finding.new_scratch, finding.block_extremes
    exclusive_sum = block_scan(n_threads)
    sort_pairs = pair_sort(8, n_threads, n_threads * ITEMS_PER_THREAD)

    @linked_function
    def found_position(found, number, row, m):
        """Return the position of an element that the other algorithm has found, from the begin of the row."""
        index = load_index(found + i64(number) * m.found_size, m.found_size) - row.start
        # It is one of the row's, also if elements have changed meanwhile.
        return min(max(index, i64(0)), row.length - 1)

    @linked_function
    def lowest_found(found, n_found, row, scratch, p, m, ids):
        """Return the lowest key of the elements found, and whether one of them takes no part."""
        thread, _, _ = ids
        lowest = ~u64(0)
        is_excluded = u64(0)
        number = thread
        while number < n_found:
            position = found_position(found, number, row, m)
            lowest = min(lowest, key_at(row, position, p))
            if load_number(row, position, m) == u64(m.excluded):
                is_excluded = u64(1)
            number += n_threads
        lowest, is_excluded = block_extremes(scratch, lowest, is_excluded, ids)
        return lowest, is_excluded != 0

    @linked_function
    def take_in_order(pairs, found, n_given, lowest, row, scratch, p, m, thread):
        """Take what takes part of the first elements of a row, or of those found that are above a key.

        Returns how many these are.
        """
        n_taken = u32(0)
        first = u32(0)
        while first < n_given:
            number = first + thread
            is_taken = number < n_given
            position = i64(number)
            if is_taken and found != 0:
                position = found_position(found, number, row, m)
                is_taken = key_at(row, position, p) > lowest
            if is_taken:
                is_taken = load_number(row, position, m) != u64(m.excluded)
            place, amount = exclusive_sum(u32(is_taken), thread, scratch.sums)
            if is_taken:
                ptx.store_shared_u64x2(pairs + (n_taken + place) * PAIR_BYTES, u64(0), u64(position))
            n_taken += amount
            first += n_threads
            cuda.syncthreads()
        return n_taken

    @linked_function
    def sort_by(pairs, n_pairs, stage, row, scratch, p, m, ids):
        """Sort candidates by what a stage sorts them by; those that are equal stay in order."""
        thread, _, _ = ids
        lowest = ~u64(0)
        pair = thread
        while pair < n_pairs:
            _, position = ptx.load_shared_u64x2(pairs + pair * PAIR_BYTES)
            key = ~position
            if stage == _KEY:
                key = key_at(row, i64(position), p)
            elif stage in (_NUMBER, _NUMBER_OF_SELECTED):
                key = number_key(load_number(row, i64(position), m), m)
            ptx.store_shared_u64x2(pairs + pair * PAIR_BYTES, key, position)
            lowest = min(lowest, key)
            pair += n_threads
        lowest, _ = block_extremes(scratch, lowest, u64(0), ids)
        # Others have read the extremes, whose place is taken now.
        cuda.syncthreads()
        counters = pairs + u32(m.counters_offset)
        sort_pairs(pairs, counters, n_pairs, lowest, scratch.extremes, scratch.sums, thread)
        cuda.syncthreads()

    @cuda.jit(max_registers=_REGISTERS)
    def numbered_top_k(
        x,
        windows: Windows,
        numbers,
        values,
        indices,
        found,
        offsets,
        number_offsets,
        p: RowParameters,
        m: NumberParameters,
    ):
        ptx.grid_dependency_wait()
        pairs = ptx.shared_address(dynamic_shared_array(u64))
        scratch = new_scratch()
        thread = u32(cuda.threadIdx.x)
        ids = thread, thread & 31, thread >> 5
        scratch.histogram[thread] = u32(0)
        row_number = p.first + i64(cuda.blockIdx.x)
        base, values, row_indices, length = find_row(x, windows, values, indices, offsets, row_number, p)
        number_row, _, _ = row_offsets(m.layout, number_offsets, row_number)
        start = row_indices.start
        row = Row(base, numbers + (number_row + start * m.step) * m.size, start, length)

        n_pairs = u32(0)
        is_in_order = True
        if length <= m.capacity:
            n_pairs = take_in_order(pairs, i64(0), u32(length), u64(0), row, scratch, p, m, thread)
        else:
            found += row_number * m.n_found * m.found_size
            n_found = u32(m.n_found)
            lowest, has_excluded = lowest_found(found, n_found, row, scratch, p, m, ids)
            n_pairs = take_in_order(pairs, found, n_found, lowest, row, scratch, p, m, thread)
            is_in_order = n_pairs >= p.k
            if not is_in_order:
                extent = lowest, lowest
                n_left = u32(p.k) - n_pairs
                if has_excluded:
                    extent = u64(0), u64(ones)
                    n_left = u32(p.k)
                n_pairs = search(pairs, extent, n_left, row, scratch, p, m, ids)

        stage = u32(_POSITION)
        cuts = m.is_sorted != 0 or n_pairs > p.k
        while stage < _N_STAGES:
            is_needed = stage == _NUMBER or (stage == _POSITION and not is_in_order)
            if stage == _KEY:
                is_needed = cuts
            elif stage > _KEY:
                is_needed = cuts and m.is_sorted == 0
            if is_needed:
                sort_by(pairs, n_pairs, stage, row, scratch, p, m, ids)
            if stage == _KEY:
                n_pairs = min(n_pairs, u32(p.k))
            stage += 1

        rank = thread
        outputs = RowIndices(row_indices.address, i64(0))
        while rank < n_pairs:
            _, low = ptx.load_shared_u64x2(pairs + rank * PAIR_BYTES)
            position = i64(low)
            element = load_element(base + position * p.strides.x * element_size)
            write_result(values, outputs, rank, element, i64(load_number(row, position, m)), p)
            rank += n_threads
        pad_results(values, outputs, n_pairs + thread, n_threads, p.k, p)

    return numbered_top_k
