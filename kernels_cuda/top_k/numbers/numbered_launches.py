"""The launches of rows whose elements have numbers, and what they and their kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cpu.top_k.problem_words import NUMBER_SIGNED, NUMBER_SIZE, NUMBER_STEP, NUMBER_STRIDE
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import NARROW_AXIS_ELEMENTS
from kernels_cuda.top_k.problem import RowLayout, Selection, bounded_product, layout_of
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
from kernels_cuda.top_k.shared.shapes import WARP_COUNTER_BYTES, WARP_LANES, pair_bytes

# Blocks of either size sort this many candidates per thread; a candidate has a number and a position.
NUMBERED_THREADS = (128, 512)
ITEMS_PER_THREAD = 8
PAIR_BYTES = pair_bytes(8)
# Counts of a row's elements have 32 bits.
LONGEST_ROW = 1 << 31
# Elements found first beyond k: so many, plus this share of k, since some tie at the cut-off or take no part.
SPARE = 8
SPARE_SHARE = 8


class Found(NamedTuple):
    """The addresses of what another algorithm has found; 0 if there is none."""

    indices: int
    values: int


class Tables(NamedTuple):
    """Addresses of the tables of row offsets: of x, and of the numbers; 0 where there is none."""

    rows: int
    numbers: int


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
    n_parts : int
        How many blocks share a row.
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
    n_parts: int
    is_sorted: int
    capacity: int
    counters_offset: int
    layout: RowLayout


def numbered_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for n_threads in NUMBERED_THREADS:
        needed = _block_bytes(element_size, n_threads * ITEMS_PER_THREAD, n_threads)
        factory = "numbers.numbered:numbered_kernel"
        yield variant("numbered", factory, element_size, n_threads, dynamic_shared_bytes=needed)


def _most_of_small() -> int:
    """Return how many candidates a small block holds."""
    return NUMBERED_THREADS[0] * ITEMS_PER_THREAD


def _counters_offset(element_size: int, capacity: int) -> int:
    """Return where a block counts: behind candidates, and behind their keys."""
    return capacity * (PAIR_BYTES + pair_bytes(element_size))


def _block_bytes(element_size: int, capacity: int, n_threads: int) -> int:
    """Return the dynamic shared memory of a block."""
    return _counters_offset(element_size, capacity) + n_threads // WARP_LANES * WARP_COUNTER_BYTES


def found_first(device: Words, selection: Selection) -> Selection:
    """Return the selection of what another algorithm finds first, whatever the numbers; its k may be 0.

    Its results, in the order of positions, are areas at the beginning of the workspace.
    """
    most = NUMBERED_THREADS[1] * ITEMS_PER_THREAD
    k = min(selection.k + selection.k // SPARE_SHARE + SPARE, most, selection.axis_size)
    if selection.axis_size <= _most_of_small() or (selection.axis_size <= most and k > _most_of_small() // 2):
        k = 0
    index_size = 4 if selection.bound <= device[NARROW_AXIS_ELEMENTS] else 8
    value_bytes = area_bytes(selection, k, selection.element_size)
    return selection._replace(
        k=k,
        index_size=index_size,
        output_step=1,
        output_row=k,
        is_sorted=0,
        is_by_index=int(k > 1),
        value_area=0,
        index_area=value_bytes,
        reserved=value_bytes + area_bytes(selection, k, index_size),
    )


def area_bytes(selection: Selection, k: int, size: int) -> int:
    """Return the bytes of an area of `k` words for each row."""
    return ceil_div(bounded_product(selection.n_rows, k * size), 256) * 256


def serves_numbers(selection: Selection, found: Selection) -> bool:
    """Tell whether there is room for all candidates of a row."""
    most = NUMBERED_THREADS[1] * ITEMS_PER_THREAD
    if selection.axis_size > LONGEST_ROW:
        return False
    return selection.axis_size <= most or found.k > selection.k


def numbered_launches(
    problem: Words, device: Words, selection: Selection, found: Selection, out: Words
) -> int:
    """Order what has been found, or whole rows, by key, number and position."""
    n_threads = NUMBERED_THREADS[1]
    is_short = selection.axis_size <= n_threads * ITEMS_PER_THREAD
    if selection.axis_size <= _most_of_small() or (is_short and found.k > 0):
        n_threads = NUMBERED_THREADS[0]
    offsets = fill_offsets(problem, device, selection, out)
    number_offsets = fill_offsets_of(problem, device, selection, out, NUMBER_STRIDE)
    capacity = ceil_div(min(n_threads * ITEMS_PER_THREAD, selection.axis_size), n_threads) * n_threads
    kernel = kernel_key(NUMBERED, selection.element_size, n_threads, 0)
    sizes = Sizes(selection.n_rows, n_threads, _block_bytes(selection.element_size, capacity, n_threads), 1)
    begin(out, device, kernel, sizes)
    put_x(out, selection)
    put_windows(out, selection)
    put_numbers(out, selection)
    put_outputs(out, selection)
    put_area(out, selection, found.index_area if found.k > 0 else NO_AREA)
    put_area(out, selection, found.value_area if found.k > 0 else NO_AREA)
    put_area(out, selection, offsets)
    put_area(out, selection, number_offsets)
    put_rows(out, problem, selection)
    counters_offset = _counters_offset(selection.element_size, capacity)
    given = number_parameters(problem, selection, found.k, found.index_size, 1)
    put_values(out, given._replace(capacity=capacity, counters_offset=counters_offset))
    return split(device, out)


def number_parameters(
    problem: Words, selection: Selection, n_found: int, found_size: int, n_parts: int
) -> NumberParameters:
    """Return the parameters of kernels that read numbers, without those of shared memory."""
    size = problem[NUMBER_SIZE]
    flip = 0
    if problem[NUMBER_SIGNED] == 1:
        flip = 1 << 31 if size == 4 else -(1 << 63)
    return NumberParameters(
        size,
        problem[NUMBER_STEP],
        flip,
        (1 << 32) - 1 if size == 4 else -1,
        n_found,
        found_size,
        n_parts,
        selection.is_sorted,
        0,
        0,
        layout_of(problem, selection, NUMBER_STRIDE),
    )
