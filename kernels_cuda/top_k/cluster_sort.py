"""The final order of what a cluster has selected.

The selected elements come by ascending index, and are shared out in chunks of equal size: block 0 gets the
first chunk, block 1 the second. A block ranks the elements of its chunk by comparing each with each, and
gives all other blocks its keys in order. An element's rank is then its rank in its own chunk, and for each
other chunk how many keys come before it, found by bisection. Of equal keys, those of earlier chunks do.

What is in the last range of keys that the search has found comes after all that is not. If it is little, all
of it is a chunk of its own, which the last block ranks, and of which it writes what is asked for: that spares
the search digits. The time does not depend on the data. Blocks without a chunk are done.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    LOAD_SHARED,
    SEND,
    STORE_SHARED,
    load_shared_u32x4,
    send_u32x4,
    shared_address,
    shared_from,
    shuffle_xor_u32,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_messages import (
    SELECTED,
    SORTED,
    announce,
    barrier_at,
    of_block,
    wait_for_all,
)
from kernels_cuda.top_k.cooperate import shared_vectors
from kernels_cuda.top_k.keys import element_functions, result_function
from kernels_cuda.top_k.rank import rank_functions
from kernels_cuda.top_k.shapes import (
    CLUSTER_THREADS,
    LARGEST_CLUSTER_CHUNK,
    VECTOR_BYTES,
    WARP_LANES,
)

u32 = types.uint32
i64 = types.int64

_THREAD_BITS = CLUSTER_THREADS.bit_length() - 1

class SortFunctions(NamedTuple):
    """Device functions for one element width."""

    deliver: Any
    complete: Any


@functools.cache
def sort_functions(element_size: int) -> SortFunctions:
    """Make the functions for one element width."""
    key_type = element_functions(element_size).key_type
    write_result = result_function(element_size)
    key_bytes = max(4, element_size)
    load_key, store_key = LOAD_SHARED[key_bytes], STORE_SHARED[key_bytes]
    vector_key_bits = (VECTOR_BYTES // key_bytes).bit_length() - 1
    send_key, send_low = SEND[key_bytes], SEND[4]
    keys_per_vector, load_keys, _ = shared_vectors(key_type)
    ranks = rank_functions(CLUSTER_THREADS, key_type)
    rank_by_counting, place_of_few = ranks.rank_by_counting, ranks.place_of_few

    @linked_function
    def send(chunk_keys, chunk_lows, barrier, owner, slot, key, position):
        """Give a selected element to the block that has its chunk."""
        to, at_barrier = of_block(shared_address(chunk_keys) + slot * key_bytes, barrier, owner)
        send_key(to, key, at_barrier)
        to, at_barrier = of_block(shared_address(chunk_lows) + slot * 4, barrier, owner)
        send_low(to, ~position, at_barrier)

    @device_function
    def deliver(chunk, row, output, place, key, position, n_above, p):
        """Take selected element number `place`: write it, or give it to the block that orders it.

        The first `n_above` come before all others. `chunk` are the shared arrays for keys and lows, and the
        address of the barriers, `row` is ``(address, stride)``, `output` is ``(values, indices)``, and `p` are
        the parameters of the kernel.
        """
        if p.is_sorted != 0:
            chunk_keys, chunk_lows, barriers = chunk
            owner = place >> u32(p.chunk_bits)
            slot = place & ((u32(1) << u32(p.chunk_bits)) - 1)
            if place >= n_above:
                owner = (u32(1) << u32(p.cluster_bits)) - 1
                slot = place - n_above + LARGEST_CLUSTER_CHUNK
            send(chunk_keys, chunk_lows, barrier_at(barriers, SELECTED), owner, slot, key, position)
        else:
            to = *output, p.strides.values, p.strides.indices, p.index_size
            write_result(row, to, place, key, i64(position), p.key_format)

    @linked_function
    def count_first(keys, n_items, item, lane, n_lanes):
        """Return how many keys of a chunk come before its number `item`, of those that a lane looks at.

        Equal keys are in order.
        """
        others = cuda.local.array(keys_per_vector, key_type)
        n_before = u32(0)
        if item < n_items:
            key = keys[item]
            first = lane * keys_per_vector
            while first < n_items:
                load_keys(others, keys, first // keys_per_vector)
                for at in range(keys_per_vector):
                    number = first + u32(at)
                    is_above = (others[at] > key) & (number < n_items)
                    n_before += u32(is_above | ((others[at] == key) & (number < item)))
                first += n_lanes * keys_per_vector
        return n_before

    @linked_function
    def count_before(keys, n_keys, step, key, equals_too):
        """Return how many of `n_keys` descending keys in shared memory are above a key, or equal it, too.

        `step` is a power of two, and there are no more keys.
        """
        n_before = u32(0)
        while step > 0:
            probe = n_before + step
            other = load_key(keys + (min(probe, n_keys) - 1) * key_bytes)
            is_before = (other > key) | ((other == key) & equals_too)
            if is_before & (probe <= n_keys):
                n_before = probe
            step >>= 1
        return n_before

    @device_function
    def add_over_lanes(amount, n_lanes):
        distance = u32(1)
        while distance < n_lanes:
            amount += shuffle_xor_u32(amount, distance)
            distance <<= 1
        return amount

    @linked_function
    def exchange_sorted_keys(all_keys, chunk_bytes, n_vectors, barrier, n_chunks, block, thread):
        """Give all other blocks that have chunks the keys of this one, and wait for theirs.

        In whole vectors, for the blocks of a cluster share the way from one to the other.
        """
        lane = thread & 31
        other = thread >> 5
        if thread == 0:
            announce(barrier, (n_chunks - 1) * n_vectors * VECTOR_BYTES)
        if other < n_chunks and other != block:
            vector = lane
            while vector < n_vectors:
                at = all_keys + block * chunk_bytes + vector * VECTOR_BYTES
                to, at_barrier = of_block(at, barrier, other)
                send_u32x4(to, *load_shared_u32x4(at), at_barrier)
                vector += WARP_LANES
        wait_for_all(barrier, 0)

    @linked_function
    def write_chunk(chunk, all_keys, row, output, amounts, chunk_bits, key_format, ids):
        """Order the elements of this block's chunk, and write them.

        `chunk` are the shared arrays of a chunk, and the address of the barriers; `all_keys` is that of room
        for the keys of all chunks; `row` is ``(address, stride)``, `output` ``(values, indices, value_stride,
        index_stride, index_size)``, `amounts` ``(n_items, n_elements)`` of the chunk and of all chunks, and
        `ids` are ``(thread, rank)``.
        """
        chunk_keys, chunk_lows, barriers = chunk
        thread, block = ids
        n_items, n_elements = amounts
        # So many lanes share an element.
        lane_bits = _THREAD_BITS - chunk_bits
        n_lanes = u32(1) << lane_bits
        lane = thread & (n_lanes - 1)
        item = thread >> lane_bits
        rank = add_over_lanes(count_first(chunk_keys, n_items, item, lane, n_lanes), n_lanes)
        key = key_type(0)
        if item < n_items:
            key = chunk_keys[item]
        chunk_size = u32(1) << chunk_bits
        n_chunks = (n_elements + (chunk_size - 1)) >> chunk_bits
        if n_chunks > 1:
            # The chunks' first keys are in different banks.
            n_vectors = chunk_size >> vector_key_bits
            chunk_bytes = (n_vectors + 1) * VECTOR_BYTES
            if item < n_items and lane == 0:
                store_key(all_keys + block * chunk_bytes + rank * key_bytes, key)
            cuda.syncthreads()
            exchange_sorted_keys(
                all_keys, chunk_bytes, n_vectors, barrier_at(barriers, SORTED), n_chunks, block, thread
            )
            n_before = u32(0)
            if item < n_items:
                other = lane
                while other < n_chunks:
                    if other != block:
                        n_keys = min(n_elements - (other << chunk_bits), chunk_size)
                        keys = all_keys + other * chunk_bytes
                        n_before += count_before(keys, n_keys, chunk_size, key, other < block)
                    other += n_lanes
            rank += add_over_lanes(n_before, n_lanes)
        if item < n_items and lane == 0:
            write_result(row, output, rank, key, i64(~chunk_lows[item]), key_format)

    @linked_function
    def write_last(chunk, row, output, amounts, key_format, thread):
        """Order the elements that come after all chunks, and write those that are asked for."""
        chunk_keys, chunk_lows, _ = chunk
        n_items, n_elements, n_selected = amounts
        keys = shared_from(chunk_keys, LARGEST_CLUSTER_CHUNK)
        lows = shared_from(chunk_lows, LARGEST_CLUSTER_CHUNK)
        lane_bits, item = place_of_few(n_items, thread)
        rank = n_elements + rank_by_counting(keys, lows, n_items, thread, lane_bits)
        if item < n_items and rank < n_selected:
            write_result(row, output, rank, keys[item], i64(~lows[item]), key_format)

    @device_function
    def complete(chunk, all_keys, row, output, n_above, n_last, n_selected, p, ids):
        """Order what has been delivered, and write the first `n_selected`.

        These are `n_above` elements, and `n_last` that come after them.
        """
        thread, rank, n_blocks = ids
        chunk_bits = u32(p.chunk_bits)
        first = rank << chunk_bits
        n_items = min(max(n_above, first) - first, u32(1) << chunk_bits)
        if rank + 1 != n_blocks:
            n_last = u32(0)
        if p.is_sorted != 0 and n_items + n_last > 0:
            to = *output, p.strides.values, p.strides.indices, p.index_size
            barrier = barrier_at(chunk[2], SELECTED)
            if thread == 0:
                announce(barrier, (n_items + n_last) * (key_bytes + 4))
            wait_for_all(barrier, 0)
            if n_items > 0:
                amounts = n_items, n_above
                write_chunk(chunk, all_keys, row, to, amounts, chunk_bits, p.key_format, (thread, rank))
            if n_last > 0:
                write_last(chunk, row, to, (n_last, n_above, n_selected), p.key_format, thread)

    return SortFunctions(deliver, complete)
