"""The first step of `sort` where few of many elements are selected: keep those that may be, in order.

1. `digit_histograms` (`counting`) counts the highest bits of all keys.
2. `keep_pairs` finds up to which of these keys must be kept, for the k first to be among them. It reads the
   rows once more, writes the pairs of what is kept by ascending position, and counts their digits. A tile
   learns where its own begin as in `sort_digit`, by decoupled look-back.

Elements are kept whose highest bits come no later than those of element number k: hardly more
than k of them, unless elements are close to each other. If they all are, all are kept.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, WARP_LANES, pair_bytes
from kernels_cuda.top_k.sort.counting import counting_functions, marks_function
from kernels_cuda.top_k.sort.sort_launches import KeepingAreas, KeepingParameters
from kernels_cuda.top_k.sort.sort_shape import (
    COUNT_BYTES,
    KEEPING_ROUND,
    KEEPING_THREADS,
    KEPT_PER_THREAD,
    KEPT_WORDS,
    STATE_BYTES,
    TOP_BITS,
)

# The state of a tile: a sum, and whether it is of the tile alone or of all tiles up to it.
_OF_TILE, _OF_ALL = 1 << 30, 2 << 30
_SUM = _OF_TILE - 1
_REGISTERS = 64


def keep_kernel(element_size: int) -> Any:
    """Make `keep_pairs` for one width of elements."""
    functions = element_functions(element_size)
    key_type, ordered_key, load_element = functions.key_type, functions.ordered_key, functions.load_element
    unfolding_of, unfolded_element = functions.unfolding_of, functions.unfolded_element
    unfold_threshold = functions.unfold_threshold
    find_row, _, _ = row_functions(element_size)
    pair_size = pair_bytes(element_size)
    store_pair = ptx.STORE_PAIR[pair_size]
    load_state, store_state = ptx.LOAD_RELAXED[STATE_BYTES], ptx.STORE_RELAXED[STATE_BYTES]
    exclusive_sum = block_scan(KEEPING_THREADS)
    count_marks = marks_function(KEEPING_THREADS, device_function)
    top_shift = 8 * element_size - TOP_BITS[element_size]
    n_tops = 1 << TOP_BITS[element_size]
    tops_each = max(1, n_tops // KEEPING_THREADS)
    ones = (1 << 8 * element_size) - 1
    n_counters = element_size * N_DIGITS
    shape = (element_size, DIGIT_BITS, 0)
    clear_counts, count_digits, add_counts = counting_functions(key_type, shape, KEEPING_THREADS)
    n_warps = KEEPING_THREADS // WARP_LANES

    @device_function
    def sum_before(states, tile, lane):
        """Return the sum of the tiles before one; a warp asks for 32 of them at a time."""
        total = u32(0)
        before = tile - 1 - i64(lane)
        searching = tile > 0
        while searching:
            state = u32(_OF_ALL)
            if before >= 0:
                state = load_state(states + before * STATE_BYTES)
            # The lanes up to the first one that has the sum of all tiles.
            have_all = ptx.ballot(state >= _OF_ALL)
            needed = have_all ^ (have_all - 1)
            if ptx.ballot(state == 0) & needed == 0:
                total += ptx.warp_add((state & _SUM) * ((needed >> lane) & 1))
                before -= WARP_LANES
                searching = have_all == 0
        return total

    @device_function
    def find_bound(tops, n_selected, found, totals, thread):
        """Return the largest key, complemented, that may be among the first of a row."""
        amounts = cuda.local.array(tops_each, u32)
        first = thread * u32(tops_each)
        amount = u32(0)
        for at in range(tops_each):
            amounts[at] = u32(0)
            if first < n_tops:
                amounts[at] = ptx.load_u32(tops + i64(first + u32(at)) * COUNT_BYTES)
            amount += amounts[at]
        through, _ = exclusive_sum(amount, thread, totals)
        for at in range(tops_each):
            before = through
            through += amounts[at]
            if before < n_selected <= through:
                found[0] = (key_type(first + u32(at) + 1) << key_type(top_shift)) - 1
        cuda.syncthreads()
        return found[0]

    @cuda.jit(max_registers=_REGISTERS)
    def keep_pairs(x, windows: Windows, areas: KeepingAreas, offsets, p: RowParameters, m: KeepingParameters):
        ptx.grid_dependency_wait()
        histogram = cuda.shared.array(n_counters, u32)
        # A bit for each element of the tile, and how many are kept before each word of these.
        words = cuda.shared.array(KEPT_WORDS, u32)
        places = cuda.shared.array(KEPT_WORDS, u32)
        totals = cuda.shared.array(n_warps, u32)
        shared = cuda.shared.array(2, u32)
        found = cuda.shared.array(1, key_type)
        counters = ptx.shared_address(histogram)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        if thread == 0:
            shared[0] = ptx.atomic_add_u32(areas.next_tile, u32(1))
        clear_counts(histogram, thread)
        cuda.syncthreads()
        row = i64(shared[0] // u32(m.n_tiles))
        tile = i64(shared[0]) - row * m.n_tiles
        base, _, _, length = find_row(x, windows, i64(0), i64(0), offsets, p.first + row, p)
        tile_first = tile * m.size
        if tile_first >= length:
            return
        count = u32(min(m.size, length - tile_first))
        step = p.strides.x * element_size
        base += tile_first * step
        n_selected = u32(min(p.k, length))
        bound = find_bound(areas.tops + row * (n_tops * COUNT_BYTES), n_selected, found, totals, thread)
        threshold = unfold_threshold(key_type(ones) ^ bound, p.key_format)
        unfolding = unfolding_of(p.unfolded_format, False)

        # Mark what is kept, a bit for each element; then count the marks, and write the pairs of these.
        elements = cuda.local.array(KEPT_PER_THREAD, key_type)
        address = base + i64(thread) * step
        own_word = ptx.shared_address(words) + warp * 4
        # The elements of the tile from the first one of the warp on.
        n_left = max(count, warp << 5) - (warp << 5)
        while n_left > 0:
            for item in range(KEPT_PER_THREAD):
                elements[item] = key_type(0)
                if u32(item * KEEPING_THREADS) + lane < n_left:
                    elements[item] = load_element(address)
                address += KEEPING_THREADS * step
            for item in range(KEPT_PER_THREAD):
                is_kept = unfolded_element(elements[item], unfolding) >= threshold
                word = ptx.ballot(u32(is_kept and u32(item * KEEPING_THREADS) + lane < n_left))
                if lane == 0:
                    ptx.store_shared_u32(own_word + u32(item * n_warps * 4), word)
            own_word += u32(KEPT_PER_THREAD * n_warps * 4)
            n_left = max(n_left, u32(KEEPING_ROUND)) - u32(KEEPING_ROUND)
        cuda.syncthreads()
        n_words = (count + 31) >> 5
        of_tile = count_marks(words, places, n_words, totals)
        if warp == 0:
            row_states = areas.states + row * m.n_tiles * STATE_BYTES
            state = row_states + tile * STATE_BYTES
            known = of_tile | u32(_OF_TILE)
            if tile == 0:
                known = of_tile | u32(_OF_ALL)
            if lane == 0:
                store_state(state, known)
            before = sum_before(row_states, tile, lane)
            if lane == 0:
                store_state(state, (before + of_tile) | u32(_OF_ALL))
                shared[1] = before
                if tile_first + m.size >= length:
                    ptx.store_u32(areas.n_kept + row * STATE_BYTES, before + of_tile)
        cuda.syncthreads()

        before = shared[1]
        number = warp
        while number < n_words:
            word = words[number]
            if (word >> lane) & 1 != 0:
                within = (number << 5) + lane
                key = ordered_key(load_element(base + i64(within) * step), p.key_format) ^ key_type(ones)
                at = i64(before + places[number] + ptx.popcount_u32(word & ptx.lanes_below()))
                store_pair(areas.pairs + (row * p.axis_size + at) * pair_size, key, u32(tile_first) + within)
                count_digits(counters, key)
            number += n_warps
        cuda.syncthreads()
        add_counts(histogram, areas.histograms, row, thread)

    return keep_pairs
