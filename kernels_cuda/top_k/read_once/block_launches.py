"""The launches of `block`, which also finish what `grid` begins, and what they and its kernel agree on.

A block finishes a row, or a part of one: it finds group maxima, or takes those that other blocks have
written, and goes on from stage to stage down to the elements.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    VALUES,
    Algorithm,
    Launch,
    Policy,
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
    BINS_PER_THREAD,
    CHUNK_VECTORS,
    FINE_BITS,
    KIB,
    MOST_SHARED_BYTES,
    SPARE_CANDIDATES,
    VECTOR_BYTES,
    group_key_bytes,
)

# The blocks: the first serve rows of some thousand elements, and the second a k of some hundred. The third
# serve more rows than multiprocessors, and the last no more than that; devices whose blocks may have less
# shared memory than `LARGE_BLOCK_BYTES` do without both.
BLOCK_THREADS = (128, 256, 512, 1024)
LARGE_BLOCK_BYTES = 99 * KIB
# Rows up to `SMALL_ELEMENTS` with k up to `SMALL_K` use the smallest blocks.
SMALL_ELEMENTS = 4096
SMALL_K = 512
# Up to this k, rows use the second smallest blocks. Many rows use them up to a larger k, because more blocks
# at a time are worth more than larger ones. The largest blocks serve k up to `LARGEST_K`.
MIDDLE_K, MIDDLE_K_OF_MANY_ROWS, LARGEST_K = 512, 1024, 4096
# All three are this where there are no larger blocks.
K_WITHOUT_LARGE_BLOCKS = 2048
# Rows are many if there are at least this many per multiprocessor.
MANY_ROWS_PER_MULTIPROCESSOR = 7
# A threshold should be found among this many groups per selected element, so that few other elements are at
# or above it. From `SMALL_K` on, there are fewer groups to search, but more elements to read.
GROUPS_PER_SELECTED = 8
GROUPS_PER_SELECTED_OF_LARGE_K = 4
LARGEST_LANE_BITS = 3
# The stages that a block goes through: maxima of coarse groups, of fine groups, and elements.
ELEMENTS, FINE, COARSE = range(3)


class BlockShape(NamedTuple):
    """What a block holds: candidates, group maxima in their place, and listed groups."""

    n_threads: int
    n_slots: int
    n_groups: int
    n_candidate_groups: int
    key_bytes: int

    @property
    def list_offset(self) -> int:
        """Where the list lies in dynamic shared memory; it is also the order of the candidates."""
        offset = max(self.n_slots * (self.key_bytes + 4), self.n_groups * self.key_bytes)
        return -(-offset // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def bins_offset(self) -> int:
        """Where the bins lie that the candidates are ordered by."""
        size = max(4 * self.n_candidate_groups, 2 * self.n_slots)
        return self.list_offset + -(-size // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def dynamic_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        return self.bins_offset + 4 * BINS_PER_THREAD * self.n_threads

    @property
    def shared_bytes(self) -> int:
        """All shared memory of a block, at most."""
        return self.dynamic_bytes + block_static_bytes(self.n_threads)


def block_static_bytes(n_threads: int) -> int:
    """Return the shared memory that the kernel has of its own, at most."""
    return 4 * n_threads + 1024


def block_shape(element_size: int, n_threads: int, block_bytes: int) -> BlockShape:
    """Return the most that blocks hold; those of 512 and 1024 threads need more than 48 KiB.

    Where a block may have no more than 99 KiB, those of 1024 threads hold a little less.
    """
    n_bytes = group_key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    large, less = (
        BlockShape(
            n_threads, size // (n_bytes + 4) // 512 * 512, size // n_bytes, n_candidate_groups, n_bytes
        )
        for size, n_candidate_groups in ((65536, 6144), (57344, 5632))
    )
    return large if large.shared_bytes <= block_bytes else less


@dataclass(frozen=True, kw_only=True)
class BlockPolicy(Policy):
    """Limits of `block`, and of `grid`, whose rows it finishes."""

    n_threads: tuple[int, ...] = BLOCK_THREADS
    # Up to this size, a block reads all fine maxima as fast as the coarse ones and the fine ones that they
    # lead to.
    fine_bytes: int = 256 * KIB
    # Up to this many maxima per thread are groups by themselves.
    unit_groups_per_thread: int = 16

    def shapes(self, problem: Problem) -> list[BlockShape]:
        """Return the blocks that the device has room for, in the order of `BLOCK_THREADS`."""
        room = problem.target.block_shared_bytes
        n_threads = self.n_threads if room >= LARGE_BLOCK_BYTES else self.n_threads[:2]
        return [block_shape(problem.element_size, n, room) for n in n_threads]


class BlockParameters(NamedTuple):
    """More parameters of `block.block_top_k`, whose blocks have one part of a row each.

    Attributes
    ----------
    source_size : int
        Bytes of an index in `sources`; 0 if there are none.
    is_by_index : int
        Whether results are written by ascending position.
    part_size, n_parts : int
        Elements of a part of a row, and how many parts a row has.
    top_stage, has_unit_groups : int
        Where the block begins: coarse maxima, fine maxima or elements; and whether each of these maxima is a
        group by itself.
    lane_bits, n_groups, enough_groups : int
        Bits of the vectors of a group in the first stage, for how many groups there is room, and among how
        many a threshold should be looked for.
    most_groups : int
        How many groups may be at or above the threshold.
    n_slots, n_candidate_groups, list_word, bins_word : int
        Candidates and groups for which there is room, and where the list of groups and the bins begin in
        shared memory, in words.
    n_coarse, coarse_bits, fine_bits : int
        Coarse groups of a part, and the bits of the vectors of a coarse group and of a fine one.
    """

    source_size: int
    is_by_index: int
    part_size: int
    n_parts: int
    top_stage: int
    has_unit_groups: int
    lane_bits: int
    n_groups: int
    enough_groups: int
    most_groups: int
    n_slots: int
    n_candidate_groups: int
    list_word: int
    bins_word: int
    n_coarse: int
    coarse_bits: int
    fine_bits: int


def _variant(element_size: int, n_threads: int) -> Variant:
    needed = block_shape(element_size, n_threads, MOST_SHARED_BYTES).dynamic_bytes
    factory = "read_once.block:block_kernel"
    return variant("block", factory, element_size, n_threads, dynamic_shared_bytes=needed)


def block_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for n_threads in BLOCK_THREADS:
        yield _variant(element_size, n_threads)


def _fitting_shape(problem: Problem, policy: BlockPolicy) -> BlockShape | None:
    """Return the blocks that serve whole rows well, or None."""
    axis_size, k, multiprocessors = problem.axis_size, problem.k, problem.target.multiprocessors
    small, middle, *large = policy.shapes(problem)
    if axis_size <= small.n_slots or (axis_size <= SMALL_ELEMENTS and k <= SMALL_K):
        return small
    has_many_rows = problem.n_rows >= MANY_ROWS_PER_MULTIPROCESSOR * multiprocessors
    middle_k = MIDDLE_K_OF_MANY_ROWS if has_many_rows else MIDDLE_K
    if not large:
        middle_k = K_WITHOUT_LARGE_BLOCKS
    if axis_size <= middle.n_slots or (k <= middle_k and _fits(problem, middle)):
        return middle
    if not large:
        return None
    shape = large[problem.n_rows <= multiprocessors]
    return shape if axis_size <= shape.n_slots or (k <= LARGEST_K and _fits(problem, shape)) else None


def _fits(problem: Problem, shape: BlockShape) -> bool:
    return problem.row_bytes // VECTOR_BYTES <= shape.n_groups << LARGEST_LANE_BITS


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


# Whole rows are read from the first, and written to the others.
OPERANDS = (Pointer(X), Pointer(VALUES), Pointer(INDICES))


def block_launches(problem: Problem, policy: BlockPolicy, workspace: Workspace) -> list[Launch]:
    """Give every row a block."""
    shape = _fitting_shape(problem, policy)
    if shape is None or problem.k > shape.n_candidate_groups:
        raise UnservedError(problem, "block")
    return finish_rows(problem, policy, shape, problem.axis_size, Stages(), OPERANDS, Sources(), workspace)


def finish_rows(
    problem: Problem,
    policy: BlockPolicy,
    largest: BlockShape,
    part_size: int,
    stages: Stages,
    operands: tuple[Pointer, Pointer, Pointer],
    sources: Sources,
    workspace: Workspace,
) -> list[Launch]:
    """Assign one block to each part of a row; `operands` are x, values and indices."""
    n_parts = ceil_div(problem.axis_size, part_size)
    n_vectors = {
        ELEMENTS: part_size * problem.element_size // VECTOR_BYTES,
        FINE: stages.n_coarse << stages.coarse_bits,
        COARSE: stages.n_coarse * largest.key_bytes // VECTOR_BYTES,
    }[stages.top]
    lane_bits = 0 if stages.has_unit_groups else LARGEST_LANE_BITS
    while (
        lane_bits
        and n_vectors >> lane_bits < enough_groups(problem.k)
        and n_vectors <= largest.n_groups << (lane_bits - 1)
    ):
        lane_bits -= 1
    n_groups = ceil_div(n_vectors, 1 << lane_bits)
    if stages.has_unit_groups:
        n_groups = n_vectors * VECTOR_BYTES // largest.key_bytes
    shape, most_groups = _needed_shape(problem, part_size, n_groups, largest)
    x, *outputs = operands
    offsets, launches = fill_offsets(problem, workspace)
    more = BlockParameters(
        source_size=sources.index_size,
        is_by_index=int(problem.is_by_index),
        part_size=part_size,
        n_parts=n_parts,
        top_stage=stages.top,
        has_unit_groups=int(stages.has_unit_groups),
        lane_bits=lane_bits,
        n_groups=shape.n_groups,
        enough_groups=enough_groups(problem.k),
        most_groups=most_groups,
        n_slots=shape.n_slots,
        n_candidate_groups=shape.n_candidate_groups,
        list_word=shape.list_offset // 4,
        bins_word=shape.bins_offset // 4,
        n_coarse=stages.n_coarse,
        coarse_bits=stages.coarse_bits,
        fine_bits=stages.fine_bits,
    )
    launch = Launch(
        _variant(problem.element_size, shape.n_threads),
        problem.n_rows * n_parts,
        shape.n_threads,
        (x, lengths_of(problem), *outputs, sources.indices, sources.fine, sources.coarse, offsets),
        row_parameters(problem),
        shape.dynamic_bytes,
        more=(more,),
    )
    return launches + launch_all(launch, policy)


def enough_groups(k: int) -> int:
    """Return among how many groups a threshold should be looked for."""
    return k * (GROUPS_PER_SELECTED if k < SMALL_K else GROUPS_PER_SELECTED_OF_LARGE_K)


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


BLOCK = Algorithm(block_launches, block_variants, BlockPolicy())
