"""A block a row: what a row of any length is finished by.

1. Find the maxima of groups of neighbouring elements (`groups`), in shared memory.
2. Find a threshold that at least k of them reach, and list the groups that do (`threshold`): some more than k
   or, if too many tie, the first k by (maximum, position). No other group has any of the first k elements.
3. Read the listed groups again, from cache, and keep in shared memory the elements that reach the threshold.
4. Order these by (key, position) (`finish`); the first k are the answer.

Elements that share few groups, or tie, can overflow step 3 (`select`). If fewer than k are above the
threshold, those are kept, and the first that equal it. Otherwise the threshold is raised, by histograms of
the listed groups' elements, until what reaches it fits, or it is the last wanted key. So the order in which
elements arrive in shared memory never matters, and no data make a block read more than k groups a few times.

Of a long row, other blocks have written two levels of group maxima (`maxima`). Steps 1 and 2 are then done
with the raw keys of a level instead of elements, each of which counts as a group if they are few, and step 3
at each level down to the elements, what it keeps being the list of the next.

A row longer than `part_size` is `n_parts` parts, whose winners lie one after the other in the output. They
are in order, hence by ascending index where keys are equal: another launch over them, with `sources` telling
the index of each, finishes the row.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import global_timer, shared_from, sleep_some_nanoseconds, take_turn
from kernels_cuda.runtime.compiler import device_function, integers, linked_function
from kernels_cuda.top_k.block_shape import SPARE
from kernels_cuda.top_k.elements import N_MASKS, N_NUMBERS, VECTOR_BYTES
from kernels_cuda.top_k.finish import write_function
from kernels_cuda.top_k.group_shape import COARSE, ELEMENTS, FINE, key_bytes
from kernels_cuda.top_k.groups import block_maxima
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.locate import locate
from kernels_cuda.top_k.rows import N_LAYOUT
from kernels_cuda.top_k.select import select_function
from kernels_cuda.top_k.sweep import SIDE_BY_SIDE, sweep_functions
from kernels_cuda.top_k.threshold import N_COUNTERS, threshold_functions

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Of the shared places.
VECTORS, ADDRESS, COUNT, HEAD, EDGES, BASE, VALUES, INDICES, SOURCE = 0, 3, 6, 7, 8, 9, 10, 11, 12
N_PLACES = 14
# Nanoseconds between two looks at the clock, about, and at least.
_NAP = 100
_LEAST_NAP = 8


def block_source(element_size: int, n_threads: int) -> Any:
    """Make the kernel for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    load_element = functions.load_element
    raw_mask = functions.raw_mask
    group_maxima, copy_keys, order_maxima = block_maxima(element_size, n_threads)
    _, block_extremes, find_threshold, list_groups = threshold_functions(n_threads, key_type)
    sweeps = sweep_functions(element_size, n_threads)
    forget_found, count_before = sweeps.forget_found, sweeps.count_before
    select = select_function(element_size, n_threads)
    write_first = write_function(element_size, n_threads)

    n_key_bytes = key_bytes(element_size)
    per_vector = VECTOR_BYTES // element_size
    keys_a_vector = VECTOR_BYTES // n_key_bytes
    ones = (1 << 8 * element_size) - 1

    @linked_function
    def count_groups(n_vectors, bits, has_single_keys):
        if has_single_keys:
            return n_vectors * keys_a_vector
        return (n_vectors + ((1 << bits) - 1)) >> bits

    @device_function
    def vector_bits(level, fine_bits, coarse_bits):
        """Return the bits of the number of a level's vectors that a group of the level above stands for."""
        bits = u32(fine_bits)
        if level == FINE:
            bits = u32(coarse_bits)
        return bits

    @linked_function
    def wait(nanoseconds):
        begin = global_timer()
        # Should the clock stand still, this ends all the same.
        naps = nanoseconds // _LEAST_NAP
        while naps > 0 and global_timer() - begin < nanoseconds:
            sleep_some_nanoseconds(u32(_NAP))
            naps -= 1

    @linked_function
    def first_look(memory, level, vectors, bits, has_single_keys, edge_bits, k, enough, numbers, masks, ids):
        """List the groups to look at again; return how many, the bound that they reach, and the highest key.

        `memory` are the shared arrays, `vectors` are ``(address, count, stride)`` of the level's, and `ids`
        ``(thread, lane, warp)``.
        """
        keys, listed, histogram, sums, extremes, counters, places = memory
        address, n_vectors, stride = vectors
        thread, lane, warp = ids
        if has_single_keys:
            copy_keys(keys, address, n_vectors, thread)
        else:
            mask = raw_mask(numbers, level != ELEMENTS)
            group_maxima(keys, address, n_vectors, stride, mask, bits, lane, warp)
        cuda.syncthreads()
        n_groups = count_groups(u32(places[VECTORS + level]), bits, has_single_keys)
        wanted = u32(min(k, places[COUNT]))
        lowest = ~key_type(0)
        highest = key_type(0)
        if thread < u32(places[EDGES]):
            highest = order_key(edge_bits, *masks)
        lowest, highest = order_maxima(keys, n_groups, numbers, masks, lowest, highest, thread)
        lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
        bound, n_above, n_reaching = find_threshold(
            keys, n_groups, lowest, highest, wanted, enough, histogram, sums, counters, thread, lane, warp
        )
        n_ties = u32(0xFFFFFFFF)
        if n_reaching > enough:
            n_ties = wanted - n_above
            n_reaching = wanted
        list_groups(keys, n_groups, bound, n_ties, listed, sums, thread, lane, warp)
        return n_reaching, bound, highest

    # As many as let threads share a multiprocessor's; 8-byte keys would spill with fewer than 80.
    max_registers = None if n_threads == 128 else 80 if (element_size, n_threads) == (8, 256) else 64

    @cuda.jit(max_registers=max_registers)
    def block_top_k(
        x,
        values,
        indices,
        sources,
        fine,
        coarse,
        offsets,
        source_size,
        index_size,
        first_block,
        axis_size,
        part_size,
        n_parts,
        k,
        x_stride,
        value_stride,
        index_stride,
        top_level,
        has_single_keys,
        lane_bits,
        enough,
        n_slots,
        n_listed,
        list_at,
        bins_at,
        n_coarse,
        coarse_bits,
        fine_bits,
        n_together,
        n_first,
        turn,
        layout: integers(N_LAYOUT),
        numbers: integers(N_NUMBERS),
        masks: integers(N_MASKS),
    ):
        keys = cuda.shared.array(0, key_type, VECTOR_BYTES)
        words = cuda.shared.array(0, u32)
        lows = shared_from(words, n_slots * (n_key_bytes // 4))
        listed = shared_from(words, list_at)
        order = shared_from(cuda.shared.array(0, u16), 2 * list_at)
        bin_ends = shared_from(words, bins_at)
        histogram = cuda.shared.array(n_threads, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)
        places = cuda.shared.array(N_PLACES, i64)

        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        unit = first_block + i64(cuda.blockIdx.x)
        row, part, value_row, index_row, base, first_address, head, n_row_vectors = locate(
            x, offsets, unit, axis_size, part_size, n_parts, x_stride, element_size, layout
        )
        begin = part * part_size
        count = min(part_size, axis_size - begin)
        histogram[thread] = u32(0)
        if thread < N_COUNTERS:
            counters[thread] = u32(0)

        # A level's vectors lie here, and there are so many.
        fine_address = fine + unit * (n_coarse << coarse_bits) * VECTOR_BYTES
        coarse_address = coarse + unit * n_coarse * n_key_bytes
        address = first_address
        n_vectors = u32(n_row_vectors)
        if top_level == FINE:
            address = fine_address
            n_vectors = u32(n_coarse << coarse_bits)
        elif top_level == COARSE:
            address = coarse_address
            n_vectors = u32(n_coarse // keys_a_vector)
        # The first look does not need these: registers are to be free for its loads.
        if thread == 0:
            places[COUNT] = count
            places[HEAD] = head
            places[EDGES] = count - n_row_vectors * per_vector
            places[BASE] = base
            places[VALUES] = values + (value_row + part * k * value_stride) * element_size
            places[INDICES] = indices + (index_row + part * k * index_stride) * index_size
            places[SOURCE] = begin
            if sources != 0:
                places[SOURCE] = row * axis_size + begin
            places[VECTORS + ELEMENTS] = n_row_vectors
            places[VECTORS + FINE] = n_coarse << coarse_bits
            places[VECTORS + COARSE] = n_coarse // keys_a_vector
            places[ADDRESS + ELEMENTS] = first_address
            places[ADDRESS + FINE] = fine_address
            places[ADDRESS + COARSE] = coarse_address
        take_turn()
        if i64(cuda.blockIdx.x) < n_first:
            wait(u64(u32(cuda.blockIdx.x) // u32(n_together)) * u64(turn))
        # Elements before the first and after the last whole vector are in no group: the first threads have
        # one each.
        edge_bits = key_type(0)
        if thread < u32(count - n_row_vectors * per_vector):
            edge = i64(thread)
            if edge >= head:
                edge += n_row_vectors * per_vector
            edge_bits = load_element(base + edge * x_stride * element_size)

        level = top_level
        group_bits = u32(0)
        is_listed = False
        n_reaching = u32(0)
        bound = key_type(0)
        highest = key_type(ones)
        bits = u32(lane_bits)
        wanted = u32(min(k, count))
        n_groups = count_groups(n_vectors, bits, has_single_keys != 0)
        if n_groups > wanted and (count > n_slots or i64(wanted) * 4 < count):
            stride = x_stride
            if top_level != ELEMENTS:
                stride = i64(1)
            n_reaching, bound, highest = first_look(
                (keys, listed, histogram, sums, extremes, counters, places),
                top_level,
                (address, n_vectors, stride),
                bits,
                has_single_keys != 0,
                edge_bits,
                k,
                u32(enough),
                numbers,
                masks,
                (thread, lane, warp),
            )
            is_listed = True
            group_bits = bits
            if has_single_keys != 0:
                # Groups of the level below are listed.
                level -= 1
                group_bits = vector_bits(level, fine_bits, coarse_bits)
        else:
            cuda.syncthreads()

        head = places[HEAD]
        wanted = u32(min(k, places[COUNT]))
        has_edge = thread < u32(places[EDGES])
        edge = thread
        if edge >= u32(head):
            edge += u32(places[VECTORS] * per_vector)
        edge_key = order_key(edge_bits, *masks)
        address = places[ADDRESS + level]
        n_vectors = u32(places[VECTORS + level])
        n_items = n_vectors
        if is_listed:
            n_items = n_reaching << group_bits
        n_pairs = u32(0)
        searching_levels = True
        while searching_levels:
            are_raw = level != ELEMENTS
            # Few more than are wanted: each is a group to read or a candidate to order.
            limit = u32(n_slots)
            if is_listed:
                limit = min(limit, (wanted << 1) + SPARE)
            first_position = head
            step = i64(SIDE_BY_SIDE)
            if are_raw:
                limit = min(limit, u32(n_listed))
                first_position = i64(0)
            elif x_stride != 1:
                step = x_stride * element_size
            n_above, n_ties, bound = select(
                (keys, lows, histogram, sums, counters),
                u32(n_slots),
                (listed, n_items, is_listed, group_bits, n_vectors),
                (address, step, first_position, are_raw),
                (has_edge and not are_raw, edge_bits, edge_key, edge, u32(head)),
                bound,
                highest,
                wanted,
                limit,
                numbers,
                masks,
                (thread, lane, warp),
            )
            n_pairs = n_above + n_ties

            searching_levels = are_raw
            if searching_levels:
                # Those above the bound and those that equal it are in order each: merge them.
                pair = thread
                while pair < n_pairs:
                    position = ~lows[pair]
                    place = pair + count_before(lows, n_above, n_pairs, position)
                    if pair >= n_above:
                        place = pair - n_above + count_before(lows, u32(0), n_above, position)
                    listed[place] = position
                    pair += n_threads
                is_listed = True
                level -= 1
                address = places[ADDRESS + level]
                n_vectors = u32(places[VECTORS + level])
                group_bits = vector_bits(level, fine_bits, coarse_bits)
                n_items = n_pairs << group_bits
                forget_found(counters, thread)

        write_first(
            (keys, lows, order, bin_ends, sums, extremes, counters),
            (places[BASE], x_stride, places[COUNT]),
            (places[VALUES], places[INDICES], value_stride, index_stride, index_size),
            (places[SOURCE], sources, source_size),
            n_pairs,
            wanted,
            bound,
            highest,
            is_listed,
            masks,
            (thread, lane, warp),
        )

    return block_top_k
