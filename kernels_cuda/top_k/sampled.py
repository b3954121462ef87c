"""Batches of long rows: a threshold from a sample, one pass that lists what reaches it, an exact selection.

1. `choose_threshold`, one block per row: of a sample that is spread over the row, the element of a rank so
   low that surely at least k elements of the row are at or above it, and not many more.
2. `list_candidates`, one warp per segment of a row: read the row once, and list the elements above the
   threshold, and those that equal it as long as there is room for them. A segment takes room in its row's
   list by an atomic addition, and its candidates are in order there; what it has is written down.
3. `finish_row` (`sampled_finish`), one block per row: bring the candidates into shared memory by ascending
   position, and select the first k of them.

No data make this wrong. The last kernel counts what has been listed: where the sample has misled, it finds a
threshold by histograms of the row. Where the k-th element equals the threshold, it takes the first of its
equals, and reads again the segments whose equals had no room; few, for these are dense.

A row of no more elements than a list has room for gets the lowest threshold: all of it is listed.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    STORE,
    atomic_add_u32,
    grid_dependency_wait,
    load_u32x4,
    load_u64,
    popcount_u32,
    shuffle_from_u32,
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
from kernels_cuda.top_k.shapes import (
    LISTING_WARPS,
    ROW_STATE_BYTES,
    SEGMENT_BYTES,
    SEGMENT_VECTORS_PER_LANE,
    VECTOR_BYTES,
    group_key_bytes,
    segment_elements,
)
from kernels_cuda.top_k.threshold import N_COUNTERS, threshold_functions

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

import os
LIST_REGISTERS = int(os.environ.get('LIST_REGISTERS', 40))
# Where a row's state has its two counters, after the threshold: candidates listed, and equals.
LISTED, EQUALS = 8, 12
# What is known of a segment: the place of its first candidate, how many elements are above the threshold and
# how many equal it, and whether the latter are listed too.
ABOVE_SHIFT, EQUAL_SHIFT, COUNT_MASK, EQUALS_LISTED = 32, 48, 0x7FFF, 1 << 63
# Elements of a sample that lie together fill a sector of memory.
_SECTOR_BYTES = 32
_FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B1, 0x85EBCA77
# Vectors that a lane loads before it uses the first; their marks fit into 32 bits.
_AHEAD = 4
_N_MARKS = SEGMENT_VECTORS_PER_LANE // _AHEAD
_WORDS = 4 * _AHEAD


def sample_kernel(element_size: int, n_threads: int) -> Any:
    """Make the kernel that chooses thresholds in blocks of `n_threads`."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    _, block_extremes, find_threshold, _ = threshold_functions(n_threads, key_type)
    piece_bits = (_SECTOR_BYTES // element_size).bit_length() - 1
    ones = (1 << 8 * element_size) - 1

    @device_function
    def scattered(number):
        """Return a number's hash."""
        mixed = number * _FIRST_FACTOR
        mixed = (mixed ^ (mixed >> 15)) * _SECOND_FACTOR
        return mixed ^ (mixed >> 13)

    @linked_function
    def sample_position(number, sample_size, n_pieces):
        """Return where element `number` of the sample is, in a row of `n_pieces` pieces.

        The row has as many parts of equal size as the sample has pieces, and a piece is anywhere in its part.
        """
        piece = i64(number >> piece_bits)
        n_parts = sample_size >> piece_bits
        first = piece * n_pieces // n_parts
        width = (piece + 1) * n_pieces // n_parts - first
        first += (i64(scattered(u32(piece))) * width) >> 32
        return (first << piece_bits) + i64(number & ((1 << piece_bits) - 1))

    @cuda.jit
    def choose_threshold(x, lengths, states, offsets, p: SampledParameters):
        grid_dependency_wait()
        keys = cuda.shared.array(0, key_type, VECTOR_BYTES)
        histogram = cuda.shared.array(n_threads, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row = p.first_block + i64(cuda.blockIdx.x)
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.strides.x * element_size
        threshold = key_type(0)
        if count > p.n_slots:
            histogram[thread] = u32(0)
            prefix = i64(0)
            if p.strides.x == 1:
                prefix = (-base & (_SECTOR_BYTES - 1)) // element_size
            n_pieces = (count - prefix) >> piece_bits
            lowest = ~key_type(0)
            highest = key_type(0)
            number = thread
            while number < u32(p.sample_size):
                position = prefix + sample_position(number, p.sample_size, n_pieces)
                key = ordered_key(load_element(base + position * step), p.key_format)
                keys[number] = key
                lowest = min(lowest, key)
                highest = max(highest, key)
                number += n_threads
            lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
            # As `shapes.sample_rank` and `shapes.most_of_sample` have it.
            expected = (u32(p.sample_size) * u32(p.k) - 1) // u32(count) + 1
            rank = expected + (expected >> 2) + 33
            threshold, n_above, n_at_or_above = find_threshold(
                keys,
                u32(p.sample_size),
                lowest,
                highest,
                rank,
                rank + (rank >> 4),
                histogram,
                sums,
                counters,
                thread,
                lane,
                warp,
            )
            # Many equals are not to be listed if enough elements are above them, almost surely.
            is_crowded = n_at_or_above > rank + (rank >> 4)
            if is_crowded and n_above >= expected + (expected >> 3) + 29 and threshold != ones:
                threshold += 1
        if thread == 0:
            state = states + row * ROW_STATE_BYTES
            store_u64(state, u64(threshold))
            store_u32(state + LISTED, u32(0))
            store_u32(state + EQUALS, u32(0))

    return choose_threshold


def list_kernel(element_size: int) -> Any:
    """Make the kernel that lists candidates."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    at_or_above = functions.at_or_above
    key_bytes = group_key_bytes(element_size)
    store_key = STORE[key_bytes]
    per_vector = VECTOR_BYTES // element_size
    vector_mask = (1 << per_vector) - 1
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @linked_function
    def mark_whole(above, at_least, address, thresholds, unfolding):
        """Mark the elements of a lane's vectors: above the threshold, and at least as large."""
        words = cuda.local.array(_WORDS, u32)
        threshold, next_above, has_above = thresholds
        for group in range(_N_MARKS):
            for at in range(_AHEAD):
                word = 4 * at
                words[word], words[word + 1], words[word + 2], words[word + 3] = load_u32x4(
                    address + (group * _AHEAD + at) * 32 * VECTOR_BYTES
                )
            at_least[group] = u32(0)
            above[group] = u32(0)
            for at in range(_AHEAD):
                marks = at_or_above(words, 4 * at, threshold, unfolding, False)
                at_least[group] |= marks << u32(at * per_vector)
                marks = at_or_above(words, 4 * at, next_above, unfolding, False)
                above[group] |= marks << u32(at * per_vector)
            if not has_above:
                above[group] = u32(0)

    @linked_function
    def mark_elements(above, at_least, base, step, position, count, thresholds, unfolding):
        """Do the same for elements with gaps between, and where a row begins and ends."""
        threshold, next_above, has_above = thresholds
        for group in range(_N_MARKS):
            at_least[group] = u32(0)
            above[group] = u32(0)
        # Compilers do not see that this is the same; they would unroll the loop.
        n_vectors = shuffle_from_u32(u32(SEGMENT_VECTORS_PER_LANE), u32(0))
        vector = u32(0)
        while vector < n_vectors:
            first = vector & (_AHEAD - 1)
            for element in range(per_vector):
                at = position + element
                if 0 <= at < count:
                    unfolded = unfolded_element(load_element(base + at * step), unfolding)
                    bit = u32(1) << (first * per_vector + u32(element))
                    for group in range(_N_MARKS):
                        if vector // _AHEAD == group and unfolded >= threshold:
                            at_least[group] |= bit
                        if vector // _AHEAD == group and unfolded >= next_above and has_above:
                            above[group] |= bit
            position += 32 * per_vector
            vector += 1

    @linked_function
    def count_marks(marks):
        """Return how many marks the lanes of the warp have."""
        total = u32(0)
        for group in range(_N_MARKS):
            total += popcount_u32(marks[group])
        return warp_add(total)

    @linked_function
    def write_marked(marks, keys, lows, place, base, step, position, key_format):
        """Write the marked elements in order, from a place on; the lane's first one is at `position`."""
        for pair in range(SEGMENT_VECTORS_PER_LANE // 2):
            first = 2 * pair
            bits = marks[first // _AHEAD] >> u32(first % _AHEAD * per_vector)
            # The two vectors' counts travel in the halves of a word.
            amounts = popcount_u32(bits & vector_mask)
            amounts |= popcount_u32((bits >> per_vector) & vector_mask) << 16
            through = warp_inclusive_sum(amounts)
            totals = shuffle_from_u32(through, u32(31))
            before = through - amounts
            for half in range(2):
                left = (bits >> u32(half * per_vector)) & vector_mask
                at = place + ((before >> u32(16 * half)) & 0xFFFF)
                while left != 0:
                    marked = position + i64((first + half) * 32 * per_vector + trailing_zeros_u32(left))
                    left &= left - 1
                    key = ordered_key(load_element(base + marked * step), key_format)
                    store_key(keys + i64(at) * key_bytes, key)
                    store_u32(lows + i64(at) * 4, ~u32(marked))
                    at += 1
                place += (totals >> u32(16 * half)) & 0xFFFF

    @cuda.jit(max_registers=LIST_REGISTERS)
    def list_candidates(x, lengths, states, segments, keys, lows, offsets, p: SampledParameters):
        grid_dependency_wait()
        lane = u32(cuda.threadIdx.x) & 31
        # Of all rows the first segments first: their equals are taken first.
        unit = u32(p.first_block) + u32(cuda.blockIdx.x)
        tile = unit // u32(p.n_rows)
        row = i64(unit - tile * u32(p.n_rows))
        segment = i64(tile * LISTING_WARPS + (u32(cuda.threadIdx.x) >> 5))
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.strides.x * element_size
        first = segment * n_elements
        if p.strides.x == 1:
            # A row's first segment begins with the vector that its first element is in.
            first -= (base & (VECTOR_BYTES - 1)) // element_size
        if first < count:
            state = states + row * ROW_STATE_BYTES
            key = key_type(load_u64(state))
            thresholds = (
                unfold_threshold(key, p.key_format),
                unfold_next_above(key, p.key_format),
                key != ones,
            )
            unfolding = unfolding_of(p.unfolded_format, False)
            position = first + i64(lane * per_vector)
            above = cuda.local.array(_N_MARKS, u32)
            at_least = cuda.local.array(_N_MARKS, u32)
            if p.strides.x == 1 and first >= 0 and first + n_elements <= count:
                mark_whole(above, at_least, base + position * element_size, thresholds, unfolding)
            else:
                mark_elements(above, at_least, base, step, position, count, thresholds, unfolding)
            n_above = count_marks(above)
            n_equal = count_marks(at_least) - n_above
            place = u32(0)
            lists_equals = u32(1)
            if lane == 0:
                n_listed = n_above + n_equal
                if n_equal != 0 and atomic_add_u32(state + EQUALS, n_equal) + n_equal > u32(p.k):
                    lists_equals = u32(0)
                    n_listed = n_above
                if n_listed != 0:
                    place = atomic_add_u32(state + LISTED, n_listed)
                known = u64(place) | (u64(n_above) << ABOVE_SHIFT) | (u64(n_equal) << EQUAL_SHIFT)
                if lists_equals != 0:
                    known |= u64(EQUALS_LISTED)
                store_u64(segments + (row * p.n_segments + segment) * SEGMENT_BYTES, known)
            place = shuffle_from_u32(place, u32(0))
            n_listed = n_above + n_equal
            if shuffle_from_u32(lists_equals, u32(0)) == 0:
                n_listed = n_above
                for group in range(_N_MARKS):
                    at_least[group] = above[group]
            if n_listed != 0 and place + n_listed <= u32(p.n_slots):
                first_slot = row * p.n_slots
                write_marked(
                    at_least,
                    keys + first_slot * key_bytes,
                    lows + first_slot * 4,
                    place,
                    base,
                    step,
                    position,
                    p.key_format,
                )

    return list_candidates
