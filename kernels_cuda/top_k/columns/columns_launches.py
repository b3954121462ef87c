"""The launches of `columns`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import COLUMNS, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import WARP_LANES, pair_bytes

BLOCK_WARPS = 8
# A lane keeps a power of two of elements in registers.
FEWEST_KEPT, MOST_KEPT = 4, 32
# Positions have 16 bits.
LONGEST_COLUMN = 1 << 16
# This many warps keep a multiprocessor's share of the memory busy.
WARPS_PER_MULTIPROCESSOR = 12
# A part of a column has at least this many elements, and this many per selected one, to be worth its
# selection: less where few multiprocessors have columns.
PART_ELEMENTS = 64
PART_ELEMENTS_PER_SELECTED = 16
FEWER_PER_SELECTED = 8


class ColumnsParameters(NamedTuple):
    """More parameters of `columns.column_top_k`: how many warps of a block share columns, and the order."""

    n_parts: int
    is_by_index: int


def chunk_rows(element_size: int) -> int:
    """Return the rows of a chunk, which is loaded ahead."""
    return 8 if element_size == 8 else 16


def buffer_pairs(element_size: int) -> int:
    """Return how many elements a lane has room for before it inserts them."""
    return chunk_rows(element_size) * 3 // 2


def warp_bytes(element_size: int, n_kept: int) -> int:
    """Return the shared memory of a warp: for buffers, and in the end for what is selected."""
    return max(buffer_pairs(element_size), n_kept) * WARP_LANES * pair_bytes(element_size)


def columns_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    n_kept = FEWEST_KEPT
    while n_kept <= MOST_KEPT:
        needed = BLOCK_WARPS * warp_bytes(element_size, n_kept)
        yield variant(
            "columns", "columns.columns:columns_kernel", element_size, n_kept, dynamic_shared_bytes=needed
        )
        n_kept *= 2


def columns_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Walk down all columns."""
    n_rows, k, axis_size = selection.n_rows, selection.k, selection.axis_size
    n_kept = FEWEST_KEPT
    while n_kept < min(k, MOST_KEPT):
        n_kept *= 2
    n_bytes = BLOCK_WARPS * warp_bytes(selection.element_size, n_kept)
    if k > n_kept or axis_size > LONGEST_COLUMN or n_bytes > device[BLOCK_SHARED_BYTES]:
        return UNSERVED
    most_warps = WARPS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_groups = ceil_div(n_rows, WARP_LANES)
    are_few = n_groups < device[MULTIPROCESSORS]
    per_selected = FEWER_PER_SELECTED if are_few else PART_ELEMENTS_PER_SELECTED
    smallest_part = max(PART_ELEMENTS, per_selected * k)
    n_parts = 1
    while (
        n_parts < BLOCK_WARPS
        and n_groups < ceil_div(most_warps, n_parts)
        and axis_size >= 2 * n_parts * smallest_part
    ):
        n_parts *= 2
    n_blocks = ceil_div(n_groups, BLOCK_WARPS // n_parts)
    kernel = kernel_key(COLUMNS, selection.element_size, n_kept, 0)
    begin_rows(problem, device, selection, out, kernel, Sizes(n_blocks, BLOCK_WARPS * WARP_LANES, n_bytes, 1))
    put_values(out, ColumnsParameters(n_parts, selection.is_by_index))
    return split(device, out)
