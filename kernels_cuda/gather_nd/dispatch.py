"""The choice of an algorithm, and the plan that launches it."""

from dataclasses import dataclass
from typing import Any

from kernels_cuda.gather_nd import launches
from kernels_cuda.gather_nd.launches import UnitLaunch, VectorLaunches
from kernels_cuda.gather_nd.parameters import VECTOR
from kernels_cuda.gather_nd.policy import Policy
from kernels_cuda.gather_nd.problem import Problem
from kernels_cuda.runtime.launch import LaunchList
from kernels_cuda.runtime.variant import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernels; see `plan`.

    Units serve what addresses are multiples of them, the largest first; vectors serve all others.
    """

    variant: str
    workspace_size: int
    _units: tuple[UnitLaunch, ...]
    _vectors: VectorLaunches | None
    _check: LaunchList

    def launches(self, x: int, indices: int, output: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        units = self._units_for(x, output)
        if units is not None:
            return units.launch
        return None if self._vectors is None else self._vectors.serving(output)

    def launch(self, stream: int, x: int, indices: int, output: int, workspace: int) -> None:
        """Write the output."""
        launches = self.launches(x, indices, output)
        units = self._units_for(x, output)
        if launches is not None:
            launches(stream, x, indices, output)
        elif units is not None and units.wide is not None:
            units.wide(stream, workspace, x, indices, output)

    def _units_for(self, x: int, output: int) -> UnitLaunch | None:
        return next((units for units in self._units if (x | output) % units.unit == 0), None)

    def check(self, stream: int, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._check(stream, indices, first)


def plan(problem: Any, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernels that gather slices.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.gather_nd`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    policy = policy or Policy()
    element_size, slices = problem.element_size, problem.slices
    tuples = [(size, 0, index_stride, output_stride) for size, index_stride, output_stride in problem.tuples]
    copied = [(size, x_stride, 0, output_stride) for size, x_stride, output_stride in slices]
    runs = Problem(
        element_size=element_size,
        index_size=problem.index_size,
        is_signed=problem.index_signed,
        dims=(*problem.batch, *tuples, *copied),
        n_slice_dims=len(slices),
        coordinate_stride=problem.coordinate_stride,
        bounds=problem.bounds,
        clips=problem.mode == "clip",
    )
    vectors = None
    if runs.is_gapless:
        vectors = launches.unaligned_launches(runs, policy, target)
    elif slices and runs.bounds:
        vectors = launches.strided_launches(runs, policy, target)
    sizes = [*dict.fromkeys((runs.largest_unit, element_size))]
    if vectors is not None:
        # Where addresses allow, units of 16 bytes are as fast as vectors that are shifted.
        sizes = [VECTOR] if runs.is_gapless and runs.largest_unit == VECTOR else []
    if runs.n_runs * runs.run == 0:
        sizes = []
    units = tuple(launches.unit_launch(runs, policy, unit, target) for unit in sizes)
    return Plan(
        variant=f"gather_nd {_described(runs, units, vectors)}",
        workspace_size=max((each.wide.table.workspace_size for each in units if each.wide), default=0),
        _units=units,
        _vectors=vectors,
        _check=LaunchList([*launches.check_launches(runs, policy, target)]),
    )


def _described(problem: Problem, units: tuple[UnitLaunch, ...], vectors: VectorLaunches | None) -> str:
    if vectors is not None and not units:
        kind = "unaligned" if problem.is_gapless else "strided"
        return f"{8 * problem.element_size}-bit, {kind} runs of {problem.dims[-1][0]} elements"
    unit, run_bytes = units[0].unit if units else 0, problem.run * problem.element_size
    return f"{unit}-byte units of {run_bytes}-byte runs, {len(problem.outer)} dimensions"
