"""The final order of what a cluster has selected.

The selected elements come by ascending index, and are shared out in chunks of equal size: block 0 gets the
first chunk, block 1 the second. A block ranks the elements of its chunk by comparing each key with each, of
which equal ones are in order already, and gives all other blocks its keys in order. An element's rank is then
its rank in its own chunk, and for each other chunk how many keys come before it, found by bisection. Of equal
keys, those of earlier chunks do.

The time does not depend on the data. Where all that is selected fits into one chunk, one block orders it, and
the others are done.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import add_over_lanes, shared_vectors
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.many_blocks.cluster_launches import CLUSTER_THREADS
from kernels_cuda.top_k.shared.keys import element_functions, result_function
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES

_THREAD_BITS = CLUSTER_THREADS.bit_length() - 1
# Threads that send keys to other blocks: few, because each warp makes the barrier of the cluster take longer.
_SENDING_THREADS = 128


@functools.cache
def sort_functions(element_size: int) -> tuple[Any, Any]:
    """Make the device functions `hand_on` and `sort_and_write` for one element width."""
    key_type = element_functions(element_size).key_type
    write_result = result_function(element_size)
    key_bytes = max(4, element_size)
    load_key, store_key = ptx.LOAD_SHARED[key_bytes], ptx.STORE_SHARED[key_bytes]
    send_key, send_low = ptx.STORE_CLUSTER[key_bytes], ptx.STORE_CLUSTER[4]
    vector_key_bits = (VECTOR_BYTES // key_bytes).bit_length() - 1
    keys_per_vector, load_keys, _ = shared_vectors(key_type)

    @linked_function
    def send(chunk_keys, chunk_lows, place, key, position, chunk_bits):
        """Give selected element number `place` to the block that has its chunk."""
        owner = place >> chunk_bits
        slot = place & ((1 << chunk_bits) - 1)
        send_key(ptx.cluster_address(ptx.shared_address(chunk_keys) + slot * key_bytes, owner), key)
        send_low(ptx.cluster_address(ptx.shared_address(chunk_lows) + slot * 4, owner), ~position)

    @device_function
    def hand_on(context, place, key, position):
        """Take selected element number `place`: write it, or give it to the block that orders it.

        `context` are the shared arrays for keys and lows of a chunk, ``(address, stride)`` of the row,
        ``(values, indices, value_stride, index_stride, index_size)``, and parameters of the kernel.
        """
        chunk_keys, chunk_lows, row, output, key_format, c = context
        if c.is_sorted != 0:
            send(chunk_keys, chunk_lows, place, key, position, u32(c.chunk_bits))
        else:
            write_result(row, output, place, key, i64(position), key_format)

    @linked_function
    def count_first(keys, n_items, item, lane, n_lanes):
        """Return how many keys of a chunk come before its number `item`, of those that a lane looks at.

        Of equal keys, those of lower number do. What fills the last vector is above no key.
        """
        others = cuda.local.array(keys_per_vector, key_type)
        key = keys[item]
        n_before = u32(0)
        vector = lane
        while vector < item // keys_per_vector:
            load_keys(others, keys, vector)
            for at in range(keys_per_vector):
                n_before += u32(others[at] >= key)
            vector += n_lanes
        if vector == item // keys_per_vector:
            load_keys(others, keys, vector)
            for at in range(keys_per_vector):
                is_earlier = vector * keys_per_vector + u32(at) < item
                n_before += u32((others[at] > key) | ((others[at] == key) & is_earlier))
            vector += n_lanes
        while vector * keys_per_vector < n_items:
            load_keys(others, keys, vector)
            for at in range(keys_per_vector):
                n_before += u32(others[at] > key)
            vector += n_lanes
        return n_before

    @linked_function
    def count_before(keys, n_keys, key, equals_too):
        """Return how many of `n_keys` descending keys in shared memory are above a key, or equal it, too."""
        first = u32(0)
        last = n_keys
        while first < last:
            middle = (first + last) >> 1
            other = load_key(keys + middle * key_bytes)
            if other > key or (other == key and equals_too):
                first = middle + 1
            else:
                last = middle
        return first

    @linked_function
    def sort_and_write(context, all_keys, has_sent, n_selected, ids):
        """Order and write what all blocks have sent, since when they have met at the cluster's barrier.

        `context` is that of `hand_on`, `all_keys` is the address of room for the keys of all chunks, and
        `has_sent` tells whether this warp has sent any.
        """
        chunk_keys, chunk_lows, row, output, key_format, c = context
        thread, block, _ = ids
        chunk_bits = u32(c.chunk_bits)
        chunk_size = u32(1) << chunk_bits
        chunk_first = block << chunk_bits
        n_items = min(max(n_selected, chunk_first) - chunk_first, chunk_size)
        # The lowest keys fill the last vector.
        filled = n_items + thread
        if filled < (n_items + (keys_per_vector - 1)) // keys_per_vector * keys_per_vector:
            chunk_keys[filled] = key_type(0)
        # The first warp tells that this block no longer reads what is overwritten now: its threads have met
        # since. And it has filled the last vector.
        if has_sent or thread < WARP_LANES:
            ptx.cluster_arrive()
        else:
            ptx.cluster_arrive_relaxed()
        ptx.cluster_wait()
        # The chunks' first keys are in different banks.
        chunk_bytes = (key_bytes << chunk_bits) + VECTOR_BYTES
        # So many lanes share an element.
        lane_bits = _THREAD_BITS - chunk_bits
        n_lanes = u32(1) << lane_bits
        lane = thread & (n_lanes - 1)
        item = thread >> lane_bits
        key = key_type(0)
        rank = u32(0)
        if item < n_items:
            key = chunk_keys[item]
            rank = count_first(chunk_keys, n_items, item, lane, n_lanes)
        rank = add_over_lanes(rank, n_lanes)
        n_chunks = (n_selected + (chunk_size - 1)) >> chunk_bits
        if n_chunks > 1:
            if item < n_items and lane == 0:
                store_key(all_keys + block * chunk_bytes + rank * key_bytes, key)
            cuda.syncthreads()
            # In whole vectors, for the blocks of a cluster share the way from one to the other.
            chunk = all_keys + block * chunk_bytes
            vector_bits = chunk_bits - vector_key_bits
            if thread < _SENDING_THREADS:
                vector = thread
                while vector < n_chunks << vector_bits:
                    other = vector >> vector_bits
                    at = chunk + (vector & ((1 << vector_bits) - 1)) * VECTOR_BYTES
                    if other != block:
                        ptx.store_cluster_u32x4(ptx.cluster_address(at, other), *ptx.load_shared_u32x4(at))
                    vector += _SENDING_THREADS
                ptx.cluster_arrive()
            else:
                ptx.cluster_arrive_relaxed()
            ptx.cluster_wait()
            n_before = u32(0)
            if item < n_items:
                other = lane
                while other < n_chunks:
                    if other != block:
                        first = other << chunk_bits
                        n_keys = min(n_selected - first, chunk_size)
                        n_before += count_before(all_keys + other * chunk_bytes, n_keys, key, other < block)
                    other += n_lanes
            rank += add_over_lanes(n_before, n_lanes)
        if item < n_items and lane == 0:
            write_result(row, output, rank, key, i64(~chunk_lows[item]), key_format)

    return hand_on, sort_and_write
