"""The launches of `copy`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import COPY, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import WARP_LANES, bits_for

COPY_THREADS = 256
COPIED_PER_THREAD = 8


class CopyParameters(NamedTuple):
    """More parameters of `copy.copy_rows`, whose blocks have `n_rows` rows with `n_lanes` threads each."""

    is_transposed: int
    n_rows: int
    n_lanes: int
    n_parts: int


def copy_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    yield variant("copy", "copy.copy:copy_kernel", element_size)


def copy_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Copy all rows."""
    axis_size = selection.axis_size
    if selection.is_sorted == 1 or selection.k < axis_size or selection.has_starts > 0:
        return UNSERVED
    # Powers of two. Rows that are shorter than a warp share one.
    needed = max(ceil_div(axis_size, COPIED_PER_THREAD), min(axis_size, WARP_LANES))
    n_lanes = 1 << bits_for(min(needed, COPY_THREADS))
    if selection.is_transposed:
        n_lanes = COPY_THREADS // WARP_LANES
    n_rows = COPY_THREADS // n_lanes
    n_parts = ceil_div(axis_size, n_lanes * COPIED_PER_THREAD)
    n_blocks = bounded_product(ceil_div(selection.n_rows, n_rows), n_parts)
    kernel = kernel_key(COPY, selection.element_size, 0, 0)
    begin_rows(problem, device, selection, out, kernel, Sizes(n_blocks, COPY_THREADS, 0, 1))
    put_values(out, CopyParameters(selection.is_transposed, n_rows, n_lanes, n_parts))
    return split(device, out)
