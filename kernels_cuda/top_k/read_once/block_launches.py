"""The launches of `block`, which also finish what `grid` begins.

A block finishes a row, or a part of one: it finds group maxima, or takes those that other blocks have
written, and goes on from stage to stage down to the elements.
"""

import math
from typing import NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    OPERANDS,
    Launch,
    UnservedError,
    Workspace,
    batches,
    fill_offsets,
    lengths_of,
)
from kernels_cuda.top_k.shared.optional_launches import by_index
from kernels_cuda.top_k.shared.parameters import BlockParameters
from kernels_cuda.top_k.shared.policy import Policy
from kernels_cuda.top_k.shared.shapes import (
    CHUNK_VECTORS,
    COARSE,
    ELEMENTS,
    FINE,
    FINE_BITS,
    LARGEST_LANE_BITS,
    MOST_ORDERED_TWICE,
    SPARE_CANDIDATES,
    VECTOR_BYTES,
    BlockShape,
)


def row_vectors(problem: Problem) -> int:
    """Return the vectors of a row."""
    return problem.row_bytes // VECTOR_BYTES


def has_many_rows(problem: Problem, policy: Policy) -> bool:
    """Tell whether there are enough rows to keep every multiprocessor busy with several at a time."""
    return problem.n_rows >= policy.many_rows_per_multiprocessor * problem.multiprocessors


def fitting_block(problem: Problem, policy: Policy) -> BlockShape | None:
    """Return the blocks that serve whole rows well, or None."""
    block, axis_size, k = policy.block, problem.axis_size, problem.k
    small, middle, *large = block.shapes
    if axis_size <= small.n_slots or (axis_size <= block.small_elements and k <= block.small_k):
        return small
    middle_k = block.middle_k_of_many_rows if has_many_rows(problem, policy) else block.middle_k
    if axis_size <= middle.n_slots or (k <= middle_k and _fits(problem, middle)):
        return middle
    if not large:
        return None
    shape = large[problem.n_rows <= problem.multiprocessors]
    is_served = axis_size <= shape.n_slots or (k <= block.largest_k and _fits(problem, shape))
    return shape if is_served and k <= shape.n_candidate_groups else None


def _fits(problem: Problem, shape: BlockShape) -> bool:
    return row_vectors(problem) <= shape.n_groups << LARGEST_LANE_BITS


class Sources(NamedTuple):
    """What a block starts from besides elements: indices of these, and group maxima."""

    indices: Pointer = NULL
    index_size: int = 0
    fine: Pointer = NULL
    coarse: Pointer = NULL


class Stages(NamedTuple):
    """The group maxima that a block starts from.

    A fine group has ``1 << fine_bits`` vectors of elements, a coarse one ``1 << coarse_bits`` vectors of fine
    maxima. With unit groups, the maxima of the top stage themselves are the groups among which the block
    looks for a threshold.
    """

    top: int = ELEMENTS
    n_coarse: int = 0
    coarse_bits: int = 0
    fine_bits: int = FINE_BITS
    has_unit_groups: bool = False


def block_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a block."""
    shape = fitting_block(problem, policy)
    if shape is None or min(problem.k, problem.axis_size) > shape.n_candidate_groups:
        raise UnservedError(problem, "block")
    return finish_rows(problem, policy, shape, problem.axis_size, Stages(), OPERANDS, Sources(), workspace)


def finish_rows(
    problem: Problem,
    policy: Policy,
    largest: BlockShape,
    part_size: int,
    stages: Stages,
    operands: tuple[Pointer, Pointer, Pointer],
    sources: Sources,
    workspace: Workspace,
) -> list[Launch]:
    """Assign one block to each part of a row; `operands` are x, values and indices.

    Where parts or sources are, the problem is a sorted one.
    """
    n_parts = ceil_div(problem.axis_size, part_size)
    n_vectors = {
        ELEMENTS: part_size * problem.element_size // VECTOR_BYTES,
        FINE: stages.n_coarse << stages.coarse_bits,
        COARSE: stages.n_coarse * largest.key_bytes // VECTOR_BYTES,
    }[stages.top]
    lane_bits = 0 if stages.has_unit_groups else LARGEST_LANE_BITS
    while (
        lane_bits
        and n_vectors >> lane_bits < enough_groups(problem.k, policy)
        and n_vectors <= largest.n_groups << (lane_bits - 1)
    ):
        lane_bits -= 1
    n_groups = ceil_div(n_vectors, 1 << lane_bits)
    if stages.has_unit_groups:
        n_groups = n_vectors * VECTOR_BYTES // largest.key_bytes
    shape, most_groups = _needed_shape(problem, part_size, n_groups, largest)
    n_blocks = problem.n_rows * n_parts
    part_bytes = part_size * problem.element_size if stages.top == ELEMENTS else 0
    n_staggered, stagger_nanoseconds = _staggered_starts(problem, policy, shape, n_blocks, part_bytes)
    is_by_index = problem.is_by_index and shape.n_slots <= min(shape.n_threads, MOST_ORDERED_TWICE)
    x, *outputs = operands
    offsets, launches = fill_offsets(problem, workspace)
    launches += [
        Launch(
            kernels.block(problem.element_size, shape.n_threads),
            batch,
            shape.n_threads,
            (x, lengths_of(problem), *outputs, sources.indices, sources.fine, sources.coarse, offsets),
            BlockParameters(
                **problem.row_parameters,
                source_size=sources.index_size,
                is_by_index=int(is_by_index),
                first_block=first,
                part_size=part_size,
                n_parts=n_parts,
                top_stage=stages.top,
                has_unit_groups=int(stages.has_unit_groups),
                lane_bits=lane_bits,
                n_groups=shape.n_groups,
                enough_groups=enough_groups(problem.k, policy),
                most_groups=most_groups,
                n_slots=shape.n_slots,
                n_candidate_groups=shape.n_candidate_groups,
                list_word=shape.list_offset // 4,
                bins_word=shape.bins_offset // 4,
                n_coarse=stages.n_coarse,
                coarse_bits=stages.coarse_bits,
                fine_bits=stages.fine_bits,
                n_together=problem.multiprocessors,
                n_staggered=n_staggered,
                stagger_nanoseconds=stagger_nanoseconds,
                unfolded_format=problem.unfolded_format,
            ),
            shape.dynamic_bytes,
        )
        for first, batch in batches(n_blocks, policy.launch_blocks)
    ]
    if problem.is_by_index and not is_by_index:
        launches += by_index(problem, policy, workspace)
    return launches


def enough_groups(k: int, policy: Policy) -> int:
    """Return among how many groups a threshold should be looked for."""
    block = policy.block
    return k * (block.groups_per_selected if k < block.small_k else block.groups_per_selected_of_large_k)


def _staggered_starts(
    problem: Problem, policy: Policy, shape: BlockShape, n_blocks: int, part_bytes: int
) -> tuple[int, int]:
    """Return how many blocks start staggered, and nanoseconds from start to start.

    Blocks that share a multiprocessor start one after the other, so that one reads while another computes:
    left alone they all read together for as long as they last, and then all compute. Rows with lengths end at
    different times.
    """
    block = policy.block
    by_registers = block.registers_per_multiprocessor // (block.registers_per_thread * shape.n_threads)
    by_memory = policy.block_bytes // shape.shared_bytes
    n_running = problem.multiprocessors * min(by_registers, by_memory)
    is_too_little = part_bytes < block.staggered_bytes or n_blocks < block.staggered_waves * n_running
    if is_too_little or problem.lengths is not None:
        return 0, 0
    return n_running, part_bytes * problem.multiprocessors * 1000 // policy.device_bytes_per_microsecond


def _needed_shape(
    problem: Problem, part_size: int, n_groups: int, largest: BlockShape
) -> tuple[BlockShape, int]:
    """Return what blocks need to hold, and how many groups may be at or above the threshold.

    What they do not need serves as cache. Some more groups than k may be at or above it, to find it soon, yet
    few enough: if the elements come in no order, c of n groups hold about ``-n * log(1 - c / n)`` elements
    at or above it, and these should fit. Of rows with lengths, short ones may have more groups than others.
    """
    k, n_groups = problem.k, max(n_groups, 1)
    is_grouped = n_groups > k and (part_size > largest.n_slots or 4 * k < part_size)
    n_slots = min(largest.n_slots, 2 * k + SPARE_CANDIDATES if is_grouped else part_size)
    n_candidate_groups = min(largest.n_candidate_groups, 2 * k + SPARE_CANDIDATES)
    fitting = int(n_groups * (1 - math.exp(-0.9 * n_slots / n_groups)))
    most_groups = max(k, min(k + k // 8 + 8, fitting, n_candidate_groups))
    # A warp writes the maxima of whole chunks, of at most one for each vector.
    held_groups = ceil_div(n_groups, CHUNK_VECTORS) * CHUNK_VECTORS if is_grouped else 0
    if problem.lengths is not None and is_grouped:
        held_groups = largest.n_groups
    shape = largest._replace(
        n_slots=ceil_div(n_slots, 4) * 4, n_groups=held_groups, n_candidate_groups=n_candidate_groups
    )
    return shape, most_groups
