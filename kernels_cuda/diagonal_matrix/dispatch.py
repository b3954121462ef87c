"""A planned problem, ready to be launched."""

from typing import TYPE_CHECKING, Any

from kernels_cpu.diagonal_matrix.problem_words import OUTPUT_RESIDUE, X_RESIDUE, problem_words
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, WORKSPACE
from kernels_cuda.device_words import device_words
from kernels_cuda.diagonal_matrix.parameters import FAMILIES, VECTOR
from kernels_cuda.diagonal_matrix.plan import Policy
from kernels_cuda.diagonal_matrix.plan import plan as plan_of_words
from kernels_cuda.runtime.planner import Planner
from kernels_cuda.runtime.variant import Target

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import LaunchList

_NAMES = ("nothing to write", "rows", "strided", "transposed", "elements")


class Plan:
    """A problem with its kernel; see `plan`."""

    def __init__(self, name: str, planner: Planner) -> None:
        words = planner.prepare(0, 0)  # loads the kernel, which is the same for all addresses
        algorithm = _NAMES[words[ALGORITHM]]
        self.variant = f"{name} {algorithm}" if words[N_LAUNCHES] else f"diagonal_matrix: {algorithm}"
        self.workspace_size = words[WORKSPACE]
        self._planner = planner

    def launches(self, x: int, output: int) -> "LaunchList":
        """Return what `launch` launches for addresses like these modulo 16."""
        return self._planner.launches(x % VECTOR, output % VECTOR)

    def launch(self, stream: int, x: int, output: int, workspace: int) -> None:
        """Write the output."""
        self.launches(x, output)(stream, x, output, workspace)


def plan(problem: Any, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernel that writes a band.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.diagonal_matrix`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    device = [*device_words(target), *(policy or Policy())]
    varied = X_RESIDUE, OUTPUT_RESIDUE
    planner = Planner(
        "diagonal_matrix", plan_of_words, problem_words(problem), varied, device, FAMILIES, target
    )
    return Plan(f"diagonal_matrix {8 * problem.element_size}-bit", planner)
