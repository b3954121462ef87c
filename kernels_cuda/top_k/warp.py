"""A warp a row, the row in registers: for k <= 32 and rows of a few hundred elements.

1. Load the row; every lane keeps its raw keys (`keys`) in registers.
2. Take the largest of the lanes' two maxima each away k times: what was taken last is a threshold that at
   least k keys reach, as do all that have the same order key.
3. Rank the few that reach it by counting, in shared memory, by (order key, position).

Of short rows it can rank all, for any k; then there is no threshold.

If more reach the threshold than fit, those above it are taken and the first that equal it; if even those
above do not fit, the winners one by one: the largest key of the warp, and of the lanes that hold it the
smallest position. Reads the row once, writes k values and indices.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    join_u32,
    load_if_u32x4,
    popcount_u32,
    shared_address,
    shared_from,
    shuffle_from_u32,
    store_shared_if_u32,
    store_shared_if_u64,
    take_turn,
    warp_add,
    warp_inclusive_sum,
    warp_min,
)
from kernels_cuda.runtime.compiler import integers, linked_function, target_capability
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.elements import N_MASKS, N_NUMBERS, VECTOR_BYTES
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.quads import quad_functions
from kernels_cuda.top_k.row_offsets import row_offsets, store_index
from kernels_cuda.top_k.rows import N_LAYOUT
from kernels_cuda.top_k.warp_shape import LARGEST_K, WARPS_A_BLOCK

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_NOWHERE = 0xFFFFFFFF
# Of lanes with 32 keys, so that three blocks share a multiprocessor; keys of 8 bytes need more.
LARGE_REGISTERS = 80
# Pairs that a pair is compared with at a time.
_COMPARED = 4


def warp_source(element_size: int, n_vectors: int) -> Any:
    """Make the kernel for rows of up to ``n_vectors * 512 // element_size`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    raw_mask = functions.raw_mask
    raw_element = functions.raw_element
    key_of_raw = functions.key_of_raw
    first_of_equals = functions.first_of_equals
    spread_raw_keys = functions.spread_raw_keys
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    warp_max = warp_maximum(key_type)
    per_vector = VECTOR_BYTES // element_size
    per_lane = n_vectors * per_vector
    pass_elements = 32 * per_vector
    n_ahead = min(n_vectors, 4)
    n_words = 4 * n_ahead

    if element_size == 8:
        slot_type = key_type

        @linked_function
        def put_slot(slot_keys, slot_positions, slot, key, position, condition):
            store_shared_if_u64(shared_address(slot_keys) + (slot << 3), key, u32(condition))
            place = shared_address(slot_positions) + (slot << 2)
            store_shared_if_u32(place, position, u32(condition))

        @linked_function
        def take_slot(slot_keys, slot_positions, slot):
            return slot_keys[slot], slot_positions[slot]

        @linked_function
        def count_larger(slot_keys, slot_positions, first, end, key, position):
            rank = u32(0)
            other = first
            while other < end:
                for ahead in range(_COMPARED):
                    other_key = slot_keys[other + u32(ahead)]
                    is_before = slot_positions[other + u32(ahead)] < position
                    rank += u32((other_key > key) | ((other_key == key) & is_before))
                other += _COMPARED
            return rank

    else:
        # Key and inverted position make one number, which orders the pairs.
        slot_type = u64
        per_quad, load_quad, _ = quad_functions(u64)

        @linked_function
        def put_slot(slot_keys, slot_positions, slot, key, position, condition):
            pair = join_u32(~position, key)
            store_shared_if_u64(shared_address(slot_keys) + (slot << 3), pair, u32(condition))

        @linked_function
        def take_slot(slot_keys, slot_positions, slot):
            pair = slot_keys[slot]
            return u32(pair >> 32), ~u32(pair)

        @linked_function
        def count_larger(slot_keys, slot_positions, first, end, key, position):
            quad = cuda.local.array(per_quad, u64)
            pair = join_u32(~position, key)
            rank = u32(0)
            number = first // per_quad
            while number < (end + u32(per_quad - 1)) // per_quad:
                for ahead in range(_COMPARED // per_quad):
                    load_quad(quad, slot_keys, number + u32(ahead))
                    for at in range(per_quad):
                        rank += u32(quad[at] > pair)
                number += u32(_COMPARED // per_quad)
            return rank

    @linked_function
    def position_of(lane_first, place):
        """Return where in the row a lane's key number `place` is."""
        vector = u32(place) // per_vector
        return lane_first + vector * pass_elements + u32(place) % per_vector

    @linked_function
    def reaching_keys(raws, floor, lane_first, count):
        """Return a bit a key of this lane: those of the row that reach the floor."""
        live = u32(0)
        for place in range(per_lane):
            if raws[place] >= floor and position_of(lane_first, place) < count:
                live |= 1 << u32(place)
        return live

    # Older devices might have to spill.
    is_limited = per_lane == 32 and element_size < 8 and target_capability() >= (9, 0)

    @cuda.jit(max_registers=LARGE_REGISTERS if is_limited else None)
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
        layout: integers(N_LAYOUT),
        numbers: integers(N_NUMBERS),
        masks: integers(N_MASKS),
    ):
        take_turn()
        slot_keys = cuda.shared.array(0, slot_type, VECTOR_BYTES)
        slot_positions = shared_from(cuda.shared.array(0, u32), 2 * WARPS_A_BLOCK * n_slots)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row = (first_block + i64(cuda.blockIdx.x)) * WARPS_A_BLOCK + i64(warp)
        if row >= n_rows:
            return
        x_row, value_row, index_row = row_offsets(layout, offsets, row)
        base = x + x_row * element_size
        count = u32(axis_size)
        wanted = u32(k)

        # Element e of vector v of a lane is at (32 * v + lane) * per_vector + e.
        raws = cuda.local.array(per_lane, key_type)
        lane_first = lane * per_vector
        in_vectors = x_stride == 1 and (base & (VECTOR_BYTES - 1)) == 0
        words = cuda.local.array(n_words, u32)
        vector_words = cuda.local.array(4, u32)
        mask = raw_mask(numbers, False)
        for begin in range(0, n_vectors, n_ahead):
            for ahead in range(n_ahead):
                position = lane_first + u32((begin + ahead) * pass_elements)
                is_whole = in_vectors and position + per_vector <= count
                word = 4 * ahead
                words[word], words[word + 1], words[word + 2], words[word + 3] = load_if_u32x4(
                    base + i64(position) * element_size, is_whole
                )
            for ahead in range(n_ahead):
                place = (begin + ahead) * per_vector
                position = lane_first + u32((begin + ahead) * pass_elements)
                if in_vectors and position + per_vector <= count:
                    for word in range(4):
                        vector_words[word] = words[4 * ahead + word]
                    spread_raw_keys(vector_words, raws, place, mask)
                else:
                    for element in range(per_vector):
                        raws[place + element] = key_type(0)
                        if position + u32(element) < count:
                            address = base + i64(position + u32(element)) * x_stride * element_size
                            raws[place + element] = raw_element(load_element(address), mask)

        # Of each half of a lane's elements.
        larger = key_type(0)
        smaller = key_type(0)
        for place in range(0, per_lane, 2):
            larger = max(larger, raws[place])
            smaller = max(smaller, raws[place + 1])
        larger, smaller = max(larger, smaller), min(larger, smaller)
        best = larger
        next_best = smaller
        floor = key_type(0)
        taken = u32(0)
        if wanted > LARGEST_K:
            taken = wanted
        while taken < wanted:
            floor = warp_max(best)
            if best == floor:
                best = next_best
                next_best = key_type(0)
            taken += 1
        if wanted <= LARGEST_K:
            if floor == 0:
                # Equal maxima were taken away together, until none was left. The least of them may do.
                least_taken = ~key_type(0)
                if best == 0 and larger != 0:
                    least_taken = larger
                    if smaller != 0:
                        least_taken = smaller
                floor = ~warp_max(~least_taken)
                live = reaching_keys(raws, floor, lane_first, count)
                if warp_add(popcount_u32(live)) < wanted:
                    floor = key_type(0)
            floor = first_of_equals(floor, numbers, masks)

        live = reaching_keys(raws, floor, lane_first, count)
        above = live
        amount = popcount_u32(above)
        through = warp_inclusive_sum(amount)
        n_above = shuffle_from_u32(through, u32(31))
        n_found = n_above
        slots = warp * u32(n_slots)
        if n_found > u32(n_slots):
            # Those above the floor, and the first of those that equal it.
            floor_key = key_of_raw(floor, numbers, masks)
            above = u32(0)
            for place in range(per_lane):
                if key_of_raw(raws[place], numbers, masks) > floor_key:
                    above |= 1 << u32(place)
            above &= live
            amount = popcount_u32(above)
            through = warp_inclusive_sum(amount)
            n_above = shuffle_from_u32(through, u32(31))
            n_found = max(n_above, wanted)
        if n_above <= u32(n_slots):
            slot = slots + (through - amount)
            for place in range(per_lane):
                is_above = (above >> u32(place)) & 1
                position = position_of(lane_first, place)
                put_slot(slot_keys, slot_positions, slot, raws[place], position, is_above)
                slot += is_above
            if n_found > n_above:
                n_before = n_above
                for vector in range(n_vectors):
                    ties = ((live ^ above) >> u32(vector * per_vector)) & u32((1 << per_vector) - 1)
                    amount = popcount_u32(ties)
                    through = warp_inclusive_sum(amount)
                    tie = n_before + (through - amount)
                    for element in range(per_vector):
                        place = vector * per_vector + element
                        is_tie = (ties >> u32(element)) & 1
                        is_wanted = is_tie != 0 and tie < n_found
                        position = position_of(lane_first, place)
                        put_slot(slot_keys, slot_positions, slots + tie, raws[place], position, is_wanted)
                        tie += is_tie
                    n_before += shuffle_from_u32(through, u32(31))
            cuda.syncwarp()
            own = lane
            while own < n_found:
                slot = slots + own
                raw, position = take_slot(slot_keys, slot_positions, slot)
                put_slot(slot_keys, slot_positions, slot, key_of_raw(raw, numbers, masks), position, True)
                own += 32
        else:
            for place in range(per_lane):
                raws[place] = key_of_raw(raws[place], numbers, masks)
            n_found = wanted
            taken = u32(0)
            while taken < wanted:
                best = key_type(0)
                best_place = u32(_NOWHERE)
                for place in range(per_lane):
                    is_live = (live >> u32(place)) & 1 != 0
                    if is_live and (best_place == _NOWHERE or raws[place] > best):
                        best = raws[place]
                        best_place = u32(place)
                winner = warp_max(best)
                position = u32(_NOWHERE)
                if best_place != _NOWHERE and best == winner:
                    position = position_of(lane_first, best_place)
                winner_position = warp_min(position)
                is_winner = position == winner_position
                put_slot(slot_keys, slot_positions, slots + taken, winner, position, is_winner)
                if is_winner:
                    live &= ~(1 << best_place)
                taken += 1

        # Beyond the pairs, what is larger than none of them.
        beyond = n_found + lane
        is_beyond = lane < _COMPARED and beyond < u32(n_slots)
        put_slot(slot_keys, slot_positions, slots + beyond, key_type(0), u32(_NOWHERE), is_beyond)
        cuda.syncwarp()
        own = lane
        while own < n_found:
            key, position = take_slot(slot_keys, slot_positions, slots + own)
            end = slots + n_found
            rank = count_larger(slot_keys, slot_positions, slots, end, key, position)
            if rank < wanted:
                bits = restore(key, masks, base + i64(position) * x_stride * element_size)
                store_element(values + (value_row + i64(rank) * value_stride) * element_size, bits)
                at = indices + (index_row + i64(rank) * index_stride) * index_size
                store_index(at, index_size, i64(position))
            own += 32

    return warp_top_k
