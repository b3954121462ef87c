"""Candidates that a lane keeps to itself in shared memory: counted, sorted and merged by all lanes at once.

Slot i of the lanes of a warp lies side by side, keys and 16-bit positions apart: no lane waits for another's
bank. Addresses are those of a lane's own slots within shared memory.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.compiler import linked_function
from kernels_cuda.ptx import LOAD_SHARED, REGISTER, STORE_SHARED, ballot, warp_max
from kernels_cuda.top_k.column_shape import LANES, POSITION_BYTES, POSITION_STEP, key_bytes
from kernels_cuda.top_k.keys import element_functions

u32 = types.uint32

NOWHERE = 0xFFFFFFFF
_LAST_POSITION = (1 << 8 * POSITION_BYTES) - 1
# Comparators of a sort that are in flight together.
_COMPARATORS = 4
_COMPARED = 2 * _COMPARATORS


class CandidateFunctions(NamedTuple):
    """Device functions for one element width."""

    keep_first: Any
    sort_candidates: Any
    merge_winners: Any


@functools.cache
def candidate_functions(element_size: int) -> CandidateFunctions:
    """Make the device functions for elements of `element_size` bytes."""
    key_type = REGISTER[element_size]
    order_key = element_functions(element_size).order_key
    load_key = LOAD_SHARED[key_bytes(element_size)]
    store_key = STORE_SHARED[key_bytes(element_size)]
    load_position = LOAD_SHARED[POSITION_BYTES]
    store_position = STORE_SHARED[POSITION_BYTES]
    key_step = LANES * key_bytes(element_size)
    all_ones = (1 << 8 * element_size) - 1

    @linked_function
    def count_reaching(slot, n_used, threshold):
        """Count the candidates that reach a threshold, eight at a time."""
        reaching = u32(0)
        place = u32(0)
        while place < n_used:
            for ahead in range(8):
                if load_key(u32(slot + u32(ahead * key_step))) >= threshold:
                    reaching = u32(reaching + u32(1))
            slot = u32(slot + u32(8 * key_step))
            place = u32(place + u32(8))
        return reaching

    @linked_function
    def count_ties(slot, position_slot, count, key, last):
        """Count the candidates with this key up to a position, four at a time."""
        ties = u32(0)
        place = u32(0)
        while place < count:
            for ahead in range(4):
                is_tie = load_key(u32(slot + u32(ahead * key_step))) == key
                is_early = load_position(u32(position_slot + u32(ahead * POSITION_STEP))) <= last
                if is_tie and is_early and u32(place + u32(ahead)) < count:
                    ties = u32(ties + u32(1))
            slot = u32(slot + u32(4 * key_step))
            position_slot = u32(position_slot + u32(4 * POSITION_STEP))
            place = u32(place + u32(4))
        return ties

    @linked_function
    def keep_first(first_slot, first_position, count, held, wanted, most, masks):
        """Keep the first `wanted` of each lane's candidates, up to `most` if more, and move them together.

        Candidates are elements, but for the first `held`, which are order keys, as all that stay are. Returns
        how many stay, the smallest of them, and the last position that has it.
        """
        few_keys = cuda.local.array(4, key_type)
        few_positions = cuda.local.array(4, u32)
        # Beyond the candidates there are keys of 0 up to a multiple of eight.
        n_used = u32(u32(warp_max(count) + u32(7)) & u32(~7 & NOWHERE))
        low = key_type(all_ones)
        high = key_type(0)
        slot = first_slot
        place = u32(0)
        while place < n_used:
            for beside in range(4):
                few_keys[beside] = load_key(u32(slot + u32(beside * key_step)))
            for beside in range(4):
                key = few_keys[beside]
                if place >= held:
                    key = order_key(key, *masks)
                if place < count:
                    low = min(low, key)
                    high = max(high, key)
                else:
                    key = key_type(0)
                store_key(slot, key)
                slot = u32(slot + u32(key_step))
                place = u32(place + u32(1))

        # At least `wanted` candidates reach `low`, if there are as many.
        reaching = count
        searching = count > most and low < high
        while ballot(searching) != u32(0):
            middle = key_type(high - (key_type(high - low) >> key_type(1)))
            found = count_reaching(first_slot, n_used, middle)
            if searching:
                if found >= wanted:
                    low = middle
                    reaching = found
                else:
                    high = key_type(middle - key_type(1))
                searching = reaching > most and low < high
        last = u32(NOWHERE)
        cutting = reaching > most
        if ballot(cutting) != u32(0):
            ties = count_ties(first_slot, first_position, count, low, last)
            staying = u32(wanted - u32(reaching - ties))
            lowest = u32(0)
            highest = u32(_LAST_POSITION)
            while ballot(cutting) != u32(0):
                middle_position = u32(u32(lowest + highest) >> u32(1))
                found = count_ties(first_slot, first_position, count, low, middle_position)
                if found < staying:
                    lowest = u32(middle_position + u32(1))
                else:
                    highest = middle_position
                if cutting and found == staying:
                    last = middle_position
                    cutting = False

        kept_slot = first_slot
        kept_position = first_position
        slot = first_slot
        position_slot = first_position
        # What comes after the last of `wanted` candidates must have a larger key than it.
        smallest = key_type(all_ones)
        last_tie = u32(0)
        held = u32(0)
        place = u32(0)
        while place < n_used:
            for beside in range(4):
                few_keys[beside] = load_key(u32(slot + u32(beside * key_step)))
                few_positions[beside] = load_position(u32(position_slot + u32(beside * POSITION_STEP)))
            for beside in range(4):
                key = few_keys[beside]
                position = few_positions[beside]
                stays = key > low or (key == low and position <= last)
                if stays and u32(place + u32(beside)) < count:
                    store_key(kept_slot, key)
                    store_position(kept_position, position)
                    kept_slot = u32(kept_slot + u32(key_step))
                    kept_position = u32(kept_position + u32(POSITION_STEP))
                    held = u32(held + u32(1))
                    if key < smallest:
                        smallest = key
                        last_tie = position
                    elif key == smallest:
                        last_tie = max(last_tie, position)
            slot = u32(slot + u32(4 * key_step))
            position_slot = u32(position_slot + u32(4 * POSITION_STEP))
            place = u32(place + u32(4))
        return held, smallest, last_tie

    @linked_function
    def sort_candidates(first_slot, first_position, n_pairs):
        """Order the lane's candidates by descending key, then ascending position: a bitonic network."""
        keys = cuda.local.array(_COMPARED, key_type)
        positions = cuda.local.array(_COMPARED, u32)
        places = cuda.local.array(_COMPARED, u32)
        size = u32(1)
        while size < n_pairs:
            distance = size
            while distance > u32(0):
                comparator = u32(0)
                while u32(comparator << u32(1)) < u32(n_pairs + size):
                    for ahead in range(_COMPARATORS):
                        within = u32(comparator & u32(distance - u32(1)))
                        low = u32(u32(u32(comparator - within) << u32(1)) + within)
                        high = u32(low + distance)
                        if distance == size:
                            high = u32(u32(u32(low + size) + u32(size - u32(1))) - u32(within << u32(1)))
                        # A comparator beyond the end compares a candidate with itself.
                        places[2 * ahead] = low if high < n_pairs else u32(0)
                        places[2 * ahead + 1] = high if high < n_pairs else u32(0)
                        comparator = u32(comparator + u32(1))
                    for place in range(_COMPARED):
                        keys[place] = load_key(u32(first_slot + u32(places[place] * u32(key_step))))
                        at = u32(first_position + u32(places[place] * u32(POSITION_STEP)))
                        positions[place] = load_position(at)
                    for ahead in range(_COMPARATORS):
                        one = 2 * ahead
                        other = 2 * ahead + 1
                        swapping = keys[other] > keys[one]
                        if keys[other] == keys[one]:
                            swapping = positions[other] < positions[one]
                        if swapping:
                            slot = u32(first_slot + u32(places[one] * u32(key_step)))
                            store_key(slot, keys[other])
                            slot = u32(first_position + u32(places[one] * u32(POSITION_STEP)))
                            store_position(slot, positions[other])
                            slot = u32(first_slot + u32(places[other] * u32(key_step)))
                            store_key(slot, keys[one])
                            slot = u32(first_position + u32(places[other] * u32(POSITION_STEP)))
                            store_position(slot, positions[one])
                distance = u32(distance >> u32(1))
            size = u32(size << u32(1))

    @linked_function
    def merge_winners(one, one_position, other, other_position, merged, merged_position, n_pairs):
        """Merge the first of two sorted lists; those of `one` come first where keys are equal."""
        one_key = load_key(one)
        other_key = load_key(other)
        left = n_pairs
        while left > u32(0):
            if one_key >= other_key:
                store_key(merged, one_key)
                store_position(merged_position, load_position(one_position))
                one = u32(one + u32(key_step))
                one_position = u32(one_position + u32(POSITION_STEP))
                one_key = load_key(one)
            else:
                store_key(merged, other_key)
                store_position(merged_position, load_position(other_position))
                other = u32(other + u32(key_step))
                other_position = u32(other_position + u32(POSITION_STEP))
                other_key = load_key(other)
            merged = u32(merged + u32(key_step))
            merged_position = u32(merged_position + u32(POSITION_STEP))
            left = u32(left - u32(1))

    return CandidateFunctions(keep_first, sort_candidates, merge_winners)
