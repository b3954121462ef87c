"""The choice of an algorithm, and the plan that launches it."""

from dataclasses import dataclass, field, fields
from typing import Any

from kernels_cuda.nonzero_coordinates.launches import MaskLaunches, SmallLaunch
from kernels_cuda.nonzero_coordinates.parameters import GENERAL_COLUMNS
from kernels_cuda.nonzero_coordinates.policy import Policy
from kernels_cuda.nonzero_coordinates.problem import Problem
from kernels_cuda.runtime.launch import LaunchList
from kernels_cuda.runtime.variant import Target
from kernels_cuda.tables import is_wide


@dataclass(frozen=True, slots=True)
class SmallPlan:
    """A few elements, for which one block does everything; see `plan`."""

    variant: str
    workspace_size: int
    _rows: LaunchList
    _count: LaunchList
    _launch: SmallLaunch

    def launches(self, x: int, coordinates: int, count: int) -> LaunchList | None:
        """Return what `launch` launches, for any addresses."""
        return self._rows

    def launch(self, stream: int, x: int, coordinates: int, count: int, workspace: int) -> None:
        """Write the coordinates and the count."""
        self._rows(stream, x, coordinates, count)

    def count(self, stream: int, x: int, count: int, workspace: int) -> None:
        """Write the count."""
        self._count(stream, x, 0, count)

    def expand(self, stream: int, x: int, coordinates: int, rows: int, workspace: int) -> None:
        """Write the coordinates, to the `rows` that `count` has counted, even if elements changed since."""
        self._launch.expand(stream, x, coordinates, rows)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Elements of which a mask is made; see `plan`."""

    variant: str
    workspace_size: int
    _steps: MaskLaunches
    # Lists by what they do, and where modulo 16 input and coordinates begin, which they depend on.
    _lists: dict[tuple[str, int, int], LaunchList] = field(default_factory=dict)

    def launches(self, x: int, coordinates: int, count: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        return self._lists.get(("launch", x % 16, coordinates % 16))

    def launch(self, stream: int, x: int, coordinates: int, count: int, workspace: int) -> None:
        """Write the coordinates and the count."""
        steps, key = self._steps, ("launch", x % 16, coordinates % 16)
        if not steps.columns or steps.problem.capacity == 0:
            self.count(stream, x, count, workspace)
            return
        launches = self._lists.get(key)
        if launches is None:
            is_direct = steps.granules(x) <= steps.policy.direct_granules
            scan = [] if is_direct else steps.scan(x)
            expand = steps.expand(*key[1:], is_direct)
            launches = LaunchList([*steps.mask(stream, x, workspace), *scan, *expand])
            self._keep(key, launches)
        launches(stream, x, coordinates, count, workspace)

    def count(self, stream: int, x: int, count: int, workspace: int) -> None:
        """Write the count, and leave in the workspace what `expand` needs."""
        steps, key = self._steps, ("count", x % 16, 0)
        launches = self._lists.get(key)
        if launches is None:
            launches = LaunchList([*steps.mask(stream, x, workspace), *steps.scan(x)])
            self._keep(key, launches)
        launches(stream, x, 0, count, workspace)

    def expand(self, stream: int, x: int, coordinates: int, rows: int, workspace: int) -> None:
        """Write the coordinates, to as many `rows` as `count` with the same input and workspace counted."""
        key = "expand", x % 16, coordinates % 16
        launches = self._lists.get(key)
        if launches is None:
            launches = self._lists[key] = LaunchList(self._steps.expand(*key[1:], is_direct=False))
        launches(stream, x, coordinates, 0, workspace)

    def _keep(self, key: tuple[str, int, int], launches: LaunchList) -> None:
        if not self._steps.has_wide_table:
            self._lists[key] = launches


Plan = SmallPlan | MaskPlan


def plan(problem: Any, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernels that list the non-zero elements.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.nonzero_coordinates`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    policy = policy or Policy()
    n_columns = len(problem.sizes)
    listing = Problem(**{member.name: getattr(problem, member.name) for member in fields(Problem)})
    name = f"nonzero_coordinates {8 * problem.element_size}-bit"
    if is_small(listing, policy):
        launch = SmallLaunch.of(listing, target)
        variant = f"{name}, one block, {n_columns} columns"
        return SmallPlan(variant, 0, launch.prepare(problem.capacity), launch.prepare(0), launch)
    steps = MaskLaunches.of(listing, policy, target)
    return MaskPlan(f"{name}, {steps.name}, {n_columns} columns", steps.workspace_size, steps)


def is_small(problem: Problem, policy: Policy) -> bool:
    """Return whether one block does everything."""
    n_elements, n_columns = problem.n_elements, len(problem.sizes)
    is_narrow = not is_wide(n_elements, len(problem.dims), limit=policy.narrow_elements)
    fills_little = problem.fill is None or problem.capacity * n_columns <= policy.small_fill
    if n_columns > GENERAL_COLUMNS or not fills_little:
        return False
    return is_narrow and 0 < n_elements <= policy.small_elements
