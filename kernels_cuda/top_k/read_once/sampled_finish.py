"""The end of `sampled`: one block per row selects from candidates in shared memory."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    REGISTER,
    grid_dependency_wait,
    load_shared_u32x2,
    load_shared_u64x2,
    load_u32,
    load_u64,
    shared_address,
    shared_from,
    store_shared_if_u32x2,
    store_shared_if_u64x2,
)
from kernels_cuda.runtime.compiler import dynamic_shared_array, linked_function
from kernels_cuda.top_k.read_once.sampled_candidates import candidate_functions
from kernels_cuda.top_k.read_once.sampled_launches import (
    ROW_STATE_BYTES,
    SAMPLED_THREADS,
    SEGMENT_BYTES,
    SampledParameters,
    segment_elements,
)
from kernels_cuda.top_k.read_once.sampled_threshold import LISTED
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.lengths import pad_function
from kernels_cuda.top_k.shared.pair_sort import pair_sort
from kernels_cuda.top_k.shared.rank import rank_functions
from kernels_cuda.top_k.shared.rows import row_length, row_offsets, store_index
from kernels_cuda.top_k.shared.shapes import SORTED_PAIRS, VECTOR_BYTES, group_key_bytes, pair_bytes
from kernels_cuda.top_k.shared.threshold import N_COUNTERS, threshold_functions

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Two blocks share a multiprocessor.
_REGISTERS = 64


class FinishMemory(NamedTuple):
    """Shared memory of a block that selects from candidates: ``(keys, lows)`` of these, and other arrays.

    Attributes
    ----------
    keys, lows : array
        Of the candidates, by ascending position: ordered keys, and inverted positions.
    words : array of uint32
        All dynamic memory, which begins with both of them.
    selected : array of uint16
        Room for numbers of candidates: of all of them if they are to be sorted, else of k.
    bin_ends : array of uint32
        ``BINS_PER_THREAD`` a thread, if they are to be sorted.
    histogram, sums, extremes, counters : array
        As `threshold_functions` has them.
    """

    keys: Any
    lows: Any
    words: Any
    selected: Any
    bin_ends: Any
    histogram: Any
    sums: Any
    extremes: Any
    counters: Any


@functools.cache
def write_first_function(element_size: int) -> Any:
    """Make the device function that writes the first k of a block's candidates."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    restore = functions.restore
    store_element = functions.store_element
    finding = threshold_functions(SAMPLED_THREADS, key_type)
    find_threshold, list_groups = finding.find_threshold, finding.list_groups
    ranking = rank_functions(SAMPLED_THREADS, key_type)
    make_bins, fill_bins, rank_in_bin = ranking.make_bins, ranking.fill_bins, ranking.rank_in_bin
    sort_pairs = pair_sort(element_size, SAMPLED_THREADS)
    load_pair = load_shared_u64x2 if element_size == 8 else load_shared_u32x2
    store_pair_if = store_shared_if_u64x2 if element_size == 8 else store_shared_if_u32x2
    n_pair_bytes = pair_bytes(element_size)
    # What a thread has of the selected elements.
    n_most = SORTED_PAIRS // SAMPLED_THREADS
    unused = max(0, 32 - 8 * element_size)

    @linked_function
    def write(outputs, rank, key, position, row, key_format):
        value_address, index_address, strides, index_size = outputs
        base, step, count = row
        position = min(position, count - 1)
        bits = restore(key, key_format, base + position * step)
        store_element(value_address + rank * strides.values * element_size, bits)
        store_index(index_address + rank * strides.indices * index_size, index_size, position)

    @linked_function
    def write_first(memory, n_pairs, n_selected, extent, row, outputs, p, ids):
        """Write the first `n_selected` of `n_pairs` candidates; their keys are in `extent`."""
        keys, lows, words, selected, bin_ends, histogram, sums, extremes, counters = memory
        thread, lane, warp = ids
        threshold, highest = extent
        _, _, count = row
        # Elements that have changed since they were read first may be missing.
        n_selected = min(n_selected, n_pairs)
        # Few candidates share a bin of their keys, unless many are equal.
        n_placed = u32(0)
        if p.is_sorted != 0 and n_selected > 0:
            bins = make_bins(count, threshold, highest)
            bins, n_placed = fill_bins(
                keys, lows, selected, n_pairs, n_selected, bins, bin_ends, histogram, sums, counters, thread
            )
            place = thread
            while place < n_placed:
                pair = u32(selected[place])
                rank = rank_in_bin(keys, lows, selected, pair, bin_ends, bins, histogram)
                if rank < n_selected:
                    write(outputs, i64(rank), keys[pair], i64(~lows[pair]), row, p.key_format)
                place += SAMPLED_THREADS
        if n_placed == 0 and n_selected > 0:
            if p.is_sorted != 0:
                histogram[thread] = u32(0)
                cuda.syncthreads()
            cut, larger, n_at_or_above = find_threshold(
                keys,
                n_pairs,
                threshold,
                highest,
                n_selected,
                n_selected,
                histogram,
                sums,
                extremes,
                counters,
                thread,
                lane,
                warp,
            )
            n_ties = n_pairs
            if n_at_or_above > n_selected:
                n_ties = n_selected - larger
            list_groups(keys, n_pairs, cut, n_ties, selected, sums, thread, lane, warp)

            pairs = shared_address(words)
            if p.is_sorted != 0:
                # The selected pairs take the candidates' place.
                pair_keys = cuda.local.array(n_most, key_type)
                pair_positions = cuda.local.array(n_most, u32)
                for item in range(n_most):
                    rank = thread + u32(item * SAMPLED_THREADS)
                    if rank < n_selected:
                        place = u32(selected[rank])
                        pair_keys[item] = keys[place] << unused
                        pair_positions[item] = ~lows[place]
                cuda.syncthreads()
                for item in range(n_most):
                    rank = thread + u32(item * SAMPLED_THREADS)
                    at = pairs + rank * n_pair_bytes
                    store_pair_if(at, pair_keys[item], pair_positions[item], rank < n_selected)
                cuda.syncthreads()
                sort_pairs(
                    pairs,
                    pairs + u32(p.counters_offset),
                    n_selected,
                    cut << unused,
                    extremes,
                    sums,
                    thread,
                )
            rank = thread
            while rank < n_selected:
                if p.is_sorted != 0:
                    key, low = load_pair(pairs + rank * n_pair_bytes)
                    key >>= unused
                    position = i64(low)
                else:
                    place = u32(selected[rank])
                    key = keys[place]
                    position = i64(~lows[place])
                write(outputs, i64(rank), key, position, row, p.key_format)
                rank += SAMPLED_THREADS

    return write_first


def finish_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    key_type = REGISTER[element_size]
    block_extremes = threshold_functions(SAMPLED_THREADS, key_type).block_extremes
    write_first = write_first_function(element_size)
    pad_row = pad_function(element_size)
    key_bytes = group_key_bytes(element_size)
    take_listed, read_row = candidate_functions(element_size)
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @cuda.jit(max_registers=_REGISTERS)
    def finish_row(
        x, lengths, values, indices, states, segments, listed, listed_lows, offsets, p: SampledParameters
    ):
        grid_dependency_wait()
        keys = dynamic_shared_array(key_type)
        words = dynamic_shared_array(u32)
        lows = shared_from(words, p.n_slots * (key_bytes // 4))
        places = shared_from(words, p.candidate_words)
        counts = shared_from(places, p.n_segments)
        list_words = p.candidate_words + 2 * p.n_segments
        bin_ends = shared_from(words, list_words)
        selected = shared_from(dynamic_shared_array(u16), 2 * p.selected_word)
        histogram = cuda.shared.array(SAMPLED_THREADS, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ids = (thread, lane, warp)
        histogram[thread] = u32(0)

        row = p.first + i64(cuda.blockIdx.x)
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.strides.x * element_size
        value_address = values + value_row * element_size
        index_address = indices + index_row * p.index_size
        outputs = (value_address, index_address, p.strides, p.index_size)
        n_selected = u32(min(p.k, count))
        prefix = i64(0)
        if p.strides.x == 1:
            prefix = (base & (VECTOR_BYTES - 1)) // element_size
        n_segments = u32((prefix + count + (n_elements - 1)) // n_elements)
        if n_selected == 0:
            n_segments = u32(0)

        # What has been listed, or, where the sample has misled, what a threshold of the row itself leaves.
        state = states + row * ROW_STATE_BYTES
        threshold = key_type(load_u64(state))
        n_pairs = load_u32(state + LISTED)
        candidates = (keys, lows, places, counts)
        if n_selected <= n_pairs <= u32(p.n_slots):
            lists = (listed + row * p.n_slots * key_bytes, listed_lows + row * p.n_slots * 4)
            row_segments = segments + row * p.n_segments * SEGMENT_BYTES
            highest = take_listed(
                candidates, lists, row_segments, n_segments, n_pairs, prefix, sums, p.key_format, thread
            )
        else:
            threshold, n_pairs = read_row(
                candidates,
                (base, step, count),
                prefix,
                n_selected,
                u32(p.n_slots),
                n_segments,
                histogram,
                sums,
                counters,
                p.key_format,
                ids,
            )
            highest = key_type(ones)
        # The barrier inside lets all of them be seen.
        _, highest = block_extremes(extremes, threshold, highest, lane, warp)

        memory = FinishMemory(keys, lows, words, selected, bin_ends, histogram, sums, extremes, counters)
        write_first(memory, n_pairs, n_selected, (threshold, highest), (base, step, count), outputs, p, ids)
        pad_row(
            value_address,
            index_address,
            p.strides,
            p.index_size,
            p.length_format.padding,
            i64(n_selected) + i64(thread),
            i64(SAMPLED_THREADS),
            p.k,
        )

    return finish_row
