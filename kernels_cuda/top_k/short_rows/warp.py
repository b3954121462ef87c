"""One warp per row, the row in registers: for k <= 32 and rows of a few hundred elements.

1. Load the row; every lane keeps its unfolded keys (`keys`) in registers.
2. Take the largest of the lanes' two maxima each away k times: what was taken last is a threshold that at
   least k keys are at or above, and all that have the same ordered key.
3. Rank the few at or above it by counting, in shared memory, by (ordered key, position). By index, the first
   k set a bit for their position, and follow those whose bits come before theirs.

Of short rows it can rank all, for any k; then there is no threshold.

If many more are at or above the threshold, those above it are taken and the first that equal it; if even
those above do not fit, the selected ones one by one: the largest key of the warp, and of the lanes that hold
it the smallest position. Reads the row once, writes k values and indices.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import dynamic_shared_array, linked_function, target_capability
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.long_rows import begin_beside_others
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.unaligned import extent_function
from kernels_cuda.top_k.short_rows.slots import COMPARED, Slots, slot_functions
from kernels_cuda.top_k.short_rows.warp_launches import WARP_KERNEL_THREADS, WARP_KERNEL_WARPS, WARP_LARGEST_K

_NOWHERE = 0xFFFFFFFF
# By the keys of a lane: three and six blocks share a multiprocessor. Keys of 8 bytes would spill.
_REGISTERS = {32: 80, 8: 40}
# Up to 1.5 k plus so many pairs are ranked; with more, ties with the threshold are left out first.
_SPARE = 16


def warp_kernel(element_size: int, n_vectors: int) -> Any:
    """Make the kernel for rows of up to ``n_vectors * 512 // element_size`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    fold = functions.fold
    first_of_equals = functions.first_of_equals
    unfold_next_above = functions.unfold_next_above
    spread_unfolded_keys = functions.spread_unfolded_keys
    restore = functions.restore
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    extent_of = extent_function(element_size)
    warp_max = warp_maximum(key_type)
    per_vector = VECTOR_BYTES // element_size
    per_lane = n_vectors * per_vector
    pass_elements = 32 * per_vector
    n_ahead = min(n_vectors, 4)
    n_words = 4 * n_ahead

    slot_type, put_slot, take_slot, count_larger, mark_selected = slot_functions(element_size, key_type)

    @linked_function
    def position_of(lane_first, place):
        """Return where in the row a lane's key number `place` is."""
        vector = u32(place) // per_vector
        return lane_first + vector * pass_elements + u32(place) % per_vector

    @linked_function
    def keys_at_or_above(unfolded_keys, threshold, lane_first, count):
        """Return one bit per key of this lane, set for those of the row at or above the threshold."""
        live = u32(0)
        for place in range(per_lane):
            if unfolded_keys[place] >= threshold and position_of(lane_first, place) < count:
                live |= 1 << u32(place)
        return live

    @linked_function
    def marked_at_or_above(live, unfolded_keys, threshold):
        """Return the marks of those keys that are at or above a higher threshold, too."""
        below = u32(0)
        for place in range(per_lane):
            if unfolded_keys[place] < threshold:
                below |= 1 << u32(place)
        return live & ~below

    @linked_function
    def load_row(unfolded_keys, row, extent, lane_first, p):
        """Load a lane's elements of a row, and make unfolded keys of them; places outside the row get 0.

        `row` is ``(base, first, end)``: positions count from the address `base`, and the row lies at those
        from `first` up to `end`.
        """
        base, first, end = row
        words = cuda.local.array(n_words, u32)
        vector_words = cuda.local.array(4, u32)
        unfolding = unfolding_of(p.unfolded_format, False)
        in_vectors = p.strides.x == 1 and (base & (VECTOR_BYTES - 1)) == 0
        # The first vector may begin before the row, and the last one end behind it, if that is still in x.
        first_whole = first
        if base >= extent[0]:
            first_whole = u32(0)
        end_whole = (end + u32(per_vector - 1)) // u32(per_vector) * u32(per_vector)
        if base + i64(end_whole) * element_size > extent[1]:
            end_whole = end
        for begin in range(0, n_vectors, n_ahead):
            for ahead in range(n_ahead):
                position = lane_first + u32((begin + ahead) * pass_elements)
                is_whole = in_vectors and first_whole <= position and position + per_vector <= end_whole
                word = 4 * ahead
                words[word], words[word + 1], words[word + 2], words[word + 3] = ptx.load_if_u32x4(
                    base + i64(position) * element_size, is_whole
                )
            for ahead in range(n_ahead):
                place = (begin + ahead) * per_vector
                position = lane_first + u32((begin + ahead) * pass_elements)
                for word in range(4):
                    vector_words[word] = words[4 * ahead + word]
                spread_unfolded_keys(vector_words, unfolded_keys, place, unfolding)
                for element in range(per_vector):
                    if position + u32(element) >= end:
                        unfolded_keys[place + element] = key_type(0)
                is_whole = in_vectors and first_whole <= position and position + per_vector <= end_whole
                if position < end and not is_whole:
                    for element in range(per_vector):
                        if first <= position + u32(element) < end:
                            address = base + i64(position + u32(element)) * p.strides.x * element_size
                            unfolded_keys[place + element] = unfolded_element(
                                load_element(address), unfolding
                            )
        for element in range(per_vector - 1):
            if lane_first + u32(element) < first:
                unfolded_keys[element] = key_type(0)

    @linked_function
    def two_maxima(unfolded_keys):
        """Return the maxima of both halves of a lane's keys, the larger one first."""
        one = key_type(0)
        other = key_type(0)
        for place in range(0, per_lane, 2):
            one = max(one, unfolded_keys[place])
            other = max(other, unfolded_keys[place + 1])
        return max(one, other), min(one, other)

    @linked_function
    def threshold_of(maxima, n_selected, p):
        """Return the least unfolded key of elements that equal the last of `n_selected` maxima.

        A round takes equal maxima of several lanes together.
        """
        best, next_best = maxima
        threshold = key_type(0)
        taken = u32(0)
        if n_selected > WARP_LARGEST_K:
            taken = n_selected
        while taken < n_selected:
            threshold = warp_max(best)
            if best == threshold:
                best = next_best
                next_best = key_type(0)
            taken += 1
        if n_selected <= WARP_LARGEST_K:
            threshold = first_of_equals(threshold, p.key_format)
        return threshold

    @linked_function
    def exact_threshold_of(maxima, n_selected):
        """Return the last of `n_selected` maxima, counting equal ones each, and the highest."""
        larger, smaller = maxima
        highest = warp_max(larger)
        threshold = key_type(0)
        taken = u32(0)
        while taken < n_selected:
            threshold = warp_max(larger)
            is_taken = larger == threshold
            if is_taken:
                larger = smaller
                smaller = key_type(0)
            taken += ptx.popcount_u32(ptx.ballot(is_taken))
        return threshold, highest

    @linked_function
    def first_of_ties(kept, ties, n_before, n_found):
        """Add the marks of the first ties with the threshold, until `n_found` are marked."""
        for vector in range(n_vectors):
            if n_before < n_found:
                mask = u32(((1 << per_vector) - 1) << (vector * per_vector))
                amount = ptx.popcount_u32(ties & mask)
                through = ptx.warp_inclusive_sum(amount)
                tie = n_before + through - amount
                for element in range(per_vector):
                    is_tie = ties & u32(1 << (vector * per_vector + element))
                    if is_tie != 0 and tie < n_found:
                        kept |= is_tie
                        tie += 1
                n_before += ptx.shuffle_from_u32(through, u32(31))
        return kept

    @linked_function
    def keep_fewer(unfolded_keys, live, maxima, n_selected, p):
        """Keep the keys above the last of `n_selected` maxima, and the first ones that equal it.

        Returns the marks of keys at or above that threshold, the marks of kept ones, how many are above it,
        and how many are kept.
        """
        threshold, highest = exact_threshold_of(maxima, n_selected)
        is_highest = threshold == highest
        threshold = first_of_equals(threshold, p.key_format)
        live = marked_at_or_above(live, unfolded_keys, threshold)
        kept = u32(0)
        if not is_highest:
            threshold_key = fold(threshold, p.key_format)
            next_above = unfold_next_above(threshold_key, p.key_format)
            if next_above != 0 or threshold == 0:
                kept = marked_at_or_above(live, unfolded_keys, next_above)
        n_above = ptx.warp_add(ptx.popcount_u32(kept))
        n_found = max(n_above, n_selected)
        return live, first_of_ties(kept, live ^ kept, n_above, n_found), n_above, n_found

    @linked_function
    def store_kept(slots, first_slot, slot, unfolded_keys, kept, lane, n_found, p):
        """Store the kept pairs, of ordered keys: a lane's from `slot` on, the warp's from `first_slot` on."""
        for place in range(per_lane):
            is_kept = (kept >> u32(place)) & 1
            position = position_of(lane * per_vector, place)
            put_slot(slots, slot, unfolded_keys[place], position, is_kept)
            slot += is_kept
        cuda.syncwarp()
        own = lane
        while own < n_found:
            slot = first_slot + own
            unfolded, position = take_slot(slots, slot)
            put_slot(slots, slot, fold(unfolded, p.key_format), position, True)
            own += 32

    @linked_function
    def store_one_by_one(slots, first_slot, unfolded_keys, live, lane_first, n_selected, p):
        """Store the first `n_selected` of the marked pairs, in order."""
        for place in range(per_lane):
            unfolded_keys[place] = fold(unfolded_keys[place], p.key_format)
        taken = u32(0)
        while taken < n_selected:
            best = key_type(0)
            best_place = u32(_NOWHERE)
            for place in range(per_lane):
                is_live = (live >> u32(place)) & 1 != 0
                if is_live and (best_place == _NOWHERE or unfolded_keys[place] > best):
                    best = unfolded_keys[place]
                    best_place = u32(place)
            selected_key = warp_max(best)
            position = u32(_NOWHERE)
            if best_place != _NOWHERE and best == selected_key:
                position = position_of(lane_first, best_place)
            selected_position = ptx.warp_min(position)
            is_selected = position == selected_position
            put_slot(slots, first_slot + taken, selected_key, position, is_selected)
            if is_selected:
                live &= ~(1 << best_place)
            taken += 1

    # Older devices might have to spill.
    is_limited = element_size < 8 and target_capability() >= (9, 0)

    @cuda.jit(max_registers=_REGISTERS.get(per_lane) if is_limited else None)
    def warp_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, is_by_index, n_slots):
        if p.window_format.most < p.axis_size:
            begin_beside_others()
        else:
            ptx.grid_dependency_wait()
        slot_keys = dynamic_shared_array(slot_type)
        marks = cuda.shared.array(WARP_KERNEL_THREADS, u32)
        n_earlier = cuda.shared.array(WARP_KERNEL_THREADS, u32)
        slot_positions = ptx.shared_from(dynamic_shared_array(u32), 2 * WARP_KERNEL_WARPS * n_slots)
        slots = Slots(slot_keys, slot_positions)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        row = (p.first + i64(cuda.blockIdx.x)) * WARP_KERNEL_WARPS + i64(warp)
        if row >= p.n_rows:
            return
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        if length > p.window_format.most:
            return
        n_selected = min(u32(p.k), u32(length))
        # Positions count from the boundary before a row, if there is room for what lies between.
        first = u32(0)
        if p.strides.x == 1:
            first = u32(base & (VECTOR_BYTES - 1)) // u32(element_size)
        if u32(length) + first > 32 * per_lane:
            first = u32(0)
        base -= i64(first) * element_size
        row_end = u32(length) + first
        outputs = RowIndices(indices.address, indices.start - i64(first))

        # Element e of vector v of a lane is at (32 * v + lane) * per_vector + e.
        unfolded_keys = cuda.local.array(per_lane, key_type)
        lane_first = lane * per_vector
        load_row(unfolded_keys, (base, first, row_end), extent_of(x, p), lane_first, p)

        maxima = two_maxima(unfolded_keys)
        threshold = threshold_of(maxima, n_selected, p)
        live = keys_at_or_above(unfolded_keys, threshold, lane_first, row_end)
        if lane == 0:
            live &= ~((u32(1) << first) - 1)
        kept = live
        amount = ptx.popcount_u32(kept)
        through = ptx.warp_inclusive_sum(amount)
        n_found = ptx.shuffle_from_u32(through, u32(31))
        fits = True
        enough = u32(n_slots)
        if n_selected <= WARP_LARGEST_K:
            enough = min(enough, n_selected + (n_selected >> 1) + _SPARE)
        if n_found > enough:
            live, kept, n_above, n_found = keep_fewer(unfolded_keys, live, maxima, n_selected, p)
            fits = n_above <= u32(n_slots)
            amount = ptx.popcount_u32(kept)
            through = ptx.warp_inclusive_sum(amount)
        first_slot = warp * u32(n_slots)
        if fits:
            slot = first_slot + (through - amount)
            store_kept(slots, first_slot, slot, unfolded_keys, kept, lane, n_found, p)
        else:
            store_one_by_one(slots, first_slot, unfolded_keys, live, lane_first, n_selected, p)
            n_found = n_selected

        # No filler behind the pairs is larger than any of them.
        filler = n_found + lane
        is_filler = lane < COMPARED and filler < u32(n_slots)
        put_slot(slots, first_slot + filler, key_type(0), u32(_NOWHERE), is_filler)
        marks[thread] = u32(0)
        cuda.syncwarp()
        if is_by_index != 0:
            # A bit for the position of each that is selected; a lane counts those before its word.
            own_marks = ptx.shared_address(marks) + ((thread & ~u32(31)) << 2)
            mark_selected(slots, first_slot, n_found, n_selected, own_marks, lane, u32(WARP_LANES))
            cuda.syncwarp()
            amount = ptx.popcount_u32(marks[thread])
            n_earlier[thread] = ptx.warp_inclusive_sum(amount) - amount
            cuda.syncwarp()
        own = lane
        while own < n_found:
            key, position = take_slot(slots, first_slot + own)
            if is_by_index != 0:
                word = thread - lane + (position >> 5)
                marked = marks[word] << (~position & 31)
                rank = n_selected
                if marked >> 31 != 0:
                    rank = n_earlier[word] + ptx.popcount_u32(marked) - 1
            else:
                rank = count_larger(slots, first_slot, first_slot + n_found, key, position)
            if rank < n_selected:
                bits = restore(key, p.key_format, base + i64(position) * p.strides.x * element_size)
                write_result(values, outputs, rank, bits, i64(position), p)
            own += 32
        pad_results(values, outputs, n_selected + lane, WARP_LANES, p.k, p)

    return warp_top_k
