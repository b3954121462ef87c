"""The launches of `sort`, and what they and its kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE, Words, put_value, put_values
from kernels_cpu.top_k.problem_words import N_DIMS
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import MULTIPROCESSORS, WORKSPACE_ALIGNMENT
from kernels_cuda.diagonal_matrix.parameters import FAMILIES as MATRIX_FAMILIES
from kernels_cuda.diagonal_matrix.parameters import THREADS as MATRIX_THREADS
from kernels_cuda.diagonal_matrix.parameters import TRANSPOSED_KERNEL
from kernels_cuda.diagonal_matrix.plan import one_batch, transposed_copy
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import BATCH_BYTES
from kernels_cuda.top_k.problem import Selection, bounded_product, row_layout
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
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, VECTOR_BYTES, pair_bytes
from kernels_cuda.top_k.sort.sort_shape import (
    BLOCKS_PER_MULTIPROCESSOR,
    COUNT_BYTES,
    HISTOGRAM_BYTES,
    KEEPING_THREADS,
    NOWHERE,
    POSITION_SIZES,
    STATE_BYTES,
    PairPlaces,
    SortShape,
    n_sort_tiles,
    offset_of,
    own_offset,
    shape_of,
    sort_tile,
    state_bytes,
    target_of,
    top_bits,
)

CLEARING_THREADS = 256
CLEARED_BYTES = VECTOR_BYTES * CLEARING_THREADS
# Large blocks, for each adds its counts to those of the whole row.
COUNTING_THREADS = 1024
# Elements that a thread counts at a time.
COUNTED_PER_THREAD = 8
COUNTED_ELEMENTS = COUNTING_THREADS * COUNTED_PER_THREAD
# Blocks of `sort.write_indices`, and how many each writes.
WRITING_THREADS = 256
WRITING_ELEMENTS = 16 * WRITING_THREADS


class ClearParameters(NamedTuple):
    """Parameters of `counting.clear_words`."""

    n_vectors: int


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
        Bytes from the pairs of a row to those of the next one.
    source, target : PairPlaces
        Where the pass reads and writes pairs, if some are in the results. The last pass writes indices if its
        target has no positions.
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
    """Return the kernel that clears the counters of a sort."""
    return variant("clear", "sort.counting:clear_kernel")


def indices_variant() -> Variant:
    """Return the kernel that makes indices of positions."""
    return variant("indices", "sort.sort:indices_kernel")


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, drop elements, and sort by a digit."""
    matrix_key = kernel_keys.kernel_key(TRANSPOSED_KERNEL, element_size)
    yield kernel_keys.variant_of(matrix_key, MATRIX_FAMILIES)
    counted = (DIGIT_BITS, element_size), (top_bits(element_size), 1)
    for digit_bits, n_digits in dict.fromkeys(counted):
        yield variant("histogram", "sort.counting:histogram_kernel", element_size, digit_bits, n_digits)
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
    """Make room for counters and pairs."""
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
    n_bytes = bounded_product(shape.n_rows, state_bytes(shape))
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
    shape = shape_of(problem, device, selection)
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
    """Put launches that clear the counters, and count the digits of a batch of rows, or the highest bits."""
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
    """Put the launch that drops most elements of a batch of rows."""
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
    """Put the launches that sort a batch of rows, a pass for each digit."""
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
            put_clearing(device, selection, out, areas.states, shape.n_rows * state_bytes(shape))
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
    """Put the launch that clears an area."""
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
