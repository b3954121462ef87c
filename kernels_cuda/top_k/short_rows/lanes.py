"""Some lanes of a warp for each short row, and a warp for longer ones: rows of up to 1024 elements.

1. Read the row; every lane keeps four maxima of its unfolded keys (`keys`).
2. Take the largest of the lanes' maxima away k times: what was taken last is a threshold that at least k keys
   are at or above.
3. Read the row again, which the L1 cache has by now, and store the pairs of (key, position) at or above the
   threshold in shared memory.
4. Rank each by counting those that come before it. By index, the first k set a bit for their position, and
   follow those whose bits come before theirs.

If more than there is room for are at or above the threshold, the key and the position of the last selected
element are found bit by bit, by counting, and the row is read once more. The warps of a block take its longer
rows one after the other; then each group of lanes selects from its own. Reads a row twice, writes k values
and indices.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import bits_before, warp_maximum
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import (
    device_function,
    dynamic_shared_array,
    linked_function,
    target_capability,
)
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.long_rows import begin_beside_others
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import row_window
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES, slot_bytes
from kernels_cuda.top_k.shared.unaligned import extent_function
from kernels_cuda.top_k.short_rows.lanes_launches import (
    LANE_MAXIMA,
    LANES_WARPS,
    ROW_LANES,
    ROWS_PER_BLOCK,
)
from kernels_cuda.top_k.short_rows.slots import COMPARED, Slots, slot_functions

_NOWHERE = 0xFFFFFFFF
# By the bytes of an element. Keys of 8 bytes need more registers, and so might older devices.
_REGISTERS = {1: 48, 2: 48, 4: 64}
# Rows have fewer elements than positions of so many bits.
_POSITION_BITS = 16


class Lanes(NamedTuple):
    """The lanes of a row: the number of this one, how many they are, and the first of them in the warp."""

    lane: Any
    count: Any
    first: Any


class RowBounds(NamedTuple):
    """Where a row lies: at the positions from `first` up to `end`, which count from the address `base`.

    Vectors that begin at `first_whole` or later and end at `end_whole` or before are read whole.
    """

    base: Any
    first: Any
    end: Any
    first_whole: Any
    end_whole: Any


def lanes_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    unfolding_of = functions.unfolding_of
    first_of_equals = functions.first_of_equals
    unfold_threshold = functions.unfold_threshold
    spread_unfolded_keys = functions.spread_unfolded_keys
    at_or_above = functions.at_or_above
    restore = functions.restore
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    extent_of = extent_function(element_size)
    per_vector = VECTOR_BYTES // element_size
    # Vectors that are loaded before the first is used; their elements have a bit each.
    n_ahead = min(4, 16 // per_vector)
    lane_bits = ROW_LANES.bit_length() - 1
    rows_per_warp = WARP_LANES // ROW_LANES
    warp_max = warp_maximum(key_type)
    shuffle_xor = ptx.SHUFFLE_XOR[key_type]
    key_bits = 8 * element_size

    @linked_function
    def row_max(value, lanes):
        """Return the largest value of the lanes of a row."""
        if lanes.count == WARP_LANES:
            value = warp_max(value)
        else:
            for step in range(lane_bits):
                value = max(value, shuffle_xor(value, u32(1 << step)))
        return value

    @linked_function
    def row_sum(value, lanes):
        """Return the sum of the values of the lanes of a row."""
        if lanes.count == WARP_LANES:
            value = ptx.warp_add(value)
        else:
            for step in range(lane_bits):
                value += ptx.shuffle_xor_u32(value, u32(1 << step))
        return value

    @device_function
    def pass_elements(lanes):
        """Return the elements from one vector of a lane to its next."""
        return lanes.count * u32(per_vector)

    n_slot_bytes = slot_bytes(element_size)

    @device_function
    def block_slots(lanes):
        """Return the number of a row's area in shared memory; a whole warp uses its first one."""
        own = u32(cuda.threadIdx.x) >> lane_bits
        if lanes.count == WARP_LANES:
            own = own & ~u32(rows_per_warp - 1)
        return own

    slot_type, put_slot, take_slot, count_larger, mark_selected = slot_functions(element_size, key_type)

    @linked_function
    def load_vectors(words, exist, row, first, lanes, p):
        """Load vectors of a lane from `first` on; `exist` gets a bit for each element that is in the row.

        Other elements are undefined.
        """
        for ahead in range(n_ahead):
            position = first + u32(ahead) * pass_elements(lanes)
            is_whole = row.first_whole <= position and position + per_vector <= row.end_whole
            words[ahead, 0], words[ahead, 1], words[ahead, 2], words[ahead, 3] = ptx.load_if_u32x4(
                row.base + i64(position) * element_size, is_whole
            )
        for ahead in range(n_ahead):
            position = first + u32(ahead) * pass_elements(lanes)
            n_before = max(row.first, position) - position
            n_inside = min(max(row.end, position) - position, u32(per_vector))
            exist[ahead] = ((u32(1) << n_inside) - 1) & ~((u32(1) << n_before) - 1)
            is_whole = row.first_whole <= position and position + per_vector <= row.end_whole
            if exist[ahead] != 0 and not is_whole:
                step = p.strides.x * element_size
                for word in range(4):
                    words[ahead, word] = u32(0)
                for element in range(per_vector):
                    if exist[ahead] >> u32(element) & 1 != 0:
                        bits = load_element(row.base + i64(position + u32(element)) * step)
                        at = element * element_size // 4
                        words[ahead, at] |= u32(bits) << u32(element * element_size % 4 * 8)
                        if element_size == 8:
                            words[ahead, at + 1] |= u32(u64(bits) >> 32)

    @linked_function
    def find_maxima(maxima, row, most, lanes, p):
        """Find maxima of a lane's unfolded keys, in descending order."""
        words = cuda.local.array((n_ahead, 4), u32)
        exist = cuda.local.array(n_ahead, u32)
        unfolded_keys = cuda.local.array(per_vector, key_type)
        unfolding = unfolding_of(p.unfolded_format, False)
        for number in range(LANE_MAXIMA):
            maxima[number] = key_type(0)
        first = lanes.lane * u32(per_vector)
        while first < most:
            load_vectors(words, exist, row, first, lanes, p)
            for ahead in range(n_ahead):
                if exist[ahead] != 0:
                    spread_unfolded_keys(words[ahead], unfolded_keys, 0, unfolding)
                    for element in range(per_vector):
                        if exist[ahead] >> u32(element) & 1 == 0:
                            unfolded_keys[element] = key_type(0)
                    for element in range(per_vector):
                        number = (ahead * per_vector + element) % LANE_MAXIMA
                        maxima[number] = max(maxima[number], unfolded_keys[element])
            first += u32(n_ahead) * pass_elements(lanes)
        for one, other in ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)):
            larger = max(maxima[one], maxima[other])
            maxima[other] = min(maxima[one], maxima[other])
            maxima[one] = larger

    @linked_function
    def threshold_of(maxima, n_rounds, lanes, p):
        """Return the least unfolded key of elements that equal the last of `n_rounds` maxima; 0 of no rounds.

        A round takes equal maxima of several lanes together.
        """
        threshold = key_type(0)
        most = ptx.warp_max(n_rounds)
        taken = u32(0)
        while taken < most:
            best = row_max(maxima[0], lanes)
            if taken < n_rounds:
                threshold = best
            if maxima[0] == best:
                for number in range(LANE_MAXIMA - 1):
                    maxima[number] = maxima[number + 1]
                maxima[LANE_MAXIMA - 1] = key_type(0)
            taken += 1
        if n_rounds > 0:
            threshold = first_of_equals(threshold, p.key_format)
        return threshold

    @linked_function
    def count_first(row, most, key, position, lanes, p):
        """Return how many elements of a row have a larger key, or this one and no later position."""
        count = u32(0)
        words = cuda.local.array((n_ahead, 4), u32)
        exist = cuda.local.array(n_ahead, u32)
        first = lanes.lane * u32(per_vector)
        while first < most:
            load_vectors(words, exist, row, first, lanes, p)
            for ahead in range(n_ahead):
                for element in range(per_vector):
                    at = element * element_size // 4
                    bits = key_type(words[ahead, at]) >> key_type(element * element_size % 4 * 8)
                    if element_size == 8:
                        bits |= key_type(words[ahead, at + 1]) << key_type(32)
                    if element_size < 4:
                        bits &= key_type((1 << key_bits) - 1)
                    own = ordered_key(bits, p.key_format)
                    own_position = first + u32(ahead) * pass_elements(lanes) + u32(element)
                    is_counted = own > key or (own == key and own_position <= position)
                    count += u32(is_counted) & (exist[ahead] >> u32(element))
            first += u32(n_ahead) * pass_elements(lanes)
        return row_sum(count, lanes)

    @linked_function
    def last_selected(row, most, n_selected, lanes, p):
        """Return the key and the position of the last of the first `n_selected` elements."""
        key = key_type(0)
        bit = u32(key_bits)
        while bit > 0:
            bit -= 1
            tried = key | (key_type(1) << key_type(bit))
            if count_first(row, most, tried, u32(_NOWHERE), lanes, p) >= n_selected:
                key = tried
        position = u32(0)
        bit = u32(_POSITION_BITS)
        while bit > 0:
            bit -= 1
            tried_position = position | (u32(1) << bit)
            if count_first(row, most, key, tried_position - 1, lanes, p) < n_selected:
                position = tried_position
        return key, position

    @linked_function
    def list_pairs(slots, room, row, most, bound, lanes, p):
        """Store the pairs at or above a threshold and not behind a last pair; return how many there are.

        `room` is ``(first slot, slots)`` of the row; further pairs are counted alone. `bound` is ``(unfolded
        threshold, last key, last position)``.
        """
        first_slot, n_slots = room
        threshold, last_key, last_position = bound
        unfolding = unfolding_of(p.unfolded_format, False)
        words = cuda.local.array((n_ahead, 4), u32)
        exist = cuda.local.array(n_ahead, u32)
        row_lanes = u32((u64(1) << u64(lanes.count)) - 1) << lanes.first
        n_found = u32(0)
        step = p.strides.x * element_size
        first = lanes.lane * u32(per_vector)
        # All lanes of the warp go on until the last one ends.
        while first - lanes.lane * u32(per_vector) < most:
            load_vectors(words, exist, row, first, lanes, p)
            live = u32(0)
            for ahead in range(n_ahead):
                if exist[ahead] != 0:
                    found = at_or_above(words[ahead], 0, threshold, unfolding, False) & exist[ahead]
                    live |= found << u32(ahead * per_vector)
            while ptx.ballot(live) != 0:
                place = ptx.trailing_zeros_u32(live)
                position = first + place // u32(per_vector) * pass_elements(lanes) + place % u32(per_vector)
                key = key_type(0)
                is_kept = live != 0
                if is_kept:
                    key = ordered_key(load_element(row.base + i64(position) * step), p.key_format)
                    is_kept = key > last_key or (key == last_key and position <= last_position)
                live &= live - 1
                kept = ptx.ballot(u32(is_kept)) & row_lanes
                slot = n_found + ptx.popcount_u32(kept & ptx.lanes_below())
                put_slot(slots, first_slot + slot, key, position, is_kept and slot < n_slots)
                n_found += ptx.popcount_u32(kept)
            first += u32(n_ahead) * pass_elements(lanes)
        return n_found

    @linked_function
    def find_bounds(x, base, length, p):
        """Return where a row lies; positions of contiguous elements count from the boundary of a vector."""
        first = u32(0)
        if p.strides.x == 1:
            first = u32(base & (VECTOR_BYTES - 1)) // u32(element_size)
        base -= i64(first) * element_size
        end = u32(length) + first
        # The first vector may begin before the row, and the last one end behind it, if that is still in x.
        x_begin, x_end = extent_of(x, p)
        first_whole = first
        if base >= x_begin:
            first_whole = u32(0)
        end_whole = (end + u32(per_vector - 1)) // u32(per_vector) * u32(per_vector)
        if base + i64(end_whole) * element_size > x_end:
            end_whole = end
        if p.strides.x != 1:
            end_whole = u32(0)
        return RowBounds(base, first, end, first_whole, end_whole)

    @linked_function
    def write_listed(slots, area, listed, outputs, row, lanes, p):
        """Write the first `n_selected` of `n_found` pairs, in order of value or of position.

        `area` is ``(first slot, address of marks)``: a bit for each selected position, or 0 by value.
        """
        first_slot, marks = area
        n_found, n_selected = listed
        values, row_indices = outputs
        own = lanes.lane
        while own < n_found:
            key, position = take_slot(slots, first_slot + own)
            if marks != 0:
                rank = n_selected
                word = ptx.load_shared_u32(marks + (position >> 5 << 2))
                if (word >> (position & 31)) & 1 != 0:
                    rank = bits_before(marks, position)
            else:
                rank = count_larger(slots, first_slot, first_slot + n_found, key, position)
            if rank < n_selected:
                bits = restore(key, p.key_format, row.base + i64(position) * p.strides.x * element_size)
                write_result(values, row_indices, rank, bits, i64(position), p)
            own += lanes.count

    @linked_function
    def select_row(operands, slots, block_row, is_served, lanes, p, m):
        """Select from a row of the block, or from none of its elements if it is not served.

        All lanes of the warp call. `m` is ``(n_words, n_slots)``.
        """
        x, windows, values, indices, offsets = operands
        n_words, n_slots = m
        number = (p.first + i64(cuda.blockIdx.x)) * ROWS_PER_BLOCK + i64(block_row)
        # All lanes of a warp go on together: those without a row read the last one.
        read_number = min(number, p.n_rows - 1)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, read_number, p)
        if not is_served:
            length = i64(0)
        n_selected = min(u32(p.k), u32(length))
        row = find_bounds(x, base, length, p)

        # Element e of vector v of a lane is at (lanes.count * v + lanes.lane) * per_vector + e.
        most = ptx.warp_max(row.end)
        maxima = cuda.local.array(LANE_MAXIMA, key_type)
        find_maxima(maxima, row, most, lanes, p)
        n_rounds = u32(0)
        if n_selected < u32(length):
            n_rounds = n_selected
        threshold = threshold_of(maxima, n_rounds, lanes, p)
        last_key = key_type(0)
        last_position = u32(_NOWHERE)
        first_slot = block_slots(lanes) * u32(n_slots)
        room = first_slot, u32(n_slots)
        listing = True
        n_found = u32(0)
        n_tried = u32(0)
        while listing:
            bound = threshold, last_key, last_position
            n_found = list_pairs(slots, room, row, most, bound, lanes, p)
            n_tried += 1
            listing = n_tried < 2 and ptx.ballot(u32(n_found > u32(n_slots))) != 0
            if listing:
                last_key, last_position = last_selected(row, most, n_selected, lanes, p)
                threshold = unfold_threshold(last_key, p.key_format)
        # Elements that have changed since may be too many, or missing.
        n_found = min(n_found, u32(n_slots))
        n_selected = min(n_selected, n_found)

        # No filler behind the pairs is larger than any of them.
        filler = n_found + lanes.lane
        is_filler = lanes.lane < COMPARED and filler < u32(n_slots)
        put_slot(slots, first_slot + filler, key_type(0), u32(_NOWHERE), is_filler)
        marks = u32(0)
        if n_words != 0:
            marks = ptx.shared_address(slots.keys) + u32(ROWS_PER_BLOCK * n_slots) * u32(n_slot_bytes)
            marks += block_slots(lanes) * u32(n_words) * u32(4)
            word = lanes.lane
            while word < u32(n_words):
                ptx.store_shared_u32(marks + (word << 2), u32(0))
                word += lanes.count
        cuda.syncwarp()
        if n_words != 0:
            mark_selected(slots, first_slot, n_found, n_selected, marks, lanes.lane, lanes.count)
            cuda.syncwarp()
        outputs = values, RowIndices(indices.address, indices.start - i64(row.first))
        write_listed(slots, (first_slot, marks), (n_found, n_selected), outputs, row, lanes, p)
        if is_served:
            pad_results(values, indices, min(i64(p.k), length) + i64(lanes.lane), lanes.count, p.k, p)
        # The next row uses the same shared memory.
        cuda.syncwarp()

    is_limited = target_capability() >= (9, 0)

    @cuda.jit(max_registers=_REGISTERS.get(element_size) if is_limited else None)
    def lanes_top_k(
        x, windows: Windows, values, indices, offsets, p: RowParameters, longest_short, n_words, n_slots
    ):
        if p.window_format.most < p.axis_size:
            begin_beside_others()
        else:
            ptx.grid_dependency_wait()
        operands = x, windows, values, indices, offsets
        slot_positions = ptx.shared_from(dynamic_shared_array(u32), 2 * ROWS_PER_BLOCK * n_slots)
        slots = Slots(dynamic_shared_array(slot_type), slot_positions)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        own_row = thread >> lane_bits
        number = (p.first + i64(cuda.blockIdx.x)) * ROWS_PER_BLOCK + i64(own_row)
        is_short = number < p.n_rows
        waiting = u32(0)
        if p.axis_size > longest_short:
            # A bit for each of the block's longer rows: each warp marks those of its lanes.
            marks = ptx.shared_address(cuda.shared.array(LANES_WARPS, u32))
            read_number = min(number, p.n_rows - 1)
            _, length = row_window(windows, p.layout, offsets, read_number, p.axis_size, p.window_format)
            is_long = is_short and longest_short < length <= p.window_format.most
            is_short = is_short and length <= longest_short
            own_bit = u32(is_long and thread & u32(ROW_LANES - 1) == 0) << own_row
            own_bits = ptx.warp_add(own_bit)
            if lane == 0:
                ptx.store_shared_u32(marks + (warp << 2), own_bits)
            cuda.syncthreads()
            if lane < LANES_WARPS:
                waiting = ptx.load_shared_u32(marks + (lane << 2))
            waiting = ptx.warp_add(waiting)
        n_skipped = warp
        going = True
        while going:
            while n_skipped > 0 and waiting != 0:
                waiting &= waiting - 1
                n_skipped -= 1
            going = waiting != 0
            if going:
                lanes = Lanes(lane, u32(WARP_LANES), u32(0))
                block_row, is_served = ptx.trailing_zeros_u32(waiting), True
                waiting &= waiting - 1
                n_skipped = u32(LANES_WARPS - 1)
            else:
                lanes = Lanes(lane & u32(ROW_LANES - 1), u32(ROW_LANES), lane & u32(32 - ROW_LANES))
                block_row, is_served = own_row, is_short
            select_row(operands, slots, block_row, is_served, lanes, p, (n_words, n_slots))

    return lanes_top_k
