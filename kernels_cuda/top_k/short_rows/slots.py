"""Slots in shared memory for (key, position) pairs, which the lanes of a row list, and rank by counting."""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import shared_vectors
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import linked_function

COMPARED = 4
"""Pairs that a pair is compared with at a time; as many fillers follow the pairs, where there is room."""


class Slots(NamedTuple):
    """Shared arrays of keys and positions; of keys of at most 4 bytes, `keys` holds whole pairs."""

    keys: Any
    positions: Any


class SlotFunctions(NamedTuple):
    """Device functions for pairs in shared memory, and the type of `Slots.keys`.

    Attributes
    ----------
    put_slot, take_slot : Any
        Write a pair if a condition holds, and read one.
    count_larger : Any
        Counts the pairs from one slot up to another that come before a pair.
    mark_selected : Any
        Sets a bit for the position of each of the first `n_selected` of some pairs, from an address on.
    """

    slot_type: Any
    put_slot: Any
    take_slot: Any
    count_larger: Any
    mark_selected: Any


def slot_functions(element_size: int, key_type: Any) -> SlotFunctions:
    """Make the functions for one element width and its type of keys."""
    if element_size == 8:
        slot_type = key_type

        @linked_function
        def put_slot(slots, slot, key, position, condition):
            ptx.store_shared_if_u64(ptx.shared_address(slots.keys) + (slot << 3), key, u32(condition))
            place = ptx.shared_address(slots.positions) + (slot << 2)
            ptx.store_shared_if_u32(place, position, u32(condition))

        @linked_function
        def take_slot(slots, slot):
            return slots.keys[slot], slots.positions[slot]

        @linked_function
        def count_larger(slots, first, end, key, position):
            rank = u32(0)
            other = first
            while other < end:
                for ahead in range(COMPARED):
                    other_key = slots.keys[other + u32(ahead)]
                    is_before = slots.positions[other + u32(ahead)] < position
                    rank += u32((other_key > key) | ((other_key == key) & is_before))
                other += COMPARED
            return rank

    else:
        # Key and inverted position make one number, which orders the pairs.
        slot_type = u64
        keys_per_vector, load_vector, _ = shared_vectors(u64)

        @linked_function
        def put_slot(slots, slot, key, position, condition):
            pair = ptx.join_u32(~position, key)
            ptx.store_shared_if_u64(ptx.shared_address(slots.keys) + (slot << 3), pair, u32(condition))

        @linked_function
        def take_slot(slots, slot):
            pair = slots.keys[slot]
            return u32(pair >> 32), ~u32(pair)

        @linked_function
        def count_larger(slots, first, end, key, position):
            vector = cuda.local.array(keys_per_vector, u64)
            pair = ptx.join_u32(~position, key)
            rank = u32(0)
            number = first // keys_per_vector
            while number < (end + u32(keys_per_vector - 1)) // keys_per_vector:
                for ahead in range(COMPARED // keys_per_vector):
                    load_vector(vector, slots.keys, number + u32(ahead))
                    for at in range(keys_per_vector):
                        rank += u32(vector[at] > pair)
                number += u32(COMPARED // keys_per_vector)
            return rank

    @linked_function
    def mark_selected(slots, first_slot, n_found, n_selected, marks, lane, n_lanes):
        own = lane
        while own < n_found:
            key, position = take_slot(slots, first_slot + own)
            if count_larger(slots, first_slot, first_slot + n_found, key, position) < n_selected:
                ptx.reduce_or_shared_u32(marks + (position >> 5 << 2), u32(1) << (position & 31))
            own += n_lanes

    return SlotFunctions(slot_type, put_slot, take_slot, count_larger, mark_selected)
