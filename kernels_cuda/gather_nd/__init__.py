"""Copy the slices that index tuples point at.

Batch dimensions, tuple dimensions and the outer dimensions of a slice make one table of dimensions; what
remains of a slice is a *run* of bytes that is contiguous in input and output. Four algorithms move runs:

=========  ===========================================================================================
units      runs are cut into units of up to 16 bytes, as strides and addresses allow
planar     units of runs along up to two dimensions, all of whose strides fit 32 bits: most gathers
unaligned  runs that cannot be cut into large units: the output is written in 16-byte vectors, shifted
           from those of the input
strided    elements of a slice lie apart in the input: they are packed into 16-byte vectors
=========  ===========================================================================================

A thread reads all its indices, then all its units, then writes. Bytes moved: the output, the parts of the
input that are read, in sectors of 32 bytes, and the indices.

============  =====================================================================================
`plan`        the choice of an algorithm, and the launches of each and of the check, as a function
              of integers
`parameters`  what plans read of a problem, what may be tuned, and what launches and kernels agree on
`units`       the kernels of units and of planar runs, and those of the check
`vectors`     the kernels of unaligned and of strided runs
============  =====================================================================================
"""

from functools import partial
from typing import TYPE_CHECKING

from kernels_cpu.gather_nd.problem_words import OUTPUT_RESIDUE, X_RESIDUE, problem_words
from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, WORKSPACE, kernels_of
from kernels_cpu.problems import GatherProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.gather_nd.parameters import FAMILIES, VECTOR, Policy, variants
from kernels_cuda.gather_nd.plan import STRIDED, UNALIGNED
from kernels_cuda.gather_nd.plan import plan as plan_of_words
from kernels_cuda.runtime.planner import Planner
from kernels_cuda.runtime.variant import Target

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import LaunchList


__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = plan_kernel("gather_nd", device="cuda")
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]


class Plan:
    """A problem with its kernels; see `plan`."""

    def __init__(self, variant: str, workspace_size: int, planner: Planner, check: "LaunchList") -> None:
        self.variant, self.workspace_size = variant, workspace_size
        self._planner, self._check = planner, check

    def launches(self, x: int, indices: int, output: int) -> "LaunchList":
        """Return what `launch` launches for addresses like these modulo 16."""
        return self._planner.launches(x % VECTOR, output % VECTOR)

    def launch(self, stream: int, x: int, indices: int, output: int, workspace: int) -> None:
        """Write the output."""
        self.launches(x, indices, output)(stream, x, indices, output, workspace)

    def check(self, stream: int, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._check(stream, 0, indices, 0, first)


def plan(problem: GatherProblem, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernels that gather slices.

    Parameters
    ----------
    problem : GatherProblem
        In `kernels_cpu.problems`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    device = [*device_words(target), *(policy or Policy())]
    varied = X_RESIDUE, OUTPUT_RESIDUE
    planner = Planner("gather_nd", plan_of_words, problem_words(problem), varied, device, FAMILIES, target)
    checking = Planner(
        "gather_nd", plan_of_words, problem_words(problem, checks=True), (), device, FAMILIES, target
    )
    # Operands that begin on 16-byte boundaries, and on those of elements only.
    residue = problem.element_size % VECTOR
    aligned, anywhere = planner.prepare(0, 0), planner.prepare(0, residue)
    workspace_size = max(aligned[WORKSPACE], anywhere[WORKSPACE])
    return Plan(f"gather_nd {_described(problem, aligned)}", workspace_size, planner, checking.launches())


def _described(problem: GatherProblem, words: list[int]) -> str:
    element_size, slices = problem.element_size, problem.slices
    if words[ALGORITHM] in (UNALIGNED, STRIDED):
        kind = "unaligned" if words[ALGORITHM] == UNALIGNED else "strided"
        return f"{8 * element_size}-bit, {kind} runs of {slices[-1][0]} elements"
    is_gapless = len(slices) > 0 and slices[-1][1:] == (1, 1)
    run_bytes = element_size * (slices[-1][0] if is_gapless else 1)
    n_dims = len(problem.batch) + len(problem.tuples) + len(slices) - is_gapless
    unit = variant_of(kernels_of(words)[-1]).parameters[0] if words[N_LAUNCHES] else 0
    return f"{unit}-byte units of {run_bytes}-byte runs, {n_dims} dimensions"
