"""The launches of `rounds`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import ROUNDS, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES

ROUNDS_THREADS = 128
# Lanes of short rows remember several of the selected positions each.
ROUNDS_LARGEST_K = 8
ROUNDS_LONGEST_ROW = 512
# Up to this length, the keys of a lane are fewer.
_SHORT_ROW = 64


class RoundsShape(NamedTuple):
    """The lanes that hold a row, and the keys of each lane."""

    n_lanes: int
    n_keys: int


def rounds_shape(element_size: int, axis_size: int) -> RoundsShape:
    """Return the fewest lanes, a power of two, that hold a row of up to `ROUNDS_LONGEST_ROW` elements."""
    n_lanes, n_keys = 4, 16 if element_size == 8 or axis_size <= _SHORT_ROW else 32
    while n_lanes * n_keys < axis_size:
        n_lanes *= 2
    return RoundsShape(n_lanes, n_keys)


ROUNDS_SHAPES = {
    size: tuple(rounds_shape(size, _SHORT_ROW << bits) for bits in range(4)) for size in ELEMENT_SIZES
}


def _variant(element_size: int, n_lanes: int, n_keys: int) -> Variant:
    return variant("rounds", "short_rows.rounds:rounds_kernel", element_size, n_lanes, n_keys)


def rounds_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for shape in ROUNDS_SHAPES[element_size]:
        yield _variant(element_size, *shape)


def rounds_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row as many lanes as hold it."""
    if selection.axis_size > ROUNDS_LONGEST_ROW or selection.k > ROUNDS_LARGEST_K:
        return UNSERVED
    shape = rounds_shape(selection.element_size, selection.axis_size)
    kernel = kernel_key(ROUNDS, selection.element_size, shape.n_lanes, shape.n_keys)
    n_blocks = ceil_div(selection.n_rows, ROUNDS_THREADS // shape.n_lanes)
    sizes = Sizes(n_blocks, ROUNDS_THREADS, 0, 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    put_value(out, 1 - selection.is_by_index)
    return split(device, out)
