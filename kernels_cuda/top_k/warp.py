"""A warp a row, the row in registers: for k <= 32 and rows of a few hundred elements.

1. Load the row; every lane keeps its order keys in registers.
2. Take the largest lane maximum away k times: what was taken last is a threshold that at least k keys reach.
3. Rank the few keys that reach it by counting, in shared memory, by (key, position).

Of short rows it can rank all keys, for any k; then there is no threshold.

If more keys reach the threshold than fit, the winners are taken one by one: the largest key of the warp,
and of the lanes that hold it the smallest position. Reads the row once, writes k values and indices.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.ptx import (
    ballot,
    lanes_below,
    leading_zeros_u32,
    load_if_u32x4,
    popcount_u32,
    shared_address,
    shuffle_from_u32,
    store_shared_if_u64,
    take_turn,
    warp_inclusive_sum,
    warp_min,
)
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.elements import N_MASKS, VECTOR_BYTES
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.row_offsets import row_offsets, store_index
from kernels_cuda.top_k.rows import N_LAYOUT
from kernels_cuda.top_k.warp_shape import LARGEST_K, WARPS_A_BLOCK

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_NOWHERE = 0xFFFFFFFF
# Keys of a lane, at most, whose places among those that reach the threshold all lanes find out together.
_FEW = 8
# Pairs that a pair is compared with at a time.
_COMPARED = 4


def warp_source(element_size: int, n_vectors: int) -> KernelSource:
    """Make the kernel for rows of up to ``n_vectors * 512 // element_size`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    spread_vector = functions.spread_vector
    warp_max = warp_maximum(key_type)
    per_vector = VECTOR_BYTES // element_size
    per_lane = n_vectors * per_vector
    pass_elements = 32 * per_vector
    n_ahead = min(n_vectors, 4)
    n_words = 4 * n_ahead

    if element_size == 8:
        slot_type = key_type

        @device_function
        def put_slot(slot_keys, slot_positions, slot, key, position):
            slot_keys[slot] = key
            slot_positions[slot] = position

        @device_function
        def put_slot_if(slot_keys, slot_positions, slot, key, position, condition):
            if condition:
                put_slot(slot_keys, slot_positions, slot, key, position)

        @device_function
        def take_slot(slot_keys, slot_positions, slot):
            return slot_keys[slot], slot_positions[slot]

        @device_function
        def count_larger(slot_keys, slot_positions, first, end, key, position):
            rank = u32(0)
            other = first
            while other < end:
                for ahead in range(_COMPARED):
                    other_key = slot_keys[u32(other + u32(ahead))]
                    is_before = slot_positions[u32(other + u32(ahead))] < position
                    rank = u32(rank + u32((other_key > key) | ((other_key == key) & is_before)))
                other = u32(other + u32(_COMPARED))
            return rank

    else:
        # Key and inverted position make one number, which orders the pairs.
        slot_type = u64

        @device_function
        def put_slot(slot_keys, slot_positions, slot, key, position):
            slot_keys[slot] = (u64(key) << u64(32)) | u64(u32(~position))

        @device_function
        def put_slot_if(slot_keys, slot_positions, slot, key, position, condition):
            pair = (u64(key) << u64(32)) | u64(u32(~position))
            store_shared_if_u64(u32(shared_address(slot_keys) + u32(slot << u32(3))), pair, u32(condition))

        @device_function
        def take_slot(slot_keys, slot_positions, slot):
            pair = slot_keys[slot]
            return u32(pair >> u64(32)), u32(~u32(pair))

        @device_function
        def count_larger(slot_keys, slot_positions, first, end, key, position):
            pair = (u64(key) << u64(32)) | u64(u32(~position))
            rank = u32(0)
            other = first
            while other < end:
                for ahead in range(_COMPARED):
                    rank = u32(rank + u32(slot_keys[u32(other + u32(ahead))] > pair))
                other = u32(other + u32(_COMPARED))
            return rank

    @device_function
    def position_of(lane_first, place):
        """Return where in the row a lane's key number `place` is."""
        vector = u32(u32(place) // u32(per_vector))
        return u32(lane_first + u32(vector * u32(pass_elements)) + u32(u32(place) % u32(per_vector)))

    @device_function
    def reaching_keys(keys, threshold, lane_first, count):
        """Return a bit a key of this lane: those of the row that reach the threshold."""
        live = u32(0)
        for place in range(per_lane):
            if keys[place] >= threshold and position_of(lane_first, place) < count:
                live = u32(live | (u32(1) << u32(place)))
        return live

    def warp_top_k(
        x,
        values,
        indices,
        offsets,
        index_size,
        first_block,
        n_rows,
        axis_size,
        k,
        x_stride,
        value_stride,
        index_stride,
        n_slots,
        layout,
        masks,
    ):
        take_turn()
        slot_keys = cuda.shared.array(0, slot_type)
        slot_positions = cuda.shared.array(0, u32)[2 * WARPS_A_BLOCK * n_slots :]
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        row = (first_block + i64(cuda.blockIdx.x)) * WARPS_A_BLOCK + i64(warp)
        if row >= n_rows:
            return
        x_row, value_row, index_row = row_offsets(layout, offsets, row)
        base = x + x_row * element_size
        count = u32(axis_size)
        wanted = u32(k)

        # Element e of vector v of a lane is at (32 * v + lane) * per_vector + e.
        keys = cuda.local.array(per_lane, key_type)
        lane_first = u32(lane * u32(per_vector))
        in_vectors = x_stride == 1 and (base & (VECTOR_BYTES - 1)) == 0
        words = cuda.local.array(n_words, u32)
        vector_words = cuda.local.array(4, u32)
        for begin in range(0, n_vectors, n_ahead):
            for ahead in range(n_ahead):
                position = u32(lane_first + u32((begin + ahead) * pass_elements))
                is_whole = in_vectors and u32(position + u32(per_vector)) <= count
                word = 4 * ahead
                words[word], words[word + 1], words[word + 2], words[word + 3] = load_if_u32x4(
                    base + i64(position) * element_size, is_whole
                )
            for ahead in range(n_ahead):
                place = (begin + ahead) * per_vector
                position = u32(lane_first + u32((begin + ahead) * pass_elements))
                if in_vectors and u32(position + u32(per_vector)) <= count:
                    for word in range(4):
                        vector_words[word] = words[4 * ahead + word]
                    spread_vector(vector_words, keys, place, masks)
                else:
                    for element in range(per_vector):
                        keys[place + element] = key_type(0)
                        if u32(position + u32(element)) < count:
                            address = base + i64(u32(position + u32(element))) * x_stride * element_size
                            keys[place + element] = order_key(load_element(address), *masks)

        lane_best = key_type(0)
        for place in range(per_lane):
            lane_best = max(lane_best, keys[place])
        threshold = key_type(0)
        taken = u32(0)
        if wanted > u32(LARGEST_K):
            taken = wanted
        while taken < wanted:
            threshold = warp_max(lane_best)
            if lane_best == threshold:
                lane_best = key_type(0)
            taken = u32(taken + u32(1))

        n_found = u32(0)
        slots = u32(warp * u32(n_slots))
        live = u32(0)
        if per_lane <= _FEW:
            below = lanes_below()
            for place in range(per_lane):
                position = position_of(lane_first, place)
                reaches = keys[place] >= threshold and position < count
                votes = ballot(reaches)
                slot = u32(n_found + popcount_u32(votes & below))
                fits = reaches and slot < u32(n_slots)
                put_slot_if(slot_keys, slot_positions, u32(slots + slot), keys[place], position, fits)
                n_found = u32(n_found + popcount_u32(votes))
        else:
            live = reaching_keys(keys, threshold, lane_first, count)
            reaching = popcount_u32(live)
            through = warp_inclusive_sum(reaching)
            n_found = shuffle_from_u32(through, u32(31))
            slot = u32(slots + through - reaching)
            left = live
            if n_found > u32(n_slots):
                left = u32(0)
            while left != u32(0):
                last = u32(u32(31) - leading_zeros_u32(left))
                left = u32(left ^ (u32(1) << last))
                key = keys[0]
                for place in range(1, per_lane):
                    if last == u32(place):
                        key = keys[place]
                put_slot(slot_keys, slot_positions, slot, key, position_of(lane_first, last))
                slot = u32(slot + u32(1))
        if n_found > u32(n_slots):
            if per_lane <= _FEW:
                live = reaching_keys(keys, threshold, lane_first, count)
            n_found = wanted
            taken = u32(0)
            while taken < wanted:
                best = key_type(0)
                best_place = u32(_NOWHERE)
                for place in range(per_lane):
                    is_live = (live >> u32(place)) & u32(1) != u32(0)
                    if is_live and (best_place == u32(_NOWHERE) or keys[place] > best):
                        best = keys[place]
                        best_place = u32(place)
                winner = warp_max(best)
                position = u32(_NOWHERE)
                if best_place != u32(_NOWHERE) and best == winner:
                    position = position_of(lane_first, best_place)
                winner_position = warp_min(position)
                if position == winner_position:
                    live = u32(live & ~u32(u32(1) << best_place))
                    put_slot(slot_keys, slot_positions, u32(slots + taken), winner, position)
                taken = u32(taken + u32(1))

        # Beyond the pairs, what is larger than none of them.
        if lane < u32(_COMPARED) and u32(n_found + lane) < u32(n_slots):
            put_slot(slot_keys, slot_positions, u32(slots + n_found + lane), key_type(0), u32(_NOWHERE))
        cuda.syncwarp()
        own = lane
        while own < n_found:
            key, position = take_slot(slot_keys, slot_positions, u32(slots + own))
            end = u32(slots + n_found)
            rank = count_larger(slot_keys, slot_positions, slots, end, key, position)
            if rank < wanted:
                bits = restore(key, masks, base + i64(position) * x_stride * element_size)
                store_element(values + (value_row + i64(rank) * value_stride) * element_size, bits)
                at = indices + (index_row + i64(rank) * index_stride) * index_size
                store_index(at, index_size, i64(position))
            own = u32(own + u32(32))

    return KernelSource(warp_top_k, {"layout": N_LAYOUT, "masks": N_MASKS})
