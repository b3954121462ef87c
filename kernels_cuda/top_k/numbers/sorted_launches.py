"""The launches that sort rows by number, around those of other algorithms, and what kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value, put_values
from kernels_cpu.top_k.problem_words import NUMBER_STRIDE
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.key_formats import ElementWords
from kernels_cuda.top_k.numbers.numbered_launches import area_bytes, number_parameters
from kernels_cuda.top_k.policy import NARROW_AXIS_ELEMENTS
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import CODES, NUMBERS, ORDER, kernel_key
from kernels_cuda.top_k.shared.launches import (
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

CODE_BYTES = 8
MOVING_THREADS = 256
# Elements of a row that a block moves.
MOVED_ELEMENTS = 8 * MOVING_THREADS


class NumberAreas(NamedTuple):
    """Areas at the beginning of the workspace, and where they end.

    Elements in the order of numbers take the place of codes, and selected positions that of sorted codes.
    """

    codes: int
    sorted_codes: int
    order: int
    order_size: int
    counts: int
    selected: int
    end: int


CODE_WORDS = ElementWords(CODE_BYTES, 0, 0, -1, 0, 0)


def sorted_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    yield variant("order", "numbers.sorted_numbers:order_kernel", element_size)
    yield variant("numbers", "numbers.sorted_numbers:numbers_kernel", element_size)


def codes_variant() -> Variant:
    """Return the kernel that writes codes."""
    return variant("codes", "numbers.sorted_numbers:codes_kernel")


def number_areas(device: Words, selection: Selection) -> NumberAreas:
    """Return where areas are in the workspace."""
    length, order_size = selection.axis_size, 4 if selection.axis_size <= device[NARROW_AXIS_ELEMENTS] else 8
    code_bytes = area_bytes(selection, length, CODE_BYTES)
    order = 2 * code_bytes
    counts = order + area_bytes(selection, length, order_size)
    selected = counts + area_bytes(selection, 1, 8)
    end = selected + area_bytes(selection, selection.k, selection.element_size)
    return NumberAreas(0, code_bytes, order, order_size, counts, selected, end)


def _of_packed_rows(selection: Selection, areas: NumberAreas) -> Selection:
    """Return a selection from whole rows that lie one after the other in the workspace."""
    return selection._replace(
        bound=selection.axis_size,
        x_step=1,
        output_step=1,
        x_row=selection.axis_size,
        neighbours_at=-1,
        n_neighbours=1,
        is_transposed=0,
        has_starts=0,
        x_area=areas.codes,
        reserved=areas.end,
    )


def of_codes(selection: Selection, areas: NumberAreas) -> Selection:
    """Return the selection of all codes, in order."""
    return _of_packed_rows(selection, areas)._replace(
        element_size=CODE_BYTES,
        index_size=areas.order_size,
        k=selection.axis_size,
        row_bytes=bounded_product(selection.axis_size, CODE_BYTES),
        output_row=selection.axis_size,
        is_sorted=1,
        is_by_index=0,
        has_lengths=0,
        value_area=areas.sorted_codes,
        index_area=areas.order,
    )


def of_ordered(selection: Selection, areas: NumberAreas) -> Selection:
    """Return the selection from rows in the order of numbers."""
    return _of_packed_rows(selection, areas)._replace(
        index_size=8,
        output_row=selection.k,
        has_lengths=1,
        length_area=areas.counts,
        value_area=areas.selected,
        index_area=areas.sorted_codes,
    )


def codes_launch(problem: Words, device: Words, selection: Selection, out: Words, areas: NumberAreas) -> None:
    """Put the launch that writes codes."""
    offsets = fill_offsets(problem, device, selection, out)
    number_offsets = fill_offsets_of(problem, device, selection, out, NUMBER_STRIDE)
    n_parts = ceil_div(selection.axis_size, MOVED_ELEMENTS)
    sizes = Sizes(bounded_product(selection.n_rows, n_parts), MOVING_THREADS, 0, 1)
    begin(out, device, kernel_key(CODES, 0, 0, 0), sizes)
    put_windows(out, selection)
    put_numbers(out, selection)
    put_area(out, selection, areas.codes)
    put_area(out, selection, offsets)
    put_area(out, selection, number_offsets)
    put_rows(out, problem, selection)
    put_values(out, number_parameters(problem, selection, 0, 0, n_parts))
    split(device, out)


def order_launch(problem: Words, device: Words, selection: Selection, out: Words, areas: NumberAreas) -> None:
    """Put the launch that brings elements into the order of their numbers."""
    offsets = fill_offsets(problem, device, selection, out)
    n_parts = ceil_div(selection.axis_size, MOVED_ELEMENTS)
    sizes = Sizes(bounded_product(selection.n_rows, n_parts), MOVING_THREADS, 0, 1)
    begin(out, device, kernel_key(ORDER, selection.element_size, 0, 0), sizes)
    put_x(out, selection)
    put_windows(out, selection)
    put_area(out, selection, areas.sorted_codes)
    put_area(out, selection, areas.order)
    put_area(out, selection, areas.codes)
    put_area(out, selection, areas.counts)
    put_area(out, selection, offsets)
    put_rows(out, problem, selection)
    put_value(out, areas.order_size)
    put_value(out, n_parts)
    split(device, out)


def numbers_launch(
    problem: Words, device: Words, selection: Selection, out: Words, areas: NumberAreas
) -> None:
    """Put the launch that writes the selected elements and their numbers."""
    offsets = fill_offsets(problem, device, selection, out)
    number_offsets = fill_offsets_of(problem, device, selection, out, NUMBER_STRIDE)
    n_parts = ceil_div(selection.k, MOVED_ELEMENTS)
    sizes = Sizes(bounded_product(selection.n_rows, n_parts), MOVING_THREADS, 0, 1)
    begin(out, device, kernel_key(NUMBERS, selection.element_size, 0, 0), sizes)
    put_windows(out, selection)
    put_numbers(out, selection)
    put_outputs(out, selection)
    put_area(out, selection, areas.order)
    put_area(out, selection, areas.selected)
    put_area(out, selection, areas.sorted_codes)
    put_area(out, selection, offsets)
    put_area(out, selection, number_offsets)
    put_rows(out, problem, selection)
    put_values(out, number_parameters(problem, selection, 0, areas.order_size, n_parts))
    split(device, out)
