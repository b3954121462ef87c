"""The launches of rows whose elements have numbers, and what they and their kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cpu.top_k.problem_words import NUMBER_SIGNED, NUMBER_SIZE, NUMBER_STEP, NUMBER_STRIDE
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import NARROW_AXIS_ELEMENTS
from kernels_cuda.top_k.problem import RowLayout, Selection, bounded_product, key_format_of, layout_of
from kernels_cuda.top_k.shared.kernel_keys import NUMBERED, kernel_key
from kernels_cuda.top_k.shared.launches import (
    NO_AREA,
    Sizes,
    begin,
    fill_offsets,
    fill_offsets_of,
    put_area,
    put_numbers,
    put_outputs,
    put_rows,
    put_windows,
    put_x,
    split,
    variant,
)
from kernels_cuda.top_k.shared.shapes import pair_bytes, pair_counters_offset, pair_sort_bytes

# Blocks of either size sort this many candidates per thread; a candidate has a key and a position.
NUMBERED_THREADS = (128, 512)
ITEMS_PER_THREAD = 8
PAIR_BYTES = pair_bytes(8)
# Counts of a row's elements have 32 bits.
LONGEST_ROW = 1 << 31
# So many more than k are found first, and this share of k: some tie at the cut-off, or take no part.
SPARE = 8
SPARE_SHARE = 8


class NumberParameters(NamedTuple):
    """More parameters of `numbered.numbered_top_k`.

    Attributes
    ----------
    size, step : int
        Bytes of a number, and the stride of numbers along the axis.
    flip, excluded : int
        What makes unsigned numbers in the same order by XOR, and the number of what takes no part.
    n_found, found_size : int
        How many elements of a row another algorithm has found, and the bytes of an index of these.
    is_sorted, capacity, counters_offset : int
        Whether results are by value, how many candidates there may be, and where counters begin behind them.
    layout : RowLayout
        Where the numbers of rows lie, in the place of x.
    """

    size: int
    step: int
    flip: int
    excluded: int
    n_found: int
    found_size: int
    is_sorted: int
    capacity: int
    counters_offset: int
    layout: RowLayout


def numbered_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for n_threads in NUMBERED_THREADS:
        needed = pair_sort_bytes(8, n_threads * ITEMS_PER_THREAD, n_threads)
        factory = "numbers.numbered:numbered_kernel"
        yield variant("numbered", factory, element_size, n_threads, dynamic_shared_bytes=needed)


def found_first(device: Words, selection: Selection) -> Selection:
    """Return the selection of what another algorithm finds first, whatever the numbers; its k may be 0.

    Its results, in the order of positions, are areas at the beginning of the workspace.
    """
    most = NUMBERED_THREADS[1] * ITEMS_PER_THREAD
    k = min(selection.k + selection.k // SPARE_SHARE + SPARE, most, selection.axis_size)
    if selection.axis_size <= most:
        k = 0
    index_size = 4 if selection.bound <= device[NARROW_AXIS_ELEMENTS] else 8
    value_bytes = _area_bytes(selection, k, selection.element_size)
    return selection._replace(
        k=k,
        index_size=index_size,
        output_step=1,
        output_row=k,
        is_sorted=0,
        is_by_index=int(k > 1),
        value_area=0,
        index_area=value_bytes,
        reserved=value_bytes + _area_bytes(selection, k, index_size),
    )


def _area_bytes(selection: Selection, k: int, size: int) -> int:
    return ceil_div(bounded_product(selection.n_rows, k * size), 256) * 256


def serves_numbers(selection: Selection, found: Selection) -> bool:
    """Tell whether there is room for all candidates of a row."""
    most = NUMBERED_THREADS[1] * ITEMS_PER_THREAD
    if selection.axis_size > LONGEST_ROW:
        return False
    return selection.axis_size <= most or found.k > selection.k


def number_layout(problem: Words, selection: Selection) -> RowLayout:
    """Return where the numbers of rows lie."""
    return layout_of(problem, selection, NUMBER_STRIDE)


def numbered_launches(
    problem: Words, device: Words, selection: Selection, found: Selection, out: Words
) -> int:
    """Order what has been found, or whole rows, by key, number and position."""
    most = NUMBERED_THREADS[1] * ITEMS_PER_THREAD
    n_threads = NUMBERED_THREADS[1]
    if selection.axis_size <= NUMBERED_THREADS[0] * ITEMS_PER_THREAD:
        n_threads = NUMBERED_THREADS[0]
    offsets = fill_offsets(problem, device, selection, out)
    number_offsets = fill_offsets_of(problem, device, selection, out, NUMBER_STRIDE)
    capacity = ceil_div(min(selection.axis_size, most), n_threads) * n_threads
    kernel = kernel_key(NUMBERED, selection.element_size, n_threads, 0)
    sizes = Sizes(selection.n_rows, n_threads, pair_sort_bytes(8, capacity, n_threads), 1)
    begin(out, device, kernel, sizes)
    put_x(out)
    put_windows(out, selection)
    put_numbers(out, selection)
    put_outputs(out, selection)
    put_area(out, selection, found.index_area if found.k > 0 else NO_AREA)
    put_area(out, selection, offsets)
    put_area(out, selection, number_offsets)
    put_rows(out, problem, selection, key_format_of(problem))
    size = problem[NUMBER_SIZE]
    flip = 0
    if problem[NUMBER_SIGNED]:
        flip = 1 << 31 if size == 4 else -(1 << 63)
    parameters = NumberParameters(
        size,
        problem[NUMBER_STEP],
        flip,
        (1 << 32) - 1 if size == 4 else -1,
        found.k,
        found.index_size,
        selection.is_sorted,
        capacity,
        pair_counters_offset(8, capacity, n_threads),
        number_layout(problem, selection),
    )
    put_values(out, parameters)
    return split(device, out)
