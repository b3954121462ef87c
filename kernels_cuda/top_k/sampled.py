"""Batches of long rows: a threshold from a sample, one pass that lists what reaches it, an exact selection.

1. `choose_threshold` (`sampled_threshold`), one block per row: of a sample spread over the row, the element
   of a rank so low that surely at least k elements of the row are at or above it, and not many more. Where
   many of the sample equal it, also the position up to which equals are needed.
2. `list_candidates`, one warp per segment of a row: read the row once, and list the elements above the
   threshold, and those that equal it up to that position. A segment takes room in its row's list by an
   atomic addition, and its candidates are in order there; what it has is written down.
3. `finish_row` (`sampled_finish`), one block per row: bring the candidates into shared memory by ascending
   position, and select the first k of them.

No data make this wrong: at least k candidates are listed, or the last kernel finds a threshold by histograms
of the row.

A row of no more elements than a list has room for gets the lowest threshold: all of it is listed.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    BALLOT_WORDS,
    STORE,
    atomic_add_u32,
    ballot,
    grid_dependency_wait,
    join_u32,
    lanes_below,
    load_if_u32x4,
    load_u32,
    load_u32x4,
    load_u64,
    popcount_u32,
    shared_address,
    shared_from,
    shuffle_from_u32,
    store_shared_if_u32,
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

# Vectors of a segment that a lane loads before it uses the first.
_AHEAD = 8
_LISTING_REGISTERS = 64
_WORDS = 4 * _AHEAD
# Vectors, of those that have candidates, that a lane loads at a time. The first are kept until they are
# listed, others are loaded again.
_KEPT = 2
_KEPT_WORDS = 4 * _KEPT


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
    n_elements = segment_elements(element_size)
    n_entries = LISTING_WARPS * SEGMENT_VECTORS
    ones = (1 << 8 * element_size) - 1

    if element_size == 8:

        @device_function
        def lanes_found(words, at, bounds, unfolding):
            return ballot(unfolded_maximum(words, at, unfolding) >= bounds[0])

        @device_function
        def bounds_of(key, key_format):
            return unfold_threshold(key, key_format), u64(0), u64(0)

    else:
        ballot_words = BALLOT_WORDS[element_size]

        @device_function
        def lanes_found(words, at, bounds, unfolding):
            mask, least, limit = bounds
            return ballot_words(words[at], words[at + 1], words[at + 2], words[at + 3], mask, least, limit)

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

    def make_find_vectors(are_whole):
        @device_function
        def load(words, at, address, position, vector, count):
            word = 4 * at
            if are_whole:
                words[word], words[word + 1], words[word + 2], words[word + 3] = load_u32x4(
                    address + vector * (32 * VECTOR_BYTES)
                )
            else:
                first = position + vector * (32 * per_vector)
                words[word], words[word + 1], words[word + 2], words[word + 3] = load_if_u32x4(
                    address + vector * (32 * VECTOR_BYTES), 0 <= first <= count - per_vector
                )

        @linked_function
        def find_vectors(found, address, position, count, key, formats, lane):
            """List the vectors of a segment that may have an element at or above the threshold, in order.

            Those that the row begins or ends in are listed too, unless `are_whole` says that there are none.
            """
            words = cuda.local.array(_WORDS, u32)
            for at in range(_AHEAD):
                load(words, at, address, position, at, count)
            bounds = bounds_of(key, formats[1])
            unfolding = unfolding_of(formats[0], False)
            end = shared_address(found)
            number = lane
            for vector in range(SEGMENT_VECTORS_PER_LANE):
                at = vector % _AHEAD
                lanes = lanes_found(words, 4 * at, bounds, unfolding)
                # Where it was, the lane loads another one.
                if vector + _AHEAD < SEGMENT_VECTORS_PER_LANE:
                    load(words, at, address, position, vector + _AHEAD, count)
                if not are_whole:
                    first = position + vector * (32 * per_vector)
                    is_whole = 0 <= first <= count - per_vector
                    is_part = not is_whole and -per_vector < first < count
                    lanes = (lanes & ballot(is_whole)) | ballot(is_part)
                place = end + (popcount_u32(lanes & lanes_below()) << 2)
                store_shared_if_u32(place, number, (lanes >> lane) & 1)
                end += popcount_u32(lanes) << 2
                number += 32
            return (end - shared_address(found)) >> 2

        return find_vectors

    find_whole_vectors, find_vectors = make_find_vectors(True), make_find_vectors(False)

    @linked_function
    def load_vector(words, at, base, step, position, count):
        """Load the elements of a vector that the row has; return one bit for each of these."""
        exist = u32(vector_mask)
        if step == element_size and 0 <= position <= count - per_vector:
            words[at], words[at + 1], words[at + 2], words[at + 3] = load_u32x4(base + position * step)
        else:
            exist = u32(0)
            for word in range(4):
                words[at + word] = u32(0)
            for element in range(per_vector):
                if 0 <= position + element < count:
                    bits = load_element(base + (position + element) * step)
                    exist |= u32(1 << element)
                    if element_size == 8:
                        words[at + 2 * element] = u32(bits)
                        words[at + 2 * element + 1] = u32(bits >> 32)
                    else:
                        word = at + element * element_size // 4
                        words[word] |= bits << u32(element * element_size % 4 * 8)
        return exist

    @linked_function
    def load_found(words, marks, numbers, segment_vectors, at, located, limits, unfolding):
        """Load the next vectors of each lane that were found, and mark their candidates; count these.

        They are above the threshold, or equal it in one of the segment's first `n_with_equals` vectors.
        """
        found, n_found, first = segment_vectors
        base, step, count = located
        threshold, above_threshold, has_above, n_with_equals = limits
        for turn in range(_KEPT):
            position = i64(count)
            numbers[turn] = u32(0)
            if at + u32(turn * 32) < n_found:
                numbers[turn] = found[at + u32(turn * 32)]
                position = first + i64(numbers[turn] * per_vector)
            marks[turn] = load_vector(words, 4 * turn, base, step, position, count)
        amount = u32(0)
        for turn in range(_KEPT):
            least = above_threshold
            if numbers[turn] < n_with_equals:
                least = threshold
            elif not has_above:
                marks[turn] = u32(0)
            marks[turn] &= at_or_above(words, 4 * turn, least, unfolding, False)
            amount += popcount_u32(marks[turn])
        return amount

    @device_function
    def word_of(words, at, number):
        word = words[at]
        for other in range(1, 4):
            if number == other:
                word = words[at + other]
        return word

    @device_function
    def element_of(words, at, number):
        """Return an element of a vector, four words."""
        if element_size == 8:
            element = join_u32(words[at], words[at + 1])
            if number != 0:
                element = join_u32(words[at + 2], words[at + 3])
        elif element_size == 4:
            element = word_of(words, at, number)
        else:
            element = (word_of(words, at, number >> 1) >> ((number & 1) << 4)) & 0xFFFF
        return element

    @linked_function
    def write_marked(words, at, marks, position, lists, place, key_format):
        """Write the marked elements of each lane's vector, in order; return the place after them."""
        row_keys, row_lows = lists
        amount = popcount_u32(marks)
        through = warp_inclusive_sum(amount)
        slot = i64(place + through - amount)
        while marks != 0:
            number = trailing_zeros_u32(marks)
            marks &= marks - 1
            store_key(row_keys + slot * key_bytes, ordered_key(element_of(words, at, number), key_format))
            store_u32(row_lows + slot * 4, ~(position + number))
            slot += 1
        return place + shuffle_from_u32(through, u32(31))

    @linked_function
    def write_whole(words, at, position, lists, place, lane, key_format):
        """Write all elements of each lane's vector; return the place after them."""
        row_keys, row_lows = lists
        slot = i64(place + lane * per_vector)
        for number in range(per_vector):
            key = ordered_key(element_of(words, at, number), key_format)
            store_key(row_keys + (slot + number) * key_bytes, key)
            store_u32(row_lows + (slot + number) * 4, ~(position + u32(number)))
        return place + 32 * per_vector

    @cuda.jit(max_registers=_LISTING_REGISTERS)
    def list_candidates(x, lengths, states, segments, keys, lows, offsets, p: SampledParameters):
        grid_dependency_wait()
        all_found = cuda.shared.array(n_entries, u32)
        lane = u32(cuda.threadIdx.x) & 31
        warp = u32(cuda.threadIdx.x) >> 5
        # Of all rows the first segments first: their equals are taken first.
        unit = u32(p.first_block) + u32(cuda.blockIdx.x)
        tile = unit // u32(p.n_rows)
        row = i64(unit - tile * u32(p.n_rows))
        segment = i64(tile * LISTING_WARPS + warp)
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.strides.x * element_size
        first = segment * n_elements
        if p.strides.x == 1:
            # A row's first segment begins with the vector that its first element is in.
            first -= (base & (VECTOR_BYTES - 1)) // element_size
        if first < count:
            found = shared_from(all_found, warp * SEGMENT_VECTORS)
            state = states + row * ROW_STATE_BYTES
            key = key_type(load_u64(state))
            equals_end = i64(load_u32(state + EQUALS_END))
            has_above = key < last_key(p.key_format)
            address = base + first * element_size + lane * VECTOR_BYTES
            lane_position = first + i64(lane * per_vector)
            formats = (p.unfolded_format, p.key_format)
            least = key
            if first >= equals_end and has_above:
                least += 1
            n_found = u32(SEGMENT_VECTORS)
            if p.strides.x != 1:
                for at in range(SEGMENT_VECTORS_PER_LANE):
                    found[u32(at * 32) + lane] = u32(at * 32) + lane
            elif 0 <= first <= count - n_elements:
                n_found = find_whole_vectors(found, address, lane_position, count, least, formats, lane)
            else:
                n_found = find_vectors(found, address, lane_position, count, least, formats, lane)
            if first >= equals_end and not has_above:
                n_found = u32(0)
            cuda.syncwarp()

            # Count the candidates of these vectors; the first vectors are kept.
            words = cuda.local.array(_KEPT_WORDS, u32)
            marks = cuda.local.array(_KEPT, u32)
            numbers = cuda.local.array(_KEPT, u32)
            other_words = cuda.local.array(_KEPT_WORDS, u32)
            other_marks = cuda.local.array(_KEPT, u32)
            other_numbers = cuda.local.array(_KEPT, u32)
            limits = (
                unfold_threshold(key, p.key_format),
                unfold_next_above(key, p.key_format),
                has_above,
                u32(min(max(equals_end - first + (per_vector - 1), 0) // per_vector, SEGMENT_VECTORS)),
            )
            unfolding = unfolding_of(p.unfolded_format, False)
            located = (base, step, count)
            segment_vectors = (found, n_found, first)
            n_listed = load_found(words, marks, numbers, segment_vectors, lane, located, limits, unfolding)
            start = u32(_KEPT * 32)
            while start < n_found:
                n_listed += load_found(
                    other_words,
                    other_marks,
                    other_numbers,
                    segment_vectors,
                    start + lane,
                    located,
                    limits,
                    unfolding,
                )
                start += u32(_KEPT * 32)
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
                lists = (keys + row * p.n_slots * key_bytes, lows + row * p.n_slots * 4)
                for turn in range(_KEPT):
                    place = write_marked(
                        words,
                        4 * turn,
                        marks[turn],
                        u32(first) + numbers[turn] * per_vector,
                        lists,
                        place,
                        p.key_format,
                    )
                start = u32(_KEPT * 32)
                while start < n_found:
                    load_found(
                        other_words,
                        other_marks,
                        other_numbers,
                        segment_vectors,
                        start + lane,
                        located,
                        limits,
                        unfolding,
                    )
                    for turn in range(_KEPT):
                        position = u32(first) + other_numbers[turn] * per_vector
                        if ballot(other_marks[turn] != vector_mask) == 0:
                            place = write_whole(
                                other_words, 4 * turn, position, lists, place, lane, p.key_format
                            )
                        else:
                            place = write_marked(
                                other_words,
                                4 * turn,
                                other_marks[turn],
                                position,
                                lists,
                                place,
                                p.key_format,
                            )
                    start += u32(_KEPT * 32)

    return list_candidates
