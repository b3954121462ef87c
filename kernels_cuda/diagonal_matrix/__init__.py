"""Set a band of diagonals, or all but a band, and copy or clear the rest.

`plan` picks one of four algorithms by the layout alone; where the output's rows, not its columns,
are contiguous, matrices are transposed first, with their band:

==========  ==========================================================================================
rows        rows are contiguous: a thread writes a vector of 16 bytes on a 16-byte boundary, wholly outside
            the band (copied), wholly inside (written, not read), or partly inside (read, and merged by a
            mask of bytes)
strided     the same for rows of the output alone: a thread packs its vector from elements that lie apart
transposed  rows are contiguous in the input, columns in the output: tiles pass through shared memory
elements    any other layout, and rows of a few vectors: element by element
==========  ==========================================================================================

Kernels of vectors take few registers, so that many threads are in flight; vectors that stick out at the ends
of a row go element by element. Bytes moved: the output once, and the input outside the band once.

============  =====================================================================================
`plan`        what may be tuned, the choice of an algorithm, and the launches of each, as a function
              of integers
`parameters`  what launches and kernels agree on
`kernels`     the kernels
============  =====================================================================================
"""

from functools import partial
from typing import TYPE_CHECKING

from kernels_cpu.diagonal_matrix.problem_words import OUTPUT_RESIDUE, X_RESIDUE, problem_words
from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, WORKSPACE
from kernels_cpu.problems import DiagonalProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.diagonal_matrix.parameters import FAMILIES, VECTOR, variants
from kernels_cuda.diagonal_matrix.plan import Policy
from kernels_cuda.diagonal_matrix.plan import plan as plan_of_words
from kernels_cuda.runtime.planner import Planner
from kernels_cuda.runtime.variant import Target

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import LaunchList

__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = plan_kernel("diagonal_matrix", device="cuda")
"""The compiled plan, which the CPU runs."""

_NAMES = ("nothing to write", "rows", "strided", "transposed", "elements")

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]


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


def plan(problem: DiagonalProblem, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernel that writes a band.

    Parameters
    ----------
    problem : DiagonalProblem
        In `kernels_cpu.problems`.
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
