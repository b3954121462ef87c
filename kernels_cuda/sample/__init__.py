"""One token per row of logits, drawn by a seed.

There are four kinds of launches, and those for shards of rows. All find the largest element of a row, and the
weights of the elements that stay; the token is the element at which their running sum exceeds a random share
of the whole sum.

- `unfiltered`, without k, top_p and min_p: warps add up the weights of their segments of the row, and the one
  that the token is in reads a chunk of its segment again.
- `kept`, the same for few rows that are not too long: a cluster of blocks keeps each in shared memory.
- `listed`, with a small k: launches of `top_k` come first, and a warp draws from what they list.
- `rows`, for others: all elements nearer than some distance from the largest key stay, and the first ones of
  those at that distance. k is found digit by digit: a histogram has the number of elements for each value of
  a digit of the distance. top_p is found by the exponents of weights.

Bytes moved: with a small k those of `top_k`; or else each row two times (`kept`: once), from the second on
partly from caches, once more for each digit of k, and once or twice more for top_p.

=============  ==================================================================================
`plan`         what may be tuned, and the launches, as a function of integers
`parameters`   what launches and kernels agree on
`unfiltered`   the kernel for rows in which all elements take part
`kept`         the kernel for few such rows
`listed`       the kernel for rows with a small k, after `top_k`
`rows`         the kernel for all others
`shards`       the kernel for stages of a draw from rows whose parts are on several devices
`selected`     how `rows` selects and draws
`shares`       how `rows` finds where top_p ends
`requests`     where a row is, and its parameters
`keys`         how elements are read, and their keys
`shared`       what the threads of a block or of a cluster do together
`arithmetic`   `kernels_cpu.exact.sampling` for GPUs
=============  ==================================================================================
"""

import sys
from functools import partial

from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, CLUSTER, CURRENT, N_LAUNCHES, Words
from kernels_cpu.problems import SampleProblem
from kernels_cpu.sample.problem_words import RESIDUES
from kernels_cpu.sample.problem_words import problem_words as words_of_problem
from kernels_cuda.runtime.plan import device_plan
from kernels_cuda.runtime.variant import Target
from kernels_cuda.sample.parameters import sample_variant as variant_of
from kernels_cuda.sample.parameters import variants
from kernels_cuda.sample.plan import Policy
from kernels_cuda.top_k import measured_on, policy
from kernels_cuda.top_k.choice import NO_ALGORITHM

__all__ = [
    "PLAN",
    "RESIDUES",
    "Policy",
    "described",
    "measured_on",
    "plan",
    "plan_device",
    "variant_of",
    "variants",
    "words_of_problem",
]

PLAN = plan_kernel("sample", n_inputs=3, device="cuda")
"""The compiled plan, which the CPU runs."""

_NAMES = (
    "nothing to write",
    "from the k largest",
    "one block per row",
    "one cluster of {} blocks per row",
    "one cluster of {} blocks per row, which keeps it",
)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device: those that `top_k` reads, and the policy."""
    return [*policy.plan_device(target, NO_ALGORITHM), *Policy()]


def described(problem: SampleProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    algorithm = _NAMES[words[ALGORITHM]].format(words[words[CURRENT] + CLUSTER])
    if words[N_LAUNCHES] == 0:
        return f"sample: {algorithm}"
    return f"sample {8 * problem.element_size}-bit {algorithm}"


plan = partial(device_plan, sys.modules[__name__])
"""Choose and load the kernel that draws the tokens; see `device_plan`."""
