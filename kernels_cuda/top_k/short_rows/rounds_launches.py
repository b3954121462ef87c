"""The launches of `rounds`, and what they and its two kernels agree on: `rounds` and `shared_rounds`."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import ROUNDS, SHARED_ROUNDS, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES

ROUNDS_THREADS = 128
# All rounds take the same time: other algorithms find a larger k faster, even in the shortest rows.
ROUNDS_LARGEST_K = 64
# Up to this k and this length, registers hold all that rounds need; this is faster where there are few rows.
FEW_ROUNDS = 8
FEW_ROUNDS_LONGEST_ROW = 512
# Segments of up to this length have a launch of their own, beside those of the longer ones, if there are more
# than so many for each multiprocessor, and if k is at most the last of these.
SHORT_SEGMENT = 256
MANY_SEGMENTS = 8
SEGMENTS_LARGEST_K = 32
# Up to this length, the keys of a lane are fewer.
_SHORT_ROW = 64


class RoundsShape(NamedTuple):
    """The lanes that hold a row, and the keys of each lane."""

    n_lanes: int
    n_keys: int


def longest_row(element_size: int) -> int:
    """Return how many elements the lanes of a warp hold."""
    return 512 if element_size == 8 else 1024


def rounds_shape(element_size: int, axis_size: int) -> RoundsShape:
    """Return the fewest lanes, a power of two, that hold a row of up to `longest_row` elements."""
    n_lanes, n_keys = 4, 16 if element_size == 8 or axis_size <= _SHORT_ROW else 32
    while n_lanes * n_keys < axis_size:
        n_lanes *= 2
    return RoundsShape(n_lanes, n_keys)


ROUNDS_SHAPES = {
    size: tuple(
        rounds_shape(size, _SHORT_ROW << bits) for bits in range(5) if _SHORT_ROW << bits <= longest_row(size)
    )
    for size in ELEMENT_SIZES
}


def rounds_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    few_rounds = [rounds_shape(element_size, _SHORT_ROW << bits) for bits in range(4)]
    for shape in few_rounds:
        yield variant("rounds", "short_rows.rounds:rounds_kernel", element_size, *shape)
    for shape in ROUNDS_SHAPES[element_size]:
        yield variant("shared_rounds", "short_rows.shared_rounds:shared_rounds_kernel", element_size, *shape)


def rounds_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row as many lanes as hold it."""
    axis_size = min(selection.axis_size, selection.most)
    if axis_size > longest_row(selection.element_size) or selection.k > ROUNDS_LARGEST_K:
        return UNSERVED
    shape = rounds_shape(selection.element_size, axis_size)
    block_rows = ROUNDS_THREADS // shape.n_lanes
    if selection.k <= FEW_ROUNDS and selection.axis_size <= FEW_ROUNDS_LONGEST_ROW:
        name, n_bytes = ROUNDS, 0
    else:
        # Positions of what is selected.
        name, n_bytes = SHARED_ROUNDS, 4 * block_rows * (selection.k | 1)
    kernel = kernel_key(name, selection.element_size, shape.n_lanes, shape.n_keys)
    sizes = Sizes(ceil_div(selection.n_rows, block_rows), ROUNDS_THREADS, n_bytes, 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    put_value(out, 1 - selection.is_by_index)
    return split(device, out)
