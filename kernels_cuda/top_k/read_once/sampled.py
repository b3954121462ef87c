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

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.read_once.marks import mark_functions
from kernels_cuda.top_k.read_once.sampled_launches import (
    LISTING_WARPS,
    LISTING_WORDS,
    ROW_STATE_BYTES,
    SEGMENT_BYTES,
    SEGMENT_VECTORS,
    SEGMENT_VECTORS_PER_LANE,
    STAGE_ALIGNMENT,
    Listed,
    SampledParameters,
    segment_elements,
)
from kernels_cuda.top_k.read_once.sampled_threshold import EQUALS_END, LISTED
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.rows import row_offsets, row_window
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES, group_key_bytes

_LISTING_REGISTERS = 64
_WARP_BYTES = WARP_LANES * VECTOR_BYTES
_STAGE_BYTES = SEGMENT_VECTORS * VECTOR_BYTES
# A lane marks neighbouring vectors.
_OWN_BYTES = SEGMENT_VECTORS_PER_LANE * VECTOR_BYTES
# So many marked elements of a segment take longer if each lane writes its own.
_MANY_MARKED = 256


def list_kernel(element_size: int) -> Any:
    """Make the kernel that lists candidates."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    unfolding_of = functions.unfolding_of
    marking = mark_functions(element_size)
    bound_of, bound_above = marking.bound_of, marking.bound_above
    marks_at_or_above, marks_before = marking.marks_at_or_above, marking.marks_before
    mark_type, n_marks, first_mark = marking.mark_type, marking.count, marking.first
    swizzled, element_address = marking.swizzled, marking.element_address
    key_bytes = group_key_bytes(element_size)
    store_key = ptx.STORE[key_bytes]
    load_shared_element = ptx.LOAD_SHARED[element_size]
    per_vector = VECTOR_BYTES // element_size
    n_elements = segment_elements(element_size)
    # Each lane marks so many neighbouring elements.
    n_own = n_elements // WARP_LANES
    shuffle_marks = ptx.shuffle_from_u64 if mark_type is u64 else ptx.shuffle_from_u32

    @device_function
    def start_segment(stage, base, position, limit, lane):
        """Start copying a lane's share of a segment, every 32nd vector; zeros for what is no whole vector."""
        address = base + position * element_size
        for vector in range(SEGMENT_VECTORS_PER_LANE):
            is_whole = u32(position) + u32(vector * WARP_LANES * per_vector) < limit
            ptx.copy_async_first_bytes(
                stage + swizzled(lane * VECTOR_BYTES + u32(vector * _WARP_BYTES)),
                address + vector * _WARP_BYTES,
                u32(is_whole) * VECTOR_BYTES,
            )

    @linked_function
    def load_parts(stage, base, position, count, limit, lane):
        """Load those of the lane's share that the row begins or ends in, with zeros for what is not in it."""
        words = cuda.local.array(4, u32)
        offset = lane * VECTOR_BYTES
        while offset < _STAGE_BYTES:
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
                ptx.store_shared_u32x4(stage + swizzled(offset), words[0], words[1], words[2], words[3])
            offset += _WARP_BYTES
            position += WARP_LANES * per_vector

    @linked_function
    def write_marked(own, marks, position, slot, lists):
        """Write a lane's marked elements one after the other."""
        elements, lows = lists
        while marks != 0:
            number = first_mark(marks)
            marks &= marks - 1
            store_key(elements + i64(slot) * key_bytes, load_shared_element(element_address(own, number)))
            ptx.store_u32(lows + i64(slot) * 4, ~(position + number))
            slot += 1

    @linked_function
    def write_many(stage, marks, position, slot, lists, lane):
        """Do the same for a segment of which many are marked, neighbours together."""
        elements, lows = lists
        element = lane
        while element < n_elements:
            owner, number = element // u32(n_own), element % u32(n_own)
            of_owner = shuffle_marks(marks, owner)
            at = ptx.shuffle_from_u32(slot, owner)
            at += n_marks(of_owner & ((mark_type(1) << mark_type(number)) - 1))
            if (of_owner >> mark_type(number)) & 1 != 0:
                own = stage + swizzled(owner * _OWN_BYTES)
                store_key(elements + i64(at) * key_bytes, load_shared_element(element_address(own, number)))
                ptx.store_u32(lows + i64(at) * 4, ~(position + element))
            element += WARP_LANES

    @cuda.jit(max_registers=_LISTING_REGISTERS)
    def list_candidates(
        x, windows: Windows, states, listed: Listed, offsets, p: RowParameters, m: SampledParameters
    ):
        stages = cuda.shared.array(LISTING_WORDS, u32, STAGE_ALIGNMENT)
        lane = u32(cuda.threadIdx.x) & 31
        warp = u32(cuda.threadIdx.x) >> 5
        # First segments of all rows come first, then second ones: so few warps append to one list at a time.
        unit = u32(p.first) + u32(cuda.blockIdx.x)
        tile = unit // u32(m.n_rows)
        row = m.first_row + i64(unit - tile * u32(m.n_rows))
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        start, count = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        base = x + (x_row + start) * element_size
        # Vectors that begin before this are whole, unless they begin before the row.
        limit = u32(max(count - (per_vector - 1), 0))
        segment = i64(tile * LISTING_WARPS + warp)
        step = i64(m.n_listing * LISTING_WARPS)
        # A row's first segment begins with the vector that its first element is in.
        first = segment * n_elements - (base & (VECTOR_BYTES - 1)) // element_size
        step_elements = step * n_elements
        copied = i64(lane * per_vector)
        own_first = lane * n_own

        # While a segment is listed, the next one is on its way; the first one before the threshold is known.
        stage = ptx.shared_address(stages) + warp * (2 * _STAGE_BYTES)
        other_stage = stage + _STAGE_BYTES
        if first < count:
            start_segment(stage, base, first + copied, limit, lane)
        ptx.copy_async_end_group()
        ptx.grid_dependency_wait()
        state = states + row * ROW_STATE_BYTES
        key = key_type(ptx.load_u64(state))
        equals_end = i64(ptx.load_u32(state + EQUALS_END))
        unfolding = unfolding_of(p.unfolded_format, False)
        bound = bound_of(key, p.key_format)
        next_bound = bound_above(key, p.key_format)
        lists = (listed.elements + row * m.n_slots * key_bytes, listed.lows + row * m.n_slots * 4)
        while first < count:
            next_first = first + step_elements
            if next_first < count:
                start_segment(other_stage, base, next_first + copied, limit, lane)
            ptx.copy_async_end_group()
            ptx.copy_async_wait_but_last()
            are_whole = first >= 0 and u32(first) + u32(n_elements - per_vector) < limit
            if not are_whole:
                load_parts(stage, base, first + copied, count, limit, lane)
            cuda.syncwarp()

            # Mark the elements above the threshold and, up to a position, those that equal it.
            own = stage + swizzled(lane * _OWN_BYTES)
            position = first + i64(own_first)
            marks = mark_type(0)
            if first < equals_end:
                marks = marks_at_or_above(own, bound, p.key_format, unfolding)
            if first + n_elements > equals_end:
                marks &= marks_before(equals_end - position)
                if next_bound.unfolded != 0:
                    marks |= marks_at_or_above(own, next_bound, p.key_format, unfolding)
            if not are_whole:
                marks &= marks_before(count - position) & ~marks_before(-position)
            amount = n_marks(marks)
            through = ptx.warp_inclusive_sum(amount)
            n_listed = ptx.shuffle_from_u32(through, u32(WARP_LANES - 1))

            # Take room in the row's list.
            place = u32(0)
            if lane == 0:
                if n_listed != 0:
                    place = ptx.atomic_add_u32(state + LISTED, n_listed)
                known = ptx.join_u32(place, n_listed)
                ptx.store_u64(listed.segments + (row * m.n_segments + segment) * SEGMENT_BYTES, known)
            place = ptx.shuffle_from_u32(place, u32(0))

            if place + n_listed <= u32(m.n_slots):
                slot = place + through - amount
                if n_listed < _MANY_MARKED:
                    write_marked(own, marks, u32(position), slot, lists)
                else:
                    write_many(stage, marks, u32(first), slot, lists, lane)
            # All lanes have read what is overwritten now.
            cuda.syncwarp()
            first = next_first
            segment += step
            stage, other_stage = other_stage, stage

    return list_candidates
