"""The launches of the algorithm that gives each row a cluster of blocks."""

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.variant import PORTABLE_CLUSTER
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
from kernels_cuda.top_k.shared.parameters import ClusterParameters
from kernels_cuda.top_k.shared.policy import Policy
from kernels_cuda.top_k.shared.shapes import (
    CLUSTER_LARGEST_K,
    CLUSTER_STEP_BYTES,
    CLUSTER_THREADS,
    FEW_GROUPS_PER_SELECTED,
    FEW_LARGEST_ELEMENT,
    LARGEST_CLUSTER_CHUNK,
    SMALLEST_CLUSTER_CHUNK,
    WARP_LANES,
    cluster_static_bytes,
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
