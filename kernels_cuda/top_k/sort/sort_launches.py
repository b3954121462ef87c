"""The launches of `sort`, and what they and its kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import (
    ALGORITHM,
    WORKSPACE,
    Words,
    put_value,
    put_values,
)
from kernels_cpu.top_k.problem_words import N_DIMS
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import MULTIPROCESSORS, WORKSPACE_ALIGNMENT
from kernels_cuda.diagonal_matrix.parameters import FAMILIES as MATRIX_FAMILIES
from kernels_cuda.diagonal_matrix.parameters import THREADS as MATRIX_THREADS
from kernels_cuda.diagonal_matrix.parameters import TRANSPOSED_KERNEL
from kernels_cuda.diagonal_matrix.plan import one_batch, transposed_copy
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import (
    BATCH_BYTES,
    FILTERED_BYTES,
    FILTERED_ROWS,
    KEPT_SHARE,
    LAUNCH_BLOCKS,
    NARROW_ELEMENTS,
)
from kernels_cuda.top_k.problem import Selection, axis_strides, bounded_product, row_layout, scratch_limit
from kernels_cuda.top_k.shared.kernel_keys import (
    CLEAR,
    HISTOGRAM,
    INDICES,
    KEEP,
    RESULT_SORT,
    SORT,
    TRANSPOSED,
    kernel_key,
    with_more,
)
from kernels_cuda.top_k.shared.launches import (
    FULL,
    NO_AREA,
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_first,
    put_indices,
    put_outputs,
    put_rows,
    put_windows,
    put_x,
    take,
    variant,
)
from kernels_cuda.top_k.shared.order_launches import end_unordered
from kernels_cuda.top_k.shared.shapes import (
    DIGIT_BITS,
    ELEMENT_SIZES,
    N_DIGITS,
    VECTOR_BYTES,
    WARP_LANES,
    pair_bytes,
)

# An entry of a row's histogram, and the state of a tile with less than 2^30 elements before it.
COUNT_BYTES, STATE_BYTES = 8, 4
# A block marks elements that are kept in so many words; its threads load so many elements at a time.
KEEPING_THREADS = 512
KEPT_PER_THREAD = 16
KEEPING_ROUND = KEEPING_THREADS * KEPT_PER_THREAD
KEPT_WORDS = 4096
CLEARING_THREADS = 256
CLEARED_BYTES = VECTOR_BYTES * CLEARING_THREADS
# Large blocks, for each adds its counts to those of the whole row.
COUNTING_THREADS = 1024
# Elements that a thread counts at a time.
COUNTED_PER_THREAD = 8
COUNTED_ELEMENTS = COUNTING_THREADS * COUNTED_PER_THREAD
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
# Blocks of `sort.write_indices`, and how many each writes.
WRITING_THREADS = 256
WRITING_ELEMENTS = 16 * WRITING_THREADS


class SortTile(NamedTuple):
    """The shape of a block, which sorts a tile of a row, and the limit on its registers."""

    n_threads: int
    n_items: int
    max_registers: int


def n_sort_tiles(element_size: int, position_size: int) -> int:
    """Return how many kinds of tiles there are: for few of them, which all run at once, and for many."""
    return 2 if pair_bytes(element_size, position_size) == 8 else 1


def sort_tile(element_size: int, position_size: int, number: int) -> SortTile:
    """Return the tile of a number; all are of the same number of elements."""
    if pair_bytes(element_size, position_size) == 16:
        return SortTile(384, 8, 56)
    return SortTile(384, 16, 80) if number == 0 else SortTile(256, 24, 80)


def top_bits(element_size: int) -> int:
    """Return how many of the highest bits of keys tell which are kept."""
    return 8 if element_size == 1 else 12


TOP_BITS = {size: top_bits(size) for size in ELEMENT_SIZES}


class ClearParameters(NamedTuple):
    """Parameters of `sort.clear_words`."""

    n_vectors: int


class PairPlaces(NamedTuple):
    """The places of the keys and of the positions of pairs, or one of whole pairs, without positions."""

    keys: int
    positions: int


class PairBuffers(NamedTuple):
    """The addresses of the pairs that `sort.sort_digit` reads and writes; in results, of places for them."""

    source: int
    destination: int


class SortCounts(NamedTuple):
    """The addresses of what is counted.

    They are histograms of digits, how many elements of each row are kept (0 if all are), states of tiles, and
    the number of the next tile.
    """

    histograms: int
    n_kept: int
    states: int
    next_tile: int


class SortParameters(NamedTuple):
    """More parameters of `sort.sort_digit`.

    Attributes
    ----------
    n_tiles, capacity : int
        Tiles of a row, and how many of its pairs have room.
    shift, is_first, is_last : int
        The lowest bit of the digit, and whether the pass is the first one, which makes pairs of the elements,
        or the last one.
    row_bytes : int
        How many bytes after those of a row the pairs of the next one are.
    source, target : PairPlaces
        Where pairs are that may be in the results. The last pass writes indices if its target has no
        positions.
    """

    n_tiles: int
    capacity: int
    shift: int
    is_first: int
    is_last: int
    row_bytes: int
    source: PairPlaces
    target: PairPlaces


class WritingParameters(NamedTuple):
    """More parameters of `sort.write_indices`: blocks of a row, and where its positions are."""

    n_parts: int
    row_bytes: int
    positions: int


class KeepingAreas(NamedTuple):
    """The addresses of what `filter.keep_pairs` reads and writes, as in `SortAreas`."""

    tops: int
    pairs: int
    histograms: int
    n_kept: int
    states: int
    next_tile: int


class KeepingParameters(NamedTuple):
    """More parameters of `filter.keep_pairs`: the tiles of a row, and the elements of a tile."""

    n_tiles: int
    size: int


def clear_variant() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return variant("clear", "sort.sort:clear_kernel")


def indices_variant() -> Variant:
    """Return the kernel that makes indices of positions."""
    return variant("indices", "sort.sort:indices_kernel")


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, drop elements, and sort by a digit."""
    matrix_key = kernel_keys.kernel_key(TRANSPOSED_KERNEL, element_size)
    yield kernel_keys.variant_of(matrix_key, MATRIX_FAMILIES)
    counted = (DIGIT_BITS, element_size), (top_bits(element_size), 1)
    for digit_bits, n_digits in dict.fromkeys(counted):
        yield variant("histogram", "sort.sort:histogram_kernel", element_size, digit_bits, n_digits)
    yield variant("keep", "sort.filter:keep_kernel", element_size)
    yield variant("digit", "sort.select:digit_kernel", element_size)
    for makes_pairs in (0, 1):
        yield variant("selected", "sort.select:selected_kernel", element_size, makes_pairs)
    for position_size in POSITION_SIZES:
        n_tiles = n_sort_tiles(element_size, position_size)
        for number in range(n_tiles):
            tile = sort_tile(element_size, position_size, number)
            needed = tile.n_threads * tile.n_items * pair_bytes(element_size, position_size)
            parameters = element_size, position_size, *tile
            yield variant("sort", "sort.sort:sort_kernel", *parameters, dynamic_shared_bytes=needed)
            if number == n_tiles - 1 and position_size == POSITION_SIZES[0] and element_size > 1:
                factory = "sort.sort:result_sort_kernel"
                yield variant("result_sort", factory, *parameters, dynamic_shared_bytes=needed)


def _transpose(problem: Words, device: Words, selection: Selection, out: Words, copied: int) -> None:
    """Put a copy of rows that lie side by side, one after the other, into the workspace."""
    size, n_each, axis_size = selection.element_size, selection.n_neighbours, selection.axis_size
    layout = row_layout(problem, selection)
    x_row = layout.x_outer if layout.inner_size == 1 else layout.x_inner
    n_matrices = selection.n_rows // n_each
    copy = transposed_copy(n_matrices, n_each, axis_size, size, x_row * size, selection.x_step * size)
    begin(out, device, kernel_key(TRANSPOSED, size, 0, 0), Sizes(copy.n_blocks, MATRIX_THREADS, 0, 1))
    put_x(out, selection)
    put_area(out, selection, copied)
    put_values(out, copy.parameters)
    put_values(out, one_batch(n_matrices, layout.x_outer * size, n_each * axis_size * size))


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
    """Return the place of an array of a row, so many bytes after where its kind begins."""
    return offset << 2 | kind


def offset_of(array: int) -> int:
    """Return how many bytes after where its kind begins an array is."""
    return array >> 2


def _array_bytes(count: int, size: int) -> int:
    return ceil_div(bounded_product(count, size), ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT


def scratch_buffers(element_size: int, position_size: int, capacity: int, n_targets: int) -> SortBuffers:
    """Return buffers in the workspace; so many times, pairs are written there."""
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
        Elements of which a block drops some, and how many such blocks a row has.
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
    """Return where pairs are written that so many passes are left to sort."""
    return buffer_of(shape.buffers, shape.n_rows, n_left)


def buffer_of(buffers: SortBuffers, n_rows: int, n_left: int) -> PairPlaces:
    """Return the same of buffers for so many rows."""
    if n_left == 0:
        return PairPlaces(NOWHERE, buffers.last)
    if n_left % 2 == 1:
        return buffers.near
    if buffers.are_results:
        return buffers.far
    return PairPlaces(place(IN_SCRATCH, n_rows * offset_of(buffers.far.keys)), NOWHERE)


def own_offset(shape: SortShape, places: PairPlaces) -> int:
    """Return how far after the beginning of the buffers pairs are, if they are only there."""
    return 0 if shape.buffers.are_results else offset_of(places.keys)


def drops_most(device: Words, selection: Selection) -> int:
    """Tell whether elements are dropped before those left are sorted."""
    n_bytes = selection.row_bytes * min(selection.n_rows, device[FILTERED_ROWS])
    selects_few = selection.k <= selection.axis_size // device[KEPT_SHARE]
    is_narrow = selection.axis_size < device[NARROW_ELEMENTS]
    return int(n_bytes >= device[FILTERED_BYTES] and selects_few and is_narrow)


def _state_bytes(shape: SortShape) -> int:
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
    """Return of how many elements a block marks some, at most as many as that many words have bits."""
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    return min(ceil_div(n_elements, n_blocks * KEEPING_ROUND) * KEEPING_ROUND, n_words * WARP_LANES)


def _shape(problem: Words, device: Words, selection: Selection) -> SortShape:
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


class SortAreas(NamedTuple):
    """Areas of the workspace. Where one exists several times, `..._step` is the distance in bytes.

    The first `n_cleared` bytes, from the counters on, are cleared before each batch of rows.
    """

    x: int
    counters: int
    counter_step: int
    histograms: int
    kept: int
    tops: int
    tile_sums: int
    states: int
    state_step: int
    n_cleared: int
    scratch: int
    offsets: int


def take_several(out: Words, count: int, n_bytes: int) -> tuple[int, int]:
    """Return where the first of several areas begins, and how far they are apart."""
    first: int = out[WORKSPACE]
    for _ in range(count):
        take(out, n_bytes)
    return first, (out[WORKSPACE] - first) // max(count, 1)


def _take_areas(
    problem: Words, device: Words, selection: Selection, out: Words, shape: SortShape, x: int
) -> SortAreas:
    """Make room for what is counted and moved."""
    n_passes, n_rows, is_filtered = selection.element_size, shape.n_rows, shape.is_filtered
    counters, counter_step = take_several(out, n_passes + is_filtered, WORKSPACE_ALIGNMENT)
    histograms = take(out, n_rows * n_passes * HISTOGRAM_BYTES)
    kept = take(out, n_rows * STATE_BYTES) if is_filtered else NO_AREA
    tops = take(out, n_rows * (COUNT_BYTES << top_bits(selection.element_size)) * is_filtered)
    tile_sums = take(out, bounded_product(n_rows, shape.n_keep_tiles * STATE_BYTES) * is_filtered)
    states, state_step = take_states(out, n_passes, shape)
    n_cleared = out[WORKSPACE] - counters
    scratch = take(out, bounded_product(n_rows, shape.buffers.row_bytes))
    offsets = fill_offsets(problem, device, selection, out)
    return SortAreas(
        x,
        counters,
        counter_step,
        histograms,
        kept,
        tops,
        tile_sums,
        states,
        state_step,
        n_cleared,
        scratch,
        offsets,
    )


def take_states(out: Words, n_passes: int, shape: SortShape) -> tuple[int, int]:
    """Return where the states of tiles of the first pass are, and how far apart those of passes are."""
    n_bytes = bounded_product(shape.n_rows, _state_bytes(shape))
    if shape.buffers.are_results:
        return take(out, n_bytes), 0
    return take_several(out, n_passes, n_bytes)


def packs_rows(problem: Words, device: Words, selection: Selection) -> bool:
    """Tell whether rows that lie side by side are copied first."""
    n_bytes = bounded_product(selection.n_rows, selection.row_bytes)
    is_whole = selection.is_transposed == 1 and selection.has_starts == 0
    return is_whole and problem[N_DIMS] <= 2 and n_bytes <= device[BATCH_BYTES]


def packed_rows(problem: Words, device: Words, given: Selection, out: Words) -> tuple[int, Selection]:
    """Return the area of a copy of rows that lie side by side, or `NO_AREA`, and the selection from it."""
    x, selection = NO_AREA, given
    if packs_rows(problem, device, given):
        x = take(out, bounded_product(selection.n_rows, selection.row_bytes))
        _transpose(problem, device, selection, out, x)
        selection = selection._replace(x_step=1, x_row=selection.axis_size)
    return x, selection


def sort_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Sort whole rows, as many at a time as the workspace has room for."""
    x, selection = packed_rows(problem, device, given, out)
    shape = _shape(problem, device, selection)
    areas = _take_areas(problem, device, selection, out, shape, x)
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(shape.n_rows, selection.n_rows - first)
        _put_counting(problem, device, selection, out, shape, areas, first, batch)
        if shape.is_filtered:
            _put_keeping(problem, device, selection, out, shape, areas, first, batch)
        put_passes(problem, device, selection, out, shape, areas, first, batch)
        first += batch
    return end_unordered(problem, device, given, out)


def _put_counting(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    shape: SortShape,
    areas: SortAreas,
    first: int,
    batch: int,
) -> None:
    """Put what clears the counters, and counts the digits of a batch of rows, or their highest bits."""
    element_size = selection.element_size
    put_clearing(device, selection, out, areas.counters, areas.n_cleared)
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    blocks_per_row = min(ceil_div(selection.axis_size, COUNTED_ELEMENTS), ceil_div(n_blocks, batch))
    kernel = kernel_key(HISTOGRAM, element_size, DIGIT_BITS, element_size)
    if shape.is_filtered:
        kernel = kernel_key(HISTOGRAM, element_size, top_bits(element_size), 1)
    begin(out, device, kernel, Sizes(batch * blocks_per_row, COUNTING_THREADS, 0, 1))
    put_source(out, selection, areas.x)
    put_area(out, selection, areas.tops if shape.is_filtered else areas.histograms)
    put_area(out, selection, areas.offsets)
    put_batch(problem, selection, out, first)
    put_value(out, blocks_per_row)


def _put_keeping(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    shape: SortShape,
    areas: SortAreas,
    first: int,
    batch: int,
) -> None:
    """Put what drops most elements of a batch of rows."""
    kernel = kernel_key(KEEP, selection.element_size, 0, 0)
    begin(out, device, kernel, Sizes(batch * shape.n_keep_tiles, KEEPING_THREADS, 0, 1))
    put_source(out, selection, areas.x)
    put_area(out, selection, areas.tops)
    put_area(out, selection, areas.scratch + own_offset(shape, target_of(shape, selection.element_size)))
    put_area(out, selection, areas.histograms)
    put_area(out, selection, areas.kept)
    put_area(out, selection, areas.tile_sums)
    put_area(out, selection, areas.counters + selection.element_size * areas.counter_step)
    put_area(out, selection, areas.offsets)
    put_batch(problem, selection, out, first)
    put_values(out, KeepingParameters(shape.n_keep_tiles, shape.keep_size))


def put_passes(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    shape: SortShape,
    areas: SortAreas,
    first: int,
    batch: int,
) -> None:
    """Put what sorts a batch of rows, a pass for each digit."""
    tile, element_size, buffers = shape.tile, selection.element_size, shape.buffers
    n_bytes = tile.n_threads * tile.n_items * pair_bytes(element_size, shape.position_size)
    name = RESULT_SORT if buffers.are_results else SORT
    kernel = kernel_key(name, element_size, shape.position_size, tile.n_threads)
    kernel = with_more(kernel, tile.n_items, tile.max_registers)
    source = PairPlaces(NOWHERE, NOWHERE)
    if areas.kept >= 0:
        source = target_of(shape, element_size)
    for number in range(element_size):
        if number > 0 and areas.state_step == 0:
            put_clearing(device, selection, out, areas.states, shape.n_rows * _state_bytes(shape))
        n_left = element_size - 1 - number
        target = target_of(shape, n_left)
        begin(out, device, kernel, Sizes(batch * shape.n_tiles, tile.n_threads, n_bytes, 1))
        put_source(out, selection, areas.x)
        put_area(out, selection, areas.scratch + own_offset(shape, source))
        put_area(out, selection, areas.scratch + own_offset(shape, target))
        put_outputs(out, selection)
        put_area(out, selection, areas.histograms + number * HISTOGRAM_BYTES)
        put_area(out, selection, areas.kept)
        put_area(out, selection, areas.states + number * areas.state_step)
        put_area(out, selection, areas.counters + number * areas.counter_step)
        put_area(out, selection, areas.offsets)
        put_batch(problem, selection, out, first)
        parameters = SortParameters(
            shape.n_tiles,
            shape.capacity,
            number * DIGIT_BITS,
            int(source.keys == NOWHERE),
            int(n_left == 0),
            buffers.step,
            source,
            target,
        )
        put_values(out, parameters)
        source = target
    if buffers.last != NOWHERE:
        n_parts = ceil_div(selection.k, WRITING_ELEMENTS)
        begin(out, device, kernel_key(INDICES, 0, 0, 0), Sizes(batch * n_parts, WRITING_THREADS, 0, 1))
        put_windows(out, selection)
        put_area(out, selection, areas.scratch)
        put_indices(out, selection)
        put_area(out, selection, areas.offsets)
        put_batch(problem, selection, out, first)
        put_values(out, WritingParameters(n_parts, buffers.step, offset_of(buffers.last)))


def put_clearing(device: Words, selection: Selection, out: Words, area: int, n_bytes: int) -> None:
    """Put what clears an area."""
    n_blocks = ceil_div(n_bytes, CLEARED_BYTES)
    begin(out, device, kernel_key(CLEAR, 0, 0, 0), Sizes(n_blocks, CLEARING_THREADS, 0, 1))
    put_area(out, selection, area)
    put_values(out, ClearParameters(n_bytes // VECTOR_BYTES))


def put_source(out: Words, selection: Selection, x: int) -> None:
    """Put pointers at x, or at its copy in an area, and at lengths."""
    if x < 0:
        put_x(out, selection)
    else:
        put_area(out, selection, x)
    put_windows(out, selection)


def put_batch(problem: Words, selection: Selection, out: Words, first: int) -> None:
    """Put the first parameters of a kernel for rows from the first one on."""
    put_rows(out, problem, selection)
    put_first(out, first)
