"""Candidates that a lane keeps to itself in shared memory: counted, sorted and merged by all lanes at once.

Slot i of the lanes of a warp lies side by side, keys and 16-bit positions apart: no lane waits for another's
bank. Addresses are those of a lane's own slots within shared memory.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.columns.columns_launches import POSITION_BYTES, POSITION_STEP, column_key_bytes
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import WARP_LANES

NOWHERE = 0xFFFFFFFF
LAST_POSITION = (1 << 8 * POSITION_BYTES) - 1
# Comparators of a sort that are in flight together.
_COMPARATORS = 4
_COMPARED = 2 * _COMPARATORS


@functools.cache
def candidate_functions(element_size: int) -> tuple[Any, Any, Any]:
    """Make the functions `keep_first`, `sort_candidates` and `merge_selected` for one element width."""
    key_type = ptx.REGISTER[element_size]
    ordered_key = element_functions(element_size).ordered_key
    load_key = ptx.LOAD_SHARED[column_key_bytes(element_size)]
    store_key = ptx.STORE_SHARED[column_key_bytes(element_size)]
    load_position = ptx.LOAD_SHARED[POSITION_BYTES]
    store_position = ptx.STORE_SHARED[POSITION_BYTES]
    key_step = WARP_LANES * column_key_bytes(element_size)
    all_ones = (1 << 8 * element_size) - 1

    @linked_function
    def count_at_or_above(slot, n_used, threshold):
        """Count the candidates at or above a threshold, eight at a time."""
        at_or_above = u32(0)
        place = u32(0)
        while place < n_used:
            for ahead in range(8):
                if load_key(slot + u32(ahead * key_step)) >= threshold:
                    at_or_above += 1
            slot += u32(8 * key_step)
            place += 8
        return at_or_above

    @linked_function
    def count_ties(slot, position_slot, count, key, last):
        """Count the candidates with this key up to a position, four at a time."""
        ties = u32(0)
        place = u32(0)
        while place < count:
            for ahead in range(4):
                is_tie = load_key(slot + u32(ahead * key_step)) == key
                is_early = load_position(position_slot + u32(ahead * POSITION_STEP)) <= last
                if is_tie and is_early and place + u32(ahead) < count:
                    ties += 1
            slot += u32(4 * key_step)
            position_slot += u32(4 * POSITION_STEP)
            place += 4
        return ties

    @linked_function
    def keep_first(first_slot, first_position, count, held, n_selected, most, key_format):
        """Keep the first `n_selected` candidates of each lane, up to `most` if more, and move them together.

        Candidates are elements, but for the first `held`, which are ordered keys, as all that stay are.
        Returns how many stay, the smallest of them, and the last position that has it.
        """
        few_keys = cuda.local.array(4, key_type)
        few_positions = cuda.local.array(4, u32)
        # Beyond the candidates there are keys of 0 up to a multiple of eight.
        n_used = (ptx.warp_max(count) + 7) & u32(~7 & NOWHERE)
        low = key_type(all_ones)
        high = key_type(0)
        slot = first_slot
        place = u32(0)
        while place < n_used:
            for beside in range(4):
                few_keys[beside] = load_key(slot + u32(beside * key_step))
            for beside in range(4):
                key = few_keys[beside]
                if place >= held:
                    key = ordered_key(key, key_format)
                if place < count:
                    low = min(low, key)
                    high = max(high, key)
                else:
                    key = key_type(0)
                store_key(slot, key)
                slot += key_step
                place += 1

        # At least `n_selected` candidates are at or above `low`, if there are as many.
        at_or_above = count
        searching = count > most and low < high
        while ptx.ballot(searching) != 0:
            middle = high - ((high - low) >> 1)
            found = count_at_or_above(first_slot, n_used, middle)
            if searching:
                if found >= n_selected:
                    low = middle
                    at_or_above = found
                else:
                    high = middle - 1
                searching = at_or_above > most and low < high
        last = u32(NOWHERE)
        cutting = at_or_above > most
        if ptx.ballot(cutting) != 0:
            ties = count_ties(first_slot, first_position, count, low, last)
            staying = n_selected - (at_or_above - ties)
            lowest = u32(0)
            highest = u32(LAST_POSITION)
            while ptx.ballot(cutting) != 0:
                middle_position = (lowest + highest) >> 1
                found = count_ties(first_slot, first_position, count, low, middle_position)
                if found < staying:
                    lowest = middle_position + 1
                else:
                    highest = middle_position
                if cutting and found == staying:
                    last = middle_position
                    cutting = False

        kept_slot = first_slot
        kept_position = first_position
        slot = first_slot
        position_slot = first_position
        # Whatever comes after the last of `n_selected` candidates must have a larger key than it.
        smallest = key_type(all_ones)
        last_tie = u32(0)
        held = u32(0)
        place = u32(0)
        while place < n_used:
            for beside in range(4):
                few_keys[beside] = load_key(slot + u32(beside * key_step))
                few_positions[beside] = load_position(position_slot + u32(beside * POSITION_STEP))
            for beside in range(4):
                key = few_keys[beside]
                position = few_positions[beside]
                stays = key > low or (key == low and position <= last)
                if stays and place + u32(beside) < count:
                    store_key(kept_slot, key)
                    store_position(kept_position, position)
                    kept_slot += key_step
                    kept_position += POSITION_STEP
                    held += 1
                    if key < smallest:
                        smallest = key
                        last_tie = position
                    elif key == smallest:
                        last_tie = max(last_tie, position)
            slot += u32(4 * key_step)
            position_slot += u32(4 * POSITION_STEP)
            place += 4
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
            while distance > 0:
                comparator = u32(0)
                while comparator << 1 < n_pairs + size:
                    for ahead in range(_COMPARATORS):
                        within = comparator & (distance - 1)
                        low = ((comparator - within) << 1) + within
                        high = low + distance
                        if distance == size:
                            high = low + size + (size - 1) - (within << 1)
                        # A comparator beyond the end compares a candidate with itself.
                        places[2 * ahead] = low if high < n_pairs else u32(0)
                        places[2 * ahead + 1] = high if high < n_pairs else u32(0)
                        comparator += 1
                    for place in range(_COMPARED):
                        keys[place] = load_key(first_slot + places[place] * key_step)
                        at = first_position + places[place] * POSITION_STEP
                        positions[place] = load_position(at)
                    for ahead in range(_COMPARATORS):
                        one = 2 * ahead
                        other = 2 * ahead + 1
                        swapping = keys[other] > keys[one]
                        if keys[other] == keys[one]:
                            swapping = positions[other] < positions[one]
                        if swapping:
                            slot = first_slot + places[one] * key_step
                            store_key(slot, keys[other])
                            slot = first_position + places[one] * POSITION_STEP
                            store_position(slot, positions[other])
                            slot = first_slot + places[other] * key_step
                            store_key(slot, keys[one])
                            slot = first_position + places[other] * POSITION_STEP
                            store_position(slot, positions[one])
                distance >>= 1
            size <<= 1

    @linked_function
    def merge_selected(one, one_position, other, other_position, merged, merged_position, n_pairs):
        """Merge the first of two sorted lists; those of `one` come first where keys are equal."""
        one_key = load_key(one)
        other_key = load_key(other)
        left = n_pairs
        while left > 0:
            if one_key >= other_key:
                store_key(merged, one_key)
                store_position(merged_position, load_position(one_position))
                one += key_step
                one_position += POSITION_STEP
                one_key = load_key(one)
            else:
                store_key(merged, other_key)
                store_position(merged_position, load_position(other_position))
                other += key_step
                other_position += POSITION_STEP
                other_key = load_key(other)
            merged += key_step
            merged_position += POSITION_STEP
            left -= 1

    return keep_first, sort_candidates, merge_selected
