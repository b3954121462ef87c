"""The launches of `sort` where rows are sorted in slices (`slice`), and how large these are."""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS, WORKSPACE_ALIGNMENT
from kernels_cuda.top_k.policy import BATCH_BYTES, KEPT_SHARE, LAUNCH_BLOCKS, NARROW_ELEMENTS
from kernels_cuda.top_k.problem import Selection, bounded_product, scratch_limit
from kernels_cuda.top_k.shared.kernel_keys import DIGIT, SLICE, kernel_key
from kernels_cuda.top_k.shared.launches import (
    FULL,
    NO_AREA,
    Sizes,
    begin,
    fill_offsets,
    put_outputs,
    take,
)
from kernels_cuda.top_k.shared.order_launches import end_unordered
from kernels_cuda.top_k.shared.shapes import N_DIGITS, WARP_LANES, pair_bytes
from kernels_cuda.top_k.sort.select_launches import (
    COUNTED_AT_MOST,
    DIGIT_COUNT_BYTES,
    KNOWN_BYTES,
    SELECTED_BITS,
    SELECTED_WORDS,
    TILE_STATE_BYTES,
    SelectAreas,
    SelectParameters,
    n_selecting_passes,
    put_select_areas,
)
from kernels_cuda.top_k.sort.sort_launches import (
    BLOCKS_PER_MULTIPROCESSOR,
    COUNTED_ELEMENTS,
    COUNTING_THREADS,
    HISTOGRAM_BYTES,
    KEEPING_ROUND,
    KEEPING_THREADS,
    OF_SLICE,
    POSITION_SIZES,
    SLICE_BYTES,
    STATE_BYTES,
    TILES_PER_MULTIPROCESSOR,
    SortAreas,
    SortShape,
    drops_most,
    packed_rows,
    put_batch,
    put_clearing,
    put_passes,
    put_source,
    sort_tile,
    take_several,
)

# A slice has room for at least so many pairs.
FEWEST_PAIRS = 1 << 8
# Elements that share some digits with the last one of a slice should have room, too: one in so many of a row,
# or of the pairs where there are several slices.
SPARE_OF_ROW, SPARE_OF_PAIRS = 16, 8


class Slices(NamedTuple):
    """How rows are cut: rows of a batch, pairs of each that have room, slices, and ranks of a slice."""

    n_rows: int
    capacity: int
    n_slices: int
    n_ranks: int


def _pair_bytes(selection: Selection, n_pairs: int) -> int:
    """Return the workspace of a row's pairs, two times, histograms of their digits, and states of tiles."""
    size = selection.element_size
    tile = sort_tile(size, POSITION_SIZES[0], 0)
    n_tiles = ceil_div(n_pairs, tile.n_threads * tile.n_items)
    n_bytes = bounded_product(min(2, size) * n_pairs, pair_bytes(size))
    return n_bytes + size * (HISTOGRAM_BYTES + n_tiles * N_DIGITS * POSITION_SIZES[0])


def _n_pairs(selection: Selection, n_bytes: int) -> int:
    """Return for how many pairs of a row there is room in so many bytes, up to what a whole row needs."""
    n_bytes = min(n_bytes, _pair_bytes(selection, selection.axis_size))
    return n_bytes * KEEPING_ROUND // _pair_bytes(selection, KEEPING_ROUND)


def _slices(device: Words, selection: Selection) -> Slices:
    """Return as few slices as there is room for, of as many rows at a time."""
    k, axis_size, n_rows = selection.k, selection.axis_size, selection.n_rows
    limit = scratch_limit(device, selection)
    n_passes = n_selecting_passes(selection.element_size)
    counted = n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS) + (n_passes + 1) * KNOWN_BYTES
    counted += ceil_div(axis_size, KEEPING_ROUND) * TILE_STATE_BYTES
    hoped = min(axis_size, 2 * k + axis_size // SPARE_OF_ROW)
    most_rows = min(limit, device[BATCH_BYTES]) // (counted + _pair_bytes(selection, hoped))
    most_rows = min(most_rows, device[LAUNCH_BLOCKS] // ceil_div(axis_size, KEEPING_ROUND))
    n_rows = min(n_rows, max(1, most_rows))
    n_pairs = _n_pairs(selection, limit // n_rows - counted)
    if n_pairs < k:
        # One slice with little to spare takes less time than several.
        limit = max(limit, bounded_product(selection.n_rows, selection.row_bytes))
        n_pairs = _n_pairs(selection, limit // n_rows - counted)
        hoped = min(axis_size, k + k // SPARE_OF_PAIRS)
    capacity = min(hoped, max(n_pairs, FEWEST_PAIRS), device[NARROW_ELEMENTS] - 1)
    n_slices = 1
    if k > capacity:
        n_slices = ceil_div(k, capacity - capacity // SPARE_OF_PAIRS)
    return Slices(n_rows, capacity, n_slices, ceil_div(k, n_slices))


def sorts_in_slices(device: Words, selection: Selection) -> bool:
    """Tell whether rows are sorted in slices.

    That is where few of their elements are selected, and room for pairs of all of them would take too much
    memory. More than one slice takes longer, and is left to rows that would need pairs of twice the size.
    """
    axis_size, k = selection.axis_size, selection.k
    is_wide = axis_size >= device[NARROW_ELEMENTS]
    if axis_size >= COUNTED_AT_MOST * device[NARROW_ELEMENTS] or k > axis_size // device[KEPT_SHARE]:
        return False
    n_bytes = bounded_product(selection.n_rows, _pair_bytes(selection, axis_size))
    if n_bytes <= device[BATCH_BYTES] or (drops_most(device, selection) == 0 and not is_wide):
        return False
    return is_wide or _slices(device, selection).n_slices == 1


def slice_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Sort rows in slices, as many rows at a time as the workspace has room for."""
    x, selection = packed_rows(problem, device, given, out)
    size, axis_size = selection.element_size, selection.axis_size
    slices = _slices(device, selection)
    n_rows, n_slices = slices.n_rows, slices.n_slices
    n_passes = n_selecting_passes(size)
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_rounds = ceil_div(n_rows * axis_size, n_blocks * KEEPING_ROUND)
    tile_size = min(n_rounds * KEEPING_ROUND, SELECTED_WORDS * WARP_LANES)
    n_tiles = ceil_div(axis_size, tile_size)

    tile = sort_tile(size, POSITION_SIZES[0], 0)
    n_sort_tiles = ceil_div(slices.capacity, tile.n_threads * tile.n_items)
    if pair_bytes(size) == 8 and n_rows * n_sort_tiles > TILES_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]:
        tile = sort_tile(size, POSITION_SIZES[0], 1)
    shape = SortShape(tile, POSITION_SIZES[0], slices.capacity, n_sort_tiles, n_rows, 1, tile_size, n_tiles)

    # All slices share the counts of the first digit. Those of the others are cleared before each slice.
    n_counts = n_rows * (DIGIT_COUNT_BYTES << SELECTED_BITS)
    counts = take(out, n_passes * n_counts)
    next_tile = take(out, WORKSPACE_ALIGNMENT)
    tiles = take(out, bounded_product(n_rows, n_tiles * TILE_STATE_BYTES))
    counters, counter_step = take_several(out, size, WORKSPACE_ALIGNMENT)
    histograms = take(out, n_rows * size * HISTOGRAM_BYTES)
    states, state_step = take_several(
        out, size, bounded_product(n_rows, n_sort_tiles * N_DIGITS * POSITION_SIZES[0])
    )
    cleared_end = out[WORKSPACE]
    known = take(out, n_rows * (n_passes + 1) * KNOWN_BYTES)
    ends, end_step = take_several(out, n_slices, n_rows * (SLICE_BYTES + STATE_BYTES))
    buffers, buffer_step = take_several(
        out, min(2, size), bounded_product(n_rows, slices.capacity * pair_bytes(size))
    )
    offsets = fill_offsets(problem, device, selection, out)
    sorting = SortAreas(
        x,
        counters,
        counter_step,
        histograms,
        NO_AREA,
        NO_AREA,
        NO_AREA,
        NO_AREA,
        states,
        state_step,
        0,
        buffers,
        buffer_step,
        offsets,
    )
    first, number = 0, 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(n_rows, selection.n_rows - first)
        own_end = ends + number * end_step
        before = NO_AREA if number == 0 else own_end - end_step
        areas = SelectAreas(counts, known, tiles, next_tile, own_end, before, buffers, histograms)
        rank = min((number + 1) * slices.n_ranks, selection.k)
        begin_cleared = counts if number == 0 else counts + n_counts
        put_clearing(device, selection, out, begin_cleared, cleared_end - begin_cleared)
        n_parts = min(ceil_div(axis_size, COUNTED_ELEMENTS), ceil_div(n_blocks, batch))
        for digit in range(min(number, 1), n_passes):
            begin(out, device, kernel_key(DIGIT, size, 0, 0), Sizes(batch * n_parts, COUNTING_THREADS, 0, 1))
            put_source(out, selection, x)
            put_select_areas(out, selection, areas, offsets)
            put_batch(problem, selection, out, first)
            put_values(out, SelectParameters(n_parts, digit, 0, n_rows, rank, slices.capacity))
        begin(out, device, kernel_key(SLICE, size, 0, 0), Sizes(batch * n_tiles, KEEPING_THREADS, 0, 1))
        put_source(out, selection, x)
        put_outputs(out, selection)
        put_select_areas(out, selection, areas, offsets)
        put_batch(problem, selection, out, first)
        put_values(out, SelectParameters(n_tiles, n_passes, tile_size, n_rows, rank, slices.capacity))
        kept = sorting._replace(kept=own_end + n_rows * SLICE_BYTES, before=before)
        put_passes(problem, device, selection, out, shape, kept, first, batch, OF_SLICE)
        number += 1
        if number == n_slices:
            first, number = first + batch, 0
    return end_unordered(problem, device, given, out)
