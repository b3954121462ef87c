"""The coordinates of non-zero elements, in ascending element order.

Up to 4,096 elements one block does everything in one launch. Beyond:

1. A *mask* is made: the input is read once, and one bit per element is left in the workspace, with the number
   of non-zeros of each granule of 16,384 elements. Contiguous input is read in 16-byte vectors: a lane holds
   the bits of what it loaded, and an exchange between lanes makes words in element order of them. Input that
   starts between two 16-byte boundaries is counted from the first: positions are *virtual* there, `skipped`
   more than the real ones. Of matrices whose columns are contiguous, lanes read rows.
2. `nonzero_expand` turns each tile of 1 to 4 granules into ranked positions in shared memory and writes
   rows side by side. It adds up the counts of all granules before its own; with more granules than the
   policy's `direct_granules`, or if the caller wants the count first, `nonzero_scan` does that once for all.

Bytes moved: the input, an eighth of a byte per element twice, and the rows written. No block waits for
another.

============  =====================================================================================
`plan`        what may be tuned, the choice of an algorithm, and the launches of each step, as a
              function of integers
`parameters`  what launches and kernels agree on
`masks`       the kernels of step 1
`rows`        the kernels of step 2, and that of one block (`small`)
============  =====================================================================================
"""

from functools import partial
from typing import TYPE_CHECKING

from kernels_cpu.kernel import plan_kernel
from kernels_cpu.nonzero_coordinates.problem_words import (
    CAPACITY,
    COORDINATE_RESIDUE,
    COUNT,
    EXPAND,
    STEP,
    WHOLE,
    X_RESIDUE,
    problem_words,
)
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE
from kernels_cpu.problems import NonzeroProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.nonzero_coordinates.parameters import FAMILIES, variants
from kernels_cuda.nonzero_coordinates.plan import ONE_BLOCK, Policy
from kernels_cuda.nonzero_coordinates.plan import plan as plan_of_words
from kernels_cuda.runtime.planner import Planner
from kernels_cuda.runtime.variant import Target

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import LaunchList


__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = plan_kernel("nonzero_coordinates", device="cuda")
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]


_NAMES = ("one block", "contiguous mask", "strided mask", "transposed mask")
_VARIED = STEP, X_RESIDUE, COORDINATE_RESIDUE, CAPACITY
_ALIGNMENT = 16


class Plan:
    """A problem with its kernels; see `plan`."""

    def __init__(self, variant: str, words: list[int], planner: Planner, capacity: int) -> None:
        self.variant, self.workspace_size = variant, words[WORKSPACE]
        self._is_one_block = words[ALGORITHM] == ONE_BLOCK
        self._planner, self._capacity = planner, capacity

    def launches(self, x: int, coordinates: int, count: int) -> "LaunchList":
        """Return what `launch` launches for addresses like these modulo 16."""
        return self._step(WHOLE, x, coordinates)

    def launch(self, stream: int, x: int, coordinates: int, count: int, workspace: int) -> None:
        """Write the coordinates and the count."""
        self._step(WHOLE, x, coordinates)(stream, x, coordinates, count, workspace)

    def count(self, stream: int, x: int, count: int, workspace: int) -> None:
        """Write the count, and leave in the workspace what `expand` needs."""
        self._step(COUNT, x, 0)(stream, x, 0, count, workspace)

    def expand(self, stream: int, x: int, coordinates: int, rows: int, workspace: int) -> None:
        """Write the coordinates, to as many `rows` as `count` with the same input and workspace counted.

        Where one block does everything, they are counted again: other rows, even if elements changed since,
        are not written.
        """
        if self._is_one_block:
            values = EXPAND, x % _ALIGNMENT, coordinates % _ALIGNMENT, rows
            launches = self._planner.made(self._planner.words(*values))
        else:
            launches = self._step(EXPAND, x, coordinates)
        launches(stream, x, coordinates, 0, workspace)

    def _step(self, step: int, x: int, coordinates: int) -> "LaunchList":
        return self._planner.launches(step, x % _ALIGNMENT, coordinates % _ALIGNMENT, self._capacity)


def plan(problem: NonzeroProblem, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernels that list the non-zero elements.

    Parameters
    ----------
    problem : NonzeroProblem
        In `kernels_cpu.problems`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    device = [*device_words(target), *(policy or Policy())]
    planner = Planner(
        "nonzero_coordinates", plan_of_words, problem_words(problem), _VARIED, device, FAMILIES, target
    )
    # These load all kernels, whatever the addresses are.
    words = planner.prepare(WHOLE, 0, 0, problem.capacity)
    planner.prepare(COUNT, 0, 0, problem.capacity)
    name = f"nonzero_coordinates {8 * problem.element_size}-bit, {_NAMES[words[ALGORITHM]]}"
    return Plan(f"{name}, {len(problem.sizes)} columns", words, planner, problem.capacity)
