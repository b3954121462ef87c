"""The one choice of an algorithm, why, and how to force it; and the plan that launches it.

Devices of an architecture that was measured choose by a table, ``tables/<architecture>.json``, which
``python -m bench choices --table`` makes; all others by `rule`. Where the best algorithm does not serve a
problem, the next one is tried. ``DMLOPS_TOP_K_ALGORITHM`` forces one; it is read when a call is planned, and
a call that the process has made before keeps its plan.
"""

import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.launch import NULL, LaunchList, Pointer, load
from kernels_cuda.runtime.launch import Launch as LoadedLaunch
from kernels_cuda.runtime.variant import Target, Variant
from kernels_cuda.top_k.columns.columns_launches import COLUMNS
from kernels_cuda.top_k.copy.copy_launches import COPY
from kernels_cuda.top_k.many_blocks.cluster_launches import CLUSTER
from kernels_cuda.top_k.many_blocks.grid_launches import GRID
from kernels_cuda.top_k.problem import Problem, describe
from kernels_cuda.top_k.read_once.block_launches import BLOCK
from kernels_cuda.top_k.read_once.one_pass_launches import ONE_PASS
from kernels_cuda.top_k.read_once.sampled_launches import SAMPLED
from kernels_cuda.top_k.rows_in_blocks.partition_launches import PARTITION
from kernels_cuda.top_k.rows_in_blocks.tile_launches import TILE
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    LENGTHS,
    VALUES,
    WORKSPACE,
    Launch,
    UnservedError,
    Workspace,
    X,
    offsets_variant,
)
from kernels_cuda.top_k.shared.order_launches import by_index, order_variants
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES, KIB
from kernels_cuda.top_k.short_rows.rounds_launches import ROUNDS
from kernels_cuda.top_k.short_rows.warp_launches import WARP
from kernels_cuda.top_k.sort.sort_launches import SORT, clear_variant

# `kernels_cuda.top_k` tells what each of them is for.
ALGORITHMS = {
    "rounds": ROUNDS,
    "warp": WARP,
    "partition": PARTITION,
    "tile": TILE,
    "one_pass": ONE_PASS,
    "sampled": SAMPLED,
    "block": BLOCK,
    "cluster": CLUSTER,
    "grid": GRID,
    "columns": COLUMNS,
    "sort": SORT,
    "copy": COPY,
}
VARIABLE = "DMLOPS_TOP_K_ALGORITHM"
TABLES = Path(__file__).with_name("tables")
# The pointer slots of a launch if rows have lengths, in the order of the addresses that a plan takes.
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


def variants() -> Iterator[Variant]:
    """List every compilable kernel once."""
    yield offsets_variant()
    yield clear_variant()
    yield from order_variants()
    for element_size in ELEMENT_SIZES:
        for algorithm in ALGORITHMS.values():
            yield from algorithm.variants(element_size)


class Kind(NamedTuple):
    """What parts of a table tell apart: bytes of an element, where rows lie, and the order of results."""

    element_size: int
    is_transposed: bool
    is_sorted: bool

    def __str__(self) -> str:
        where = "side by side" if self.is_transposed else "one after the other"
        return f"{self.element_size} bytes, rows {where}, by {'value' if self.is_sorted else 'index'}"


def kind_of(problem: Problem) -> Kind:
    """Return which part of a table a problem belongs to; what holds for two bytes comes closest to one."""
    element_size = max(problem.element_size, 2)
    return Kind(element_size, GRID.policy.is_transposed(problem), not problem.is_by_index)


@functools.cache
def table_of(arch: str) -> Mapping[str, Any] | None:
    """Return what was measured on an architecture; None if nothing was."""
    path = TABLES / f"{arch}.json"
    return json.loads(path.read_text()) if path.exists() else None


def measured(problem: Problem) -> str | None:
    """Return the algorithm that a table names; None if there is none for the device.

    Each k, number of rows and length in a table stands for those below, down to the next smaller one in it.
    The number of rows counts in proportion to the multiprocessors of the device that was measured.
    """
    table = table_of(problem.target.arch)
    if table is None:
        return None
    n_rows = ceil_div(problem.n_rows * table["multiprocessors"], problem.target.multiprocessors)
    line = _at(_at(table["fastest"][str(kind_of(problem))], problem.k), n_rows)
    *parts, last = (part.split() for part in line.split(", "))
    return next((name for length, name in parts if problem.axis_size <= int(length)), last[-1])


def _at(limits: dict[str, Any], amount: int) -> Any:
    """Return the value up to the first limit that is not below an amount; the last one holds beyond."""
    return limits[next((limit for limit in limits if amount <= int(limit)), next(reversed(limits)))]


def rule(problem: Problem) -> Iterator[str]:
    """Yield algorithms for a device that was not measured, best first; the last one serves every problem.

    What counts is how many rows each multiprocessor has, whether a cluster's shared memory holds a row, and
    what part of a row is selected: few elements are found by a threshold, many by histograms or a sort.
    """
    element_size, is_transposed, is_sorted = kind_of(problem)
    length, k, target = problem.axis_size, problem.k, problem.target
    per_multiprocessor = problem.n_rows / target.multiprocessors
    has_few_rows = per_multiprocessor < 1 / 4
    # Wider keys leave no registers to read a row once.
    is_narrow = element_size < 8
    if k <= 8 and length <= 512:
        yield "rounds"
    if not is_transposed and k <= 16 and length <= (1024 if is_narrow else 256):
        yield "warp"
    if is_transposed and k <= 16 and per_multiprocessor >= 32:
        yield "columns"
    if is_sorted and is_narrow and length <= min(2048, 2 * k):
        yield "tile"
    if length <= max(8192, 32 * k):
        yield "partition"
    if k > 4096 and (is_sorted or is_transposed):
        yield "tile" if is_sorted and length <= 16384 else "sort"
    elif not is_transposed:
        if has_few_rows and length <= 1 << 19 and k >= 256 and per_multiprocessor > 1 / 10:
            yield "sampled"
        if has_few_rows and is_narrow and k <= 128 and problem.row_bytes <= 64 * KIB:
            yield "one_pass"
        room = target.multiprocessors * target.block_shared_bytes // 4
        is_held = has_few_rows and 16 * KIB <= problem.row_bytes <= room // problem.n_rows
        if is_held or k > 4096:
            yield "cluster"
        is_short = not has_few_rows or problem.row_bytes <= 512 * KIB
        if is_narrow and is_short and k <= 128 and per_multiprocessor <= 2:
            yield "one_pass"
        if not has_few_rows and 8192 < length <= 1 << 19 and k >= (512 if is_sorted else 128):
            yield "sampled"
        if not has_few_rows and length <= 1 << 16:
            yield "block"
    yield from ("grid", "block", "tile", "sort")


def candidates(problem: Problem) -> Iterator[str]:
    """Yield algorithms for a problem, best first."""
    is_packed = problem.strides.x == 1 or GRID.policy.is_transposed(problem)
    # The table has no problems of which all elements are selected, by index: nothing is faster than a copy.
    best = "copy" if serves(problem, "copy") else measured(problem)
    named: set[str] = set()
    for name in itertools.chain((best,) if best else (), rule(problem)):
        # It reads rows with gaps between their elements, which were not measured, by single elements.
        if name not in named and (name != "partition" or is_packed):
            named.add(name)
            yield name


def forced_algorithm() -> str | None:
    """Return the algorithm that the user asks for.

    Raises
    ------
    ValueError
        If there is no such algorithm.
    """
    name = os.environ.get(VARIABLE)
    if name and name not in ALGORITHMS:
        msg = f"{VARIABLE}: got {name!r}, which is no algorithm; it must be one of {', '.join(ALGORITHMS)}"
        raise ValueError(msg)
    return name or None


def explain(given: Any, target: Target) -> tuple[str, list[str]]:
    """Return why an algorithm is chosen, and all that serve what `plan` is given, the chosen one first."""
    problem = describe(given, target)
    if forced_algorithm() is not None:
        return f"because {VARIABLE} asks for it", [launches_of(problem).algorithm]
    names = [name for name in candidates(problem) if serves(problem, name)]
    if names[0] == "copy":
        return "because all elements are selected, in the order that they have", names
    if measured(problem) == names[0]:
        return f"the fastest, or about as fast, by the times measured on {target.arch}", names
    return f"by a rule, because nothing like it was measured on {target.arch}", names


def serves(problem: Problem, name: str) -> bool:
    """Tell whether an algorithm serves a problem."""
    try:
        return bool(_launches_of(problem, name, {}))
    except UnservedError:
        return False


class Launches(NamedTuple):
    """What a problem is solved by."""

    algorithm: str
    launches: list[Launch]
    workspace_size: int


def launches_of(
    problem: Problem, algorithm: str | None = None, changes: Mapping[str, Any] | None = None
) -> Launches:
    """Return the launches that solve a problem, with the first algorithm that serves it or the given one."""
    algorithm = algorithm or forced_algorithm()
    if algorithm is not None:
        return _launches_of(problem, algorithm, changes or {})
    for candidate in candidates(problem):
        with suppress(UnservedError):
            return _launches_of(problem, candidate, changes or {})
    raise UnservedError(problem, "sort")


def _launches_of(problem: Problem, name: str, changes: Mapping[str, Any]) -> Launches:
    algorithm, workspace = ALGORITHMS[name], Workspace()
    policy = replace(algorithm.policy, **changes) if changes else algorithm.policy
    launches = algorithm.launches(problem, policy, workspace)
    if problem.is_by_index and not algorithm.orders_by_index:
        launches += by_index(problem, policy, workspace)
    if problem.lengths is not None:
        launches = [
            launch._replace(pointers=tuple(map(_with_lengths, launch.pointers))) for launch in launches
        ]
    return Launches(name, launches, workspace.size)


def _with_lengths(pointer: Pointer) -> Pointer:
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


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
                (each.parameters, each.more),
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
    given: Any, target: Target, algorithm: str | None = None, changes: Mapping[str, Any] | None = None
) -> Plan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    given : Problem
        Of `dmlops.operators.top_k`.
    target : Target
        The device.
    algorithm : str, optional
        Take this one, if it can serve the problem; by default ``DMLOPS_TOP_K_ALGORITHM``.
    changes : mapping, optional
        Other values of the algorithm's policy, by name.

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
    problem = describe(given, target)
    if problem.n_rows == 0 or problem.k == 0:
        return Plan("nothing to do", 0, (), target)
    found = launches_of(problem, algorithm, changes)
    shape = (
        f"{problem.n_rows} rows of {problem.axis_size}, k {problem.k}, {problem.element_size}-byte elements"
    )
    variant = f"{found.algorithm} ({shape}, launches: {len(found.launches)})"
    return Plan(variant, found.workspace_size, found.launches, target)
