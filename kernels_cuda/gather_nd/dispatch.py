"""The choice of an algorithm, and the plan that launches it."""

from dataclasses import dataclass

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
            units.wide(stream, x, indices, output, workspace)

    def _units_for(self, x: int, output: int) -> UnitLaunch | None:
        return next((units for units in self._units if (x | output) % units.unit == 0), None)

    def check(self, stream: int, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._check(stream, indices, first)


def plan(
    *,
    element_size: int,
    index_size: int,
    index_signed: bool,
    batch: tuple[tuple[int, int, int, int], ...],
    tuples: tuple[tuple[int, int, int], ...],
    coordinate_stride: int,
    bounds: tuple[tuple[int, int], ...],
    slices: tuple[tuple[int, int, int], ...],
    mode: str,
    x_offset: int,
    target: Target,
    policy: Policy | None = None,
) -> Plan:
    """Choose and load the kernels that gather slices.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    index_signed : bool
        Whether negative indices count from the end.
    batch : tuple of (size, x_stride, index_stride, output_stride)
        Dimensions that input, indices and output share.
    tuples : tuple of (size, index_stride, output_stride)
        Dimensions that indices and output share.
    coordinate_stride : int
        Elements from coordinate to coordinate of an index tuple.
    bounds : tuple of (size, x_stride)
        The dimensions that the coordinates of a tuple index; a tuple without coordinates takes all.
    slices : tuple of (size, x_stride, output_stride)
        Dimensions that input and output share.
    mode : {"clip", "fill"}
        What becomes of indices out of range.
    x_offset : int
        Not used here: `launch` takes the address of the first element.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    del x_offset
    policy = policy or Policy()
    problem = Problem(
        element_size=element_size,
        index_size=index_size,
        is_signed=index_signed,
        dims=(
            *batch,
            *((size, 0, index_stride, output_stride) for size, index_stride, output_stride in tuples),
            *((size, x_stride, 0, output_stride) for size, x_stride, output_stride in slices),
        ),
        n_slice_dims=len(slices),
        coordinate_stride=coordinate_stride,
        bounds=bounds,
        clips=mode == "clip",
    )
    vectors = None
    if problem.is_gapless:
        vectors = launches.unaligned_launches(problem, policy, target)
    elif slices and bounds:
        vectors = launches.strided_launches(problem, policy, target)
    sizes = [*dict.fromkeys((problem.largest_unit, element_size))]
    if vectors is not None:
        # Where addresses allow, units of 16 bytes are as fast as vectors that are shifted.
        sizes = [VECTOR] if problem.is_gapless and problem.largest_unit == VECTOR else []
    if problem.n_runs * problem.run == 0:
        sizes = []
    units = tuple(launches.unit_launch(problem, policy, unit, target) for unit in sizes)
    return Plan(
        variant=f"gather_nd {_described(problem, units, vectors)}",
        workspace_size=max((each.wide.table.workspace_size for each in units if each.wide), default=0),
        _units=units,
        _vectors=vectors,
        _check=LaunchList([*launches.check_launches(problem, policy, target)]),
    )


def _described(problem: Problem, units: tuple[UnitLaunch, ...], vectors: VectorLaunches | None) -> str:
    if vectors is not None and not units:
        kind = "unaligned" if problem.is_gapless else "strided"
        return f"{8 * problem.element_size}-bit, {kind} runs of {problem.dims[-1][0]} elements"
    unit, run_bytes = units[0].unit if units else 0, problem.run * problem.element_size
    return f"{unit}-byte units of {run_bytes}-byte runs, {len(problem.outer)} dimensions"
