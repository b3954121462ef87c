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
from kernels_cuda.top_k.problem import Selection, bounded_product, row_layout
from kernels_cuda.top_k.shared.kernel_keys import (
    CLEAR,
    HISTOGRAM,
    KEEP,
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
# Which pass is the last one, of whole rows and of slices.
OF_ROW, OF_SLICE = 1, 2
# The end of a slice of a row: its last key, and how many elements come up to that. After those of all rows of
# a batch comes how many pairs of each there are.
SLICE_BYTES = 16
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


class SortBuffers(NamedTuple):
    """The addresses of the pairs that `sort.sort_digit` reads and writes."""

    source: int
    destination: int


class SortCounts(NamedTuple):
    """The addresses of what is counted.

    They are histograms of digits, how many elements of each row are kept (0 if all are), the ends of the
    slices before (0 if there are none), states of tiles, and the number of the next tile.
    """

    histograms: int
    n_kept: int
    before: int
    states: int
    next_tile: int


class SortParameters(NamedTuple):
    """More parameters of `sort.sort_digit`.

    They are tiles of a row, how many of its pairs have room, lowest bit of the digit, and which pass it is.
    The last one also fills results up if `is_last` is `OF_ROW`; that of a slice, `OF_SLICE`, does not.
    """

    n_tiles: int
    capacity: int
    shift: int
    is_first: int
    is_last: int


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


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, drop elements, and sort by a digit."""
    matrix_key = kernel_keys.kernel_key(TRANSPOSED_KERNEL, element_size)
    yield kernel_keys.variant_of(matrix_key, MATRIX_FAMILIES)
    counted = (DIGIT_BITS, element_size), (top_bits(element_size), 1)
    for digit_bits, n_digits in dict.fromkeys(counted):
        yield variant("histogram", "sort.sort:histogram_kernel", element_size, digit_bits, n_digits)
    yield variant("keep", "sort.filter:keep_kernel", element_size)
    yield variant("slice", "sort.slice:slice_kernel", element_size)
    yield variant("digit", "sort.select:digit_kernel", element_size)
    yield variant("selected", "sort.select:selected_kernel", element_size)
    for position_size in POSITION_SIZES:
        for number in range(n_sort_tiles(element_size, position_size)):
            tile = sort_tile(element_size, position_size, number)
            needed = tile.n_threads * tile.n_items * pair_bytes(element_size, position_size)
            parameters = element_size, position_size, *tile
            yield variant("sort", "sort.sort:sort_kernel", *parameters, dynamic_shared_bytes=needed)


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
    """

    tile: SortTile
    position_size: int
    capacity: int
    n_tiles: int
    n_rows: int
    is_filtered: int
    keep_size: int
    n_keep_tiles: int


def drops_most(device: Words, selection: Selection) -> int:
    """Tell whether elements are dropped before those left are sorted."""
    n_bytes = selection.row_bytes * min(selection.n_rows, device[FILTERED_ROWS])
    selects_few = selection.k <= selection.axis_size // device[KEPT_SHARE]
    is_narrow = selection.axis_size < device[NARROW_ELEMENTS]
    return int(n_bytes >= device[FILTERED_BYTES] and selects_few and is_narrow)


def _n_buffers(selection: Selection, is_filtered: int) -> int:
    """Return how many buffers there are: the last pass writes the results, each one before it a buffer."""
    return min(2, selection.element_size - 1 + is_filtered)


def _buffer_bytes(selection: Selection, position_size: int) -> int:
    return bounded_product(selection.axis_size, pair_bytes(selection.element_size, position_size))


def _state_bytes(shape: SortShape) -> int:
    return bounded_product(shape.n_tiles, N_DIGITS * shape.position_size)


def _shape(device: Words, selection: Selection) -> SortShape:
    """Return how rows are sorted, as many at a time as the workspace has room for."""
    element_size, axis_size = selection.element_size, selection.axis_size
    position_size = POSITION_SIZES[1] if axis_size >= device[NARROW_ELEMENTS] else POSITION_SIZES[0]
    tile = sort_tile(element_size, position_size, 0)
    n_tiles = ceil_div(axis_size, tile.n_threads * tile.n_items)
    is_filtered = drops_most(device, selection)
    top_bytes = COUNT_BYTES << top_bits(element_size) if is_filtered else 0
    state_bytes = bounded_product(n_tiles, N_DIGITS * position_size)
    row_bytes = _n_buffers(selection, is_filtered) * _buffer_bytes(selection, position_size)
    row_bytes += element_size * (HISTOGRAM_BYTES + state_bytes) + top_bytes
    most_rows = min(max(1, device[BATCH_BYTES] // row_bytes), max(1, device[LAUNCH_BLOCKS] // n_tiles))
    n_rows = min(selection.n_rows, most_rows)
    # With more tiles, those of fewer threads with more elements each are faster.
    has_many_tiles = n_rows * n_tiles > TILES_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    if has_many_tiles and n_sort_tiles(element_size, position_size) > 1:
        tile = sort_tile(element_size, position_size, 1)
    n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_rounds = ceil_div(n_rows * axis_size, n_blocks * KEEPING_ROUND)
    keep_size = min(n_rounds * KEEPING_ROUND, KEPT_WORDS * WARP_LANES)
    n_keep_tiles = ceil_div(axis_size, keep_size)
    return SortShape(tile, position_size, axis_size, n_tiles, n_rows, is_filtered, keep_size, n_keep_tiles)


class SortAreas(NamedTuple):
    """Areas of the workspace; those that there are several of lie `..._step` bytes apart.

    The first `n_cleared` bytes, from the counters on, are cleared before each batch of rows.
    """

    x: int
    counters: int
    counter_step: int
    histograms: int
    kept: int
    before: int
    tops: int
    tile_sums: int
    states: int
    state_step: int
    n_cleared: int
    buffers: int
    buffer_step: int
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
    kept = take(out, n_rows * STATE_BYTES * is_filtered)
    tops = take(out, n_rows * (COUNT_BYTES << top_bits(selection.element_size)) * is_filtered)
    tile_sums = take(out, bounded_product(n_rows, shape.n_keep_tiles * STATE_BYTES) * is_filtered)
    states, state_step = take_several(out, n_passes, bounded_product(n_rows, _state_bytes(shape)))
    n_cleared = out[WORKSPACE] - counters
    n_bytes = bounded_product(n_rows, _buffer_bytes(selection, shape.position_size))
    buffers, buffer_step = take_several(out, _n_buffers(selection, is_filtered), n_bytes)
    return SortAreas(
        x,
        counters,
        counter_step,
        histograms,
        kept,
        NO_AREA,
        tops,
        tile_sums,
        states,
        state_step,
        n_cleared,
        buffers,
        buffer_step,
        fill_offsets(problem, device, selection, out),
    )


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
    shape = _shape(device, selection)
    areas = _take_areas(problem, device, selection, out, shape, x)
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(shape.n_rows, selection.n_rows - first)
        _put_counting(problem, device, selection, out, shape, areas, first, batch)
        if shape.is_filtered:
            _put_keeping(problem, device, selection, out, shape, areas, first, batch)
        put_passes(problem, device, selection, out, shape, areas, first, batch, OF_ROW)
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
    put_area(out, selection, areas.buffers)
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
    ending: int,
) -> None:
    """Put what sorts a batch of rows, a pass for each digit; `ending` is `is_last` of the last one."""
    tile, element_size = shape.tile, selection.element_size
    n_bytes = tile.n_threads * tile.n_items * pair_bytes(element_size, shape.position_size)
    kernel = kernel_key(SORT, element_size, shape.position_size, tile.n_threads)
    kernel = with_more(kernel, tile.n_items, tile.max_registers)
    for number in range(element_size):
        is_first = int(number == 0 and shape.is_filtered == 0)
        is_last = ending if number == element_size - 1 else 0
        begin(out, device, kernel, Sizes(batch * shape.n_tiles, tile.n_threads, n_bytes, 1))
        put_source(out, selection, areas.x)
        into = number + shape.is_filtered
        put_area(out, selection, NO_AREA if is_first else areas.buffers + (into + 1) % 2 * areas.buffer_step)
        put_area(out, selection, NO_AREA if is_last else areas.buffers + into % 2 * areas.buffer_step)
        put_outputs(out, selection)
        put_area(out, selection, areas.histograms + number * HISTOGRAM_BYTES)
        put_area(out, selection, areas.kept if shape.is_filtered else NO_AREA)
        put_area(out, selection, areas.before)
        put_area(out, selection, areas.states + number * areas.state_step)
        put_area(out, selection, areas.counters + number * areas.counter_step)
        put_area(out, selection, areas.offsets)
        put_batch(problem, selection, out, first)
        shift = number * DIGIT_BITS
        put_values(out, SortParameters(shape.n_tiles, shape.capacity, shift, is_first, is_last))


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
