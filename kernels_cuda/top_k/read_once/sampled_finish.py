"""The end of `sampled`: one block per row selects from candidates in shared memory."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u16, u32
from kernels_cuda.runtime.compiler import dynamic_shared_array, linked_function
from kernels_cuda.top_k.read_once.sampled_candidates import candidate_functions
from kernels_cuda.top_k.read_once.sampled_launches import (
    ROW_STATE_BYTES,
    SAMPLED_THREADS,
    SEGMENT_BYTES,
    Listed,
    SampledParameters,
    segment_elements,
)
from kernels_cuda.top_k.read_once.sampled_threshold import LISTED
from kernels_cuda.top_k.shared.keys import result_function
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.pair_sort import pair_sort
from kernels_cuda.top_k.shared.rank import Candidates, rank_functions
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import SORTED_PAIRS, VECTOR_BYTES, group_key_bytes, pair_bytes
from kernels_cuda.top_k.shared.threshold import threshold_functions

# Two blocks share a multiprocessor.
_REGISTERS = 64


def write_function(element_size: int) -> Any:
    """Make the device function that writes the first k of a block's candidates."""
    key_type = ptx.REGISTER[element_size]
    write_result = result_function(element_size)
    finding = threshold_functions(SAMPLED_THREADS, key_type)
    find_threshold, list_groups = finding.find_threshold, finding.list_groups
    ranking = rank_functions(SAMPLED_THREADS, key_type)
    make_bins, fill_bins, rank_in_bin = ranking.make_bins, ranking.fill_bins, ranking.rank_in_bin
    sort_pairs = pair_sort(element_size, SAMPLED_THREADS)
    n_pair_bytes = pair_bytes(element_size)
    load_pair, store_pair_if = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR_IF[n_pair_bytes]
    # The most selected elements that a thread has.
    n_most = SORTED_PAIRS // SAMPLED_THREADS
    unused = max(0, 32 - 8 * element_size)

    @linked_function
    def write_first(candidates, n_pairs, n_selected, extent, row, output, p, m, scratch, ids):
        """Write the first `n_selected` of `n_pairs` candidates; their keys are in `extent`.

        `row` is ``(address, count)``.
        """
        keys, lows, selected, _ = candidates
        thread, _, _ = ids
        base, count = row
        place_of_row = base, i64(1)
        # Elements that have changed since they were read first may be missing.
        n_selected = min(n_selected, n_pairs)
        # Few candidates share a bin of their keys, unless many are equal.
        n_placed = u32(0)
        if m.is_sorted != 0 and n_selected > 0:
            bins, n_placed = fill_bins(
                candidates, n_pairs, n_selected, make_bins(count, *extent), scratch, thread
            )
            place = thread
            while place < n_placed:
                pair = u32(selected[place])
                rank = rank_in_bin(candidates, pair, bins, scratch.histogram)
                if rank < n_selected:
                    position = min(i64(~lows[pair]), count - 1)
                    write_result(place_of_row, output, rank, keys[pair], position, p.key_format)
                place += SAMPLED_THREADS
        if n_placed == 0 and n_selected > 0:
            if m.is_sorted != 0:
                scratch.histogram[thread] = u32(0)
                cuda.syncthreads()
            cut, larger, n_at_or_above = find_threshold(
                keys, n_pairs, extent, n_selected, n_selected, scratch, ids
            )
            n_ties = n_pairs
            if n_at_or_above > n_selected:
                n_ties = n_selected - larger
            list_groups(keys, n_pairs, cut, n_ties, selected, scratch, ids)

            pairs = ptx.shared_address(keys)
            if m.is_sorted != 0:
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
                counters = pairs + u32(m.counters_offset)
                lowest = cut << unused
                sort_pairs(pairs, counters, n_selected, lowest, scratch.extremes, scratch.sums, thread)
            rank = thread
            while rank < n_selected:
                if m.is_sorted != 0:
                    key, low = load_pair(pairs + rank * n_pair_bytes)
                    key >>= unused
                    position = i64(low)
                else:
                    place = u32(selected[rank])
                    key = keys[place]
                    position = i64(~lows[place])
                write_result(place_of_row, output, rank, key, min(position, count - 1), p.key_format)
                rank += SAMPLED_THREADS

    return write_first


def finish_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    key_type = ptx.REGISTER[element_size]
    new_scratch, _, block_extremes, *_ = threshold_functions(SAMPLED_THREADS, key_type)
    write_first = write_function(element_size)
    find_row, _, pad_results = row_functions(element_size)
    key_bytes = group_key_bytes(element_size)
    take_listed, read_row = candidate_functions(element_size)
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @cuda.jit(max_registers=_REGISTERS)
    def finish_row(
        x,
        windows: Windows,
        values,
        indices,
        states,
        listed: Listed,
        offsets,
        p: RowParameters,
        m: SampledParameters,
    ):
        ptx.grid_dependency_wait()
        keys = dynamic_shared_array(key_type)
        words = dynamic_shared_array(u32)
        lows = ptx.shared_from(words, m.n_slots * (key_bytes // 4))
        places = ptx.shared_from(words, m.candidate_words)
        bin_ends = ptx.shared_from(places, m.n_segments)
        selected = ptx.shared_from(dynamic_shared_array(u16), 2 * m.selected_word)
        candidates = Candidates(keys, lows, selected, bin_ends)
        scratch = new_scratch()
        thread = u32(cuda.threadIdx.x)
        ids = thread, thread & 31, thread >> 5
        scratch.histogram[thread] = u32(0)

        row = p.first + i64(cuda.blockIdx.x)
        base, values, indices, count = find_row(x, windows, values, indices, offsets, row, p)
        n_selected = u32(min(p.k, count))
        prefix = (base & (VECTOR_BYTES - 1)) // element_size
        n_segments = u32((prefix + count + (n_elements - 1)) // n_elements)
        if n_selected == 0:
            n_segments = u32(0)

        # Take what has been listed or, where the sample has misled, what is selected.
        state = states + row * ROW_STATE_BYTES
        threshold = key_type(ptx.load_u64(state))
        n_pairs = ptx.load_u32(state + LISTED)
        if n_selected <= n_pairs <= u32(m.n_slots):
            lists = (listed.elements + row * m.n_slots * key_bytes, listed.lows + row * m.n_slots * 4)
            of_row, sums = listed.segments + row * m.n_segments * SEGMENT_BYTES, scratch.sums
            highest = take_listed(
                candidates, places, lists, of_row, n_segments, n_pairs, prefix, sums, p.key_format, thread
            )
        else:
            threshold, n_pairs = read_row(candidates, (base, count), n_selected, scratch, p.key_format, ids)
            highest = key_type(ones)
        # The barrier inside makes all candidates visible.
        _, highest = block_extremes(scratch, threshold, highest, ids)

        output = values, indices, p.strides.values, p.strides.indices, p.index_size
        extent = threshold, highest
        write_first(candidates, n_pairs, n_selected, extent, (base, count), output, p, m, scratch, ids)
        pad_results(values, indices, n_selected + thread, SAMPLED_THREADS, p.k, p)

    return finish_row
