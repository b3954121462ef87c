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

import sys
from functools import partial

from kernels_cpu.gather_nd.problem_words import CHECKS, OUTPUT_RESIDUE, RESIDUES
from kernels_cpu.gather_nd.problem_words import problem_words as words_of_problem
from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, WORKSPACE, Words, kernels_of
from kernels_cpu.problems import GatherProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.gather_nd.parameters import FAMILIES, VECTOR, Policy, variants
from kernels_cuda.gather_nd.plan import STRIDED, UNALIGNED
from kernels_cuda.runtime.plan import DevicePlan, device_plan
from kernels_cuda.runtime.variant import Target

__all__ = [
    "PLAN",
    "RESIDUES",
    "Policy",
    "described",
    "plan",
    "plan_device",
    "variant_of",
    "variants",
    "words_of_problem",
]

PLAN = plan_kernel("gather_nd", device="cuda")
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)
plan_device = partial(device_words, policy=Policy())


def plan(problem: GatherProblem, target: Target, policy: Policy | None = None) -> DevicePlan:
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
    # Operands that begin on 16-byte boundaries, and on those of elements only.
    anywhere = {OUTPUT_RESIDUE: problem.element_size % VECTOR}
    found = device_plan(sys.modules[__name__], problem, target, policy, steps=({CHECKS: 1},))
    words = found.words(found.changed(anywhere))
    found.runner(words)
    found.workspace_size = max(found.workspace_size, words[WORKSPACE])
    return found


def described(problem: GatherProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return f"gather_nd {_algorithm(problem, words)}"


def _algorithm(problem: GatherProblem, words: Words) -> str:
    element_size, slices = problem.element_size, problem.slices
    if words[ALGORITHM] in (UNALIGNED, STRIDED):
        kind = "unaligned" if words[ALGORITHM] == UNALIGNED else "strided"
        return f"{8 * element_size}-bit, {kind} runs of {slices[-1][0]} elements"
    is_gapless = len(slices) > 0 and slices[-1][1:] == (1, 1)
    run_bytes = element_size * (slices[-1][0] if is_gapless else 1)
    n_dims = len(problem.batch) + len(problem.tuples) + len(slices) - is_gapless
    unit = variant_of(kernels_of(words)[-1]).parameters[0] if words[N_LAUNCHES] else 0
    return f"{unit}-byte units of {run_bytes}-byte runs, {n_dims} dimensions"
