"""The one choice of an algorithm, by what was measured, and the plan that launches it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from kernels_cuda.runtime.launch import Launch as LoadedLaunch
from kernels_cuda.runtime.launch import LaunchList, as_signed, load
from kernels_cuda.runtime.variant import Target, capability_of
from kernels_cuda.top_k.fastest import Kind, fastest
from kernels_cuda.top_k.many_blocks.cluster_launches import cluster_launches
from kernels_cuda.top_k.many_blocks.grid_launches import grid_launches, is_transposed
from kernels_cuda.top_k.problem import (
    AxisStrides,
    LengthFormat,
    Problem,
    RowDimension,
    describe_rows,
    key_format,
    unfolded_format,
)
from kernels_cuda.top_k.read_once.block_launches import block_launches
from kernels_cuda.top_k.read_once.sampled_launches import sampled_launches
from kernels_cuda.top_k.rows_in_blocks.partition_launches import partition_launches
from kernels_cuda.top_k.shared import launches
from kernels_cuda.top_k.shared.launches import Launch, UnservedError, Workspace
from kernels_cuda.top_k.shared.optional_launches import by_index, take_lengths
from kernels_cuda.top_k.shared.policy import Policy


class Algorithm(StrEnum):
    """How a top-k is found; `kernels_cuda.top_k` tells what each of them is for."""

    ROUNDS = "rounds"
    WARP = "warp"
    BLOCK = "block"
    GRID = "grid"
    COLUMNS = "columns"
    TILE = "tile"
    PARTITION = "partition"
    ONE_PASS = "one_pass"
    CLUSTER = "cluster"
    SORT = "sort"
    SAMPLED = "sampled"


class Implementation(NamedTuple):
    """How an algorithm is launched. Its kernels also read row lengths if the problem has them.

    Attributes
    ----------
    launches : function
        Returns the launches that solve a problem; raises `UnservedError` if it does not take it.
    orders_by_index : bool
        Whether its results come by ascending index where they are not to be sorted; results of the others
        are reordered.
    """

    launches: Callable[[Problem, Policy, Workspace], list[Launch]]
    orders_by_index: bool = False


IMPLEMENTATIONS = {
    Algorithm.ROUNDS: Implementation(launches.rounds_launches, orders_by_index=True),
    Algorithm.WARP: Implementation(launches.warp_launches, orders_by_index=True),
    Algorithm.BLOCK: Implementation(block_launches, orders_by_index=True),
    Algorithm.GRID: Implementation(grid_launches, orders_by_index=True),
    Algorithm.COLUMNS: Implementation(launches.columns_launches),
    Algorithm.TILE: Implementation(launches.tile_launches),
    Algorithm.PARTITION: Implementation(partition_launches, orders_by_index=True),
    Algorithm.ONE_PASS: Implementation(launches.one_pass_launches, orders_by_index=True),
    Algorithm.CLUSTER: Implementation(cluster_launches, orders_by_index=True),
    Algorithm.SORT: Implementation(launches.sort_launches),
    Algorithm.SAMPLED: Implementation(sampled_launches, orders_by_index=True),
}


def candidates(problem: Problem, policy: Policy) -> Iterator[Algorithm]:
    """Yield algorithms for a problem, best first; the last one serves every problem."""
    transposed = is_transposed(problem, policy)
    kind = Kind(problem.element_size, transposed, not problem.is_by_index)
    names = fastest(kind, problem.n_rows, problem.axis_size, problem.k, problem.multiprocessors)
    for algorithm in map(Algorithm, names):
        # Rows with gaps between their elements were not measured: it reads them by single elements.
        if algorithm is not Algorithm.PARTITION or transposed or problem.strides.x == 1:
            yield algorithm
    yield from (Algorithm.BLOCK, Algorithm.GRID, Algorithm.TILE, Algorithm.SORT)


class Launches(NamedTuple):
    """What a problem is solved by."""

    algorithm: Algorithm
    launches: list[Launch]
    workspace_size: int


def launches_of(problem: Problem, policy: Policy, algorithm: Algorithm | str | None = None) -> Launches:
    """Return the launches that solve a problem, with the first algorithm that serves it or the given one."""
    if algorithm is not None:
        return _launches_of(problem, policy, Algorithm(algorithm))
    for candidate in candidates(problem, policy):
        with suppress(UnservedError):
            return _launches_of(problem, policy, candidate)
    raise UnservedError(problem, "sort")


def _launches_of(problem: Problem, policy: Policy, algorithm: Algorithm) -> Launches:
    workspace = Workspace()
    implementation = IMPLEMENTATIONS[algorithm]
    launched = implementation.launches(problem, policy, workspace)
    if problem.is_by_index and not implementation.orders_by_index:
        launched += by_index(problem, policy, workspace)
    if problem.lengths is not None:
        launched = take_lengths(launched)
    return Launches(algorithm, launched, workspace.size)


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
    problem: Any, target: Target, policy: Policy | None = None, algorithm: Algorithm | str | None = None
) -> Plan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.top_k`.
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
    element_size, masks = problem.element_size, (*problem.masks, problem.largest)
    lengths = None
    if problem.length_size:
        padding = as_signed(problem.padding)
        lengths = LengthFormat(problem.length_size, int(problem.length_signed), padding)
    length_strides = problem.length_strides or (0,) * len(problem.rows)
    dimensions = [
        RowDimension._make((*row, length)) for row, length in zip(problem.rows, length_strides, strict=True)
    ]
    rows = describe_rows(dimensions, problem.axis_strides[0])
    if rows.count == 0 or problem.k == 0:
        return Plan("nothing to do", 0, (), target)
    described = Problem(
        element_size=element_size,
        index_size=problem.index_size,
        key_format=key_format(element_size, *masks),
        unfolded_format=unfolded_format(element_size, *masks),
        k=problem.k,
        axis_size=problem.axis_size,
        rows=rows,
        strides=AxisStrides(*problem.axis_strides),
        multiprocessors=target.multiprocessors,
        is_sorted=problem.is_sorted,
        lengths=lengths,
    )
    policy = policy or Policy.auto(capability_of(target.arch), element_size)
    found = launches_of(described, policy, algorithm)
    shape = f"{rows.count} rows of {problem.axis_size}, k {problem.k}, {element_size}-byte elements"
    variant = f"{found.algorithm} ({shape}, launches: {len(found.launches)})"
    return Plan(variant, found.workspace_size, found.launches, target)
