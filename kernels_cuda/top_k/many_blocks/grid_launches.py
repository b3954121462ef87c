"""The launches of `grid`: many blocks write group maxima, and blocks finish rows, or parts, by these."""

import math
from dataclasses import replace
from typing import NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.read_once.block_launches import (
    Sources,
    Stages,
    enough_groups,
    finish_rows,
    row_vectors,
)
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    OPERANDS,
    VALUES,
    Launch,
    UnservedError,
    Workspace,
    X,
    batches,
    fill_offsets,
    lengths_of,
    position_bytes,
)
from kernels_cuda.top_k.shared.optional_launches import by_index
from kernels_cuda.top_k.shared.parameters import MaximaParameters, TransposedMaximaParameters
from kernels_cuda.top_k.shared.policy import Policy
from kernels_cuda.top_k.shared.shapes import (
    COARSE,
    FINE,
    FINE_BITS,
    FINE_PER_CHUNK,
    LARGEST_LANE_BITS,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    TRANSPOSED_ROWS,
    VECTOR_BYTES,
    VECTORS_AHEAD,
    BlockShape,
    fine_bits,
    group_key_bytes,
)


def is_transposed(problem: Problem, policy: Policy) -> bool:
    """Tell whether enough rows lie side by side for lanes to read one each."""
    return problem.rows.n_neighbours >= policy.transposed_rows


class Maxima(NamedTuple):
    """How many coarse groups a part of a row has, and how many chunks each of them has."""

    n_coarse: int
    coarse_chunks: int

    @property
    def fine_per_coarse(self) -> int:
        """Fine groups of a coarse one."""
        return self.coarse_chunks * FINE_PER_CHUNK


class FoundMaxima(NamedTuple):
    """Where the fine and the coarse maxima of all parts of rows are, and the table of row offsets, if any."""

    fine: Pointer
    coarse: Pointer
    offsets: Pointer


def group_bits(problem: Problem, policy: Policy) -> int:
    """Return the bits of the number of vectors of a fine group."""
    return fine_bits(problem.element_size, is_transposed(problem, policy))


def chunk_vectors(problem: Problem, policy: Policy) -> int:
    """Return the vectors of a chunk, which a warp reads together."""
    return FINE_PER_CHUNK << group_bits(problem, policy)


def maxima_choices(problem: Problem, policy: Policy, part_size: int) -> list[Maxima]:
    """Return the coarse groups that there may be; those beyond the end of a part are empty."""
    chunk_bytes = chunk_vectors(problem, policy) * VECTOR_BYTES
    n_chunks = max(1, ceil_div(part_size * problem.element_size, chunk_bytes))
    if is_transposed(problem, policy):
        # Rows may be many and short: no more groups than make whole vectors of keys.
        keys_per_vector = VECTOR_BYTES // group_key_bytes(problem.element_size)
        return [Maxima(ceil_div(n_chunks, keys_per_vector) * keys_per_vector, 1)]
    return [
        Maxima(ceil_div(n_chunks, coarse_chunks * MAXIMA_WARPS) * MAXIMA_WARPS, coarse_chunks)
        for coarse_chunks in policy.grid.coarse_chunks
    ]


def maxima_launches(
    problem: Problem, policy: Policy, part_size: int, maxima: Maxima, workspace: Workspace
) -> tuple[FoundMaxima, list[Launch]]:
    """Return where the maxima will be, and what finds them."""
    n_parts = ceil_div(problem.axis_size, part_size)
    n_coarse_keys = problem.n_rows * n_parts * maxima.n_coarse
    key_bytes = group_key_bytes(problem.element_size)
    fine = workspace.take(n_coarse_keys * maxima.fine_per_coarse * key_bytes)
    coarse = workspace.take(n_coarse_keys * key_bytes)
    offsets, launches = fill_offsets(problem, workspace)
    pointers = (Pointer(X), lengths_of(problem), fine, coarse, offsets)
    if is_transposed(problem, policy):
        n_blocks = ceil_div(problem.n_rows, TRANSPOSED_ROWS) * n_parts * maxima.n_coarse
        variant = kernels.transposed_maxima(problem.element_size)
        parameters: TransposedMaximaParameters | MaximaParameters = TransposedMaximaParameters(
            first_block=0,
            axis_size=problem.axis_size,
            part_size=part_size,
            n_parts=n_parts,
            n_rows=problem.n_rows,
            n_coarse=maxima.n_coarse,
            x_stride=problem.strides.x,
            layout=problem.rows.layout,
            unfolded_format=problem.unfolded_format,
            length_format=problem.length_format,
        )
    else:
        blocks_per_part = maxima.n_coarse // MAXIMA_WARPS
        n_blocks = problem.n_rows * n_parts * blocks_per_part
        variant = kernels.maxima(problem.element_size)
        parameters = MaximaParameters(
            first_block=0,
            axis_size=problem.axis_size,
            part_size=part_size,
            n_parts=n_parts,
            blocks_per_part=blocks_per_part,
            coarse_chunks=maxima.coarse_chunks,
            x_stride=problem.strides.x,
            layout=problem.rows.layout,
            unfolded_format=problem.unfolded_format,
            length_format=problem.length_format,
        )
    launches += [
        Launch(variant, batch, MAXIMA_THREADS, pointers, parameters._replace(first_block=first))
        for first, batch in batches(n_blocks, policy.launch_blocks)
    ]
    return FoundMaxima(fine, coarse, offsets), launches


def fine_groups(problem: Problem, policy: Policy) -> int:
    """Return the fine groups of a row that other blocks would find."""
    return row_vectors(problem) >> group_bits(problem, policy)


class Split(NamedTuple):
    """The blocks that finish rows by their group maxima, and the elements of a part of a row."""

    shape: BlockShape
    part_size: int


def grid_split(problem: Problem, policy: Policy) -> Split | None:
    """Return how the grid algorithm splits rows, or None where it cannot serve them."""
    block, grid, k = policy.block, policy.grid, problem.k
    has_few_rows = problem.n_rows <= problem.multiprocessors
    has_large_blocks = len(block.shapes) > 2
    if has_large_blocks and k > block.small_k:
        shape = block.shapes[-1]
    elif has_large_blocks and has_few_rows:
        # The work of all warps of the largest blocks takes longer than what they share.
        shape = block.shapes[2]
    elif fine_groups(problem, policy) <= grid.small_block_groups and k <= grid.small_block_k:
        shape = block.shapes[0]
    else:
        shape = block.shapes[1]
    if k > min(block.largest_k, shape.n_candidate_groups):
        return None
    per_vector = VECTOR_BYTES // problem.element_size
    most_coarse = (shape.n_groups << LARGEST_LANE_BITS) * (VECTOR_BYTES // shape.key_bytes)
    coarse_chunks = 1 if is_transposed(problem, policy) else grid.coarse_chunks[-1]
    chunk_elements = chunk_vectors(problem, policy) * per_vector
    largest_part = min(grid.part_elements, most_coarse * coarse_chunks * chunk_elements)
    n_parts = ceil_div(problem.axis_size, largest_part)
    if n_parts == 1:
        return Split(shape, problem.axis_size)
    # One block finishes what is selected from all parts.
    if n_parts * k > (shape.n_groups << LARGEST_LANE_BITS) * per_vector:
        return None
    return Split(shape, ceil_div(problem.axis_size, n_parts * per_vector) * per_vector)


def grid_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Write the group maxima of every row, or part of one too long for a block, and finish it from these."""
    split = grid_split(problem, policy)
    if split is None:
        raise UnservedError(problem, "grid")
    shape, part_size = split
    n_parts = ceil_div(problem.axis_size, part_size)
    maxima = _maxima(problem, policy, shape, part_size)
    found, launches = maxima_launches(problem, policy, part_size, maxima, workspace)
    stages = choose_stages(problem.k, policy, shape, maxima, group_bits(problem, policy))
    sources = Sources(fine=found.fine, coarse=found.coarse)
    if n_parts == 1:
        return launches + finish_rows(problem, policy, shape, part_size, stages, OPERANDS, sources, workspace)

    position_size = position_bytes(problem, policy)
    n_left = (n_parts - 1) * problem.k + min(problem.k, problem.axis_size - (n_parts - 1) * part_size)
    values = workspace.take(problem.n_rows * n_left * problem.element_size)
    indices = workspace.take(problem.n_rows * n_left * position_size)
    parts = replace(
        problem,
        is_sorted=True,
        index_size=position_size,
        strides=problem.strides._replace(values=1, indices=1),
        rows=problem.rows.with_packed_outputs(n_left),
        lengths=problem.lengths and problem.lengths._replace(padding=problem.filler),
    )
    merged = replace(
        problem,
        is_sorted=True,
        axis_size=n_left,
        strides=problem.strides._replace(x=1),
        rows=problem.rows.with_packed_x(n_left),
    )
    operands = (Pointer(X), values, indices)
    launches += finish_rows(parts, policy, shape, part_size, stages, operands, sources, workspace)
    operands = (values, Pointer(VALUES), Pointer(INDICES))
    sources = Sources(indices=indices, index_size=position_size)
    launches += finish_rows(merged, policy, shape, n_left, Stages(), operands, sources, workspace)
    return launches + by_index(problem, policy, workspace) if problem.is_by_index else launches


def _maxima(problem: Problem, policy: Policy, shape: BlockShape, part_size: int) -> Maxima:
    """Choose the coarse groups that a block finishes the soonest."""
    choices = maxima_choices(problem, policy, part_size)
    if len(choices) == 1:
        return choices[0]
    return min(choices, key=lambda maxima: _finish_microseconds(problem.k, policy, shape, maxima))


def _finish_microseconds(k: int, policy: Policy, shape: BlockShape, maxima: Maxima) -> float:
    """Estimate what a block takes for what depends on the coarse groups."""
    grid = policy.grid
    fine_per_coarse = maxima.fine_per_coarse
    coarse_bytes = maxima.n_coarse * shape.key_bytes
    if coarse_bytes // VECTOR_BYTES > shape.n_groups << LARGEST_LANE_BITS:
        return math.inf
    block_rate = grid.thread_bytes_per_microsecond * shape.n_threads
    stages = choose_stages(k, policy, shape, maxima, FINE_BITS)
    if stages.top == FINE:
        return coarse_bytes * fine_per_coarse / block_rate
    # At worst all coarse groups are listed.
    n_candidate_groups = k if maxima.n_coarse >= enough_groups(k, policy) else maxima.n_coarse
    listed_bytes = n_candidate_groups * fine_per_coarse * shape.key_bytes
    rounds = listed_bytes / (VECTOR_BYTES * VECTORS_AHEAD * shape.n_threads)
    n_stages = 1 if stages.has_unit_groups else 2
    return coarse_bytes / block_rate + rounds * grid.round_microseconds + n_stages * grid.stage_microseconds


def choose_stages(k: int, policy: Policy, shape: BlockShape, maxima: Maxima, fine_group_bits: int) -> Stages:
    """Choose what a block starts from, by the numbers of group maxima that there are."""
    n_coarse, fine_per_coarse = maxima.n_coarse, maxima.fine_per_coarse
    block = policy.block
    keys_per_vector = VECTOR_BYTES // shape.key_bytes
    coarse_bits = (fine_per_coarse // keys_per_vector).bit_length() - 1
    n_fine = n_coarse * fine_per_coarse
    has_enough_coarse = n_coarse >= enough_groups(k, policy)
    # There is one stage less to go through where each maximum may be a group by itself.
    most_units = min(shape.n_groups, block.unit_groups_per_thread * shape.n_threads)
    if n_fine <= (block.unit_fine_groups if has_enough_coarse else most_units):
        return Stages(FINE, n_coarse, coarse_bits, fine_group_bits, has_unit_groups=True)
    if has_enough_coarse and n_coarse <= most_units:
        return Stages(COARSE, n_coarse, coarse_bits, fine_group_bits, has_unit_groups=True)
    fits_fine = n_fine // keys_per_vector <= shape.n_groups << LARGEST_LANE_BITS
    takes_fine = n_fine * shape.key_bytes <= block.fine_bytes or not has_enough_coarse
    return Stages(FINE if fits_fine and takes_fine else COARSE, n_coarse, coarse_bits, fine_group_bits)
