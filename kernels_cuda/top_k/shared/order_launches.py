"""Launches after those of an algorithm: they order results by index, or fill them up."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value, put_values
from kernels_cpu.top_k.problem_words import K
from kernels_cuda.device_words import MULTIPROCESSORS, PLANNED
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import BY_INDEX, PADDING, kernel_key
from kernels_cuda.top_k.shared.launches import (
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_outputs,
    put_rows,
    put_windows,
    put_x,
    split,
    take,
    variant,
)
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES

BY_INDEX_THREADS = 512
PADDING_THREADS = 128
# The bitmaps of few rows are read in parts of at least so many words, by about so many blocks.
PART_WORDS = 1 << 8
BLOCKS_PER_MULTIPROCESSOR = 4
WORD_BYTES = 4
# The marks of a part are counted in an int64.
PART_BYTES = 8
# The steps of `by_index.order_by_index`, which a launch takes one or all of.
CLEARING, MARKING, COUNTING, WRITING = 1, 2, 4, 8


class ByIndexParameters(NamedTuple):
    """More parameters of `by_index.order_by_index`, whose blocks have a part of a row's `n_words` each."""

    steps: int
    n_words: int
    n_parts: int
    part_words: int


def _by_index(element_size: int) -> Variant:
    return variant("by_index", "shared.by_index:by_index_kernel", element_size, BY_INDEX_THREADS)


def _padding(element_size: int) -> Variant:
    return variant("padding", "shared.padding:padding_kernel", element_size)


def order_variants() -> Iterator[Variant]:
    """List the kernels for all element sizes."""
    for element_size in ELEMENT_SIZES:
        yield _by_index(element_size)
        yield _padding(element_size)


def end_unordered(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """End the plan of an algorithm whose results come in no order of their indices: bring them into it."""
    if selection.is_by_index:
        return order_by_index(problem, device, selection, out)
    return PLANNED


def pad_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Fill up the results beyond the most elements that a row has."""
    offsets = fill_offsets(problem, device, selection, out)
    kernel = kernel_key(PADDING, selection.element_size, 0, 0)
    begin(out, device, kernel, Sizes(selection.n_rows, PADDING_THREADS, 0, 1))
    put_outputs(out, selection)
    put_area(out, selection, offsets)
    put_rows(out, problem, selection)
    put_value(out, problem[K])
    return split(device, out)


def order_by_index(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Bring results into the order of their indices, which are marked in a bitmap of each row.

    One block per row, or per part of it, writes what is marked.
    """
    n_rows, n_words = selection.n_rows, ceil_div(selection.axis_size, 32)
    n_blocks = ceil_div(BLOCKS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS], n_rows)
    part_words = max(PART_WORDS, ceil_div(n_words, n_blocks))
    n_parts = ceil_div(n_words, part_words)
    words = take(out, bounded_product(n_rows, bounded_product(n_words, WORD_BYTES)))
    parts = take(out, bounded_product(n_rows, n_parts * PART_BYTES))
    offsets = fill_offsets(problem, device, selection, out)
    kernel = kernel_key(BY_INDEX, selection.element_size, BY_INDEX_THREADS, 0)
    sizes = Sizes(bounded_product(n_rows, n_parts), BY_INDEX_THREADS, 0, 1)
    # One block per row does all at once.
    steps = CLEARING | MARKING | WRITING if n_parts == 1 else CLEARING
    while steps > 0:
        begin(out, device, kernel, sizes)
        put_x(out, selection)
        put_windows(out, selection)
        put_outputs(out, selection)
        put_area(out, selection, words)
        put_area(out, selection, parts)
        put_area(out, selection, offsets)
        put_rows(out, problem, selection)
        put_values(out, ByIndexParameters(steps, n_words, n_parts, part_words))
        split(device, out)
        steps = 0 if steps & WRITING else steps << 1
    return PLANNED
