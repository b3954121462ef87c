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

import sys
from functools import partial

from kernels_cpu.diagonal_matrix.problem_words import RESIDUES
from kernels_cpu.diagonal_matrix.problem_words import problem_words as words_of_problem
from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, Words
from kernels_cpu.problems import DiagonalProblem
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.diagonal_matrix.parameters import FAMILIES, variants
from kernels_cuda.diagonal_matrix.plan import Policy
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

PLAN = plan_kernel("diagonal_matrix", device="cuda")
"""The compiled plan, which the CPU runs."""

_NAMES = ("nothing to write", "rows", "strided", "transposed", "elements")

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)
plan_device = partial(device_words, policy=Policy())


def described(problem: DiagonalProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    algorithm = _NAMES[words[ALGORITHM]]
    if words[N_LAUNCHES] == 0:
        return f"diagonal_matrix: {algorithm}"
    return f"diagonal_matrix {8 * problem.element_size}-bit {algorithm}"


plan = partial(device_plan, sys.modules[__name__])
"""Choose and load the kernel that writes a band, which is the same for all addresses; see `device_plan`."""
