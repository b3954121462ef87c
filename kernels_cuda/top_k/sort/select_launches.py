"""The launches of `sort` where elements are selected exactly, and what they and `select` agree on."""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS, PLANNED, WORKSPACE_ALIGNMENT
from kernels_cuda.top_k.policy import BATCH_BYTES, KEPT_SHARE, LAUNCH_BLOCKS, NARROW_ELEMENTS
from kernels_cuda.top_k.problem import Selection, bounded_product, scratch_limit
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
from kernels_cuda.top_k.shared.order_launches import end_unordered
from kernels_cuda.top_k.sort.sort_launches import (
    COUNTED_ELEMENTS,
    COUNTING_THREADS,
    SortAreas,
    packed_rows,
    packs_rows,
    put_batch,
    put_clearing,
    put_passes,
    put_source,
    take_several,
    take_states,
)
from kernels_cuda.top_k.sort.sort_shape import (
    BLOCKS_PER_MULTIPROCESSOR,
    HISTOGRAM_BYTES,
    KEEPING_ROUND,
    KEEPING_THREADS,
    NOWHERE,
    POSITION_SIZES,
    STATE_BYTES,
    PairPlaces,
    SortBuffers,
    SortShape,
    buffer_of,
    drops_most,
    has_packed_results,
    keeping_size,
    needs_results,
    result_buffers,
    scratch_buffers,
    sort_tile,
    sorting_bytes,
    tile_of,
)

# Bits of keys that a pass counts.
SELECTED_BITS = 12
# A block marks the elements of its tile in so many words, twice.
SELECTED_WORDS = 2048
DIGIT_COUNT_BYTES = 4
# Counts of marks have one bit more than those of sorts, so that rows may have twice as many elements.
COUNTED_AT_MOST = 2
# The known digits of a key, its rank among the keys with these, how many elements there are up to the last of
# them, and the bits that are not known.
KNOWN_WORDS = 4
KNOWN_BYTES = 8 * KNOWN_WORDS
TILE_STATE_BYTES = 8
# There is room for at least so many pairs. The workspace of a pair is that of many, divided by their number.
FEWEST_PAIRS, MANY_PAIRS = 1 << 8, 1 << 20
# There should also be room for elements that share some digits with the k-th one: one in so many of a row or,
# where that is too much memory, of the selected elements.
SPARE_OF_ROW, SPARE_OF_PAIRS = 16, 64


class SelectAreas(NamedTuple):
    """The addresses of counts of digits, known digits of each row, states of tiles, and the next tile.

    Of elements that are then sorted: how many of each row are kept, their pairs, and histograms of digits.
    """

    counts: int
    known: int
    tiles: int
    next_tile: int
    kept: int
    scratch: int
    histograms: int


class SelectParameters(NamedTuple):
    """More parameters of the kernels that select.

    Attributes
    ----------
    n_parts, number, size : int
        Blocks of a row, known digits, and the elements of a tile.
    n_rows, capacity : int
        Rows that there is room for, and for how many pairs of each.
    row_bytes, target : int, PairPlaces
        Bytes from the pairs of a row to those of the next one, and where pairs go.
    """

    n_parts: int
    number: int
    size: int
    n_rows: int
    capacity: int
    row_bytes: int
    target: PairPlaces


class SelectShape(NamedTuple):
    """How elements are selected, and then sorted.

    Attributes
    ----------
    n_rows, n_passes, tile_size, n_tiles : int
        Rows of a batch, digits that are counted, elements of a tile, and tiles of a row.
    capacity : int
        How many pairs of a row have room.
    buffers : SortBuffers
        Where pairs are.
    """

    n_rows: int
    n_passes: int
    tile_size: int
    n_tiles: int
    capacity: int
    buffers: SortBuffers


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


def _counting_bytes(selection: Selection, n_passes: int) -> int:
    """Return the workspace of what is counted of a row."""
    n_bytes = n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS) + (n_passes + 1) * KNOWN_BYTES
    return n_bytes + ceil_div(selection.axis_size, KEEPING_ROUND) * TILE_STATE_BYTES


def _shape(
    device: Words, selection: Selection, most_rows: int, n_passes: int, capacity: int, buffers: SortBuffers
) -> SelectShape:
    """Return how elements are selected, from up to so many rows at a time."""
    most_rows = min(most_rows, device[LAUNCH_BLOCKS] // ceil_div(selection.axis_size, KEEPING_ROUND))
    n_rows = min(selection.n_rows, max(1, most_rows))
    tile_size = keeping_size(device, n_rows * selection.axis_size, SELECTED_WORDS)
    n_tiles = ceil_div(selection.axis_size, tile_size)
    return SelectShape(n_rows, n_passes, tile_size, n_tiles, capacity, buffers)


def select_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Select from all rows, as many at a time as the workspace has room for."""
    x, selection = packed_rows(problem, device, given, out)
    n_passes = n_selecting_passes(selection.element_size) if selection.k < selection.axis_size else 0
    most_rows = device[BATCH_BYTES] // _counting_bytes(selection, n_passes)
    no_pairs = SortBuffers(PairPlaces(NOWHERE, NOWHERE), PairPlaces(NOWHERE, NOWHERE), NOWHERE, 0, 0, 0)
    shape = _shape(device, selection, most_rows, n_passes, 0, no_pairs)
    next_tile = take(out, WORKSPACE_ALIGNMENT)
    counts = take(out, bounded_product(shape.n_rows, n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS)))
    tiles = take(out, bounded_product(shape.n_rows, shape.n_tiles * TILE_STATE_BYTES))
    n_cleared = out[WORKSPACE] - next_tile
    known = take(out, shape.n_rows * (n_passes + 1) * KNOWN_BYTES)
    areas = SelectAreas(counts, known, tiles, next_tile, NO_AREA, NO_AREA, NO_AREA)
    offsets = fill_offsets(problem, device, selection, out)
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(shape.n_rows, selection.n_rows - first)
        put_clearing(device, selection, out, next_tile, n_cleared)
        _put_selecting(problem, device, selection, out, shape, areas, SelectedRows(x, offsets, first, batch))
        first += batch
    return PLANNED


def _pairs(problem: Words, device: Words, selection: Selection) -> SelectShape:
    """Return how elements are selected whose pairs are then sorted.

    They are up to twice as many as needed, and some more, so that not all digits of the k-th key need be
    counted; fewer if that is too much memory. If even k pairs are, the results hold them.
    """
    size, k, axis_size = selection.element_size, selection.k, selection.axis_size
    # The limit does not count the states of tiles.
    limit = scratch_limit(device, selection)
    limit += limit // 16
    n_passes = n_selecting_passes(size)
    counted = _counting_bytes(selection, n_passes)
    hoped = min(axis_size, 2 * k + axis_size // SPARE_OF_ROW)
    most_rows = min(limit, device[BATCH_BYTES]) // (counted + _scratch_bytes(selection, hoped))
    capacity = hoped
    if most_rows == 0:
        # As many as have room: the workspace grows in proportion to the pairs.
        n_pairs = (limit - counted) * MANY_PAIRS // _scratch_bytes(selection, MANY_PAIRS)
        capacity = min(hoped, max(n_pairs, 0))
    enough = min(axis_size, k + k // SPARE_OF_PAIRS)
    if capacity < enough and size > 1 and has_packed_results(problem, selection):
        return _shape(device, selection, 1, n_passes, k, result_buffers(selection))
    capacity = min(max(capacity, enough, FEWEST_PAIRS), device[NARROW_ELEMENTS] - 1)
    buffers = scratch_buffers(size, POSITION_SIZES[0], capacity, size)
    return _shape(device, selection, most_rows, n_passes, capacity, buffers)


def _scratch_bytes(selection: Selection, n_pairs: int) -> int:
    """Return the workspace of a row's sort if its pairs are there."""
    size = selection.element_size
    buffers = scratch_buffers(size, POSITION_SIZES[0], n_pairs, size)
    return sorting_bytes(selection, buffers, n_pairs, POSITION_SIZES[0])


def selects_before(problem: Words, device: Words, selection: Selection) -> bool:
    """Tell whether elements are selected exactly before they are sorted.

    That is where room for pairs of all elements of a row would take too much memory, and few are selected,
    or results have room for pairs.
    """
    axis_size, k = selection.axis_size, selection.k
    is_wide = axis_size >= device[NARROW_ELEMENTS]
    if axis_size >= COUNTED_AT_MOST * device[NARROW_ELEMENTS] or k >= min(device[NARROW_ELEMENTS], axis_size):
        return False
    if k > axis_size // device[KEPT_SHARE]:
        return needs_results(problem, device, selection)
    n_bytes = bounded_product(selection.n_rows, _scratch_bytes(selection, axis_size))
    return n_bytes > device[BATCH_BYTES] and (drops_most(device, selection) == 1 or is_wide)


def pairs_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Select from all rows, and sort what is selected, as many rows at a time as there is room for."""
    x, selection = packed_rows(problem, device, given, out)
    size = selection.element_size
    selecting = _pairs(problem, device, selection)
    n_rows, n_passes, buffers = selecting.n_rows, selecting.n_passes, selecting.buffers
    tile = sort_tile(size, POSITION_SIZES[0], 0)
    n_sort_tiles = ceil_div(selecting.capacity, tile.n_threads * tile.n_items)
    shape = SortShape(
        tile_of(device, selection, buffers, POSITION_SIZES[0], n_rows * n_sort_tiles),
        POSITION_SIZES[0],
        selecting.capacity,
        n_sort_tiles,
        n_rows,
        1,
        selecting.tile_size,
        selecting.n_tiles,
        buffers,
    )
    counters, counter_step = take_several(out, size, WORKSPACE_ALIGNMENT)
    next_tile = take(out, WORKSPACE_ALIGNMENT)
    counts = take(out, n_rows * n_passes * (DIGIT_COUNT_BYTES << SELECTED_BITS))
    tiles = take(out, bounded_product(n_rows, selecting.n_tiles * TILE_STATE_BYTES))
    histograms = take(out, n_rows * size * HISTOGRAM_BYTES)
    states, state_step = take_states(out, size, shape)
    n_cleared = out[WORKSPACE] - counters
    known = take(out, n_rows * (n_passes + 1) * KNOWN_BYTES)
    kept = take(out, n_rows * STATE_BYTES)
    scratch = take(out, bounded_product(n_rows, buffers.row_bytes))
    offsets = fill_offsets(problem, device, selection, out)
    areas = SelectAreas(counts, known, tiles, next_tile, kept, scratch, histograms)
    sorting = SortAreas(
        x=x,
        counters=counters,
        counter_step=counter_step,
        histograms=histograms,
        kept=kept,
        tops=NO_AREA,
        tile_sums=NO_AREA,
        states=states,
        state_step=state_step,
        n_cleared=n_cleared,
        scratch=scratch,
        offsets=offsets,
    )
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(n_rows, selection.n_rows - first)
        put_clearing(device, selection, out, counters, n_cleared)
        _put_selecting(
            problem, device, selection, out, selecting, areas, SelectedRows(x, offsets, first, batch)
        )
        put_passes(problem, device, selection, out, shape, sorting, first, batch)
        first += batch
    return end_unordered(problem, device, given, out)


class SelectedRows(NamedTuple):
    """Areas of a copy of x and of row offsets, the first row of a batch, and how many there are."""

    x: int
    offsets: int
    first: int
    n_rows: int


def _put_selecting(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    shape: SelectShape,
    areas: SelectAreas,
    rows: SelectedRows,
) -> None:
    """Put the launches that select from a batch of rows."""
    size, buffers, makes_pairs = selection.element_size, shape.buffers, int(areas.kept >= 0)
    target = buffer_of(buffers, shape.n_rows, size)
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_parts = min(ceil_div(selection.axis_size, COUNTED_ELEMENTS), ceil_div(n_blocks, rows.n_rows))
    for number in range(shape.n_passes):
        begin(
            out, device, kernel_key(DIGIT, size, 0, 0), Sizes(rows.n_rows * n_parts, COUNTING_THREADS, 0, 1)
        )
        put_source(out, selection, rows.x)
        _put_areas(out, selection, areas, rows.offsets)
        put_batch(problem, selection, out, rows.first)
        parameters = SelectParameters(n_parts, number, 0, shape.n_rows, shape.capacity, buffers.step, target)
        put_values(out, parameters)
    kernel = kernel_key(SELECTED, size, makes_pairs, 0)
    begin(out, device, kernel, Sizes(rows.n_rows * shape.n_tiles, KEEPING_THREADS, 0, 1))
    put_source(out, selection, rows.x)
    put_outputs(out, selection)
    _put_areas(out, selection, areas, rows.offsets)
    put_batch(problem, selection, out, rows.first)
    parameters = SelectParameters(
        shape.n_tiles,
        shape.n_passes,
        shape.tile_size,
        shape.n_rows,
        shape.capacity,
        buffers.step,
        target,
    )
    put_values(out, parameters)


def _put_areas(out: Words, selection: Selection, areas: SelectAreas, offsets: int) -> None:
    """Put pointers at the areas, and at the table of row offsets."""
    put_area(out, selection, areas.counts)
    put_area(out, selection, areas.known)
    put_area(out, selection, areas.tiles)
    put_area(out, selection, areas.next_tile)
    put_area(out, selection, areas.kept)
    put_area(out, selection, areas.scratch)
    put_area(out, selection, areas.histograms)
    put_area(out, selection, offsets)
