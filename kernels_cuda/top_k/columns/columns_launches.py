"""The launches of `columns`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    Algorithm,
    Launch,
    Policy,
    UnservedError,
    Workspace,
    launch_rows,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import KIB, WARP_LANES

POSITION_BYTES = 2
LONGEST_COLUMN = 1 << 8 * POSITION_BYTES
# From a slot of a lane to its next.
POSITION_STEP = WARP_LANES * POSITION_BYTES
# Rows of a chunk; two chunks are loaded ahead, enough for the memory's latency.
CHUNK_ROWS = {1: 16, 2: 16, 4: 16, 8: 8}
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
    """How a block uses its shared memory: warps, and slots for candidates per lane."""

    n_warps: int
    n_slots: int
    first_position: int
    shared_bytes: int


class ColumnsParameters(NamedTuple):
    """More parameters of `columns.column_top_k`.

    Attributes
    ----------
    parts_per_block : int
        Warps of a block that share columns.
    n_slots, n_spare, position_offset : int
        Candidates for which a lane has room, how many more than k may stay, and where positions begin in
        shared memory.
    """

    parts_per_block: int
    n_slots: int
    n_spare: int
    position_offset: int


def column_key_bytes(element_size: int) -> int:
    """Return the bytes of a candidate's key."""
    return max(element_size, 2)


def _spare_candidates(k: int) -> int:
    """Return how many more than k candidates of a column may stay, to find a threshold soon."""
    return max(2, k // 4)


def columns_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    yield variant("columns", "columns.columns:columns_kernel", element_size, dynamic_shared_bytes=BLOCK_BYTES)


def _fitting_shape(problem: Problem) -> ColumnShape | None:
    """Return the shape of blocks, or None if what a warp selects does not fit."""
    k, key_bytes = problem.k, column_key_bytes(problem.element_size)
    slot_bytes = WARP_LANES * (key_bytes + POSITION_BYTES)
    fewest = k + _spare_candidates(k) + CHUNK_ROWS[problem.element_size] + max(SPARE_SLOTS, k // 2)
    # The kernel reads candidates in eights. Several warps merge what they select, and read one beyond two
    # lists.
    n_slots = max(_ceil_to_eight(fewest), WARP_BYTES // slot_bytes // 8 * 8)
    n_slots = min(n_slots, _ceil_to_eight(max(problem.axis_size, k)))
    n_merging = max(n_slots, _ceil_to_eight(2 * k + 1))
    for n_warps, n_each in ((4, n_merging), (2, n_merging), (1, n_slots)):
        if n_warps * n_each * slot_bytes <= BLOCK_BYTES:
            first_position = n_warps * n_each * WARP_LANES * key_bytes
            return ColumnShape(
                n_warps, n_each, first_position, first_position + n_warps * n_each * POSITION_STEP
            )
    return None


def _ceil_to_eight(count: int) -> int:
    return ceil_div(count, 8) * 8


def columns_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Walk down all columns."""
    shape = _fitting_shape(problem)
    if shape is None or problem.axis_size > LONGEST_COLUMN:
        raise UnservedError(problem, "columns")
    (kernel,) = columns_variants(problem.element_size)
    most_warps = WARPS_PER_MULTIPROCESSOR * problem.target.multiprocessors
    n_groups = ceil_div(problem.n_rows, WARP_LANES)
    smallest_part = max(PART_ELEMENTS, PART_ELEMENTS_PER_SELECTED * problem.k)
    n_parts = 1
    while n_parts < shape.n_warps and (
        n_groups * n_parts < most_warps and problem.axis_size >= 2 * n_parts * smallest_part
    ):
        n_parts *= 2
    more = ColumnsParameters(
        parts_per_block=n_parts,
        n_slots=shape.n_slots,
        n_spare=_spare_candidates(problem.k),
        position_offset=shape.first_position,
    )
    n_blocks = ceil_div(problem.n_rows, WARP_LANES * (shape.n_warps // n_parts))
    n_threads, n_bytes = shape.n_warps * WARP_LANES, shape.shared_bytes
    launch = Launch(kernel, n_blocks, n_threads, (), row_parameters(problem), n_bytes, more=(more,))
    return launch_rows(launch, problem, policy, workspace)


COLUMNS = Algorithm(columns_launches, columns_variants, orders_by_index=False)
