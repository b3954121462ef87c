"""The launches of `select`, the results of `sort` by index, and what they and its kernels agree on."""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS, PLANNED, WORKSPACE_ALIGNMENT
from kernels_cuda.top_k.policy import BATCH_BYTES, LAUNCH_BLOCKS, NARROW_ELEMENTS
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import DIGIT, SELECTED, kernel_key
from kernels_cuda.top_k.shared.launches import (
    FULL,
    NO_AREA,
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_outputs,
    take,
)
from kernels_cuda.top_k.shared.shapes import WARP_LANES
from kernels_cuda.top_k.sort.sort_launches import (
    BLOCKS_PER_MULTIPROCESSOR,
    COUNTED_ELEMENTS,
    COUNTING_THREADS,
    KEEPING_ROUND,
    KEEPING_THREADS,
    packed_rows,
    packs_rows,
    put_batch,
    put_clearing,
    put_source,
)

# Bits of keys that a pass counts.
SELECTED_BITS = 12
# A block marks the elements of its tile in so many words, twice.
SELECTED_WORDS = 2048
DIGIT_COUNT_BYTES = 4
# Counts of marks have one bit more than those of sorts: rows may have so many times as many elements.
COUNTED_AT_MOST = 2
# The known digits of a key, which of the keys that have these it is, how many elements there are up to the
# last of them, and the bits that are not known.
KNOWN_WORDS = 4
KNOWN_BYTES = 8 * KNOWN_WORDS
TILE_STATE_BYTES = 8


class SelectAreas(NamedTuple):
    """The addresses of counts of digits, known digits of each row, states of tiles, and the next tile.

    Of slices, too: their ends and those of the ones before, pairs, and histograms of their digits.
    """

    counts: int
    known: int
    tiles: int
    next_tile: int
    ends: int
    before: int
    pairs: int
    histograms: int


class SelectParameters(NamedTuple):
    """More parameters of the kernels that select, and of `slice.slice_pairs`.

    Attributes
    ----------
    n_parts, number, size : int
        Blocks of a row, known digits, and the elements of a tile.
    n_rows, rank, capacity : int
        Rows that there is room for, how many elements are selected, and for how many pairs there is room.
    """

    n_parts: int
    number: int
    size: int
    n_rows: int
    rank: int
    capacity: int


def n_selecting_passes(element_size: int) -> int:
    """Return how many digits keys have."""
    return ceil_div(8 * element_size, SELECTED_BITS)


def serves_by_index(problem: Words, device: Words, selection: Selection) -> bool:
    """Tell whether results by index are selected rather than sorted.

    Rows with gaps between their elements should be read as few times as possible.
    """
    if selection.is_by_index == 0 or selection.axis_size >= COUNTED_AT_MOST * device[NARROW_ELEMENTS]:
        return False
    return selection.x_step == 1 or packs_rows(problem, device, selection)


def select_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Select from all rows, as many at a time as the workspace has room for."""
    x, selection = packed_rows(problem, device, given, out)
    size, axis_size = selection.element_size, selection.axis_size
    n_passes = n_selecting_passes(size) if selection.k < axis_size else 0
    count_bytes = n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS)
    most_tiles = ceil_div(axis_size, KEEPING_ROUND)
    row_bytes = count_bytes + (n_passes + 1) * KNOWN_BYTES + most_tiles * TILE_STATE_BYTES
    most_rows = min(device[BATCH_BYTES] // row_bytes, device[LAUNCH_BLOCKS] // most_tiles)
    n_rows = min(selection.n_rows, max(1, most_rows))
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_rounds = ceil_div(n_rows * axis_size, n_blocks * KEEPING_ROUND)
    tile_size = min(n_rounds * KEEPING_ROUND, SELECTED_WORDS * WARP_LANES)
    n_tiles = ceil_div(axis_size, tile_size)
    next_tile = take(out, WORKSPACE_ALIGNMENT)
    counts = take(out, bounded_product(n_rows, count_bytes))
    tiles = take(out, bounded_product(n_rows, n_tiles * TILE_STATE_BYTES))
    n_cleared = out[WORKSPACE] - next_tile
    known = take(out, n_rows * (n_passes + 1) * KNOWN_BYTES)
    areas = SelectAreas(counts, known, tiles, next_tile, NO_AREA, NO_AREA, NO_AREA, NO_AREA)
    offsets = fill_offsets(problem, device, selection, out)
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(n_rows, selection.n_rows - first)
        put_clearing(device, selection, out, next_tile, n_cleared)
        n_parts = min(ceil_div(axis_size, COUNTED_ELEMENTS), ceil_div(n_blocks, batch))
        for number in range(n_passes):
            kernel = kernel_key(DIGIT, size, 0, 0)
            begin(out, device, kernel, Sizes(batch * n_parts, COUNTING_THREADS, 0, 1))
            put_source(out, selection, x)
            put_select_areas(out, selection, areas, offsets)
            put_batch(problem, selection, out, first)
            put_values(out, SelectParameters(n_parts, number, 0, n_rows, selection.k, 0))
        begin(out, device, kernel_key(SELECTED, size, 0, 0), Sizes(batch * n_tiles, KEEPING_THREADS, 0, 1))
        put_source(out, selection, x)
        put_outputs(out, selection)
        put_select_areas(out, selection, areas, offsets)
        put_batch(problem, selection, out, first)
        put_values(out, SelectParameters(n_tiles, n_passes, tile_size, n_rows, selection.k, 0))
        first += batch
    return PLANNED


def put_select_areas(out: Words, selection: Selection, areas: SelectAreas, offsets: int) -> None:
    """Put pointers at what is counted, and at the table of row offsets."""
    put_area(out, selection, areas.counts)
    put_area(out, selection, areas.known)
    put_area(out, selection, areas.tiles)
    put_area(out, selection, areas.next_tile)
    put_area(out, selection, areas.ends)
    put_area(out, selection, areas.before)
    put_area(out, selection, areas.pairs)
    put_area(out, selection, areas.histograms)
    put_area(out, selection, offsets)
