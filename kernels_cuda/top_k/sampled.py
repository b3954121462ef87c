"""Batches of long rows: a threshold from a sample, one pass that lists what reaches it, an exact selection.

1. `choose_threshold` (`sampled_threshold`), one block per row: of a sample spread over the row, the element
   of a rank so low that surely at least k elements of the row are at or above it, and not many more. Where
   many of the sample equal it, also the position up to which equals are needed.
2. `list_candidates`, some segments of a row for each warp: read the row once, by way of shared memory, and
   list the elements above the threshold, and those that equal it up to that position. Each segment reserves
   space in its row's list with an atomic addition, writes its candidates there in order, and records where
   they start and how many there are.
3. `finish_row` (`sampled_finish`), one block per row: bring the candidates into shared memory by ascending
   position, and select the first k of them.

The result is exact for any data: at least k candidates are listed, or the last kernel finds a threshold by
histograms of the row.

A row of no more elements than a list has room for gets the lowest threshold: all of it is listed.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    BALLOT_WORDS,
    STORE,
    atomic_add_u32,
    ballot,
    copy_async_end_group,
    copy_async_first_bytes,
    copy_async_wait_but_last,
    grid_dependency_wait,
    join_u32,
    lanes_below,
    load_shared_u32x4,
    load_u32,
    load_u64,
    next_pass,
    popcount_u32,
    shared_address,
    shared_from,
    shuffle_from_u32,
    store_shared_if_u32,
    store_shared_u32x4,
    store_u32,
    store_u64,
    trailing_zeros_u32,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.parameters import SampledParameters
from kernels_cuda.top_k.rows import row_length, row_offsets
from kernels_cuda.top_k.sampled_threshold import EQUALS_END, LISTED, last_key_function
from kernels_cuda.top_k.shapes import (
    LISTING_WARPS,
    ROW_STATE_BYTES,
    SEGMENT_BYTES,
    SEGMENT_VECTORS,
    SEGMENT_VECTORS_PER_LANE,
    VECTOR_BYTES,
    group_key_bytes,
    segment_elements,
)

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_LISTING_REGISTERS = 64
_STAGE_BYTES = SEGMENT_VECTORS * VECTOR_BYTES


def list_kernel(element_size: int) -> Any:
    """Make the kernel that lists candidates."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    unfolding_of = functions.unfolding_of
    unfolded_maximum = functions.unfolded_maximum
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    at_or_above = functions.at_or_above
    last_key = last_key_function(element_size)
    key_bytes = group_key_bytes(element_size)
    store_key = STORE[key_bytes]
    per_vector = VECTOR_BYTES // element_size
    unused = 32 - 8 * element_size
    vector_mask = (1 << per_vector) - 1
    n_entries = LISTING_WARPS * SEGMENT_VECTORS
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    if element_size == 8:

        @device_function
        def lanes_found(words, bounds, unfolding):
            return ballot(unfolded_maximum(words, 0, unfolding) >= bounds[0])

        @device_function
        def bounds_of(key, key_format):
            return unfold_threshold(key, key_format), u64(0), u64(0)

    else:
        ballot_words = BALLOT_WORDS[element_size]

        @device_function
        def lanes_found(words, bounds, unfolding):
            mask, least, limit = bounds
            return ballot_words(words[0], words[1], words[2], words[3], mask, least, limit)

        @linked_function
        def bounds_of(key, key_format):
            """Return what tells whether an element may reach a threshold, its key, in few instructions.

            That is so if it is at least `least` once XORed with `mask`, or above `limit`. Of floats, those of
            one sign are in order, and those of the other all before or after them; but for NaNs, and these
            are let through.
            """
            mask = u32(key_format.positive)
            least = key
            limit = u32(ones)
            if key_format.flip != 0:
                sign = u32(key_format.sign)
                lowest = u32(key_format.flip ^ key_format.infinity)
                highest = u32(key_format.sign ^ key_format.infinity)
                element = min(max(key, lowest), highest) ^ mask
                if (element & sign) != 0:
                    element ^= u32(key_format.flip)
                if key_format.unordered != 0:
                    # The largest come first: a negative NaN too is among them.
                    limit = u32(key_format.sign ^ key_format.infinity)
                    mask = sign
                    if element == 0 or (element & sign) != 0:
                        mask = u32(ones)
                        element |= sign
                else:
                    mask = u32(0)
                    if (element & sign) == 0:
                        mask = u32(key_format.flip)
                least = element ^ mask
                if key == 0:
                    least = u32(0)
            # What is below an element in its word does not count.
            return mask << unused, least << unused, ~(~limit << unused)

    @device_function
    def start_segment(stage, base, position, limit):
        """Have a lane's vectors of a segment copied: those that are whole, and zeros for the others."""
        address = base + position * element_size
        for vector in range(SEGMENT_VECTORS_PER_LANE):
            is_whole = u32(position) + u32(vector * 32 * per_vector) < limit
            copy_async_first_bytes(
                stage + u32(vector * 32 * VECTOR_BYTES),
                address + vector * (32 * VECTOR_BYTES),
                u32(is_whole) * VECTOR_BYTES,
            )

    @linked_function
    def load_parts(stage, base, position, count, limit):
        """Load a lane's vectors that the row begins or ends in, with zeros for what it does not have."""
        words = cuda.local.array(4, u32)
        vector = u32(0)
        while vector < SEGMENT_VECTORS_PER_LANE:
            if u32(position) >= limit and -per_vector < position < count:
                for word in range(4):
                    words[word] = u32(0)
                for element in range(per_vector):
                    if 0 <= position + element < count:
                        bits = load_element(base + (position + element) * element_size)
                        if element_size == 8:
                            words[2 * element] = u32(bits)
                            words[2 * element + 1] = u32(bits >> 32)
                        else:
                            words[element * element_size // 4] |= bits << u32(element * element_size % 4 * 8)
                store_shared_u32x4(stage, words[0], words[1], words[2], words[3])
            stage += u32(32 * VECTOR_BYTES)
            position += 32 * per_vector
            vector = next_pass(vector)

    @device_function
    def marks_of_part(position, count):
        """Return one bit for each element of a vector that the row has."""
        marks = u32(0)
        for element in range(per_vector):
            marks |= u32(0 <= position + element < count) << u32(element)
        return marks

    @linked_function
    def find_vectors(found, stage, position, row, least, formats, lane):
        """List the vectors of a segment that may have an element at or above a key, in order.

        Those that the row begins or ends in are listed too.
        """
        base, count, limit = row
        words = cuda.local.array(4, u32)
        bounds = bounds_of(least, formats[1])
        unfolding = unfolding_of(formats[0], False)
        end = found
        number = lane
        are_whole = ballot(u32(position) + u32((SEGMENT_VECTORS_PER_LANE - 1) * 32 * per_vector) < limit)
        are_whole &= ballot(u32(position) < limit)
        if ~are_whole != 0:
            load_parts(stage, base, position, count, limit)
        for vector in range(SEGMENT_VECTORS_PER_LANE):
            words[0], words[1], words[2], words[3] = load_shared_u32x4(
                stage + u32(vector * 32 * VECTOR_BYTES)
            )
            lanes = lanes_found(words, bounds, unfolding)
            if ~are_whole != 0:
                first = position + vector * (32 * per_vector)
                is_whole = u32(first) < limit
                is_part = not is_whole and -per_vector < first < count
                lanes = (lanes & ballot(is_whole)) | ballot(is_part)
            place = end + (popcount_u32(lanes & lanes_below()) << 2)
            store_shared_if_u32(place, number, (lanes >> lane) & 1)
            end += popcount_u32(lanes) << 2
            number += 32
        return (end - found) >> 2

    @linked_function
    def load_found(words, number, is_found, segment, row, limits, unfolding):
        """Load a lane's vector if it was found, and return marks of its candidates.

        They are above the threshold, or equal it in one of the segment's first `n_with_equals` vectors.
        """
        stage, first = segment
        _, count, limit = row
        threshold, above_threshold, has_above, n_with_equals = limits
        marks = u32(0)
        if is_found:
            words[0], words[1], words[2], words[3] = load_shared_u32x4(stage + number * VECTOR_BYTES)
            position = first + i64(number * per_vector)
            marks = u32(vector_mask)
            if u32(position) >= limit:
                marks = marks_of_part(position, count)
            least = above_threshold
            if number < n_with_equals:
                least = threshold
            elif not has_above:
                marks = u32(0)
            marks &= at_or_above(words, 0, least, unfolding, False)
        return marks

    @device_function
    def word_of(words, number):
        word = words[0]
        for other in range(1, 4):
            if number == other:
                word = words[other]
        return word

    @device_function
    def element_of(words, number):
        """Return an element of a vector, four words."""
        if element_size == 8:
            element = join_u32(words[0], words[1])
            if number != 0:
                element = join_u32(words[2], words[3])
        elif element_size == 4:
            element = word_of(words, number)
        else:
            element = (word_of(words, number >> 1) >> ((number & 1) << 4)) & 0xFFFF
        return element

    @linked_function
    def write_marked(words, marks, position, lists, place, key_format):
        """Write the marked elements of each lane's vector, in order; return the place after them."""
        row_keys, row_lows = lists
        amount = popcount_u32(marks)
        through = warp_inclusive_sum(amount)
        slot = i64(place + through - amount)
        while marks != 0:
            number = trailing_zeros_u32(marks)
            marks &= marks - 1
            store_key(row_keys + slot * key_bytes, ordered_key(element_of(words, number), key_format))
            store_u32(row_lows + slot * 4, ~(position + number))
            slot += 1
        return place + shuffle_from_u32(through, u32(31))

    @linked_function
    def write_whole(words, position, lists, place, lane, key_format):
        """Write all elements of each lane's vector; return the place after them."""
        row_keys, row_lows = lists
        slot = i64(place + lane * per_vector)
        for number in range(per_vector):
            key = ordered_key(element_of(words, number), key_format)
            store_key(row_keys + (slot + number) * key_bytes, key)
            store_u32(row_lows + (slot + number) * 4, ~(position + u32(number)))
        return place + 32 * per_vector

    @cuda.jit(max_registers=_LISTING_REGISTERS)
    def list_candidates(x, lengths, states, segments, keys, lows, offsets, p: SampledParameters):
        stages = cuda.shared.array(0, u32, VECTOR_BYTES)
        all_found = cuda.shared.array(n_entries, u32)
        lane = u32(cuda.threadIdx.x) & 31
        warp = u32(cuda.threadIdx.x) >> 5
        # Of all rows the first segments first: few warps take room in one list at a time.
        unit = u32(p.first_block) + u32(cuda.blockIdx.x)
        tile = unit // u32(p.n_rows)
        row = i64(unit - tile * u32(p.n_rows))
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        # Vectors that begin before this are whole, unless they begin before the row.
        limit = u32(max(count - (per_vector - 1), 0))
        located = (base, count, limit)
        segment = i64(tile * LISTING_WARPS + warp)
        step = i64(p.n_listing * LISTING_WARPS)
        # A row's first segment begins with the vector that its first element is in.
        first = segment * n_elements - (base & (VECTOR_BYTES - 1)) // element_size
        step_elements = step * n_elements
        lane_position = i64(lane * per_vector)

        # While a segment is listed, the next one is on its way; the first one before the threshold is known.
        stage = shared_address(stages) + warp * (2 * _STAGE_BYTES)
        other_stage = stage + _STAGE_BYTES
        if first < count:
            start_segment(stage + lane * VECTOR_BYTES, base, first + lane_position, limit)
        copy_async_end_group()
        grid_dependency_wait()
        state = states + row * ROW_STATE_BYTES
        key = key_type(load_u64(state))
        equals_end = i64(load_u32(state + EQUALS_END))
        has_above = key < last_key(p.key_format)
        formats = (p.unfolded_format, p.key_format)
        unfolding = unfolding_of(p.unfolded_format, False)
        threshold = unfold_threshold(key, p.key_format)
        above_threshold = unfold_next_above(key, p.key_format)
        found = shared_from(all_found, warp * SEGMENT_VECTORS)
        lists = (keys + row * p.n_slots * key_bytes, lows + row * p.n_slots * 4)
        words = cuda.local.array(4, u32)
        other_words = cuda.local.array(4, u32)
        while first < count:
            next_first = first + step_elements
            if next_first < count:
                start_segment(other_stage + lane * VECTOR_BYTES, base, next_first + lane_position, limit)
            copy_async_end_group()
            copy_async_wait_but_last()
            least = key
            if first >= equals_end and has_above:
                least += 1
            n_found = find_vectors(
                shared_address(found),
                stage + lane * VECTOR_BYTES,
                first + lane_position,
                located,
                least,
                formats,
                lane,
            )
            if first >= equals_end and not has_above:
                n_found = u32(0)
            cuda.syncwarp()

            # Count the candidates of these vectors; the first ones are kept.
            n_with_equals = min(max(equals_end - first + (per_vector - 1), 0) // per_vector, SEGMENT_VECTORS)
            limits = (threshold, above_threshold, has_above, u32(n_with_equals))
            here = (stage, first)
            vector = found[lane]
            marks = load_found(words, vector, lane < n_found, here, located, limits, unfolding)
            n_listed = popcount_u32(marks)
            at = 32 + lane
            while at - lane < n_found:
                other = found[at]
                n_listed += popcount_u32(
                    load_found(other_words, other, at < n_found, here, located, limits, unfolding)
                )
                at += 32
            n_listed = warp_add(n_listed)

            # Take room in the row's list.
            place = u32(0)
            if lane == 0:
                if n_listed != 0:
                    place = atomic_add_u32(state + LISTED, n_listed)
                known = join_u32(place, n_listed)
                store_u64(segments + (row * p.n_segments + segment) * SEGMENT_BYTES, known)
            place = shuffle_from_u32(place, u32(0))

            if n_listed != 0 and place + n_listed <= u32(p.n_slots):
                position = u32(first) + vector * per_vector
                place = write_marked(words, marks, position, lists, place, p.key_format)
                at = 32 + lane
                while at - lane < n_found:
                    other = found[at]
                    marks = load_found(other_words, other, at < n_found, here, located, limits, unfolding)
                    position = u32(first) + other * per_vector
                    if ballot(marks != vector_mask) == 0:
                        place = write_whole(other_words, position, lists, place, lane, p.key_format)
                    else:
                        place = write_marked(other_words, marks, position, lists, place, p.key_format)
                    at += 32
            # All lanes have read what is overwritten now.
            cuda.syncwarp()
            first = next_first
            segment += step
            stage, other_stage = other_stage, stage

    return list_candidates
