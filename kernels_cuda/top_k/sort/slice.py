"""The first step of `sort` where rows are sorted in slices: take the elements of one, in order of position.

A slice has the elements of some ranks, so many that their pairs have room in the workspace. It ends at the
key of the element of its last rank, which `count_digit` (`select`) finds. If the elements that share the
first digits of this key have room, too, no more digits are counted, and the slice ends after all of these.

`slice_pairs` reads the rows once more, writes the pairs of the slice's elements by ascending position, and
counts their digits. Elements that equal the last key of a slice may be more than have room: they need no
sorting, and are written as results. A tile learns where its own begin as those of `sort_digit` do, by looking
back.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, WARP_LANES, pair_bytes
from kernels_cuda.top_k.sort.select import Bounds, known_function, mark_functions
from kernels_cuda.top_k.sort.select_launches import (
    KNOWN_WORDS,
    SELECTED_WORDS,
    TILE_STATE_BYTES,
    SelectAreas,
    SelectParameters,
)
from kernels_cuda.top_k.sort.sort import counting_functions
from kernels_cuda.top_k.sort.sort_launches import KEEPING_THREADS, SLICE_BYTES, STATE_BYTES

_REGISTERS = 64


def slice_kernel(element_size: int) -> Any:
    """Make `slice_pairs` for one width of elements."""
    functions = element_functions(element_size)
    key_type, ordered_key, load_element = functions.key_type, functions.ordered_key, functions.load_element
    unfolding_of, unfold_threshold = functions.unfolding_of, functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    find_row, write_result, pad_results = row_functions(element_size)
    pair_size = pair_bytes(element_size)
    store_pair = ptx.store_u64x2 if element_size == 8 else ptx.store_u32x2
    known_digits = known_function(element_size, KEEPING_THREADS)
    mark, count_marks, announce = mark_functions(element_size)
    ones = (1 << 8 * element_size) - 1
    n_counters = element_size * N_DIGITS
    shape = (element_size, DIGIT_BITS, 0)
    clear_counts, count_digits, add_counts = counting_functions(key_type, shape, KEEPING_THREADS)
    n_warps = KEEPING_THREADS // WARP_LANES
    n_totals = 2 * n_warps

    @cuda.jit(max_registers=_REGISTERS)
    def slice_pairs(
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
        clear_counts(histogram, thread)
        cuda.syncthreads()
        row = i64(shared[0] // u32(s.n_parts))
        tile = i64(shared[0]) - row * s.n_parts
        base, values, indices, length = find_row(x, windows, values, indices, offsets, p.first + row, p)
        tile_first = tile * s.size
        rank = max(length, tile_first) + i64(thread)
        pad_results(values, indices, rank, KEEPING_THREADS, min(p.k, tile_first + s.size), p)
        n_kept = areas.ends + s.n_rows * SLICE_BYTES + row * STATE_BYTES
        if tile_first >= length:
            if length == 0 and tile == 0 and thread == 0:
                ptx.store_u32(n_kept, u32(0))
            return
        count = u32(min(s.size, length - tile_first))
        step = p.strides.x * element_size
        base += tile_first * step
        fits = known_digits(areas, row, length, s, False, found, totals)

        # All elements up to the key `last`, complemented, are those of this slice and the ones before it.
        last = key_type(found[0]) | ((key_type(1) << key_type(found[3])) - key_type(1))
        if found[3] >= 8 * element_size:
            last = key_type(ones)
        key = last ^ key_type(ones)
        threshold = unfold_threshold(key, p.key_format)
        above = threshold
        has_above = u32(1)
        if not fits:
            above = unfold_next_above(key, p.key_format)
            has_above = u32(above != 0)
        end = key_type(0)
        if areas.before != 0:
            before = areas.before + row * SLICE_BYTES
            end = unfold_threshold(key_type(ptx.load_u64(before)) ^ key_type(ones), p.key_format)
        bounds = Bounds(threshold, above, has_above, end, u32(areas.before != 0))
        unfolding = unfolding_of(p.unfolded_format, False)
        mark(words, ties, base + i64(thread) * step, step, count, bounds, unfolding)
        cuda.syncthreads()
        n_words = (count + 31) >> 5
        n_above = count_marks(words, places, n_words, totals)
        n_ties = count_marks(ties, tie_places, n_words, ptx.shared_from(totals, n_warps))
        announce(areas.tiles + row * s.n_parts * TILE_STATE_BYTES, tile, n_above, n_ties, shared)
        if thread == 0:
            slice_end = areas.ends + row * SLICE_BYTES
            if tile == 0:
                ptx.store_u64(slice_end, u64(last))
                ptx.store_u64(slice_end + 8, found[2])
            if tile_first + s.size >= length:
                ptx.store_u32(n_kept, min(shared[1] + n_above, u32(s.capacity)))

        below = ptx.lanes_below()
        first_tie = min(s.rank, length) - i64(found[1])
        number = warp
        while number < n_words:
            is_kept = (words[number] >> lane) & 1 != 0
            is_tie = (ties[number] >> lane) & 1 != 0
            within = i64((number << 5) + lane)
            if is_kept:
                key = ordered_key(load_element(base + within * step), p.key_format) ^ key_type(ones)
                at = i64(shared[1] + places[number] + ptx.popcount_u32(words[number] & below))
                # Elements that have changed since they were counted may be too many.
                if at < s.capacity:
                    pair = areas.pairs + (row * s.capacity + at) * pair_size
                    store_pair(pair, key, u32(tile_first + within))
                    count_digits(counters, key)
            if is_tie:
                tie = shared[2] + tie_places[number] + ptx.popcount_u32(ties[number] & below)
                rank = first_tie + i64(tie)
                if rank < p.k:
                    element = load_element(base + within * step)
                    write_result(values, indices, rank, element, tile_first + within, p)
            number += n_warps
        cuda.syncthreads()
        add_counts(histogram, areas.histograms, row, thread)

    return slice_pairs
