"""Elements are selected exactly: the results of `sort` in order of index, or what is then sorted.

1. `count_digit` takes twelve bits of the keys at a time, from the highest on: it counts these bits of all
   keys whose higher bits are those of the k-th key. The counts give the next bits of the k-th key.
2. `write_selected` reads the rows once more. It writes the elements above the k-th key, and the first ones
   that equal it, by ascending position. A tile finds the place of its own results as in `sort_digit`.

This reads a row once for each twelve bits, and once or twice more. The workspace holds no elements.

Results by value are sorted after that: pairs of a key and a position are written rather than results, and
their digits are counted. If there is room for all elements that share the first digits of the k-th key, no
more of its digits are counted, and the sort drops those beyond the k-th.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import part_of
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, WARP_LANES, pair_bytes
from kernels_cuda.top_k.sort.counting import counting_functions, loading_function, marks_function
from kernels_cuda.top_k.sort.select_launches import (
    DIGIT_COUNT_BYTES,
    KNOWN_BYTES,
    KNOWN_WORDS,
    SELECTED_BITS,
    SELECTED_WORDS,
    TILE_STATE_BYTES,
    SelectAreas,
    SelectParameters,
    n_selecting_passes,
)
from kernels_cuda.top_k.sort.sort import address_of
from kernels_cuda.top_k.sort.sort_launches import COUNTED_ELEMENTS, COUNTED_PER_THREAD, COUNTING_THREADS
from kernels_cuda.top_k.sort.sort_shape import KEEPING_ROUND, KEEPING_THREADS, KEPT_PER_THREAD, STATE_BYTES

_N_BINS = 1 << SELECTED_BITS
# The state of a tile: how many of its elements are above the k-th key, and how many equal it; whether that is
# known of the tile, or of all tiles up to it.
_SUM_BITS, _FLAG_SHIFT = 31, 62
_SUM = (1 << _SUM_BITS) - 1
_OF_TILE, _OF_ALL = 1, 2
_REGISTERS = 64


def known_function(element_size: int, n_threads: int) -> Any:
    """Make the device function that adds a digit to those of the k-th key that are known."""
    exclusive_sum = block_scan(n_threads)
    n_passes = n_selecting_passes(element_size)
    n_each = _N_BINS // n_threads
    key_bits = 8 * element_size

    @device_function
    def load_known(address, found):
        for at in range(KNOWN_WORDS):
            found[at] = ptx.load_u64(address + at * 8)

    @device_function
    def store_known(address, found):
        for at in range(KNOWN_WORDS):
            ptx.store_u64(address + at * 8, found[at])

    @linked_function
    def known_digits(areas, row, n_selected, s, is_writing, found, totals):
        """Find the first digits of the key of element number `n_selected`, complemented, in a shared array.

        After them come its rank among the keys with these digits, the number of elements up to the last of
        these, and the bits that are still unknown. If at most `s.capacity` elements come up to that, nothing
        more need be known. Return whether that is so.
        """
        thread = u32(cuda.threadIdx.x)
        number = s.number
        known = areas.known + (row * (n_passes + 1) + number) * KNOWN_BYTES
        most = u64(s.capacity)
        if thread == 0:
            found[0] = u64(0)
            found[1] = u64(n_selected)
            found[2] = ~u64(0)
            found[3] = u64(key_bits)
            if number > 1:
                load_known(known - KNOWN_BYTES, found)
        cuda.syncthreads()
        digits = found[0]
        needed = u32(found[1])
        if number > 0 and found[2] > most:
            amounts = cuda.local.array(n_each, u32)
            first = thread * u32(n_each)
            counted = (number - 1) * s.n_rows + row
            counts = areas.counts + (counted * _N_BINS + i64(first)) * DIGIT_COUNT_BYTES
            amount = u32(0)
            for at in range(n_each):
                amounts[at] = ptx.load_u32(counts + at * DIGIT_COUNT_BYTES)
                amount += amounts[at]
            through, _ = exclusive_sum(amount, thread, totals)
            shift = u64(max(key_bits - SELECTED_BITS * number, i64(0)))
            for at in range(n_each):
                before = through
                through += amounts[at]
                if before < needed <= through:
                    found[0] = digits | (u64(first + u32(at)) << shift)
                    found[1] = u64(needed - before)
                    found[2] = (n_selected - needed) + u64(through)
                    found[3] = shift
            cuda.syncthreads()
        if is_writing and thread == 0 and number > 0:
            store_known(known, found)
        return found[2] <= most

    return known_digits


def digit_kernel(element_size: int) -> Any:
    """Make `count_digit` for one width of elements."""
    functions = element_functions(element_size)
    key_type, ordered_key = functions.key_type, functions.ordered_key
    load_share = loading_function(element_size)
    find_row, _, _ = row_functions(element_size)
    known_digits = known_function(element_size, COUNTING_THREADS)
    shape = (1, SELECTED_BITS, 0)
    clear_counts, _, add_counts = counting_functions(key_type, shape, COUNTING_THREADS, DIGIT_COUNT_BYTES)
    n_warps = COUNTING_THREADS // WARP_LANES
    ones = (1 << 8 * element_size) - 1

    @cuda.jit(max_registers=32)
    def count_digit(x, windows: Windows, areas: SelectAreas, offsets, p: RowParameters, s: SelectParameters):
        ptx.grid_dependency_wait()
        histogram = cuda.shared.array(_N_BINS, u32)
        totals = cuda.shared.array(n_warps, u32)
        found = cuda.shared.array(KNOWN_WORDS, u64)
        counters = ptx.shared_address(histogram)
        thread = u32(cuda.threadIdx.x)
        row, part = part_of(i64(cuda.blockIdx.x), s.n_parts)
        base, _, _, length = find_row(x, windows, i64(0), i64(0), offsets, p.first + row, p)
        clear_counts(histogram, thread)
        if known_digits(areas, row, min(p.k, length), s, part == 0, found, totals):
            return
        digits = found[0]
        open_bits = 8 * element_size - SELECTED_BITS * s.number
        shift = key_type(max(open_bits - SELECTED_BITS, i64(0)))
        known_mask = key_type(0)
        if s.number != 0:
            known_mask = key_type(ones) >> key_type(open_bits) << key_type(open_bits)
        step = p.strides.x * element_size
        keys = cuda.local.array(COUNTED_PER_THREAD, key_type)
        first = part * COUNTED_ELEMENTS + i64(thread)
        while first < length:
            address = base + first * step
            n_left = u32(min(length - first, i64(COUNTED_ELEMENTS)))
            load_share(keys, address, step, n_left)
            for item in range(COUNTED_PER_THREAD):
                key = ordered_key(keys[item], p.key_format) ^ key_type(ones)
                counts = (key ^ key_type(digits)) & known_mask == 0
                counts = counts and u32(item * COUNTING_THREADS) < n_left
                bin = u32(key >> shift) & u32(_N_BINS - 1)
                ptx.count_shared_if(counters + (bin << 2), counts)
            first += s.n_parts * COUNTED_ELEMENTS
        cuda.syncthreads()
        add_counts(histogram, areas.counts, s.number * s.n_rows + row, thread)

    return count_digit


class Bounds(NamedTuple):
    """Unfolded keys of the elements that are marked: ties from `threshold` on, and others from `above` on.

    There are no others where `has_above` is 0.
    """

    threshold: Any
    above: Any
    has_above: Any


class TileFunctions(NamedTuple):
    """Device functions that mark the elements of a tile, and find how many earlier tiles have marked."""

    mark: Any
    announce: Any


def tile_functions(element_size: int) -> TileFunctions:
    """Make the functions for one width of elements."""
    functions = element_functions(element_size)
    key_type, load_element = functions.key_type, functions.load_element
    unfolded_element = functions.unfolded_element
    load_state, store_state = ptx.LOAD_RELAXED[TILE_STATE_BYTES], ptx.STORE_RELAXED[TILE_STATE_BYTES]
    n_warps = KEEPING_THREADS // WARP_LANES

    @device_function
    def state_of(flag, n_above, n_ties):
        return u64(n_above) | (u64(n_ties) << u64(_SUM_BITS)) | (u64(flag) << u64(_FLAG_SHIFT))

    @linked_function
    def sums_before(states, tile, lane):
        """Return the sums of the tiles before one; a warp asks for 32 of them at a time."""
        n_above = u32(0)
        n_ties = u32(0)
        before = tile - 1 - i64(lane)
        searching = tile > 0
        while searching:
            state = state_of(_OF_ALL, u32(0), u32(0))
            if before >= 0:
                state = load_state(states + before * TILE_STATE_BYTES)
            # The lanes up to the first one that has the sums of all tiles.
            have_all = ptx.ballot(state >> u64(_FLAG_SHIFT) == _OF_ALL)
            needed = have_all ^ (have_all - 1)
            if ptx.ballot(state == 0) & needed == 0:
                counts = (needed >> lane) & 1
                n_above += ptx.warp_add((u32(state) & u32(_SUM)) * counts)
                n_ties += ptx.warp_add((u32(state >> u64(_SUM_BITS)) & u32(_SUM)) * counts)
                before -= WARP_LANES
                searching = have_all == 0
        return n_above, n_ties

    @linked_function
    def mark(words, ties, address, step, count, bounds, unfolding):
        """Mark the elements of a tile that are above the threshold, and those that tie, by a bit each."""
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        elements = cuda.local.array(KEPT_PER_THREAD, key_type)
        word = warp
        # The warp reads the rest of the tile from its own first element on.
        n_left = max(count, warp << 5) - (warp << 5)
        while n_left > 0:
            for item in range(KEPT_PER_THREAD):
                elements[item] = key_type(0)
                if u32(item * KEEPING_THREADS) + lane < n_left:
                    elements[item] = load_element(address)
                address += KEEPING_THREADS * step
            for item in range(KEPT_PER_THREAD):
                unfolded = unfolded_element(elements[item], unfolding)
                exists = u32(item * KEEPING_THREADS) + lane < n_left
                reached = ptx.ballot(u32(exists and unfolded >= bounds.threshold))
                above = ptx.ballot(u32(exists and bounds.has_above != 0 and unfolded >= bounds.above))
                if lane == 0:
                    words[word + u32(item * n_warps)] = above
                    ties[word + u32(item * n_warps)] = reached & ~above
            word += u32(KEPT_PER_THREAD * n_warps)
            n_left = max(n_left, u32(KEEPING_ROUND)) - u32(KEEPING_ROUND)

    @linked_function
    def announce(row_states, tile, n_above, n_ties, shared):
        """Tell later tiles how many elements a tile has marked; find how many those before it have."""
        thread = u32(cuda.threadIdx.x)
        if thread < WARP_LANES:
            state = row_states + tile * TILE_STATE_BYTES
            if thread == 0:
                store_state(state, state_of(_OF_ALL if tile == 0 else _OF_TILE, n_above, n_ties))
            above_before, ties_before = sums_before(row_states, tile, thread)
            if thread == 0:
                store_state(state, state_of(_OF_ALL, above_before + n_above, ties_before + n_ties))
                shared[1] = above_before
                shared[2] = ties_before
        cuda.syncthreads()

    return TileFunctions(mark, announce)


def selected_kernel(element_size: int, makes_pairs: int) -> Any:
    """Make `write_selected` for one width of elements: it writes results, or pairs that are then sorted."""
    functions = element_functions(element_size)
    key_type, ordered_key = functions.key_type, functions.ordered_key
    load_element, store_element = functions.load_element, functions.store_element
    pair_size = pair_bytes(element_size)
    store_pair = ptx.STORE_PAIR[pair_size]
    unfolding_of, unfold_threshold = functions.unfolding_of, functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    find_row, write_result, pad_results = row_functions(element_size)
    known_digits = known_function(element_size, KEEPING_THREADS)
    mark, announce = tile_functions(element_size)
    count_marks = marks_function(KEEPING_THREADS, linked_function)
    n_counters = element_size * N_DIGITS if makes_pairs else 1
    shape = (element_size, DIGIT_BITS, 0)
    clear_counts, count_digits, add_counts = counting_functions(key_type, shape, KEEPING_THREADS)
    n_warps = KEEPING_THREADS // WARP_LANES
    n_totals = 2 * n_warps
    ones = (1 << 8 * element_size) - 1

    @device_function
    def bounds_of(found, fits, key_format):
        """Return the bounds of what is marked: there are no ties if all that share the known digits fit."""
        last = key_type(found[0]) | ((key_type(1) << key_type(found[3])) - key_type(1))
        if found[3] >= 8 * element_size:
            last = key_type(ones)
        key = last ^ key_type(ones)
        threshold = unfold_threshold(key, key_format)
        above = threshold
        if not fits:
            above = unfold_next_above(key, key_format)
        return Bounds(threshold, above, u32(fits or above != 0))

    @cuda.jit(max_registers=_REGISTERS)
    def write_selected(
        x,
        windows: Windows,
        values,
        indices,
        areas: SelectAreas,
        offsets,
        p: RowParameters,
        s: SelectParameters,
    ):
        ptx.grid_dependency_wait()
        words = cuda.shared.array(SELECTED_WORDS, u32)
        ties = cuda.shared.array(SELECTED_WORDS, u32)
        places = cuda.shared.array(SELECTED_WORDS, u32)
        tie_places = cuda.shared.array(SELECTED_WORDS, u32)
        histogram = cuda.shared.array(n_counters, u32)
        totals = cuda.shared.array(n_totals, u32)
        shared = cuda.shared.array(3, u32)
        found = cuda.shared.array(KNOWN_WORDS, u64)
        counters = ptx.shared_address(histogram)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        if thread == 0:
            shared[0] = ptx.atomic_add_u32(areas.next_tile, u32(1))
        if makes_pairs:
            clear_counts(histogram, thread)
        cuda.syncthreads()
        row = i64(shared[0] // u32(s.n_parts))
        tile = i64(shared[0]) - row * s.n_parts
        base, values, indices, length = find_row(x, windows, values, indices, offsets, p.first + row, p)
        tile_first = tile * s.size
        if not makes_pairs:
            rank = max(length, tile_first) + i64(thread)
            pad_results(values, indices, rank, KEEPING_THREADS, min(p.k, tile_first + s.size), p)
        if tile_first >= length:
            if makes_pairs and tile == 0 and thread == 0:
                ptx.store_u32(areas.kept + row * STATE_BYTES, u32(0))
            return
        count = u32(min(s.size, length - tile_first))
        step = p.strides.x * element_size
        base += tile_first * step
        n_selected = min(p.k, length)
        fits = known_digits(areas, row, n_selected, s, False, found, totals)
        n_needed = u32(found[1])
        bounds = bounds_of(found, fits, p.key_format)
        unfolding = unfolding_of(p.unfolded_format, False)
        mark(words, ties, base + i64(thread) * step, step, count, bounds, unfolding)
        cuda.syncthreads()
        n_words = (count + 31) >> 5
        n_above = count_marks(words, places, n_words, totals)
        n_ties = count_marks(ties, tie_places, n_words, ptx.shared_from(totals, n_warps))
        announce(areas.tiles + row * s.n_parts * TILE_STATE_BYTES, tile, n_above, n_ties, shared)

        # Elements that have changed since they were counted may be too many.
        room = n_selected
        keys_at = i64(0)
        positions_at = i64(0)
        if makes_pairs:
            room = s.capacity
            bases = areas.scratch + row * s.row_bytes, values, indices.address
            keys_at = address_of(s.target.keys, bases)
            positions_at = address_of(s.target.positions, bases)
            if thread == 0 and tile_first + s.size >= length:
                n_kept = shared[1] + n_above + min(shared[2] + n_ties, n_needed)
                ptx.store_u32(areas.kept + row * STATE_BYTES, min(n_kept, u32(room)))
        below = ptx.lanes_below()
        number = warp
        while number < n_words:
            above = words[number]
            tied = ties[number]
            is_marked = ((above | tied) >> lane) & 1 != 0
            tie = u32(0)
            rank = i64(0)
            if is_marked:
                tie = shared[2] + tie_places[number] + ptx.popcount_u32(tied & below)
                rank = i64(shared[1] + places[number] + ptx.popcount_u32(above & below) + min(tie, n_needed))
            is_selected = is_marked and ((tied >> lane) & 1 == 0 or tie < n_needed)
            if is_selected and rank < room:
                within = i64((number << 5) + lane)
                element = load_element(base + within * step)
                if makes_pairs:
                    key = ordered_key(element, p.key_format) ^ key_type(ones)
                    position = u32(tile_first + within)
                    if positions_at != 0:
                        store_element(keys_at + rank * element_size, key)
                        ptx.store_u32(positions_at + rank * 4, position)
                    else:
                        store_pair(keys_at + rank * pair_size, key, position)
                    count_digits(counters, key)
                else:
                    write_result(values, indices, rank, element, tile_first + within, p)
            number += n_warps
        if makes_pairs:
            cuda.syncthreads()
            add_counts(histogram, areas.histograms, row, thread)

    return write_selected
