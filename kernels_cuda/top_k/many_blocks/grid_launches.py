"""The launches of `grid`: many blocks write group maxima, and blocks finish rows, or parts, by these."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.read_once.block_launches import (
    COARSE,
    FINE,
    LARGEST_K,
    LARGEST_LANE_BITS,
    OPERANDS,
    SMALL_K,
    BlockPolicy,
    BlockShape,
    Sources,
    Stages,
    enough_groups,
    finish_rows,
)
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    VALUES,
    Algorithm,
    Launch,
    UnservedError,
    Workspace,
    X,
    fill_offsets,
    launch_all,
    lengths_of,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    CHUNK_VECTORS,
    FINE_BITS,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    VECTOR_BYTES,
    group_key_bytes,
)

FINE_PER_CHUNK = CHUNK_VECTORS >> FINE_BITS
# Fine groups of transposed rows are smaller: an element that is read again takes a memory sector of its own.
TRANSPOSED_FINE_BITS = {1: 1, 2: 1, 4: 1, 8: 2}
# Rows of a block that finds the maxima of transposed rows, which lie side by side.
TRANSPOSED_ROWS = 32
# If there are more rows than multiprocessors, the smallest blocks finish those of at most this many fine
# groups, for k up to `SMALL_BLOCK_K`.
SMALL_BLOCK_GROUPS = 1024
SMALL_BLOCK_K = 256


@dataclass(frozen=True, kw_only=True)
class GridPolicy(BlockPolicy):
    """Limits of `grid`."""

    # A part of a row has at most this many elements, because positions in it are counted in 31 bits.
    part_elements: int = 1 << 31


class MaximaParameters(NamedTuple):
    """More parameters of the kernels of `grid`: a part of a row has `n_coarse` coarse groups, its chunks."""

    part_size: int
    n_parts: int
    n_coarse: int


def grid_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: for rows one after the other, and side by side."""
    yield variant("maxima", "many_blocks.grid:maxima_kernel", element_size)
    yield variant("transposed_maxima", "many_blocks.grid:transposed_maxima_kernel", element_size)


def fine_bits(element_size: int, is_transposed: bool) -> int:
    """Return the bits of the number of vectors of a fine group."""
    return TRANSPOSED_FINE_BITS[element_size] if is_transposed else FINE_BITS


def _chunk_bytes(problem: Problem, policy: GridPolicy) -> int:
    """Return the bytes of a chunk, which a warp reads together."""
    return (FINE_PER_CHUNK << fine_bits(problem.element_size, policy.is_transposed(problem))) * VECTOR_BYTES


def _coarse_groups(problem: Problem, policy: GridPolicy, part_size: int) -> int:
    """Return how many coarse groups there may be; those beyond the end of a part are empty."""
    n_chunks = max(1, ceil_div(part_size * problem.element_size, _chunk_bytes(problem, policy)))
    # Transposed rows may be many and short: no more groups than make whole vectors of keys.
    keys_per_vector = VECTOR_BYTES // group_key_bytes(problem.element_size)
    together = keys_per_vector if policy.is_transposed(problem) else MAXIMA_WARPS
    return ceil_div(n_chunks, together) * together


def _maxima_launches(
    problem: Problem, policy: GridPolicy, part_size: int, n_coarse: int, workspace: Workspace
) -> tuple[Sources, list[Launch]]:
    """Return where the maxima will be, and what finds them."""
    n_parts = ceil_div(problem.axis_size, part_size)
    n_coarse_keys = problem.n_rows * n_parts * n_coarse
    key_bytes = group_key_bytes(problem.element_size)
    fine = workspace.take(n_coarse_keys * FINE_PER_CHUNK * key_bytes)
    coarse = workspace.take(n_coarse_keys * key_bytes)
    offsets, launches = fill_offsets(problem, workspace)
    of_rows, of_transposed_rows = grid_variants(problem.element_size)
    kernel, n_blocks = of_rows, problem.n_rows * (n_coarse // MAXIMA_WARPS)
    if policy.is_transposed(problem):
        kernel, n_blocks = of_transposed_rows, ceil_div(problem.n_rows, TRANSPOSED_ROWS) * n_coarse
    more = MaximaParameters(part_size, n_parts, n_coarse)
    pointers = Pointer(X), lengths_of(problem), fine, coarse, offsets
    parameters = row_parameters(problem)
    launch = Launch(kernel, n_blocks * n_parts, MAXIMA_THREADS, pointers, parameters, more=(more,))
    return Sources(fine=fine, coarse=coarse), launches + launch_all(launch, policy)


def _split(problem: Problem, policy: GridPolicy) -> tuple[BlockShape, int] | None:
    """Return the blocks that finish rows, and the elements of a part of one; None if it is not served."""
    k, shapes = problem.k, policy.shapes(problem)
    has_few_rows = problem.n_rows <= problem.target.multiprocessors
    has_large_blocks = len(shapes) > 2
    n_fine = problem.row_bytes * FINE_PER_CHUNK // _chunk_bytes(problem, policy)
    if has_large_blocks and k > SMALL_K:
        shape = shapes[-1]
    elif has_large_blocks and has_few_rows:
        # The work of all warps of the largest blocks takes longer than what they share.
        shape = shapes[2]
    elif n_fine <= SMALL_BLOCK_GROUPS and k <= SMALL_BLOCK_K:
        shape = shapes[0]
    else:
        shape = shapes[1]
    if k > min(LARGEST_K, shape.n_candidate_groups):
        return None
    per_vector = VECTOR_BYTES // problem.element_size
    most_coarse = (shape.n_groups << LARGEST_LANE_BITS) * (VECTOR_BYTES // shape.key_bytes)
    chunk_elements = _chunk_bytes(problem, policy) // problem.element_size
    largest_part = min(policy.part_elements, most_coarse * chunk_elements)
    n_parts = ceil_div(problem.axis_size, largest_part)
    if n_parts == 1:
        return shape, problem.axis_size
    # One block finishes what is selected from all parts.
    if n_parts * k > (shape.n_groups << LARGEST_LANE_BITS) * per_vector:
        return None
    return shape, ceil_div(problem.axis_size, n_parts * per_vector) * per_vector


def grid_launches(problem: Problem, policy: GridPolicy, workspace: Workspace) -> list[Launch]:
    """Write the group maxima of every row, or part of one too long for a block, and finish it from these."""
    split = _split(problem, policy)
    if split is None:
        raise UnservedError(problem, "grid")
    shape, part_size = split
    n_parts = ceil_div(problem.axis_size, part_size)
    n_coarse = _coarse_groups(problem, policy, part_size)
    sources, launches = _maxima_launches(problem, policy, part_size, n_coarse, workspace)
    stages = _choose_stages(problem, policy, shape, n_coarse)
    if n_parts == 1:
        return launches + finish_rows(problem, policy, shape, part_size, stages, OPERANDS, sources, workspace)

    position_size = policy.position_bytes(problem)
    n_left = (n_parts - 1) * problem.k + min(problem.k, problem.axis_size - (n_parts - 1) * part_size)
    values = workspace.take(problem.n_rows * n_left * problem.element_size)
    indices = workspace.take(problem.n_rows * n_left * position_size)
    parts = replace(
        problem,
        index_size=position_size,
        strides=problem.strides._replace(values=1, indices=1),
        rows=problem.rows.with_packed_outputs(n_left),
        lengths=problem.lengths and problem.lengths._replace(padding=problem.filler),
    )
    merged = replace(
        problem,
        axis_size=n_left,
        strides=problem.strides._replace(x=1),
        rows=problem.rows.with_packed_x(n_left),
    )
    operands = (Pointer(X), values, indices)
    launches += finish_rows(parts, policy, shape, part_size, stages, operands, sources, workspace)
    operands = (values, Pointer(VALUES), Pointer(INDICES))
    sources = Sources(indices=indices, index_size=position_size)
    return launches + finish_rows(merged, policy, shape, n_left, Stages(), operands, sources, workspace)


def _choose_stages(problem: Problem, policy: GridPolicy, shape: BlockShape, n_coarse: int) -> Stages:
    """Choose what a block starts from, by the numbers of group maxima that there are."""
    keys_per_vector = VECTOR_BYTES // shape.key_bytes
    group_bits = fine_bits(problem.element_size, policy.is_transposed(problem))
    coarse_bits = (FINE_PER_CHUNK // keys_per_vector).bit_length() - 1
    n_fine = n_coarse * FINE_PER_CHUNK
    has_enough_coarse = n_coarse >= enough_groups(problem.k)
    # There is one stage less to go through where each maximum may be a group by itself.
    most_units = min(shape.n_groups, policy.unit_groups_per_thread * shape.n_threads)
    n_units, unit_stage = (n_coarse, COARSE) if has_enough_coarse else (n_fine, FINE)
    if n_units <= most_units:
        return Stages(unit_stage, n_coarse, coarse_bits, group_bits, has_unit_groups=True)
    fits_fine = n_fine // keys_per_vector <= shape.n_groups << LARGEST_LANE_BITS
    takes_fine = n_fine * shape.key_bytes <= policy.fine_bytes or not has_enough_coarse
    return Stages(FINE if fits_fine and takes_fine else COARSE, n_coarse, coarse_bits, group_bits)


GRID = Algorithm(grid_launches, grid_variants, GridPolicy())
