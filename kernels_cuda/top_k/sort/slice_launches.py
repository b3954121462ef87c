"""The launches of `sort` where rows are sorted in slices (`filter`), and how large these are."""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS, WORKSPACE_ALIGNMENT
from kernels_cuda.top_k.policy import BATCH_BYTES, LAUNCH_BLOCKS, NARROW_ELEMENTS, SCRATCH_BYTES
from kernels_cuda.top_k.problem import Selection, bounded_product, scratch_limit
from kernels_cuda.top_k.shared.kernel_keys import DIGIT, KEEP, kernel_key
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
from kernels_cuda.top_k.shared.shapes import WARP_LANES
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
    KEEPING_ROUND,
    KEEPING_THREADS,
    N_KEPT_AT,
    POSITION_SIZES,
    SLICE_BYTES,
    SortAreas,
    drops_most,
    packed_rows,
    put_batch,
    put_clearing,
    put_passes,
    put_source,
    sort_shape,
    sorting_bytes,
    take_buffers,
    take_counters,
    whole_row_bytes,
)

# Rows of which more than a quarter is selected are sorted whole if they would need more slices than these:
# that takes less time, and more memory.
MOST_SLICES = 3
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


def _slices(device: Words, selection: Selection) -> Slices:
    """Return as few slices as there is room for, of as many rows at a time."""
    k, axis_size, n_rows = selection.k, selection.axis_size, selection.n_rows
    n_buffers = min(2, selection.element_size)
    limit = scratch_limit(device, selection)
    pair_share = sorting_bytes(selection, POSITION_SIZES[0], KEEPING_ROUND, n_buffers)
    n_passes = n_selecting_passes(selection.element_size)
    counted = n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS) + (n_passes + 1) * KNOWN_BYTES
    counted += ceil_div(axis_size, KEEPING_ROUND) * TILE_STATE_BYTES
    hoped = axis_size
    row_bytes = counted + sorting_bytes(selection, POSITION_SIZES[0], hoped, n_buffers)
    if bounded_product(n_rows, row_bytes) > device[SCRATCH_BYTES]:
        hoped = min(axis_size, 2 * k + axis_size // SPARE_OF_ROW)
    row_bytes = counted + sorting_bytes(selection, POSITION_SIZES[0], hoped, n_buffers)
    most_rows = min(limit, device[BATCH_BYTES]) // row_bytes
    most_rows = min(most_rows, device[LAUNCH_BLOCKS] // ceil_div(axis_size, KEEPING_ROUND))
    n_rows = min(n_rows, max(1, most_rows))
    # The same for the pairs of a tile, and of so many as there is room for.
    n_pairs = (limit // n_rows - counted) // ceil_div(pair_share, KEEPING_ROUND)
    capacity = min(hoped, max(n_pairs, FEWEST_PAIRS), device[NARROW_ELEMENTS] - 1)
    n_slices = 1
    if k > capacity:
        n_slices = ceil_div(k, capacity - capacity // SPARE_OF_PAIRS)
    return Slices(n_rows, capacity, n_slices, ceil_div(k, n_slices))


def sorts_in_slices(device: Words, selection: Selection) -> bool:
    """Tell whether rows are sorted in slices.

    That is where most of their elements are not sorted at all, and where the pairs of a whole row would take
    too much memory. Positions have 4 bytes.
    """
    if selection.axis_size >= COUNTED_AT_MOST * device[NARROW_ELEMENTS]:
        return False
    x_bytes = bounded_product(selection.n_rows, selection.row_bytes)
    is_large = whole_row_bytes(device, selection) > max(device[BATCH_BYTES], x_bytes)
    if drops_most(device, selection):
        return is_large or _slices(device, selection).n_slices == 1
    needs_wide = selection.axis_size >= device[NARROW_ELEMENTS]
    return is_large and (needs_wide or _slices(device, selection).n_slices <= MOST_SLICES)


def slice_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Sort rows in slices, as many rows at a time as the workspace has room for."""
    x, selection = packed_rows(problem, device, given, out)
    size, axis_size = selection.element_size, selection.axis_size
    slices = _slices(device, selection)
    n_rows, n_slices = slices.n_rows, slices.n_slices
    shape = sort_shape(device, selection, POSITION_SIZES[0], slices.capacity, n_rows, min(2, size))
    # Where all elements have room, one digit tells enough.
    n_passes = n_selecting_passes(size) if slices.capacity < axis_size else 1
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_rounds = ceil_div(n_rows * axis_size, n_blocks * KEEPING_ROUND)
    tile_size = min(n_rounds * KEEPING_ROUND, SELECTED_WORDS * WARP_LANES)
    n_tiles = ceil_div(axis_size, tile_size)

    # All slices share the counts of the first digit. Those of the others are cleared before each slice.
    n_counts = n_rows * (DIGIT_COUNT_BYTES << SELECTED_BITS)
    counts = take(out, n_passes * n_counts)
    next_tile = take(out, WORKSPACE_ALIGNMENT)
    tiles = take(out, bounded_product(n_rows, n_tiles * TILE_STATE_BYTES))
    counters, counter_step, histograms, states, state_step = take_counters(selection, out, shape)
    cleared_end = out[WORKSPACE]
    known = take(out, n_rows * (n_selecting_passes(size) + 1) * KNOWN_BYTES)
    ends = take(out, n_slices * n_rows * SLICE_BYTES)
    buffers, buffer_step = take_buffers(selection, out, shape)
    offsets = fill_offsets(problem, device, selection, out)
    sorting = SortAreas(
        x, counters, counter_step, histograms, NO_AREA, states, state_step, buffers, buffer_step, offsets
    )
    # The areas of all that is counted begin at multiples of 16 bytes.
    first, number = 0, 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(n_rows, selection.n_rows - first)
        own_end = ends + number * n_rows * SLICE_BYTES
        before = NO_AREA if number == 0 else own_end - n_rows * SLICE_BYTES
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
        begin(out, device, kernel_key(KEEP, size, 0, 0), Sizes(batch * n_tiles, KEEPING_THREADS, 0, 1))
        put_source(out, selection, x)
        put_outputs(out, selection)
        put_select_areas(out, selection, areas, offsets)
        put_batch(problem, selection, out, first)
        put_values(out, SelectParameters(n_tiles, n_passes, tile_size, n_rows, rank, slices.capacity))
        kept = sorting._replace(kept=own_end + N_KEPT_AT)
        put_passes(problem, device, selection, out, shape, kept, first, batch)
        number += 1
        if number == n_slices:
            first, number = first + batch, 0
    return end_unordered(problem, device, given, out)
