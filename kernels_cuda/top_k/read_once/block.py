"""One block per row: how a row of any length is finished.

1. Find the maxima of groups of neighbouring elements (`groups`), in shared memory.
2. Find a threshold that at least k of them are at or above, and list these groups (`threshold`): some more
   than k or, if too many tie, the first k by (maximum, position). No other group has any of the first k
   elements.
3. Read the listed groups again, from cache, and keep the elements at or above the threshold in shared memory
   (`filter_pass`).
4. Order these candidates by (key, position) (`rank`); the first k are the answer. By index, they are kept in
   order of position, and a threshold tells which of them are written.

Elements that share few groups, or tie, can overflow step 3 (`select`). If fewer than k are above the
threshold, those are kept, and the first that equal it. Otherwise the threshold is raised, by histograms of
the elements of the listed groups, until the elements at or above it fit, or it is the k-th key. So, by value,
the order in which elements arrive in shared memory never matters, and no data make a block read more than k
groups a few times.

Of a long row, other blocks have written two stages of group maxima (`grid`). Steps 1 and 2 are then done with
the unfolded keys of a stage instead of elements, each of which is a group by itself if they are few; and step
3 at each stage down to the elements, where each pass keeps the list of groups for the next.

A row longer than `part_size` is `n_parts` parts, whose selected elements lie one after the other in the
output. They are in order, hence by ascending index where keys are equal: another launch over them, to which
`sources` tells the index of each, finishes the row.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import place_in_order
from kernels_cuda.ptx import i64, u16, u32
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.top_k.read_once.block_launches import (
    COARSE,
    ELEMENTS,
    FINE,
    LARGEST_LANE_BITS,
    BlockParameters,
)
from kernels_cuda.top_k.read_once.filter_pass import CONTIGUOUS, Items, Source, Unaligned, filter_functions
from kernels_cuda.top_k.read_once.select import Limits, SelectMemory, select_function
from kernels_cuda.top_k.shared.groups import block_maxima, coarse_groups
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.rank import Candidates, rank_functions, write_functions
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import locate, part_of, row_window
from kernels_cuda.top_k.shared.shapes import SPARE_CANDIDATES, VECTOR_BYTES, group_key_bytes
from kernels_cuda.top_k.shared.threshold import N_COUNTERS, threshold_functions

# Entries of the block's state in shared memory; the first two have one for each stage.
VECTORS, ADDRESS, COUNT, PREFIX, UNALIGNED, BASE, VALUES, INDICES, SOURCE = 0, 3, 6, 7, 8, 9, 10, 11, 12
WRITTEN = 13
N_STATE = 14


class Start(NamedTuple):
    """The stage that a block begins with, the lane bits of its groups, and whether each key is a group."""

    stage: Any
    bits: Any
    has_unit_groups: Any


class Groups(NamedTuple):
    """The groups that a block reads next.

    Attributes
    ----------
    stage : int64
        That of the vectors that are read.
    bits : uint32
        Bits of the number of vectors of a group.
    are_listed : bool
        Whether they are `n_listed` groups that are listed, or all there are.
    threshold, highest : key
        The least and the largest key of candidates.
    are_many_equal : bool
        Whether so many elements equal the threshold that not all of those in the groups are candidates,
        surely.
    """

    stage: Any
    bits: Any
    are_listed: Any
    n_listed: Any
    threshold: Any
    highest: Any
    are_many_equal: Any


def block_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    new_scratch = threshold_functions(n_threads, key_type).new_scratch
    list_groups = _listing_function(element_size, n_threads)
    search_stages = _search_function(element_size, n_threads)
    write_by_value, write_by_index = write_functions(element_size, n_threads)
    _, _, pad_results = row_functions(element_size)

    n_key_bytes = group_key_bytes(element_size)
    per_vector = VECTOR_BYTES // element_size
    keys_per_vector = VECTOR_BYTES // n_key_bytes
    keys_per_vector_bits = keys_per_vector.bit_length() - 1
    ones = (1 << 8 * element_size) - 1

    @device_function
    def lane_bits_of(n_vectors, bits, n_groups, enough_groups):
        """Return the bits that make enough groups of a short row, but no more than the longest one has."""
        while bits > 0 and n_vectors >> bits < enough_groups and n_vectors <= n_groups << (bits - 1):
            bits -= 1
        return bits

    @device_function
    def start_of_short_row(start, n_coarse, n_row_vectors, p, m):
        """Return where to begin with a row that is shorter than others.

        From the stage that it has twice as many maxima of as are selected; each is a group if they fit.
        """
        stage, bits, has_unit_groups = start
        most_vectors = m.n_groups << LARGEST_LANE_BITS
        n_fine_vectors = n_coarse << m.coarse_bits
        if stage == COARSE and n_coarse < 2 * p.k and n_fine_vectors <= most_vectors:
            stage, bits, has_unit_groups = i64(FINE), u32(LARGEST_LANE_BITS), False
        if stage == FINE:
            if n_fine_vectors * keys_per_vector <= m.n_groups:
                bits, has_unit_groups = u32(0), True
            if n_fine_vectors * keys_per_vector < 2 * p.k and n_row_vectors <= most_vectors:
                stage, bits, has_unit_groups = i64(ELEMENTS), u32(LARGEST_LANE_BITS), False
        return Start(stage, bits, has_unit_groups)

    @device_function
    def coarse_of_row(n_row_vectors, m):
        """Return how many coarse groups the row has."""
        n_coarse = i64(0)
        if m.top_stage != ELEMENTS:
            coarse_group_bits = m.coarse_bits + keys_per_vector_bits + m.fine_bits
            n_coarse = coarse_groups(n_row_vectors, coarse_group_bits, m.n_coarse)
        return n_coarse

    @device_function
    def write_candidates(memory, n_above, n_pairs, extent, sources, p, m, ids):
        """Write the first of the candidates, whose keys lie in `extent`."""
        candidates, candidate_groups, state, scratch = memory
        row = state[BASE], state[COUNT]
        output = state[VALUES], state[INDICES], (state[SOURCE], sources, m.source_size)
        n_written = u32(state[WRITTEN])
        if n_written == 0:
            # All candidates are fillers.
            n_pairs = u32(0)
        if m.is_by_index != 0:
            counts = n_above, n_pairs, n_written
            write_by_index(candidates, counts, extent, candidate_groups, row, output, p, scratch, ids)
        else:
            write_by_value(candidates, n_pairs, n_written, extent, row, output, p, scratch, ids)

    # With so few, several blocks share a multiprocessor; 8-byte keys would spill with fewer than 80.
    max_registers = None if n_threads == 128 else 80 if (element_size, n_threads) == (8, 256) else 64

    @cuda.jit(max_registers=max_registers)
    def block_top_k(
        x,
        windows: Windows,
        values,
        indices,
        sources,
        fine,
        coarse,
        offsets,
        p: RowParameters,
        m: BlockParameters,
    ):
        keys = dynamic_shared_array(key_type)
        words = dynamic_shared_array(u32)
        lows = ptx.shared_from(words, m.n_slots * (n_key_bytes // 4))
        candidate_groups = ptx.shared_from(words, m.list_word)
        order = ptx.shared_from(dynamic_shared_array(u16), 2 * m.list_word)
        bin_ends = ptx.shared_from(words, m.bins_word)
        candidates = Candidates(keys, lows, order, bin_ends)
        scratch = new_scratch()
        state = cuda.shared.array(N_STATE, i64)
        memory = SelectMemory(candidates, candidate_groups, state, scratch)

        thread = u32(cuda.threadIdx.x)
        unit = p.first + i64(cuda.blockIdx.x)
        row, part = part_of(unit, m.n_parts)
        # Lengths may be what a launch before has written.
        ptx.grid_dependency_wait()
        row_start, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        if length < p.window_format.least:
            return
        available = length
        if sources != 0:
            # A part of a window may select fewer than k: fillers pad its results.
            available = p.axis_size
        else:
            x += row_start * p.strides.x * element_size
        value_row, index_row, count, base, first_address, prefix, n_row_vectors = locate(
            x, offsets, row, part, available, m.part_size, p.strides.x, element_size, p.layout
        )
        begin = part * m.part_size
        values += (value_row + part * p.k * p.strides.values) * element_size
        indices += (index_row + part * p.k * p.strides.indices) * p.index_size
        scratch.histogram[thread] = u32(0)
        if thread < N_COUNTERS:
            scratch.counters[thread] = u32(0)

        # Find the address of the vectors of the first stage, and their number.
        n_coarse = coarse_of_row(n_row_vectors, m)
        fine_address = fine + unit * (m.n_coarse << m.coarse_bits) * VECTOR_BYTES
        coarse_address = coarse + unit * m.n_coarse * n_key_bytes
        start = Start(m.top_stage, u32(m.lane_bits), m.has_unit_groups != 0)
        if length < p.axis_size and p.strides.x == 1 and sources == 0:
            start = start_of_short_row(start, n_coarse, n_row_vectors, p, m)
        address = first_address
        n_vectors = u32(n_row_vectors)
        if start.stage == FINE:
            address = fine_address
            n_vectors = u32(n_coarse << m.coarse_bits)
        elif start.stage == COARSE:
            address = coarse_address
            n_vectors = u32(n_coarse // keys_per_vector)
        # The first pass does not need these: registers are to be free for its loads.
        if thread == 0:
            state[COUNT] = count
            state[PREFIX] = prefix
            state[UNALIGNED] = count - n_row_vectors * per_vector
            state[BASE] = base
            state[VALUES] = values
            state[INDICES] = indices
            state[SOURCE] = row_start + begin
            if sources != 0:
                state[SOURCE] = row * p.axis_size + begin
            state[VECTORS + ELEMENTS] = n_row_vectors
            state[WRITTEN] = min(p.k, count, length)
            state[VECTORS + FINE] = n_coarse << m.coarse_bits
            state[VECTORS + COARSE] = n_coarse // keys_per_vector
            state[ADDRESS + ELEMENTS] = first_address
            state[ADDRESS + FINE] = fine_address
            state[ADDRESS + COARSE] = coarse_address
        if windows.lengths != 0 or windows.starts != 0:
            padded = min(p.k, count, length) + i64(thread)
            end = min(p.k, m.part_size, p.axis_size - begin)
            pad_results(values, RowIndices(indices, i64(0)), padded, n_threads, end, p)
        # Elements before the first and after the last whole vector are in no group: the first threads have
        # one each.
        unaligned_bits = key_type(0)
        if thread < u32(count - n_row_vectors * per_vector):
            unaligned = i64(thread)
            if unaligned >= prefix:
                unaligned += n_row_vectors * per_vector
            unaligned_bits = load_element(base + unaligned * p.strides.x * element_size)

        bits = lane_bits_of(n_vectors, start.bits, u32(m.n_groups), u32(m.enough_groups))
        start = Start(start.stage, bits, start.has_unit_groups)
        n_selected = u32(min(p.k, count))
        n_groups = count_groups(n_vectors, bits, start.has_unit_groups, keys_per_vector)
        groups = Groups(start.stage, u32(0), False, u32(0), key_type(0), key_type(ones), False)
        if n_groups > n_selected and (count > m.n_slots or i64(n_selected) * 4 < count):
            groups = list_groups(memory, start, (address, n_vectors), unaligned_bits, p, m, thread)
        else:
            cuda.syncthreads()

        thread = ptx.same_u32(thread)
        ids = thread, thread & 31, thread >> 5
        n_above, n_pairs, extent = search_stages(memory, groups, unaligned_bits, p, m, ids)
        write_candidates(memory, n_above, n_pairs, extent, sources, p, m, ids)

    return block_top_k


@linked_function
def count_groups(n_vectors, bits, has_unit_groups, keys_per_vector):
    """Return how many groups the vectors make."""
    if has_unit_groups:
        return n_vectors * keys_per_vector
    return (n_vectors + ((1 << bits) - 1)) >> bits


@device_function
def vector_bits(stage, m):
    """Return the bits of the number of vectors of a stage that make a group of the stage above."""
    bits = u32(m.fine_bits)
    if stage == FINE:
        bits = u32(m.coarse_bits)
    return bits


def _listing_function(element_size: int, n_threads: int) -> Any:
    """Make the device function of the first pass."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    unfolding_of = functions.unfolding_of
    group_maxima, copy_keys, order_maxima = block_maxima(element_size, n_threads)
    finding = threshold_functions(n_threads, key_type)
    keys_per_vector = VECTOR_BYTES // group_key_bytes(element_size)

    @linked_function
    def first_pass(memory, start, vectors, unaligned_bits, p, m, thread):
        """List the groups to read again; `vectors` are ``(address, count)`` of the first stage's."""
        (keys, _, _, _), candidate_groups, state, scratch = memory
        stage, bits, has_unit_groups = start
        address, n_vectors = vectors
        if has_unit_groups:
            copy_keys(keys, address, n_vectors, thread)
        else:
            stride = p.strides.x
            if stage != ELEMENTS:
                stride = i64(1)
            unfolding = unfolding_of(p.unfolded_format, stage != ELEMENTS)
            group_maxima(keys, address, n_vectors, stride, unfolding, bits, thread & 31, thread >> 5)
        cuda.syncthreads()
        # Recomputed: live values would cost the loads their registers.
        thread = ptx.same_u32(thread)
        ids = thread, thread & 31, thread >> 5
        n_groups = count_groups(u32(state[VECTORS + stage]), bits, has_unit_groups, keys_per_vector)
        n_selected = u32(min(p.k, state[COUNT]))
        most_groups = u32(m.most_groups)
        lowest = ~key_type(0)
        highest = key_type(0)
        if thread < u32(state[UNALIGNED]):
            highest = ordered_key(unaligned_bits, p.key_format)
        lowest, highest = order_maxima(keys, n_groups, p.key_format, lowest, highest, thread)
        extent = finding.block_extremes(scratch, lowest, highest, ids)
        threshold, n_above, n_at_or_above = finding.find_threshold(
            keys, n_groups, extent, n_selected, most_groups, scratch, ids
        )
        n_ties = u32(0xFFFFFFFF)
        are_many_equal = False
        if n_at_or_above > most_groups:
            n_ties = n_selected - n_above
            # If nearly all group maxima equal the threshold, a group is likely to hold several such elements.
            are_many_equal = n_at_or_above > n_groups - n_groups // 4
            n_at_or_above = n_selected
        finding.list_groups(keys, n_groups, threshold, n_ties, candidate_groups, scratch, ids)
        if has_unit_groups:
            # The list is of groups of the stage below.
            stage -= 1
            bits = vector_bits(stage, m)
        return Groups(stage, bits, True, n_at_or_above, threshold, extent[1], are_many_equal)

    return first_pass


def _search_function(element_size: int, n_threads: int) -> Any:
    """Make the device function that finds candidates in the groups that were listed."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    forget_found = filter_functions(element_size, n_threads).forget_found
    select = select_function(element_size, n_threads)
    pair_extremes = rank_functions(n_threads, key_type).pair_extremes
    per_vector = VECTOR_BYTES // element_size
    keys_per_vector = VECTOR_BYTES // group_key_bytes(element_size)

    @device_function
    def source_of(address, prefix, are_unfolded, p, m):
        """Return where vectors of a stage lie, the first of them at `address`."""
        first_position = prefix
        step = i64(CONTIGUOUS)
        if are_unfolded:
            first_position = i64(0)
        elif p.strides.x != 1:
            step = p.strides.x * element_size
        in_order = are_unfolded or m.is_by_index != 0
        return Source(address, step, first_position, are_unfolded, in_order)

    @linked_function
    def search_stages(memory, groups, unaligned_bits, p, m, ids):
        """Keep candidates, from stage to stage down to the elements.

        Returns how many are above the last threshold, how many there are, and the extent of their keys.
        """
        candidates, candidate_groups, state, scratch = memory
        thread, _, _ = ids
        prefix = state[PREFIX]
        n_selected = u32(min(p.k, state[COUNT]))
        has_unaligned = thread < u32(state[UNALIGNED])
        unaligned = thread
        if unaligned >= u32(prefix):
            unaligned += u32(state[VECTORS] * per_vector)
        unaligned_key = ordered_key(unaligned_bits, p.key_format)
        stage, group_bits, are_listed, n_listed, threshold, highest, are_many_equal = groups
        address = state[ADDRESS + stage]
        n_vectors = u32(state[VECTORS + stage])
        n_items = n_vectors
        if are_listed:
            n_items = n_listed << group_bits
        n_above = u32(0)
        n_pairs = u32(0)
        searching = True
        while searching:
            are_unfolded = stage != ELEMENTS
            # Few more than k: each is a group to read or a candidate to order.
            limit = u32(m.n_slots)
            if are_listed:
                limit = min(limit, (n_selected << 1) + SPARE_CANDIDATES)
            n_each = u32(per_vector)
            if are_unfolded:
                limit = min(limit, u32(m.n_candidate_groups))
                n_each = u32(keys_per_vector)
            are_too_many = not are_listed and n_items * n_each > limit
            limits = Limits(n_selected, limit, u32(m.n_slots), are_too_many, are_many_equal)
            items = Items(candidate_groups, n_items, are_listed, group_bits, n_vectors)
            source = source_of(address, prefix, are_unfolded, p, m)
            exists = has_unaligned and not are_unfolded
            outside = Unaligned(exists, unaligned_bits, unaligned_key, unaligned, u32(prefix))
            n_above, n_ties, threshold = select(
                memory, limits, items, source, outside, (threshold, highest), p, ids
            )
            n_pairs = n_above + n_ties
            are_many_equal = n_ties > 0

            searching = are_unfolded
            if searching:
                # Those above the threshold and those that equal it are in order each: merge them.
                lows = candidates.lows
                pair = thread
                while pair < n_pairs:
                    candidate_groups[place_in_order(lows, n_above, n_pairs, pair)] = ~lows[pair]
                    pair += n_threads
                are_listed = True
                stage -= 1
                address = state[ADDRESS + stage]
                n_vectors = u32(state[VECTORS + stage])
                group_bits = vector_bits(stage, m)
                n_items = n_pairs << group_bits
                forget_found(scratch.counters, thread)

        extent = threshold, highest
        if not are_listed:
            extent = pair_extremes(candidates.keys, n_pairs, scratch, ids)
        return n_above, n_pairs, extent

    return search_stages
