"""The launches of `cluster`, and what they and its kernel agree on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER, Variant
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
from kernels_cuda.top_k.shared.shapes import KIB, MOST_SHARED_BYTES, VECTOR_BYTES, WARP_LANES

# Blocks of a cluster have these threads, and a vector of a row for each of them in a step.
CLUSTER_THREADS = 1024
CLUSTER_WARPS = CLUSTER_THREADS // WARP_LANES
CLUSTER_STEP_BYTES = CLUSTER_THREADS * VECTOR_BYTES
LARGEST_CLUSTER = 16
# From this compute capability on there are small devices, which only portable clusters are sure to run on.
SMALL_DEVICES_FROM = (11, 0)
# Bins that keys are counted in: a thread has two of them.
CLUSTER_BINS = 2 * CLUSTER_THREADS
# The most that clusters order by value: the bins of a block have room for so many keys. By index, they write
# what they select at once, and k has no limit.
CLUSTER_LARGEST_K = 4096
# The fewest and the most selected elements that one block orders.
SMALLEST_CLUSTER_CHUNK = 128
LARGEST_CLUSTER_CHUNK = 1024
# A cluster selects few elements, of at most so many bytes each, if it has enough groups for each of them: a
# block has one per lane. There is room for so many candidates, and so many of one block.
FEW_LARGEST_ELEMENT = 4
FEW_GROUPS_PER_SELECTED = 4
FEW_CANDIDATES = 256
FEW_CANDIDATES_OF_BLOCK = 64
# Clusters run at the same time on this many eighths of the multiprocessors: those of a cluster are
# neighbours, and some are left over.
EIGHTHS_OF_MULTIPROCESSORS = 7
# The multiprocessors of a cluster belong to one group. No device has more groups, so that an eighth of the
# multiprocessors are in the largest one.
_MOST_GROUPS = 8


@dataclass(frozen=True, kw_only=True)
class ClusterPolicy(Policy):
    """Limits of `cluster`."""

    # A cluster has one of these numbers of blocks.
    blocks: tuple[int, ...] = (4, 8, 16)


class ClusterParameters(NamedTuple):
    """More parameters of `cluster.cluster_top_k`.

    Attributes
    ----------
    is_sorted : int
        Whether results come by value, or by ascending index.
    is_few : int
        Whether k is small enough for few candidates.
    cluster_bits : int
        The bits of the number of blocks of a cluster.
    step_bits : int
        The bits of the number of elements that a cluster reads in a step, a vector per thread.
    chunk_bits : int
        The bits of the number of selected elements that one block orders.
    """

    is_sorted: int
    is_few: int
    cluster_bits: int
    step_bits: int
    chunk_bits: int


def cluster_sort_bytes(element_size: int) -> int:
    """Return the room for all keys that are ordered: in chunks, with a vector between them."""
    return CLUSTER_LARGEST_K * max(4, element_size) + LARGEST_CLUSTER * VECTOR_BYTES


def cluster_static_bytes(element_size: int) -> int:
    """Return the shared memory that the kernel has besides the keys of a row, at most."""
    chunk_bytes = LARGEST_CLUSTER_CHUNK * (max(4, element_size) + 4)
    return max(cluster_sort_bytes(element_size), 24 * KIB) + chunk_bytes + 512


def cluster_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    needed = MOST_SHARED_BYTES - cluster_static_bytes(element_size)
    needs = {"dynamic_shared_bytes": needed, "cluster": LARGEST_CLUSTER, "since": CLUSTERS_FROM}
    yield variant("cluster", "many_blocks.cluster:cluster_kernel", element_size, **needs)


def _fitting_cluster(problem: Problem, policy: ClusterPolicy) -> int | None:
    """Return how many blocks a cluster has, or None: the most that run at a time.

    All of them must have a whole step of work, unless few elements are selected, or so many that with half as
    many blocks each would have more than `SMALLEST_CLUSTER_CHUNK` of them to order.
    """
    room = problem.target.block_shared_bytes - cluster_static_bytes(problem.element_size)
    fitting = [
        n_blocks
        for n_blocks in policy.blocks
        if _is_possible(problem, n_blocks) and _n_steps(problem, n_blocks) * CLUSTER_STEP_BYTES <= room
    ]
    if not fitting:
        return None
    most_blocks = EIGHTHS_OF_MULTIPROCESSORS * problem.target.multiprocessors // 8
    together = [n_blocks for n_blocks in fitting if problem.n_rows * n_blocks <= most_blocks]
    most = max(together, default=min(fitting))
    if _selects_few(problem, most):
        return most
    n_ordered = 0 if problem.is_by_index else problem.k
    busy = [
        n_blocks
        for n_blocks in together
        if n_blocks * CLUSTER_STEP_BYTES <= problem.row_bytes
        or n_blocks // 2 * SMALLEST_CLUSTER_CHUNK < n_ordered
    ]
    return max(busy, default=min(fitting))


def _is_possible(problem: Problem, n_blocks: int) -> bool:
    """Tell whether such clusters can order what is selected, and the device has them."""
    capability, multiprocessors = problem.capability, problem.target.multiprocessors
    is_large = capability < SMALL_DEVICES_FROM and n_blocks * _MOST_GROUPS <= multiprocessors
    has_them = capability >= CLUSTERS_FROM and (n_blocks <= PORTABLE_CLUSTER or is_large)
    most = min(CLUSTER_LARGEST_K, n_blocks * LARGEST_CLUSTER_CHUNK)
    return has_them and (problem.is_by_index or problem.k <= most)


def _selects_few(problem: Problem, n_blocks: int) -> bool:
    """Tell whether k is small enough for so many blocks to find few candidates."""
    has_groups = problem.k * FEW_GROUPS_PER_SELECTED <= n_blocks * WARP_LANES
    return has_groups and problem.element_size <= FEW_LARGEST_ELEMENT


def _n_steps(problem: Problem, n_blocks: int) -> int:
    """Return in how many steps so many blocks read a row."""
    return ceil_div(problem.row_bytes, n_blocks * CLUSTER_STEP_BYTES)


def cluster_launches(problem: Problem, policy: ClusterPolicy, workspace: Workspace) -> list[Launch]:
    """Give every row a cluster."""
    n_blocks = _fitting_cluster(problem, policy)
    if n_blocks is None:
        raise UnservedError(problem, "cluster")
    (kernel,) = cluster_variants(problem.element_size)
    step_elements = n_blocks * CLUSTER_STEP_BYTES // problem.element_size
    chunk = max(SMALLEST_CLUSTER_CHUNK, ceil_div(problem.k, n_blocks))
    more = ClusterParameters(
        is_sorted=int(not problem.is_by_index),
        is_few=int(_selects_few(problem, n_blocks)),
        cluster_bits=n_blocks.bit_length() - 1,
        step_bits=step_elements.bit_length() - 1,
        chunk_bits=(chunk - 1).bit_length(),
    )
    grid, n_bytes = problem.n_rows * n_blocks, _n_steps(problem, n_blocks) * CLUSTER_STEP_BYTES
    launch = Launch(kernel, grid, CLUSTER_THREADS, (), row_parameters(problem), n_bytes, n_blocks, (more,))
    return launch_rows(launch, problem, policy, workspace)


CLUSTER = Algorithm(cluster_launches, cluster_variants, ClusterPolicy())
