"""Plans of long rows, and of rows that lie side by side: many blocks write group maxima, others finish."""

import math
from dataclasses import replace
from typing import NamedTuple

from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k.block_shape import BlockShape
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.group_shape import (
    FINE,
    FINE_A_CHUNK,
    FINE_BITS,
    LARGEST_LANE_BITS,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    TURNED_ROWS,
    VECTORS_AHEAD,
    fine_bits,
)
from kernels_cuda.top_k.plan_blocks import (
    DEVICE_RATE,
    SMALL_BLOCK_K,
    Levels,
    block_launches,
    block_shapes,
    choose_levels,
    fitting_shape,
    groups_wanted,
    largest_k,
    row_vectors,
)
from kernels_cuda.top_k.steps import (
    INDICES,
    LARGEST_NARROW_AXIS,
    VALUES,
    Problem,
    Step,
    Workspace,
    X,
    ceil_div,
    fill_offsets,
    grids,
)
from kernels_cuda.top_k.variants import maxima_turned_variant, maxima_variant

# Chunks that a coarse group may have: few make many groups to find a threshold in, many much to look at in
# each that reaches it.
COARSE_CHUNKS = (1, 2, 4)
# A round of a block's loads that looks at listed groups again takes this, and each further level of these.
ROUND_MICROSECONDS = 2.0
LEVEL_MICROSECONDS = 2.0
# Fine groups for each winner without which other blocks do not help.
GRID_GROUPS_A_WINNER = 4
# The fine groups, and the k, that blocks of 128 threads finish many rows of.
SMALL_BLOCK_GROUPS = 1024
SMALL_BLOCK_GRID_K = 256
# Bytes a microsecond that a thread of a lone block reads, and what another launch takes.
THREAD_RATE = 80
LAUNCH_MICROSECONDS = 6
# Rows that lie side by side: of less input another launch takes longer than a block's strided loads, and
# maxima of shorter rows, of whole chunks, would take a larger share of what the rows do.
LEAST_TURNED_BYTES = 1 << 20
LEAST_TURNED_ROW_BYTES = 1 << 13
# A part of a row counts positions in 31 bits.
LARGEST_PART = 1 << 31


def _fine_bits(problem: Problem) -> int:
    return fine_bits(problem.element_size, problem.has_neighbours)


def _has_grid_groups(problem: Problem) -> bool:
    """Tell whether group maxima that other blocks write leave little to look at."""
    has_enough = row_vectors(problem) >= problem.k * GRID_GROUPS_A_WINNER << _fine_bits(problem)
    return has_enough and _grid_parts(problem) is not None


def _chunk_vectors(problem: Problem) -> int:
    return FINE_A_CHUNK << _fine_bits(problem)


def is_long(problem: Problem) -> bool:
    """Tell whether other blocks should read the rows before a block a row finishes them."""
    if not _has_grid_groups(problem):
        return False
    shape = fitting_shape(problem)
    if shape is None:
        return True
    row_bytes = problem.axis_size * problem.element_size
    whole = row_bytes / (THREAD_RATE * shape.n_threads)
    split = LAUNCH_MICROSECONDS + problem.n_rows * row_bytes / DEVICE_RATE
    return problem.n_rows <= problem.multiprocessors and whole >= split


def is_turned(problem: Problem) -> bool:
    """Tell whether other blocks should read rows that lie side by side, however many they are."""
    row_bytes = problem.axis_size * problem.element_size
    return (
        problem.has_neighbours
        and row_bytes >= LEAST_TURNED_ROW_BYTES
        and problem.n_rows * row_bytes >= LEAST_TURNED_BYTES
        and _has_grid_groups(problem)
    )


def _grid_parts(problem: Problem) -> tuple[BlockShape, int] | None:
    """Return the blocks that finish rows by their group maxima, and the elements of a part of a row."""
    has_few_rows = problem.n_rows <= problem.multiprocessors
    is_large = problem.has_large_blocks and (has_few_rows or problem.k > SMALL_BLOCK_K)
    n_fine = row_vectors(problem) >> _fine_bits(problem)
    is_small = n_fine <= SMALL_BLOCK_GROUPS and problem.k <= SMALL_BLOCK_GRID_K
    number = -1 if is_large else 0 if is_small else 1
    if is_large and problem.k <= SMALL_BLOCK_K:
        # The work of all warps of the largest blocks takes longer than what they share.
        number = 2
    shape = block_shapes(problem)[number]
    if problem.k > min(largest_k(problem), shape.n_listed):
        return None
    per_vector = VECTOR_BYTES // problem.element_size
    most_coarse = (shape.n_groups << LARGEST_LANE_BITS) * (VECTOR_BYTES // shape.key_bytes)
    coarse_chunks = 1 if problem.has_neighbours else COARSE_CHUNKS[-1]
    largest_part = min(LARGEST_PART, most_coarse * coarse_chunks * _chunk_vectors(problem) * per_vector)
    n_parts = ceil_div(problem.axis_size, largest_part)
    if n_parts == 1:
        return shape, problem.axis_size
    # One block finishes the winners of all parts.
    if n_parts * problem.k > (shape.n_groups << LARGEST_LANE_BITS) * per_vector:
        return None
    return shape, ceil_div(problem.axis_size, n_parts * per_vector) * per_vector


class _Maxima(NamedTuple):
    """How many coarse groups there are of a part of a row, and how many chunks each of them has."""

    n_coarse: int
    coarse_chunks: int


def _maxima(problem: Problem, shape: BlockShape, part_size: int) -> _Maxima:
    """Choose the coarse groups; those beyond the end of a part are empty."""
    n_chunks = max(1, ceil_div(part_size * problem.element_size, _chunk_vectors(problem) * VECTOR_BYTES))
    if problem.has_neighbours:
        # Rows may be many and short: no more groups than make whole vectors of keys.
        keys_a_vector = VECTOR_BYTES // shape.key_bytes
        return _Maxima(ceil_div(n_chunks, keys_a_vector) * keys_a_vector, 1)
    choices = [
        _Maxima(ceil_div(n_chunks, coarse_chunks * MAXIMA_WARPS) * MAXIMA_WARPS, coarse_chunks)
        for coarse_chunks in COARSE_CHUNKS
    ]
    return min(choices, key=lambda maxima: _finish_microseconds(problem.k, shape, maxima))


def _finish_microseconds(k: int, shape: BlockShape, maxima: _Maxima) -> float:
    """Estimate what a block takes for what depends on the coarse groups."""
    fine_a_coarse = maxima.coarse_chunks * FINE_A_CHUNK
    coarse_bytes = maxima.n_coarse * shape.key_bytes
    if coarse_bytes // VECTOR_BYTES > shape.n_groups << LARGEST_LANE_BITS:
        return math.inf
    levels = choose_levels(k, shape, maxima.n_coarse, fine_a_coarse, FINE_BITS)
    if levels.top == FINE:
        return coarse_bytes * fine_a_coarse / (THREAD_RATE * shape.n_threads)
    # At worst all coarse groups are listed.
    n_listed = k if maxima.n_coarse >= groups_wanted(k) else maxima.n_coarse
    listed_bytes = n_listed * fine_a_coarse * shape.key_bytes
    rounds = listed_bytes / (VECTOR_BYTES * VECTORS_AHEAD * shape.n_threads)
    n_levels = 1 if levels.has_single_keys else 2
    return (
        coarse_bytes / (THREAD_RATE * shape.n_threads)
        + rounds * ROUND_MICROSECONDS
        + n_levels * LEVEL_MICROSECONDS
    )


def _maxima_launches(
    problem: Problem, part_size: int, maxima: _Maxima, pointers: tuple[Pointer, ...]
) -> list[Step]:
    n_parts = ceil_div(problem.axis_size, part_size)
    # The sizes come first, then what the kernels differ in.
    if problem.has_neighbours:
        variant = maxima_turned_variant(problem.element_size)
        n_blocks = ceil_div(problem.n_rows, TURNED_ROWS) * n_parts * maxima.n_coarse
        split = problem.n_rows, maxima.n_coarse
    else:
        variant = maxima_variant(problem.element_size)
        blocks_a_part = maxima.n_coarse // MAXIMA_WARPS
        n_blocks = problem.n_rows * n_parts * blocks_a_part
        split = blocks_a_part, maxima.coarse_chunks
    return [
        Step(
            variant,
            n_launched,
            MAXIMA_THREADS,
            pointers,
            (
                first,
                problem.axis_size,
                part_size,
                n_parts,
                *split,
                problem.axis_strides[0],
                *problem.layout.layout,
                *problem.numbers,
            ),
        )
        for first, n_launched in grids(n_blocks)
    ]


def grid_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Write the group maxima of every row, or part of one too long for a block, and finish it from these."""
    parts = _grid_parts(problem)
    if parts is None:
        msg = f"variant 'grid' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    shape, part_size = parts
    n_parts = ceil_div(problem.axis_size, part_size)
    maxima = _maxima(problem, shape, part_size)
    fine_groups = maxima.coarse_chunks * FINE_A_CHUNK
    n_coarse_keys = problem.n_rows * n_parts * maxima.n_coarse
    fine = workspace.take(n_coarse_keys * fine_groups * shape.key_bytes)
    coarse = workspace.take(n_coarse_keys * shape.key_bytes)
    offsets, steps = fill_offsets(problem, workspace)
    steps += _maxima_launches(problem, part_size, maxima, (Pointer(X), fine, coarse, offsets))
    levels = choose_levels(problem.k, shape, maxima.n_coarse, fine_groups, _fine_bits(problem))
    if n_parts == 1:
        pointers = (Pointer(X), Pointer(VALUES), Pointer(INDICES), NULL, fine, coarse)
        return steps + block_launches(problem, shape, part_size, levels, pointers, 0, workspace)

    position_size = 4 if problem.axis_size <= LARGEST_NARROW_AXIS else 8
    left = (n_parts - 1) * problem.k + min(problem.k, problem.axis_size - (n_parts - 1) * part_size)
    values = workspace.take(problem.n_rows * left * problem.element_size)
    indices = workspace.take(problem.n_rows * left * position_size)
    winners = replace(
        problem,
        index_size=position_size,
        axis_strides=(problem.axis_strides[0], 1, 1),
        layout=problem.layout.with_packed_outputs(left),
    )
    pointers = (Pointer(X), values, indices, NULL, fine, coarse)
    steps += block_launches(winners, shape, part_size, levels, pointers, 0, workspace)
    merged = replace(
        problem,
        axis_size=left,
        axis_strides=(1, *problem.axis_strides[1:]),
        layout=problem.layout.with_packed_x(left),
    )
    pointers = (values, Pointer(VALUES), Pointer(INDICES), indices, NULL, NULL)
    return steps + block_launches(merged, shape, left, Levels(), pointers, position_size, workspace)
