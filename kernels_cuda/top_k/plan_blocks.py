"""Plans of a block a row: whole rows, or the rest of what other blocks have begun (`plan_grid`)."""

import math
from typing import NamedTuple

from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k.block_shape import SPARE, BlockShape, largest_shape
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.group_shape import CHUNK_VECTORS, COARSE, ELEMENTS, FINE, FINE_BITS, LARGEST_LANE_BITS
from kernels_cuda.top_k.steps import (
    INDICES,
    VALUES,
    Problem,
    Step,
    Workspace,
    X,
    ceil_div,
    fill_offsets,
    grids,
)
from kernels_cuda.top_k.variants import BLOCK_THREADS, block_variant

# Rows for blocks of 128 threads, and the k for which these and the next larger ones have room.
SMALL_BLOCK_ROW = 4096
SMALL_BLOCK_K = 512
BLOCK_LARGEST_K = 4096
# The k of many rows for which more blocks at a time are worth more than larger ones.
MANY_ROWS_BLOCK_K = 1024
# The k of devices whose blocks have no more than 64 KiB of shared memory.
OLD_BLOCK_LARGEST_K = 2048
# Groups that should be there for each that is wanted, so that few other elements reach the threshold.
GROUPS_A_WINNER = 8
# Of large k there may be fewer: more elements, but less to look for a threshold in.
LARGE_K_GROUPS_A_WINNER = 4
# Fine groups that a block reads as soon as coarse ones and those that they lead to.
LARGEST_FINE_BYTES = 1 << 18
# The most group maxima that a block looks at each by itself, and of fine ones if there are coarse ones.
SINGLE_KEYS_A_THREAD = 16
LARGEST_SINGLE_FINE = 2048
# Bytes a microsecond that the whole device reads.
DEVICE_RATE = 4_000_000
# Blocks take turns to read (`_turns`) from so many bytes on, if each place for one has so many of them.
LEAST_TURN_BYTES = 1 << 15
LEAST_TURNS = 2
# This tells how many blocks share a multiprocessor; a wrong guess costs time only.
MULTIPROCESSOR_REGISTERS = 1 << 16
BLOCK_REGISTERS = 64


def row_vectors(problem: Problem) -> int:
    """Return the vectors of a row."""
    return problem.axis_size * problem.element_size // VECTOR_BYTES


def largest_k(problem: Problem) -> int:
    """Return the largest k of blocks."""
    return BLOCK_LARGEST_K if problem.has_large_blocks else OLD_BLOCK_LARGEST_K


def block_shapes(problem: Problem) -> list[BlockShape]:
    """Return the most that blocks of each size hold, smallest first."""
    return [
        largest_shape(problem.element_size, n_threads, problem.block_shared_bytes)
        for n_threads in BLOCK_THREADS
    ]


def fitting_shape(problem: Problem) -> BlockShape | None:
    """Return the blocks that serve whole rows well, or None."""
    small, middle, *large_ones = block_shapes(problem)
    large = large_ones[problem.n_rows <= problem.multiprocessors]
    axis_size, k = problem.axis_size, problem.k
    if axis_size <= small.n_slots or (axis_size <= SMALL_BLOCK_ROW and k <= SMALL_BLOCK_K):
        return small
    middle_k = MANY_ROWS_BLOCK_K if problem.has_many_rows else SMALL_BLOCK_K
    if not problem.has_large_blocks:
        middle_k = OLD_BLOCK_LARGEST_K
    if axis_size <= middle.n_slots or (k <= middle_k and _fits(problem, middle)):
        return middle
    is_served = axis_size <= large.n_slots or (k <= BLOCK_LARGEST_K and _fits(problem, large))
    return large if is_served and k <= large.n_listed and problem.has_large_blocks else None


def _fits(problem: Problem, shape: BlockShape) -> bool:
    return row_vectors(problem) <= shape.n_groups << LARGEST_LANE_BITS


def block_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Give every row a block."""
    shape = fitting_shape(problem)
    if shape is None or min(problem.k, problem.axis_size) > shape.n_listed:
        msg = f"variant 'block' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    whole = (Pointer(X), Pointer(VALUES), Pointer(INDICES), NULL, NULL, NULL)
    return block_launches(problem, shape, problem.axis_size, Levels(), whole, 0, workspace)


def groups_wanted(k: int) -> int:
    """Return how many groups a threshold should be looked for in."""
    return k * (GROUPS_A_WINNER if k < SMALL_BLOCK_K else LARGE_K_GROUPS_A_WINNER)


class Levels(NamedTuple):
    """The group maxima that a block starts from.

    A fine group has ``1 << fine_bits`` vectors of elements, a coarse one ``1 << coarse_bits`` vectors of fine
    maxima. With single keys, these maxima themselves are the groups that it looks for a threshold in.
    """

    top: int = ELEMENTS
    n_coarse: int = 0
    coarse_bits: int = 0
    fine_bits: int = FINE_BITS
    has_single_keys: bool = False


def choose_levels(k: int, shape: BlockShape, n_coarse: int, fine_a_coarse: int, fine_bits: int) -> Levels:
    """Choose what a block starts from, by the numbers of group maxima that there are."""
    keys_a_vector = VECTOR_BYTES // shape.key_bytes
    coarse_bits = (fine_a_coarse // keys_a_vector).bit_length() - 1
    n_fine = n_coarse * fine_a_coarse
    has_enough_coarse = n_coarse >= groups_wanted(k)
    # There is one level less to go through where each key of a level may be a group by itself.
    most_single = min(shape.n_groups, SINGLE_KEYS_A_THREAD * shape.n_threads)
    if n_fine <= (LARGEST_SINGLE_FINE if has_enough_coarse else most_single):
        return Levels(FINE, n_coarse, coarse_bits, fine_bits, has_single_keys=True)
    if has_enough_coarse and n_coarse <= most_single:
        return Levels(COARSE, n_coarse, coarse_bits, fine_bits, has_single_keys=True)
    fits_fine = n_fine // keys_a_vector <= shape.n_groups << LARGEST_LANE_BITS
    takes_fine = n_fine * shape.key_bytes <= LARGEST_FINE_BYTES or not has_enough_coarse
    return Levels(FINE if fits_fine and takes_fine else COARSE, n_coarse, coarse_bits, fine_bits)


def block_launches(
    problem: Problem,
    largest: BlockShape,
    part_size: int,
    levels: Levels,
    pointers: tuple[Pointer, ...],
    source_size: int,
    workspace: Workspace,
) -> list[Step]:
    """Give every part of a row a block that starts from `levels`; `pointers` are those of the kernel.

    `source_size` is the size of the indices that `sources` among them has, or 0.
    """
    n_parts = ceil_div(problem.axis_size, part_size)
    n_vectors = {
        ELEMENTS: part_size * problem.element_size // VECTOR_BYTES,
        FINE: levels.n_coarse << levels.coarse_bits,
        COARSE: levels.n_coarse * largest.key_bytes // VECTOR_BYTES,
    }[levels.top]
    lane_bits = 0 if levels.has_single_keys else LARGEST_LANE_BITS
    while (
        lane_bits
        and n_vectors >> lane_bits < groups_wanted(problem.k)
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
                levels.fine_bits,
                *turns,
                *problem.layout.layout,
                *problem.numbers,
                *problem.masks,
            ),
            shape.shared_bytes,
        )
        for first, n_blocks in grids(n_units)
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
