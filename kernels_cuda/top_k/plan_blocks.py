"""Plans of the ways that look at group maxima or lane maxima first: a warp a row, a block a row, many."""

import math
from dataclasses import replace
from typing import NamedTuple

from kernels_cuda.top_k import warp_shape
from kernels_cuda.top_k.block_shape import SPARE, BlockShape, largest_shape
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.group_shape import (
    CHUNK_VECTORS,
    COARSE,
    ELEMENTS,
    FINE,
    FINE_A_CHUNK,
    FINE_BITS,
    LARGEST_LANE_BITS,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    TURNED_ROWS,
)
from kernels_cuda.top_k.steps import (
    INDICES,
    LARGEST_GRID,
    LARGEST_NARROW_AXIS,
    NULL,
    VALUES,
    Pointer,
    Problem,
    Step,
    Workspace,
    X,
    batches,
    ceil_div,
    fill_offsets,
)
from kernels_cuda.top_k.variants import (
    BLOCK_THREADS,
    WARP_ROWS,
    block_variant,
    maxima_turned_variant,
    maxima_variant,
    warp_variant,
)

# The longest rows that a warp ranks all of, by the size of elements: of few rows and of many. Others are
# sorted by a block, in a pass for each byte.
RANKED_ROW = {1: (0, 128), 2: (64, 128), 4: (128, 256), 8: (128, 128)}
# So many rows a multiprocessor are many.
MANY_ROWS = 8
# Rows for blocks of 128 threads, and the k for which these and the next larger ones have room.
SMALL_BLOCK_ROW = 4096
SMALL_BLOCK_K = 512
BLOCK_LARGEST_K = 4096
# The k of devices whose blocks have no more than 64 KiB of shared memory.
OLD_BLOCK_LARGEST_K = 2048
# Groups that should be there for each that is wanted, so that few other elements reach the threshold.
GROUPS_A_WINNER = 8
# Of large k there may be fewer: more elements, but less to look for a threshold in.
LARGE_K_GROUPS_A_WINNER = 4
# Chunks of a coarse group in rows where that leaves enough of them.
COARSE_CHUNKS = 4
LEAST_COARSE_GROUPS = 8192
# Fine groups that a block reads as soon as coarse ones and those that they lead to.
LARGEST_FINE_BYTES = 1 << 18
# The most group maxima that a block looks at each by itself, and of fine ones if there are coarse ones.
SINGLE_KEYS_A_THREAD = 16
LARGEST_SINGLE_FINE = 2048
# And those without which other blocks do not help.
GRID_GROUPS_A_WINNER = 4
# Bytes a microsecond that a thread of a lone block and the whole device read, and what another launch takes.
THREAD_RATE = 80
DEVICE_RATE = 4_000_000
LAUNCH_MICROSECONDS = 6
# Rows that lie side by side: of less input another launch takes longer than a block's strided loads, and
# maxima of shorter rows, of whole chunks, would take a larger share of what the rows do.
LEAST_TURNED_BYTES = 1 << 20
LEAST_TURNED_ROW_BYTES = CHUNK_VECTORS * VECTOR_BYTES
# Blocks take turns to read (`_turns`) from so many bytes on, if each place for one has so many of them.
LEAST_TURN_BYTES = 1 << 15
LEAST_TURNS = 2
# What tells how many blocks share a multiprocessor; a wrong guess costs time only.
MULTIPROCESSOR_REGISTERS = 1 << 16
BLOCK_REGISTERS = 64
# A part of a row counts positions in 31 bits.
LARGEST_PART = 1 << 31


def _n_vectors(problem: Problem) -> int:
    return problem.axis_size * problem.element_size // VECTOR_BYTES


def _has_grid_groups(problem: Problem) -> bool:
    """Tell whether group maxima that other blocks write leave little to look at."""
    has_enough = _n_vectors(problem) >= problem.k * GRID_GROUPS_A_WINNER << FINE_BITS
    return has_enough and _grid_parts(problem) is not None


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


def _largest_k(problem: Problem) -> int:
    return BLOCK_LARGEST_K if problem.has_large_blocks else OLD_BLOCK_LARGEST_K


def fitting_shape(problem: Problem) -> BlockShape | None:
    """Return the blocks that serve whole rows well, or None."""
    small, middle, *large_ones = (
        largest_shape(problem.element_size, n_threads, problem.block_shared_bytes)
        for n_threads in BLOCK_THREADS
    )
    large = large_ones[problem.n_rows <= problem.multiprocessors]
    axis_size, k = problem.axis_size, problem.k
    if axis_size <= small.n_slots or (axis_size <= SMALL_BLOCK_ROW and k <= SMALL_BLOCK_K):
        return small
    largest_k = SMALL_BLOCK_K if problem.has_large_blocks else OLD_BLOCK_LARGEST_K
    if axis_size <= middle.n_slots or (k <= largest_k and _fits(problem, middle)):
        return middle
    is_served = axis_size <= large.n_slots or (k <= BLOCK_LARGEST_K and _fits(problem, large))
    return large if is_served and k <= large.n_listed and problem.has_large_blocks else None


def _fits(problem: Problem, shape: BlockShape) -> bool:
    return _n_vectors(problem) <= shape.n_groups << LARGEST_LANE_BITS


def _grid_parts(problem: Problem) -> tuple[BlockShape, int] | None:
    """Return the blocks that finish rows by their group maxima, and the elements of a part of a row."""
    has_few_rows = problem.n_rows <= problem.multiprocessors
    is_large = problem.has_large_blocks and (has_few_rows or problem.k > SMALL_BLOCK_K)
    n_threads = BLOCK_THREADS[-1 if is_large else 1]
    if is_large and problem.k <= SMALL_BLOCK_K and problem.element_size < 8:
        # What all warps of the largest blocks do takes longer than what they share.
        n_threads = BLOCK_THREADS[2]
    shape = largest_shape(problem.element_size, n_threads, problem.block_shared_bytes)
    if problem.k > min(_largest_k(problem), shape.n_listed):
        return None
    per_vector = VECTOR_BYTES // problem.element_size
    most_coarse = (shape.n_groups << LARGEST_LANE_BITS) * (VECTOR_BYTES // shape.key_bytes)
    coarse_chunks = 1 if problem.has_neighbours else COARSE_CHUNKS
    largest_part = min(LARGEST_PART, most_coarse * coarse_chunks * CHUNK_VECTORS * per_vector)
    n_parts = ceil_div(problem.axis_size, largest_part)
    if n_parts == 1:
        return shape, problem.axis_size
    # One block finishes the winners of all parts.
    if n_parts * problem.k > (shape.n_groups << LARGEST_LANE_BITS) * per_vector:
        return None
    return shape, ceil_div(problem.axis_size, n_parts * per_vector) * per_vector


def is_warp(problem: Problem) -> bool:
    """Tell whether a warp a row is enough."""
    if problem.k <= warp_shape.LARGEST_K:
        return problem.axis_size <= WARP_ROWS[-1]
    of_few, of_many = RANKED_ROW[problem.element_size]
    has_many = problem.n_rows >= MANY_ROWS * problem.multiprocessors
    return problem.wants_most and problem.axis_size <= (of_many if has_many else of_few)


def warp_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Give every row a warp."""
    if problem.axis_size > (WARP_ROWS[-1] if problem.k <= warp_shape.LARGEST_K else warp_shape.MANY_SLOTS):
        msg = f"variant 'warp' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    n_slots = warp_shape.FEW_SLOTS if problem.k <= warp_shape.LARGEST_K else warp_shape.MANY_SLOTS
    kernel = warp_variant(problem.element_size, problem.axis_size)
    offsets, steps = fill_offsets(problem, workspace)
    return steps + [
        Step(
            kernel,
            n_blocks,
            warp_shape.N_THREADS,
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), offsets),
            (
                problem.index_size,
                first,
                problem.n_rows,
                problem.axis_size,
                problem.k,
                *problem.axis_strides,
                n_slots,
                *problem.layout.layout,
                *problem.numbers,
                *problem.masks,
            ),
            warp_shape.slot_bytes(problem.element_size, n_slots),
        )
        for first, n_blocks in batches(ceil_div(problem.n_rows, warp_shape.WARPS_A_BLOCK), LARGEST_GRID)
    ]


def block_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Give every row a block."""
    shape = fitting_shape(problem)
    if shape is None or min(problem.k, problem.axis_size) > shape.n_listed:
        msg = f"variant 'block' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    whole = (Pointer(X), Pointer(VALUES), Pointer(INDICES), NULL, NULL, NULL)
    return _block_launches(problem, shape, problem.axis_size, _Levels(), whole, 0, workspace)


def _groups_wanted(k: int) -> int:
    return k * (GROUPS_A_WINNER if k < SMALL_BLOCK_K else LARGE_K_GROUPS_A_WINNER)


class _Levels(NamedTuple):
    """The group maxima that a block starts from; of a coarse group there are ``1 << coarse_bits`` vectors.

    With single keys, these maxima themselves are the groups that it looks for a threshold in.
    """

    top: int = ELEMENTS
    n_coarse: int = 0
    coarse_bits: int = 0
    has_single_keys: bool = False


def _levels(k: int, shape: BlockShape, n_coarse: int, fine_a_coarse: int) -> _Levels:
    """Choose what a block starts from, by the numbers of group maxima that there are."""
    keys_a_vector = VECTOR_BYTES // shape.key_bytes
    coarse_bits = (fine_a_coarse // keys_a_vector).bit_length() - 1
    n_fine = n_coarse * fine_a_coarse
    has_enough_coarse = n_coarse >= _groups_wanted(k)
    # Where each key of a level may be a group by itself, there is a level less to go through.
    most_single = min(shape.n_groups, SINGLE_KEYS_A_THREAD * shape.n_threads)
    if n_fine <= (LARGEST_SINGLE_FINE if has_enough_coarse else most_single):
        return _Levels(FINE, n_coarse, coarse_bits, has_single_keys=True)
    if has_enough_coarse and n_coarse <= most_single:
        return _Levels(COARSE, n_coarse, coarse_bits, has_single_keys=True)
    fits_fine = n_fine // keys_a_vector <= shape.n_groups << LARGEST_LANE_BITS
    takes_fine = n_fine * shape.key_bytes <= LARGEST_FINE_BYTES or not has_enough_coarse
    return _Levels(FINE if fits_fine and takes_fine else COARSE, n_coarse, coarse_bits)


def _block_launches(
    problem: Problem,
    largest: BlockShape,
    part_size: int,
    levels: _Levels,
    pointers: tuple[Pointer, ...],
    source_size: int,
    workspace: Workspace,
) -> list[Step]:
    n_parts = ceil_div(problem.axis_size, part_size)
    n_vectors = {
        ELEMENTS: part_size * problem.element_size // VECTOR_BYTES,
        FINE: levels.n_coarse << levels.coarse_bits,
        COARSE: levels.n_coarse * largest.key_bytes // VECTOR_BYTES,
    }[levels.top]
    lane_bits = 0 if levels.has_single_keys else LARGEST_LANE_BITS
    while (
        lane_bits
        and n_vectors >> lane_bits < _groups_wanted(problem.k)
        and n_vectors <= largest.n_groups << (lane_bits - 1)
    ):
        lane_bits -= 1
    n_groups = ceil_div(n_vectors, 1 << lane_bits)
    if levels.has_single_keys:
        n_groups = n_vectors * VECTOR_BYTES // largest.key_bytes
    shape, enough = _needed_shape(problem.k, part_size, n_groups, largest)
    n_units = problem.n_rows * n_parts
    part_bytes = part_size * problem.element_size if levels.top == ELEMENTS else 0
    turns = _turns(problem, shape, n_units, part_bytes)
    offsets, steps = fill_offsets(problem, workspace)
    return steps + [
        Step(
            block_variant(problem.element_size, shape.n_threads),
            n_blocks,
            shape.n_threads,
            (*pointers, offsets),
            (
                source_size,
                problem.index_size,
                first,
                problem.axis_size,
                part_size,
                n_parts,
                problem.k,
                *problem.axis_strides,
                levels.top,
                int(levels.has_single_keys),
                lane_bits,
                enough,
                shape.n_slots,
                shape.n_listed,
                shape.list_offset // 4,
                shape.bins_offset // 4,
                levels.n_coarse,
                levels.coarse_bits,
                *turns,
                *problem.layout.layout,
                *problem.numbers,
                *problem.masks,
            ),
            shape.shared_bytes,
        )
        for first, n_blocks in batches(n_units, LARGEST_GRID)
    ]


def _turns(problem: Problem, shape: BlockShape, n_blocks: int, part_bytes: int) -> tuple[int, int, int]:
    """Return how many blocks begin together, how many have a turn at all, and nanoseconds from turn to turn.

    Blocks that share a multiprocessor begin one after the other, so that one reads while another computes:
    left alone they all read together for as long as they last, and then all compute.
    """
    multiprocessors = problem.multiprocessors
    by_registers = MULTIPROCESSOR_REGISTERS // (BLOCK_REGISTERS * shape.n_threads)
    by_memory = problem.block_shared_bytes // shape.all_shared_bytes
    n_first = multiprocessors * min(by_registers, by_memory)
    if part_bytes < LEAST_TURN_BYTES or n_blocks < LEAST_TURNS * n_first:
        return multiprocessors, 0, 0
    return multiprocessors, n_first, part_bytes * multiprocessors * 1000 // DEVICE_RATE


def _needed_shape(k: int, part_size: int, n_groups: int, largest: BlockShape) -> tuple[BlockShape, int]:
    """Return what blocks need to hold, and how many groups may reach the threshold.

    What they do not need serves as cache. Some more groups than k may reach the threshold, to find it soon,
    yet few enough: if the elements come in no order, c of n groups are reached by about
    ``-n * log(1 - c / n)`` elements, and these should fit.
    """
    n_groups = max(n_groups, 1)
    is_grouped = n_groups > k and (part_size > largest.n_slots or 4 * k < part_size)
    n_slots = min(largest.n_slots, 2 * k + SPARE if is_grouped else part_size)
    n_listed = min(largest.n_listed, 2 * k + SPARE)
    fitting = int(n_groups * (1 - math.exp(-0.9 * n_slots / n_groups)))
    enough = max(k, min(k + k // 8 + 8, fitting, n_listed))
    # A warp writes the maxima of whole chunks, of at most one a vector.
    held_groups = ceil_div(n_groups, CHUNK_VECTORS) * CHUNK_VECTORS if is_grouped else 0
    shape = largest._replace(n_slots=ceil_div(n_slots, 4) * 4, n_groups=held_groups, n_listed=n_listed)
    return shape, enough


class _Maxima(NamedTuple):
    """How many coarse groups there are of a part of a row, and how many chunks each of them has."""

    n_coarse: int
    coarse_chunks: int


def _maxima(problem: Problem, shape: BlockShape, part_size: int) -> _Maxima:
    """Choose the coarse groups; those beyond the end of a part are empty."""
    n_chunks = max(1, ceil_div(part_size * problem.element_size, CHUNK_VECTORS * VECTOR_BYTES))
    if problem.has_neighbours:
        # Rows may be many and short: no more groups than make whole vectors of keys.
        keys_a_vector = VECTOR_BYTES // shape.key_bytes
        return _Maxima(ceil_div(n_chunks, keys_a_vector) * keys_a_vector, 1)
    has_few_chunks = n_chunks < COARSE_CHUNKS * max(LEAST_COARSE_GROUPS, _groups_wanted(problem.k))
    coarse_chunks = 1 if has_few_chunks else COARSE_CHUNKS
    return _Maxima(ceil_div(n_chunks, coarse_chunks * MAXIMA_WARPS) * MAXIMA_WARPS, coarse_chunks)


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
        for first, n_launched in batches(n_blocks, LARGEST_GRID)
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
    levels = _levels(problem.k, shape, maxima.n_coarse, fine_groups)
    if n_parts == 1:
        pointers = (Pointer(X), Pointer(VALUES), Pointer(INDICES), NULL, fine, coarse)
        return steps + _block_launches(problem, shape, part_size, levels, pointers, 0, workspace)

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
    steps += _block_launches(winners, shape, part_size, levels, pointers, 0, workspace)
    merged = replace(
        problem,
        axis_size=left,
        axis_strides=(1, *problem.axis_strides[1:]),
        layout=problem.layout.with_packed_x(left),
    )
    pointers = (values, Pointer(VALUES), Pointer(INDICES), indices, NULL, NULL)
    return steps + _block_launches(merged, shape, left, _Levels(), pointers, position_size, workspace)
