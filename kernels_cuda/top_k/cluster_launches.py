"""The launches of the algorithms that give each row a cluster of blocks."""

from typing import NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.variant import PORTABLE_CLUSTER
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.launches import (
    OPERANDS,
    Launch,
    UnservedError,
    Workspace,
    batches,
    fill_offsets,
    lengths_of,
    operands_of,
)
from kernels_cuda.top_k.maxima_launches import Maxima, group_bits, maxima_choices, maxima_launches
from kernels_cuda.top_k.parameters import ClusterGroupsParameters, ClusterParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shapes import (
    CLUSTER_LARGEST_K,
    CLUSTER_STEP_BYTES,
    CLUSTER_THREADS,
    FEW_GROUPS_PER_SELECTED,
    FEW_LARGEST_ELEMENT,
    LARGEST_CLUSTER_CHUNK,
    MAXIMA_WARPS,
    SMALLEST_CLUSTER_CHUNK,
    VECTOR_BYTES,
    WARP_LANES,
    cluster_static_bytes,
    group_key_bytes,
)

# The multiprocessors of a cluster belong to one group. No device has more groups, so that an eighth of the
# multiprocessors are in the largest one.
_MOST_GROUPS = 8


def fitting_cluster(problem: Problem, policy: Policy) -> int | None:
    """Return how many blocks a cluster has, or None: the most that run at a time.

    All of them must have a whole step of work, unless few elements are selected, or so many that with half as
    many blocks each would have more than `SMALLEST_CLUSTER_CHUNK` of them to order.
    """
    room = policy.block_bytes - cluster_static_bytes(problem.element_size)
    fitting = [
        n_blocks
        for n_blocks in possible_clusters(problem, policy)
        if n_steps(problem, n_blocks) * CLUSTER_STEP_BYTES <= room
    ]
    if not fitting:
        return None
    together = [n_blocks for n_blocks in fitting if run_together(problem, policy, n_blocks)]
    most = max(together, default=min(fitting))
    if selects_few(problem, most):
        return most
    n_ordered = 0 if problem.is_by_index else problem.k
    busy = [
        n_blocks
        for n_blocks in together
        if n_blocks * CLUSTER_STEP_BYTES <= problem.row_bytes
        or n_blocks // 2 * SMALLEST_CLUSTER_CHUNK < n_ordered
    ]
    return max(busy, default=min(fitting))


def possible_clusters(problem: Problem, policy: Policy) -> list[int]:
    """Return the numbers of blocks with which clusters can order what is selected, and devices have them."""
    if problem.k > CLUSTER_LARGEST_K:
        return []
    return [
        n_blocks
        for n_blocks in policy.cluster.blocks
        if problem.k <= n_blocks * LARGEST_CLUSTER_CHUNK
        and (n_blocks <= PORTABLE_CLUSTER or n_blocks * _MOST_GROUPS <= problem.multiprocessors)
    ]


def selects_few(problem: Problem, n_blocks: int) -> bool:
    """Tell whether k is small enough for so many blocks to find few candidates."""
    has_groups = problem.k * FEW_GROUPS_PER_SELECTED <= n_blocks * WARP_LANES
    return has_groups and problem.element_size <= FEW_LARGEST_ELEMENT


def n_steps(problem: Problem, n_blocks: int) -> int:
    """Return in how many steps so many blocks read a row."""
    return ceil_div(problem.row_bytes, n_blocks * CLUSTER_STEP_BYTES)


def run_together(problem: Problem, policy: Policy, n_blocks: int) -> bool:
    """Tell whether the clusters of all rows run at a time, with so many blocks each."""
    return (
        problem.n_rows * n_blocks <= policy.cluster.eighths_of_multiprocessors * problem.multiprocessors // 8
    )


def chunk_bits(problem: Problem, n_blocks: int) -> int:
    """Return the bits of the number of selected elements that each block orders."""
    return (max(SMALLEST_CLUSTER_CHUNK, ceil_div(problem.k, n_blocks)) - 1).bit_length()


def cluster_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a cluster."""
    n_blocks = fitting_cluster(problem, policy)
    if n_blocks is None:
        raise UnservedError(problem, "cluster")
    step_elements = n_blocks * CLUSTER_STEP_BYTES // problem.element_size
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.cluster(problem.element_size),
            batch * n_blocks,
            CLUSTER_THREADS,
            (*OPERANDS, lengths_of(problem), offsets),
            ClusterParameters(
                **problem.row_parameters,
                is_sorted=int(not problem.is_by_index),
                is_few=int(selects_few(problem, n_blocks)),
                first_row=first,
                cluster_bits=n_blocks.bit_length() - 1,
                step_bits=step_elements.bit_length() - 1,
                chunk_bits=chunk_bits(problem, n_blocks),
                unfolded_format=problem.unfolded_format,
            ),
            n_steps(problem, n_blocks) * CLUSTER_STEP_BYTES,
            n_blocks,
        )
        for first, batch in batches(problem.n_rows, max(1, policy.launch_blocks // n_blocks))
    ]


class GroupsShape(NamedTuple):
    """How a cluster goes by group maxima.

    Attributes
    ----------
    n_blocks : int
        Its blocks.
    are_merged, group_bits : bool, int
        Whether a group is all fine ones whose maxima are in a vector, and the bits of its vectors.
    n_maxima_steps, n_steps : int
        In how many steps it goes over the maxima, and then over elements.
    """

    n_blocks: int
    are_merged: bool
    group_bits: int
    n_maxima_steps: int
    n_steps: int

    @property
    def row_bytes(self) -> int:
        """Shared memory of a block for maxima, and then for elements."""
        return max(self.n_maxima_steps, self.n_steps) * CLUSTER_STEP_BYTES

    @property
    def dynamic_bytes(self) -> int:
        """Shared memory of a launch: a block also lists the groups whose elements it has."""
        return self.row_bytes + (self.n_steps * CLUSTER_THREADS >> self.group_bits) * 4


def groups_shape(problem: Problem, policy: Policy, n_blocks: int, are_merged: bool) -> GroupsShape:
    """Return what a cluster needs to go by groups of one fine group, or of all in a vector."""
    keys_per_vector = VECTOR_BYTES // group_key_bytes(problem.element_size)
    group_vectors = 1 << group_bits(problem, policy)
    if are_merged:
        group_vectors *= keys_per_vector
    # Elements outside all vectors take a group before the first, and one that is selected in any case.
    n_groups = problem.row_bytes // VECTOR_BYTES // group_vectors + 1
    n_listed = min(problem.k + 1, n_groups) + 1
    step_vectors = n_blocks * CLUSTER_THREADS
    return GroupsShape(
        n_blocks,
        are_merged,
        group_vectors.bit_length() - 1,
        ceil_div(n_groups, step_vectors * keys_per_vector),
        ceil_div(n_listed * group_vectors, step_vectors),
    )


def fitting_groups(problem: Problem, policy: Policy) -> GroupsShape | None:
    """Return how clusters go by group maxima, or None: with the most blocks that run at a time."""
    room = policy.block_bytes - cluster_static_bytes(problem.element_size)
    shapes = [
        groups_shape(problem, policy, n_blocks, are_merged)
        for n_blocks in possible_clusters(problem, policy)
        for are_merged in (False, True)
    ]
    fitting = [shape for shape in shapes if shape.dynamic_bytes <= room]
    together = [shape for shape in fitting if run_together(problem, policy, shape.n_blocks)]
    if together:
        return min(together, key=lambda shape: (-shape.n_blocks, shape.n_maxima_steps + shape.n_steps))
    return min(fitting, key=lambda shape: shape.n_blocks, default=None)


def cluster_groups_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Write the group maxima of every row, and give it a cluster that goes by them."""
    shape = fitting_groups(problem, policy)
    if shape is None or problem.axis_size > policy.grid.part_elements:
        raise UnservedError(problem, "cluster_groups")
    maxima = _maxima(problem, policy)
    found, launches = maxima_launches(problem, policy, problem.axis_size, maxima, workspace)
    key_bytes = group_key_bytes(problem.element_size)
    return launches + [
        Launch(
            kernels.cluster_groups(problem.element_size),
            batch * shape.n_blocks,
            CLUSTER_THREADS,
            (*operands_of(problem), found.fine, found.offsets),
            ClusterGroupsParameters(
                **problem.row_parameters,
                is_sorted=int(not problem.is_by_index),
                first_row=first,
                cluster_bits=shape.n_blocks.bit_length() - 1,
                chunk_bits=chunk_bits(problem, shape.n_blocks),
                fine_bytes=maxima.n_coarse * maxima.fine_per_coarse * key_bytes,
                are_merged=int(shape.are_merged),
                group_bits=shape.group_bits,
                list_offset=shape.row_bytes,
                unfolded_format=problem.unfolded_format,
            ),
            shape.dynamic_bytes,
            shape.n_blocks,
        )
        for first, batch in batches(problem.n_rows, max(1, policy.launch_blocks // shape.n_blocks))
    ]


def _maxima(problem: Problem, policy: Policy) -> Maxima:
    """Choose the coarse groups, which nothing reads: warps that read many chunks, if they fill the device."""
    choices = maxima_choices(problem, policy, problem.axis_size)
    enough = policy.cluster.maxima_blocks_per_multiprocessor * problem.multiprocessors
    filling = [each for each in choices if problem.n_rows * each.n_coarse >= enough * MAXIMA_WARPS]
    return max(filling or choices[:1], key=lambda each: each.coarse_chunks)
