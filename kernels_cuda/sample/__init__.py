"""One token per row of logits, drawn by a seed.

A block, or a cluster of blocks where rows are few and long, does everything in one launch (`rows`). The first
pass finds the largest element, and each thread's own maximum.

- With a small k, the k-th largest of these maxima is a threshold: the second pass lists the elements at or
  above it, which one block orders, weighs and draws from. A block that has a long row to itself first tries
  a threshold from a part of the row, so that it can list elements in its only pass.
- Otherwise k and top_p are found digit by digit: a histogram has the number of elements, or the sum of their
  weights, for each value of a digit of the distance from the largest key. What stays is all elements up to a
  distance, and of those at that distance the first ones. Warps add up the weights of what stays in their
  segments of the row, and the segment that the token is in is read again.

Bytes moved: each row once with a small k, or else two times, and once more for each digit of k and of top_p.

=============  ==================================================================================
`plan`         what may be tuned, and the launch, as a function of integers
`parameters`   what launches and kernels agree on
`rows`         the kernel
`listed`       the token of a row with a small k
`selected`     the token of any other row
`keys`         how elements are read, and their keys
`shared`       what the threads of a block or of a cluster do together
`arithmetic`   `kernels_cpu.exact.sampling` for GPUs
=============  ==================================================================================
"""

import sys
from functools import partial

from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, Words
from kernels_cpu.problems import SampleProblem
from kernels_cpu.sample.problem_words import RESIDUES
from kernels_cpu.sample.problem_words import problem_words as words_of_problem
from kernels_cuda.device_words import device_words
from kernels_cuda.runtime.plan import device_plan
from kernels_cuda.sample.parameters import sample_variant as variant_of
from kernels_cuda.sample.parameters import variants
from kernels_cuda.sample.plan import Policy

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

PLAN = plan_kernel("sample", device="cuda")
"""The compiled plan, which the CPU runs."""

_NAMES = ("nothing to write", "one block per row", "one cluster of blocks per row")
plan_device = partial(device_words, policy=Policy())


def described(problem: SampleProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    algorithm = _NAMES[words[ALGORITHM]]
    if words[N_LAUNCHES] == 0:
        return f"sample: {algorithm}"
    return f"sample {8 * problem.element_size}-bit {algorithm}"


plan = partial(device_plan, sys.modules[__name__])
"""Choose and load the kernel that draws the tokens; see `device_plan`."""
