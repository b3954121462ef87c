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

import sys
from functools import partial

from kernels_cpu.kernel import plan_kernel
from kernels_cpu.nonzero_coordinates.problem_words import COUNT, RESIDUES, STEP
from kernels_cpu.nonzero_coordinates.problem_words import problem_words as words_of_problem
from kernels_cpu.plan_words import ALGORITHM, Words
from kernels_cpu.problems import NonzeroProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.nonzero_coordinates.parameters import FAMILIES, variants
from kernels_cuda.nonzero_coordinates.plan import Policy
from kernels_cuda.runtime.plan import device_plan

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

PLAN = plan_kernel("nonzero_coordinates", device="cuda")
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)
plan_device = partial(device_words, policy=Policy())

_NAMES = ("one block", "contiguous mask", "strided mask", "transposed mask")


def described(problem: NonzeroProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    name = f"nonzero_coordinates {8 * problem.element_size}-bit, {_NAMES[words[ALGORITHM]]}"
    return f"{name}, {len(problem.sizes)} columns"


# The kernels of the rows after a count are those of the whole.
plan = partial(device_plan, sys.modules[__name__], steps=({STEP: COUNT},))
"""Choose and load the kernels that list the non-zero elements; see `device_plan`."""
