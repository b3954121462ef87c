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
from kernels_cuda.top_k.problem import SMALL_K, Selection, bounded_product, row_layout, scratch_limit
from kernels_cuda.top_k.shared.kernel_keys import (
    CLEAR,
    HISTOGRAM,
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
    N_DIGITS,
    VECTOR_BYTES,
    pair_bytes,
)

# An entry of a row's histogram.
COUNT_BYTES = 8
# The end of a slice: its last key, how many elements come up to that, and then, from `N_KEPT_AT` on, how many
# pairs are sorted, and the number of the first result.
SLICE_BYTES, N_KEPT_AT = 32, 16
# Threads of a block that marks elements load so many at a time.
KEEPING_THREADS = 512
KEPT_PER_THREAD = 16
KEEPING_ROUND = KEEPING_THREADS * KEPT_PER_THREAD
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


class ClearParameters(NamedTuple):
    """Parameters of `sort.clear_words`."""

    n_vectors: int


class SortBuffers(NamedTuple):
    """The addresses of the pairs that `sort.sort_digit` reads and writes."""

    source: int
    destination: int


class SortCounts(NamedTuple):
    """The addresses of what is counted.

    They are histograms of digits, how many elements of each row are kept, and the number of the first result
    (0 if all are), states of tiles, and the number of the next tile.
    """

    histograms: int
    kept: int
    states: int
    next_tile: int


class SortParameters(NamedTuple):
    """More parameters of `sort.sort_digit`.

    They are tiles of a row, for how many pairs there is room, lowest bit of the digit, and which pass it is.
    """

    n_tiles: int
    capacity: int
    shift: int
    is_first: int
    is_last: int


def clear_variant() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return variant("clear", "sort.sort:clear_kernel")


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, drop elements, and sort by a digit."""
    matrix_key = kernel_keys.kernel_key(TRANSPOSED_KERNEL, element_size)
    yield kernel_keys.variant_of(matrix_key, MATRIX_FAMILIES)
    yield variant("histogram", "sort.sort:histogram_kernel", element_size)
    yield variant("keep", "sort.filter:keep_kernel", element_size)
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
        Bytes of a position in the workspace, pairs of a row that there is room for, and their tiles.
    n_rows, n_buffers : int
        Rows of a batch, and buffers of their pairs.
    """

    tile: SortTile
    position_size: int
    capacity: int
    n_tiles: int
    n_rows: int
    n_buffers: int


def drops_most(device: Words, selection: Selection) -> int:
    """Tell whether elements are dropped before those left are sorted."""
    n_bytes = selection.row_bytes * min(selection.n_rows, device[FILTERED_ROWS])
    selects_few = selection.k <= selection.axis_size // device[KEPT_SHARE]
    return int(n_bytes >= device[FILTERED_BYTES] and selects_few)


def sorting_bytes(selection: Selection, position_size: int, capacity: int, n_buffers: int) -> int:
    """Return the bytes of a row's pairs, histograms of their digits, and states of tiles."""
    tile = sort_tile(selection.element_size, position_size, 0)
    n_tiles = ceil_div(capacity, tile.n_threads * tile.n_items)
    n_bytes = bounded_product(
        n_buffers, bounded_product(capacity, pair_bytes(selection.element_size, position_size))
    )
    return n_bytes + selection.element_size * (HISTOGRAM_BYTES + _state_bytes(n_tiles, position_size))


def _state_bytes(n_tiles: int, position_size: int) -> int:
    return bounded_product(n_tiles, N_DIGITS * position_size)


def _position_size(device: Words, selection: Selection) -> int:
    """Return the bytes of a position where whole rows are sorted."""
    return POSITION_SIZES[0] if selection.axis_size < device[NARROW_ELEMENTS] else POSITION_SIZES[1]


def whole_row_bytes(device: Words, selection: Selection) -> int:
    """Return the workspace that a row takes if all of it is sorted at once."""
    n_buffers = min(2, selection.element_size - 1)
    return sorting_bytes(selection, _position_size(device, selection), selection.axis_size, n_buffers)


def sort_shape(
    device: Words, selection: Selection, position_size: int, capacity: int, n_rows: int, n_buffers: int
) -> SortShape:
    """Return how so many rows are sorted at a time."""
    tile = sort_tile(selection.element_size, position_size, 0)
    n_tiles = ceil_div(capacity, tile.n_threads * tile.n_items)
    # With more tiles, those of fewer threads with more elements each are faster.
    has_many_tiles = n_rows * n_tiles > TILES_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    if has_many_tiles and n_sort_tiles(selection.element_size, position_size) > 1:
        tile = sort_tile(selection.element_size, position_size, 1)
    return SortShape(tile, position_size, capacity, n_tiles, n_rows, n_buffers)


class SortAreas(NamedTuple):
    """Areas of the workspace; those that there are several of lie `..._step` bytes apart."""

    x: int
    counters: int
    counter_step: int
    histograms: int
    kept: int
    states: int
    state_step: int
    buffers: int
    buffer_step: int
    offsets: int


def take_several(out: Words, count: int, n_bytes: int) -> tuple[int, int]:
    """Return where the first of several areas begins, and how far they are apart."""
    first: int = out[WORKSPACE]
    for _ in range(count):
        take(out, n_bytes)
    return first, (out[WORKSPACE] - first) // max(count, 1)


def take_counters(selection: Selection, out: Words, shape: SortShape) -> tuple[int, int, int, int, int]:
    """Make room for what passes count, which is cleared before: as `SortAreas` from `counters` on."""
    n_passes = selection.element_size
    counters, counter_step = take_several(out, n_passes, WORKSPACE_ALIGNMENT)
    histograms = take(out, shape.n_rows * n_passes * HISTOGRAM_BYTES)
    n_bytes = bounded_product(shape.n_rows, _state_bytes(shape.n_tiles, shape.position_size))
    states, state_step = take_several(out, n_passes, n_bytes)
    return counters, counter_step, histograms, states, state_step


def take_buffers(selection: Selection, out: Words, shape: SortShape) -> tuple[int, int]:
    """Make room for pairs: as `SortAreas` from `buffers` on."""
    n_bytes = bounded_product(shape.capacity, pair_bytes(selection.element_size, shape.position_size))
    return take_several(out, shape.n_buffers, bounded_product(shape.n_rows, n_bytes))


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
    axis_size, n_buffers = selection.axis_size, min(2, selection.element_size - 1)
    position_size = _position_size(device, selection)
    most_bytes = device[BATCH_BYTES]
    if selection.k <= axis_size // SMALL_K:
        most_bytes = min(most_bytes, scratch_limit(device, selection))
    n_rows = max(1, most_bytes // whole_row_bytes(device, selection))
    n_tiles = sort_shape(device, selection, position_size, axis_size, 1, n_buffers).n_tiles
    n_rows = min(selection.n_rows, n_rows, max(1, device[LAUNCH_BLOCKS] // n_tiles))
    shape = sort_shape(device, selection, position_size, axis_size, n_rows, n_buffers)
    counters, counter_step, histograms, states, state_step = take_counters(selection, out, shape)
    n_cleared = out[WORKSPACE] - counters
    buffers, buffer_step = take_buffers(selection, out, shape)
    offsets = fill_offsets(problem, device, selection, out)
    areas = SortAreas(
        x,
        counters,
        counter_step,
        histograms,
        NO_AREA,
        states,
        state_step,
        buffers,
        buffer_step,
        offsets,
    )
    first = 0
    while first < selection.n_rows and out[ALGORITHM] != FULL:
        batch = min(shape.n_rows, selection.n_rows - first)
        put_clearing(device, selection, out, counters, n_cleared)
        n_blocks = BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
        blocks_per_row = min(ceil_div(axis_size, COUNTED_ELEMENTS), ceil_div(n_blocks, batch))
        kernel = kernel_key(HISTOGRAM, selection.element_size, 0, 0)
        begin(out, device, kernel, Sizes(batch * blocks_per_row, COUNTING_THREADS, 0, 1))
        put_source(out, selection, x)
        put_area(out, selection, histograms)
        put_area(out, selection, offsets)
        put_batch(problem, selection, out, first)
        put_value(out, blocks_per_row)
        put_passes(problem, device, selection, out, shape, areas, first, batch)
        first += batch
    return end_unordered(problem, device, given, out)


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
    """Put what sorts a batch of rows: a pass for each digit."""
    tile, element_size = shape.tile, selection.element_size
    n_bytes = tile.n_threads * tile.n_items * pair_bytes(element_size, shape.position_size)
    kernel = kernel_key(SORT, element_size, shape.position_size, tile.n_threads)
    kernel = with_more(kernel, tile.n_items, tile.max_registers)
    is_kept = int(areas.kept != NO_AREA)
    for number in range(element_size):
        is_first, is_last = int(number + is_kept == 0), int(number == element_size - 1)
        into = number + is_kept
        begin(out, device, kernel, Sizes(batch * shape.n_tiles, tile.n_threads, n_bytes, 1))
        put_source(out, selection, areas.x)
        put_area(out, selection, NO_AREA if is_first else areas.buffers + (into + 1) % 2 * areas.buffer_step)
        put_area(out, selection, NO_AREA if is_last else areas.buffers + into % 2 * areas.buffer_step)
        put_outputs(out, selection)
        put_area(out, selection, areas.histograms + number * HISTOGRAM_BYTES)
        put_area(out, selection, areas.kept)
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
