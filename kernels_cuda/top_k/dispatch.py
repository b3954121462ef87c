"""The one choice of an algorithm, and the plan that launches it."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from kernels_cuda.runtime.launch import Launch as LoadedLaunch
from kernels_cuda.runtime.launch import LaunchList, as_signed, load
from kernels_cuda.runtime.variant import Target, capability_of
from kernels_cuda.top_k import group_launches, launches, partition_launches
from kernels_cuda.top_k.cluster_launches import cluster_launches, fitting_cluster, run_together, selects_few
from kernels_cuda.top_k.launches import Launch, Workspace
from kernels_cuda.top_k.optional_launches import by_index, take_lengths
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import (
    AxisStrides,
    LengthFormat,
    Problem,
    RowDimension,
    describe_rows,
    key_format,
    unfolded_format,
)
from kernels_cuda.top_k.sampled_launches import fitting_sample, sampled_launches
from kernels_cuda.top_k.shapes import ROUNDS_LARGEST_K, WARP_LARGEST_K


class Algorithm(StrEnum):
    """How a top-k is found; `kernels_cuda.top_k` tells what each of them is for."""

    ROUNDS = "rounds"
    WARP = "warp"
    BLOCK = "block"
    GRID = "grid"
    COLUMNS = "columns"
    TILE = "tile"
    PARTITION = "partition"
    CLUSTER = "cluster"
    SORT = "sort"
    SAMPLED = "sampled"


class Implementation(NamedTuple):
    """How an algorithm is launched. Its kernels also read row lengths if the problem has them.

    Attributes
    ----------
    launches : function
        Returns the launches that solve a problem; raises ValueError where the algorithm does not take it.
    orders_by_index : bool
        Whether its results come by ascending index where they are not to be sorted; results of the others
        are reordered.
    """

    launches: Callable[[Problem, Policy, Workspace], list[Launch]]
    orders_by_index: bool = False


IMPLEMENTATIONS = {
    Algorithm.ROUNDS: Implementation(launches.rounds_launches, orders_by_index=True),
    Algorithm.WARP: Implementation(launches.warp_launches, orders_by_index=True),
    Algorithm.BLOCK: Implementation(group_launches.block_launches, orders_by_index=True),
    Algorithm.GRID: Implementation(group_launches.grid_launches, orders_by_index=True),
    Algorithm.COLUMNS: Implementation(launches.columns_launches),
    Algorithm.TILE: Implementation(launches.tile_launches),
    Algorithm.PARTITION: Implementation(partition_launches.partition_launches, orders_by_index=True),
    Algorithm.CLUSTER: Implementation(cluster_launches, orders_by_index=True),
    Algorithm.SORT: Implementation(launches.sort_launches),
    Algorithm.SAMPLED: Implementation(sampled_launches, orders_by_index=True),
}


def choose(problem: Problem, policy: Policy) -> Algorithm:  # noqa: PLR0911
    """Choose the algorithm for a problem, by its rows, columns, k and element size."""
    if _is_for_columns(problem, policy):
        return Algorithm.COLUMNS
    if _is_for_rounds(problem, policy):
        return Algorithm.ROUNDS
    if _is_for_clusters(problem, policy):
        return Algorithm.CLUSTER
    if _is_for_partition(problem, policy):
        return Algorithm.PARTITION
    if _is_for_warps(problem, policy):
        return Algorithm.WARP
    if _is_for_tiles(problem, policy):
        return Algorithm.TILE
    if _is_for_sampling(problem, policy):
        return Algorithm.SAMPLED
    if _is_for_grids(problem, policy):
        return Algorithm.GRID
    return Algorithm.SORT if group_launches.fitting_block(problem, policy) is None else Algorithm.BLOCK


def _is_for_columns(problem: Problem, policy: Policy) -> bool:
    columns = policy.columns
    return (
        group_launches.is_transposed(problem, policy)
        and problem.k <= columns.largest_k
        and problem.n_rows >= columns.columns_per_selected * problem.k
        and problem.n_rows * problem.axis_size >= columns.input_elements
    )


def _is_for_rounds(problem: Problem, policy: Policy) -> bool:
    shape = launches.fitting_rounds(problem, policy)
    if shape is None:
        return False
    largest_k = policy.rounds.largest_k[policy.rounds.shapes.index(shape)]
    return problem.k <= (largest_k if problem.is_sorted else ROUNDS_LARGEST_K)


def _is_for_partition(problem: Problem, policy: Policy) -> bool:
    if problem.strides.x != 1 or partition_launches.fitting_partition(problem, policy) is None:
        return False
    partition, n, k = policy.partition, problem.axis_size, problem.k
    if problem.is_sorted:
        # It orders what it selects; a tile orders the row, and the block algorithm finds candidates first.
        is_few = partition_launches.has_few_rows(problem, policy)
        smallest_k = partition.sorted_k_of_few_rows if is_few else partition.sorted_k
        if n > partition.long_row_elements:
            smallest_k = partition.sorted_k_of_long_rows
        return n > partition.sorted_row_elements and k >= smallest_k
    has_many_candidates = n <= partition.filtered_per_selected * k
    if not group_launches.has_many_rows(problem, policy):
        has_one_block_each = problem.n_rows <= problem.multiprocessors
        return has_one_block_each or has_many_candidates or n <= partition.long_row_elements
    if k <= WARP_LARGEST_K and n <= policy.warp.row_elements[-1]:
        return False
    return n > partition.row_elements and (has_many_candidates or n < partition.filtered_elements)


def _is_for_warps(problem: Problem, policy: Policy) -> bool:
    warp = policy.warp
    if problem.k <= WARP_LARGEST_K:
        return problem.axis_size <= warp.row_elements[-1]
    longest = warp.ranked_elements
    if group_launches.has_many_rows(problem, policy):
        longest = warp.ranked_elements_of_many_rows
    return _selects_most(problem, policy) and problem.axis_size <= longest


def _is_for_tiles(problem: Problem, policy: Policy) -> bool:
    if launches.fitting_tile(problem, policy) is None:
        return False
    if problem.axis_size <= policy.tile.short_elements and not group_launches.has_many_rows(problem, policy):
        return True
    if not _selects_most(problem, policy):
        return False
    return problem.axis_size <= policy.tile.sorted_elements or problem.k > policy.tile.selected_k


def _selects_most(problem: Problem, policy: Policy) -> bool:
    return problem.axis_size <= problem.k * policy.tile.elements_per_selected


def _is_for_sampling(problem: Problem, policy: Policy) -> bool:
    sampled = policy.sampled
    if fitting_sample(problem, policy) is None:
        return False
    if problem.is_sorted:
        shortest, longest = sampled.sorted_row_bytes
        return (
            problem.n_rows >= sampled.sorted_rows
            and shortest <= problem.row_bytes <= longest
            and problem.k >= sampled.sorted_k
        )
    shortest, longest = sampled.row_bytes
    smallest_k = max(sampled.smallest_k, sampled.k_per_row * problem.n_rows)
    smallest_k = min(smallest_k, sampled.smallest_k_of_many_rows)
    return shortest <= problem.row_bytes <= longest and problem.k >= smallest_k


def _is_for_clusters(problem: Problem, policy: Policy) -> bool:
    cluster, n, k = policy.cluster, problem.axis_size, problem.k
    n_blocks = fitting_cluster(problem, policy)
    if n_blocks is None or not run_together(problem, policy, n_blocks):
        return False
    if group_launches.is_transposed(problem, policy):
        return False
    is_long = problem.row_bytes > n_blocks * cluster.block_bytes
    if selects_few(problem, n_blocks):
        return n > cluster.row_elements and not is_long
    if problem.is_sorted:
        # More rows leave fewer blocks for each to order its elements with.
        smallest_k = cluster.large_k if is_long else cluster.sorted_k
        is_large = smallest_k <= k <= n // 2 and n >= cluster.sorted_elements
        return is_large and n_blocks >= cluster.fewest_sorting_blocks
    return n > cluster.row_elements and (k >= cluster.large_k or not is_long)


def _is_for_grids(problem: Problem, policy: Policy) -> bool:
    """Tell whether other blocks should read rows before one block per row finishes them."""
    grid, row_bytes = policy.grid, problem.row_bytes
    if group_launches.fine_groups(problem, policy) < problem.k * grid.groups_per_selected:
        return False
    if group_launches.grid_split(problem, policy) is None:
        return False
    if (
        group_launches.is_transposed(problem, policy)
        and row_bytes >= grid.transposed_row_bytes
        and problem.n_rows * row_bytes >= grid.transposed_bytes
    ):
        return True
    shape = group_launches.fitting_block(problem, policy)
    if shape is None:
        return True
    in_one_block = row_bytes / (grid.thread_bytes_per_microsecond * shape.n_threads)
    in_many = grid.launch_microseconds + problem.n_rows * row_bytes / policy.device_bytes_per_microsecond
    return problem.n_rows <= problem.multiprocessors and in_one_block >= in_many


class Launches(NamedTuple):
    """What a problem is solved by."""

    algorithm: Algorithm
    launches: list[Launch]
    workspace_size: int


def launches_of(problem: Problem, policy: Policy, algorithm: Algorithm | str | None = None) -> Launches:
    """Return the launches that solve a problem, with the algorithm that is chosen or the given one."""
    chosen = choose(problem, policy) if algorithm is None else Algorithm(algorithm)
    workspace = Workspace()
    implementation = IMPLEMENTATIONS[chosen]
    launched = implementation.launches(problem, policy, workspace)
    if problem.is_by_index and not implementation.orders_by_index:
        launched += by_index(problem, policy, workspace)
    if problem.lengths is not None:
        launched = take_lengths(launched)
    return Launches(chosen, launched, workspace.size)


class Plan:
    """A top-k of one shape on one device; may be launched from any thread.

    Attributes
    ----------
    variant : str
        What runs and why.
    workspace_size : int
        Bytes of scratch memory that one launch needs.
    """

    __slots__ = ("_launches", "variant", "workspace_size")

    def __init__(self, variant: str, workspace_size: int, planned: Sequence[Launch], target: Target) -> None:
        self.variant = variant
        self.workspace_size = workspace_size
        loaded = [
            LoadedLaunch(
                load(each.variant, target),
                each.grid,
                each.block,
                each.shared_bytes,
                each.pointers,
                each.parameters,
                each.cluster,
            )
            for each in planned
        ]
        self._launches = LaunchList(loaded) if loaded else None

    def launches(self, *operands: int) -> LaunchList | None:
        """Return what `launch` launches for any addresses."""
        return self._launches

    def launch(self, stream: int, *addresses: int) -> None:
        """Put the kernels on `stream`.

        Parameters
        ----------
        stream : int
            Where they run, a ``cudaStream_t``.
        *addresses : int
            Those of element [0, ..., 0] of x, lengths if there are any, values and indices; then that of
            `workspace_size` bytes, a multiple of 256.
        """
        if self._launches is not None:
            self._launches(stream, *addresses)


def plan(
    *,
    element_size: int,
    index_size: int,
    sign: int,
    flip: int,
    infinity: int,
    largest: bool,
    k: int,
    axis_size: int,
    rows: Sequence[tuple[int, int, int, int]],
    axis_strides: tuple[int, int, int],
    is_sorted: bool = True,
    length_size: int = 0,
    length_signed: bool = True,
    length_strides: Sequence[int] = (),
    padding: int = 0,
    target: Target,
    policy: Policy | None = None,
    algorithm: Algorithm | str | None = None,
) -> Plan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    sign, flip, infinity : int
        The format: the sign bit, the bits that a set sign bit inverts, and the bits of infinity; 0, 0 and
        all ones for unsigned integers.
    largest : bool
        Whether large elements come first.
    k, axis_size : int
        How many elements of how many, with ``0 <= k <= axis_size``.
    rows : sequence of (size, x_stride, value_stride, index_stride)
        The other dimensions, slowest first; strides in elements.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    is_sorted : bool
        Whether the elements are to be in order; otherwise the same ones come by ascending position.
    length_size, length_signed : int, bool
        Bytes of a row's length (4, 8), or 0 where all rows have `axis_size` elements; whether it is signed.
    length_strides : sequence of int
        Strides of the lengths along the dimensions of `rows`.
    padding : int
        Bits of the value that positions from a row's length on hold; their indices have all bits set.
    target : Target
        The device.
    policy : Policy, optional
        Block shapes and thresholds; by default those for the device and the element size.
    algorithm : Algorithm or str, optional
        Take this one, if it can serve the problem.

    Returns
    -------
    Plan
        To be launched any number of times.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot serve the problem.

    Notes
    -----
    Kernels that neither the wheel nor the cache has are compiled here.
    """
    lengths = LengthFormat(length_size, int(length_signed), as_signed(padding)) if length_size else None
    length_strides = length_strides or (0,) * len(rows)
    dimensions = [RowDimension(*row, length) for row, length in zip(rows, length_strides, strict=True)]
    described = describe_rows(dimensions, axis_strides[0])
    if described.count == 0 or k == 0:
        return Plan("nothing to do", 0, (), target)
    problem = Problem(
        element_size=element_size,
        index_size=index_size,
        key_format=key_format(element_size, sign, flip, infinity, largest),
        unfolded_format=unfolded_format(element_size, sign, flip, infinity, largest),
        k=k,
        axis_size=axis_size,
        rows=described,
        strides=AxisStrides(*axis_strides),
        multiprocessors=target.multiprocessors,
        is_sorted=is_sorted,
        lengths=lengths,
    )
    policy = policy or Policy.auto(capability_of(target.arch), element_size)
    found = launches_of(problem, policy, algorithm)
    shape = f"{described.count} rows of {axis_size}, k {k}, {element_size}-byte elements"
    variant = f"{found.algorithm} ({shape}, launches: {len(found.launches)})"
    return Plan(variant, found.workspace_size, found.launches, target)
