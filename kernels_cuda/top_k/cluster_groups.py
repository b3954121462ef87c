"""One cluster of blocks per row, which go by the group maxima that others have found: for few very long rows.

The launch before (`grid`) has read the row, and left the maximum of each fine group. Here a group is one of
these, or several together.

1. Load the maxima of all groups, and make ordered keys of them.
2. Select the first groups by (maximum, number), as many as elements (`cluster_select`): all selected elements
   are in these. Each block gets the same number of them, by ascending number.
3. Load the elements of these groups, and select from them. The search need not go below the least of the
   selected maxima: as many elements are at or above it.
4. By ascending index: they have been written. Sorted: order them (`cluster_sort`).

Elements before the first whole vector of a row, and after the last, are in no group: those before make one
more, whose number is -1, and those after belong to the group where the next vector would be, which is
selected in any case.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    cluster_arrive_relaxed,
    cluster_rank,
    cluster_wait,
    grid_dependency_wait,
    load_if_u32x4,
    load_shared_u32,
    next_pass,
    send_u32,
    shared_address,
    store_shared_u32,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_messages import (
    GROUPS,
    N_BARRIERS,
    announce,
    barrier_at,
    begin_messages,
    of_block,
    wait_for_all,
)
from kernels_cuda.top_k.cluster_range import N_FOUND, RANGE_BYTES, range_functions
from kernels_cuda.top_k.cluster_select import select_function
from kernels_cuda.top_k.cluster_sort import sort_functions
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.parameters import ClusterGroupsParameters
from kernels_cuda.top_k.rows import locate, row_length
from kernels_cuda.top_k.shapes import (
    CLUSTER_THREADS,
    CLUSTER_WARPS,
    LARGEST_CLUSTER_CHUNK,
    VECTOR_BYTES,
    WARP_LANES,
    cluster_sort_bytes,
    group_key_bytes,
)
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions, load_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Stands for the group before the first one in a list, and for no group elsewhere; and for no element.
_BEFORE_FIRST = _NO_GROUP = 0xFFFFFFFF
_NO_ELEMENT = 0xFFFFFFF0


def cluster_groups_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type, fold = functions.key_type, functions.fold
    key_bytes = group_key_bytes(element_size)
    store_keys = key_functions(key_bytes).store_vector
    begin = range_functions(key_bytes).begin
    deliver, complete = sort_functions(element_size)
    pad_row = pad_function(element_size)
    per_vector = VECTOR_BYTES // element_size
    per_vector_bits = per_vector.bit_length() - 1
    keys_per_vector = VECTOR_BYTES // key_bytes
    keys_per_vector_bits = keys_per_vector.bit_length() - 1
    thread_bits = CLUSTER_THREADS.bit_length() - 1
    room_words = max(RANGE_BYTES, cluster_sort_bytes(element_size)) // 4
    highest = (1 << 8 * element_size) - 1

    if key_bytes == 8:

        @device_function
        def load_fine(words, address, exists):
            first, second, third, fourth = load_if_u32x4(address, exists)
            words[0] = u64(first) | (u64(second) << 32)
            words[1] = u64(third) | (u64(fourth) << 32)

    else:

        @device_function
        def load_fine(words, address, exists):
            words[0], words[1], words[2], words[3] = load_if_u32x4(address, exists)

    @linked_function
    def load_maxima(own, fine, are_merged, first, n_steps, groups, formats):
        """Put the keys of a thread's groups into shared memory, those of `n_steps` vectors from `own` on.

        The first one is number `first`. A group is a fine one, or, if they `are_merged`, all those whose
        maxima are in a vector. `groups` are how many have vectors, and the number of the one that is selected
        in any case.
        """
        words = cuda.local.array(keys_per_vector, key_type)
        merged = cuda.local.array(keys_per_vector, key_type)
        n_whole, chosen = groups
        step = u32(0)
        while step < n_steps:
            if are_merged:
                for at in range(keys_per_vector):
                    group = first + u32(at)
                    load_fine(merged, fine + i64(group) * VECTOR_BYTES, group < n_whole)
                    words[at] = merged[0]
                    for other in range(1, keys_per_vector):
                        words[at] = max(words[at], merged[other])
            else:
                load_fine(words, fine + i64(first) * key_bytes, first < n_whole)
            for at in range(keys_per_vector):
                group = first + u32(at)
                key = fold(words[at], *formats)
                if group >= n_whole:
                    key = key_type(0)
                if group == chosen:
                    key = key_type(highest)
                words[at] = key
            store_keys(words, own)
            own += STEP_BYTES
            first += WARP_LANES * keys_per_vector
            step = next_pass(step)

    @device_function
    def list_group(context, place, key, number):
        """Give a selected group to the block that reads it."""
        lists, for_groups, n_before, per_block = context
        place += n_before
        owner = place // per_block
        at, at_barrier = of_block(lists + ((place - owner * per_block) << 2), for_groups, owner)
        send_u32(at, number, at_barrier)

    @device_function
    def element_of(places, item):
        """Return the number, in the row, of the first element of a vector of this block."""
        lists, _, n_items, group_bits, n_unaligned = places
        found = u32(_NO_ELEMENT)
        if item < n_items:
            group = load_shared_u32(lists + ((item >> group_bits) << 2))
            vector = (group << group_bits) + (item & ((u32(1) << group_bits) - 1))
            # Modulo 2^32.
            found = u32(n_unaligned + vector * per_vector)
        return found

    @device_function
    def first_of(places, step):
        return element_of(places, places[1] + step * WARP_LANES)

    @device_function
    def hand_on(context, place, key, number):
        """Take a selected element, which is number `number` of those of all listed groups."""
        places, first_item, chunk, row, output, p = context
        item = (number >> per_vector_bits) - first_item
        position = u32(element_of(places, item) + (number & (per_vector - 1)))
        deliver(chunk, row, output, place, key, position, p)

    select_groups = select_function(key_bytes, list_group)
    select = select_function(element_size, hand_on, is_of_groups=True)
    load_keys = load_functions(element_size, first_of).load_keys

    @cuda.jit(max_registers=65536 // CLUSTER_THREADS)
    def cluster_groups(x, lengths, values, indices, fine, offsets, p: ClusterGroupsParameters):
        keys = cuda.shared.array(0, u32, VECTOR_BYTES)
        room = cuda.shared.array(room_words, u32, VECTOR_BYTES)
        chunk_keys = cuda.shared.array(LARGEST_CLUSTER_CHUNK, key_type, VECTOR_BYTES)
        chunk_lows = cuda.shared.array(LARGEST_CLUSTER_CHUNK, u32, VECTOR_BYTES)
        warp_counts = cuda.shared.array(CLUSTER_WARPS, u32)
        found = cuda.shared.array(N_FOUND, u32)
        barriers = shared_address(cuda.shared.array(N_BARRIERS, u64))
        memory = shared_address(room)
        lists = shared_address(keys) + p.list_offset

        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        rank = cluster_rank()
        n_blocks = u32(1) << u32(p.cluster_bits)
        ids = thread, rank, n_blocks
        areas = warp_counts, found, memory, barriers
        begin_messages(barriers, thread, n_blocks)
        begin(memory, thread, n_blocks)
        cuda.syncthreads()
        # Where all have arrived, all blocks are there.
        cluster_arrive_relaxed()
        grid_dependency_wait()

        row = p.first_row + (i64(cuda.blockIdx.x) >> p.cluster_bits)
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        value_row, index_row, _, base, _, n_unaligned, n_vectors = locate(
            x, offsets, row, i64(0), length, p.axis_size, p.strides.x, element_size, p.layout
        )
        n_selected = u32(min(p.k, length))
        group_bits = u32(p.group_bits)
        n_whole = u32((n_vectors + ((1 << p.group_bits) - 1)) >> p.group_bits)
        n_groups = n_whole
        chosen = u32(_NO_GROUP)
        n_listed = n_selected
        if n_unaligned + n_vectors * per_vector < length:
            chosen = u32(n_vectors >> p.group_bits)
            n_groups = chosen + 1
            n_listed += 1
        has_enough = n_listed <= n_groups
        n_listed = min(n_listed, n_groups)
        n_before = u32(n_unaligned > 0)
        # In a step, each thread of a cluster has a vector of elements, or of maxima. The listed groups are
        # shared out so that all blocks but the last have whole steps of elements.
        step_bits = thread_bits + u32(p.cluster_bits)
        n_items = (n_listed + n_before) << group_bits
        n_read_steps = (n_items + ((u32(1) << step_bits) - 1)) >> step_bits
        per_block = (n_read_steps << thread_bits) >> group_bits

        step_bits += keys_per_vector_bits
        n_steps = (n_groups + ((u32(1) << step_bits) - 1)) >> step_bits
        first = warp * n_steps * WARP_LANES + lane
        own = shared_address(keys) + first * VECTOR_BYTES
        first = ((rank * n_steps << thread_bits) + first) * keys_per_vector
        formats = p.unfolded_format, p.key_format
        fine_address = fine + row * p.fine_bytes
        load_maxima(own, fine_address, p.are_merged != 0, first, n_steps, (n_whole, chosen), formats)
        first_place = rank * per_block
        n_places = min(max(n_listed + n_before, first_place) - first_place, per_block)
        for_groups = barrier_at(barriers, GROUPS)
        if thread == 0:
            n_sent = n_places
            if rank == 0 and n_before != 0:
                store_shared_u32(lists, u32(_BEFORE_FIRST))
                n_sent -= 1
            announce(for_groups, n_sent << 2)
        cluster_wait()
        least, _, turn = select_groups(
            areas,
            own,
            n_steps,
            (key_type(0), key_type(highest)),
            n_listed,
            u32(0),
            u32(0),
            ids,
            (lists, for_groups, n_before, per_block),
        )
        # All blocks have read the bins of this one. The elements take the place of the maxima.
        cluster_wait()
        cuda.syncthreads()
        wait_for_all(for_groups, 0)

        first = warp * n_read_steps * WARP_LANES + lane
        own = shared_address(keys) + first * VECTOR_BYTES
        places = lists, first, n_places << group_bits, group_bits, u32(n_unaligned)
        # Fewer elements than make a vector are before the first whole one, where vectors are aligned.
        elements = base, p.strides.x, u32(length), p.strides.x == 1
        load_keys(own, elements, places, n_read_steps, p.key_format)
        if not has_enough:
            least = key_type(0)
        n_missing = u32(0)
        if n_before != 0:
            n_missing = (u32(per_vector) << group_bits) - u32(n_unaligned)
        chunk = chunk_keys, chunk_lows
        to_row = base, p.strides.x
        output = values + value_row * element_size, indices + index_row * p.index_size
        _, has_delivered, _ = select(
            areas,
            own,
            n_read_steps,
            (least, key_type(highest)),
            n_selected,
            n_missing,
            turn,
            ids,
            (places, rank * (n_read_steps << thread_bits), chunk, to_row, output, p),
        )
        complete(chunk, memory, to_row, output, has_delivered, n_selected, p, ids)
        padded = i64(n_selected) + i64(rank * CLUSTER_THREADS + thread)
        step = i64(n_blocks * CLUSTER_THREADS)
        pad_row(*output, p.strides, p.index_size, p.length_format.padding, padded, step, p.k)

    return cluster_groups
