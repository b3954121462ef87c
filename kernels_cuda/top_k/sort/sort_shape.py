"""How `sort` sorts rows: the tiles of a block, and where pairs lie meanwhile."""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words
from kernels_cuda.device_words import MULTIPROCESSORS
from kernels_cuda.top_k.policy import (
    BATCH_BYTES,
    FILTERED_BYTES,
    FILTERED_ROWS,
    KEPT_SHARE,
    LAUNCH_BLOCKS,
    NARROW_ELEMENTS,
)
from kernels_cuda.top_k.problem import Selection, axis_strides, bounded_product, scratch_limit
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES, N_DIGITS, WARP_LANES, pair_bytes

# An entry of a row's histogram, and the state of a tile with less than 2^30 elements before it.
COUNT_BYTES, STATE_BYTES = 8, 4
# A block marks elements that are kept in so many words; its threads load so many elements at a time.
KEEPING_THREADS = 512
KEPT_PER_THREAD = 16
KEEPING_ROUND = KEEPING_THREADS * KEPT_PER_THREAD
KEPT_WORDS = 4096
# The launch that counts digits has about this many blocks.
BLOCKS_PER_MULTIPROCESSOR = 2
# With more tiles than these, those of fewer threads with more elements each are faster.
TILES_PER_MULTIPROCESSOR = 3
# Bytes of a position in the workspace.
POSITION_SIZES = (4, 8)
HISTOGRAM_BYTES = N_DIGITS * COUNT_BYTES
# A place (`place`) is in a row's part of the workspace, or in its results; or there is no such array.
NOWHERE, IN_SCRATCH, IN_VALUES, IN_INDICES = 0, 1, 2, 3
# Arrays of a row begin at multiples of these bytes.
ARRAY_ALIGNMENT = 16


class SortTile(NamedTuple):
    """The shape of a block, which sorts a tile of a row, and the limit on its registers."""

    n_threads: int
    n_items: int
    max_registers: int


def n_sort_tiles(element_size: int, position_size: int) -> int:
    """Return how many kinds of tiles there are: for few of them, which run at the same time, and for many."""
    return 2 if pair_bytes(element_size, position_size) == 8 else 1


def sort_tile(element_size: int, position_size: int, number: int) -> SortTile:
    """Return the tile of a number; those for pairs of one size have the same number of elements."""
    if pair_bytes(element_size, position_size) == 16:
        return SortTile(384, 8, 56)
    return SortTile(384, 16, 80) if number == 0 else SortTile(256, 24, 80)


def top_bits(element_size: int) -> int:
    """Return how many of the highest bits of keys tell which are kept."""
    return 8 if element_size == 1 else 12


TOP_BITS = {size: top_bits(size) for size in ELEMENT_SIZES}


class PairPlaces(NamedTuple):
    """The places of the keys and of the positions of pairs, or one of whole pairs, without positions."""

    keys: int
    positions: int


class SortBuffers(NamedTuple):
    """Where the passes of a sort read and write pairs: two buffers in turn.

    Attributes
    ----------
    near, far : PairPlaces
        What the last pass reads, and what the one before it does; of a single row.
    last : int
        The place where the last pass writes positions, or `NOWHERE` if it writes indices.
    row_bytes, step : int
        Bytes of the workspace for each row, and from an array of a row to that of the next one.
    are_results : int
        Whether buffers are in the results, too. If not, one is after the other, each of all rows.
    """

    near: PairPlaces
    far: PairPlaces
    last: int
    row_bytes: int
    step: int
    are_results: int


def place(kind: int, offset: int) -> int:
    """Return the place of an array of a row: its kind, and its offset in bytes from where that begins."""
    return offset << 2 | kind


def offset_of(array: int) -> int:
    """Return the offset of an array, in bytes, from where its kind begins."""
    return array >> 2


def _array_bytes(count: int, size: int) -> int:
    return ceil_div(bounded_product(count, size), ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT


def scratch_buffers(element_size: int, position_size: int, capacity: int, n_targets: int) -> SortBuffers:
    """Return buffers in the workspace, to which pairs are written `n_targets` times."""
    n_bytes = bounded_product(capacity, pair_bytes(element_size, position_size))
    near = PairPlaces(place(IN_SCRATCH, 0), NOWHERE)
    far = PairPlaces(place(IN_SCRATCH, n_bytes), NOWHERE)
    return SortBuffers(near, far, NOWHERE, min(2, n_targets) * n_bytes, n_bytes, 0)


def result_buffers(selection: Selection) -> SortBuffers:
    """Return buffers of which as much as possible is in the results of a row, for k pairs.

    The last pass writes values, so that it reads none of them. Indices of 8 bytes have room for pairs or for
    keys that it reads; it then writes positions elsewhere. Those of 4 bytes have room for positions.
    """
    size, k = selection.element_size, selection.k
    positions, keys = _array_bytes(k, POSITION_SIZES[0]), _array_bytes(k, size)
    of_values, of_indices, in_scratch = place(IN_VALUES, 0), place(IN_INDICES, 0), place(IN_SCRATCH, 0)
    if selection.index_size == POSITION_SIZES[0]:
        far, last = PairPlaces(of_values, of_indices), NOWHERE
        near, n_bytes = PairPlaces(in_scratch, NOWHERE), 2 * positions
        if size == 8:
            near, n_bytes = PairPlaces(in_scratch, place(IN_SCRATCH, keys)), keys + positions
    else:
        far, last = PairPlaces(of_values, in_scratch), in_scratch
        near, n_bytes = PairPlaces(of_indices, NOWHERE), positions
        if size == 8:
            near, n_bytes = PairPlaces(of_indices, place(IN_SCRATCH, positions)), 2 * positions
    return SortBuffers(near, far, last, n_bytes, n_bytes, 1)


def has_packed_results(problem: Words, selection: Selection) -> bool:
    """Tell whether the results of a row have no gaps between them, and so may hold pairs meanwhile."""
    strides = axis_strides(problem, selection)
    return strides.values == 1 and strides.indices == 1


def sorting_bytes(selection: Selection, buffers: SortBuffers, n_pairs: int, position_size: int) -> int:
    """Return the workspace of a row's sort: pairs, histograms of their digits, and states of tiles.

    With buffers in the results, all passes use the same states.
    """
    size = selection.element_size
    tile = sort_tile(size, position_size, 0)
    n_tiles = ceil_div(n_pairs, tile.n_threads * tile.n_items)
    n_states = 1 if buffers.are_results else size
    return (
        buffers.row_bytes
        + size * HISTOGRAM_BYTES
        + bounded_product(n_tiles, n_states * N_DIGITS * position_size)
    )


class SortShape(NamedTuple):
    """How rows are sorted.

    Attributes
    ----------
    tile : SortTile
        A block's part of a row.
    position_size, capacity, n_tiles : int
        Bytes of a position in the workspace, pairs of a row that have room, and their tiles.
    n_rows : int
        Rows of a batch.
    is_filtered : int
        Whether elements are dropped before those left are sorted.
    keep_size, n_keep_tiles : int
        Elements of a tile before some are dropped, and how many such tiles a row has.
    buffers : SortBuffers
        Where pairs are.
    """

    tile: SortTile
    position_size: int
    capacity: int
    n_tiles: int
    n_rows: int
    is_filtered: int
    keep_size: int
    n_keep_tiles: int
    buffers: SortBuffers


def target_of(shape: SortShape, n_left: int) -> PairPlaces:
    """Return where pairs are written before the last `n_left` passes."""
    return buffer_of(shape.buffers, shape.n_rows, n_left)


def buffer_of(buffers: SortBuffers, n_rows: int, n_left: int) -> PairPlaces:
    """Do the same for buffers of so many rows."""
    if n_left == 0:
        return PairPlaces(NOWHERE, buffers.last)
    if n_left % 2 == 1:
        return buffers.near
    if buffers.are_results:
        return buffers.far
    return PairPlaces(place(IN_SCRATCH, n_rows * offset_of(buffers.far.keys)), NOWHERE)


def own_offset(shape: SortShape, places: PairPlaces) -> int:
    """Return the offset of pairs in the workspace's buffers; 0 if some pairs are in the results."""
    return 0 if shape.buffers.are_results else offset_of(places.keys)


def drops_most(device: Words, selection: Selection) -> int:
    """Tell whether elements are dropped before those left are sorted."""
    n_bytes = selection.row_bytes * min(selection.n_rows, device[FILTERED_ROWS])
    selects_few = selection.k <= selection.axis_size // device[KEPT_SHARE]
    is_narrow = selection.axis_size < device[NARROW_ELEMENTS]
    return int(n_bytes >= device[FILTERED_BYTES] and selects_few and is_narrow)


def state_bytes(shape: SortShape) -> int:
    """Return the bytes of the states of the tiles of a row, for one pass."""
    return bounded_product(shape.n_tiles, N_DIGITS * shape.position_size)


def position_size_of(device: Words, selection: Selection) -> int:
    """Return the bytes of a position where whole rows are sorted."""
    return POSITION_SIZES[1] if selection.axis_size >= device[NARROW_ELEMENTS] else POSITION_SIZES[0]


def whole_buffers(device: Words, selection: Selection) -> SortBuffers:
    """Return buffers in the workspace for whole rows."""
    size, position_size = selection.element_size, position_size_of(device, selection)
    n_targets = size - 1 + drops_most(device, selection)
    return scratch_buffers(size, position_size, selection.axis_size, n_targets)


def whole_bytes(device: Words, selection: Selection) -> int:
    """Return the workspace of a whole row, sorted in the workspace."""
    n_bytes = sorting_bytes(
        selection, whole_buffers(device, selection), selection.axis_size, position_size_of(device, selection)
    )
    return n_bytes + drops_most(device, selection) * (COUNT_BYTES << top_bits(selection.element_size))


def needs_results(problem: Words, device: Words, selection: Selection) -> bool:
    """Tell whether a whole row takes too much memory to be sorted in the workspace, and results may help."""
    k, axis_size = selection.k, selection.axis_size
    if selection.element_size == 1 or not has_packed_results(problem, selection):
        return False
    # To select most elements first, and then sort these, takes too long.
    if axis_size - axis_size // 4 < k < axis_size:
        return False
    n_bytes, limit = whole_bytes(device, selection), scratch_limit(device, selection)
    in_results = sorting_bytes(selection, result_buffers(selection), k, POSITION_SIZES[0])
    # The limit does not count the states of tiles.
    return n_bytes > limit + limit // 16 and in_results < n_bytes // 4 * 3


def tile_of(
    device: Words, selection: Selection, buffers: SortBuffers, position_size: int, n_tiles: int
) -> SortTile:
    """Return the tile for a launch of so many: with more, those of fewer threads are faster."""
    element_size = selection.element_size
    is_large = n_tiles > TILES_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    has_many_tiles = buffers.are_results == 1 or is_large
    number = int(has_many_tiles and n_sort_tiles(element_size, position_size) > 1)
    return sort_tile(element_size, position_size, number)


def keeping_size(device: Words, n_elements: int, n_words: int) -> int:
    """Return the elements of a tile in which a block marks some: at most as many as `n_words` have bits."""
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    return min(ceil_div(n_elements, n_blocks * KEEPING_ROUND) * KEEPING_ROUND, n_words * WARP_LANES)


def shape_of(problem: Words, device: Words, selection: Selection) -> SortShape:
    """Return how rows are sorted, as many at a time as the workspace has room for."""
    element_size, axis_size = selection.element_size, selection.axis_size
    position_size = position_size_of(device, selection)
    tile = sort_tile(element_size, position_size, 0)
    n_tiles = ceil_div(axis_size, tile.n_threads * tile.n_items)
    buffers, row_bytes = whole_buffers(device, selection), whole_bytes(device, selection)
    is_narrow = position_size == POSITION_SIZES[0]
    if selection.k == axis_size and is_narrow and needs_results(problem, device, selection):
        buffers = result_buffers(selection)
        row_bytes = sorting_bytes(selection, buffers, axis_size, position_size)
    most_rows = min(max(1, device[BATCH_BYTES] // row_bytes), max(1, device[LAUNCH_BLOCKS] // n_tiles))
    n_rows = min(selection.n_rows, most_rows)
    tile = tile_of(device, selection, buffers, position_size, n_rows * n_tiles)
    keep_size = keeping_size(device, n_rows * axis_size, KEPT_WORDS)
    return SortShape(
        tile,
        position_size,
        axis_size,
        n_tiles,
        n_rows,
        0 if buffers.are_results else drops_most(device, selection),
        keep_size,
        ceil_div(axis_size, keep_size),
        buffers,
    )
