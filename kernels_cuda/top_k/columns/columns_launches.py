"""The launches of `columns`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import COLUMNS, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.order_launches import end_unordered
from kernels_cuda.top_k.shared.shapes import KIB, WARP_LANES

POSITION_BYTES = 2
LONGEST_COLUMN = 1 << 8 * POSITION_BYTES
# From a slot of a lane to its next.
POSITION_STEP = WARP_LANES * POSITION_BYTES
# This many warps keep a multiprocessor's share of the memory busy.
WARPS_PER_MULTIPROCESSOR = 12
# A part of a column has at least this many elements, and this many per selected one, to be worth its
# selection.
PART_ELEMENTS = 64
PART_ELEMENTS_PER_SELECTED = 8
# Each lane has room for at least this many more candidates before it must drop some.
SPARE_SLOTS = 12
# Each of 16 warps of a multiprocessor may use this much shared memory, and a block this.
WARP_BYTES = 14080
BLOCK_BYTES = 56 * KIB


class ColumnShape(NamedTuple):
    """How a block uses its shared memory: warps (0 if there is no room), and slots of a lane."""

    n_warps: int
    n_slots: int


class ColumnsParameters(NamedTuple):
    """More parameters of `columns.column_top_k`."""

    parts_per_block: int
    """Warps of a block that share columns."""
    n_slots: int
    n_spare: int
    position_offset: int
    """Candidates for which a lane has room, how many more than k may stay, and where positions begin in
    shared memory."""


def chunk_rows(element_size: int) -> int:
    """Return the rows of a chunk; two chunks are loaded ahead, enough for the memory's latency."""
    return 8 if element_size == 8 else 16


def column_key_bytes(element_size: int) -> int:
    """Return the bytes of a candidate's key."""
    return max(element_size, 2)


def _spare_candidates(k: int) -> int:
    """Return how many more than k candidates of a column may stay, to find a threshold soon."""
    return max(2, k // 4)


def columns_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    yield variant("columns", "columns.columns:columns_kernel", element_size, dynamic_shared_bytes=BLOCK_BYTES)


def _fitting_shape(selection: Selection) -> ColumnShape:
    """Return the shape of blocks, the largest of those in which what a warp selects fits."""
    k, element_size = selection.k, selection.element_size
    slot_bytes = WARP_LANES * (column_key_bytes(element_size) + POSITION_BYTES)
    fewest = k + _spare_candidates(k) + chunk_rows(element_size) + max(SPARE_SLOTS, k // 2)
    # The kernel reads candidates in eights. Several warps merge what they select, and read one beyond two
    # lists.
    n_slots = max(_ceil_to_eight(fewest), WARP_BYTES // slot_bytes // 8 * 8)
    n_slots = min(n_slots, _ceil_to_eight(selection.axis_size))
    n_merging = max(n_slots, _ceil_to_eight(2 * k + 1))
    if 4 * n_merging * slot_bytes <= BLOCK_BYTES:
        return ColumnShape(4, n_merging)
    if 2 * n_merging * slot_bytes <= BLOCK_BYTES:
        return ColumnShape(2, n_merging)
    return ColumnShape(1 if n_slots * slot_bytes <= BLOCK_BYTES else 0, n_slots)


def _ceil_to_eight(count: int) -> int:
    return ceil_div(count, 8) * 8


def columns_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Walk down all columns."""
    n_rows, k, axis_size = selection.n_rows, selection.k, selection.axis_size
    if axis_size > LONGEST_COLUMN:
        return UNSERVED
    n_warps, n_slots = _fitting_shape(selection)
    if n_warps == 0:
        return UNSERVED
    most_warps = WARPS_PER_MULTIPROCESSOR * device[MULTIPROCESSORS]
    n_groups = ceil_div(n_rows, WARP_LANES)
    smallest_part = max(PART_ELEMENTS, PART_ELEMENTS_PER_SELECTED * k)
    n_parts = 1
    while (
        n_parts < n_warps
        and n_groups < ceil_div(most_warps, n_parts)
        and (axis_size >= 2 * n_parts * smallest_part)
    ):
        n_parts *= 2
    n_blocks = ceil_div(n_rows, WARP_LANES * (n_warps // n_parts))
    first_position = n_warps * n_slots * WARP_LANES * column_key_bytes(selection.element_size)
    n_bytes = first_position + n_warps * n_slots * POSITION_STEP
    kernel = kernel_key(COLUMNS, selection.element_size, 0, 0)
    sizes = Sizes(n_blocks, n_warps * WARP_LANES, n_bytes, 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    put_values(out, ColumnsParameters(n_parts, n_slots, _spare_candidates(k), first_position))
    split(device, out)
    return end_unordered(problem, device, selection, out)
