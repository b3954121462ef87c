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

==========================================  =======================================================
`plan`                                      what may be tuned, the choice of an algorithm, and the
                                            launches of each, as a function of integers
`dispatch`                                  a planned problem, ready to be launched
`parameters`                                what launches and kernels agree on
`rows`, `transposed`, `elements`            the kernels: that of `rows` has a variant for `strided`
`vectors`                                   vectors of a row that the band covers in part
==========================================  =======================================================
"""

from functools import partial

from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.diagonal_matrix.dispatch import Plan, plan
from kernels_cuda.diagonal_matrix.parameters import FAMILIES, variants
from kernels_cuda.diagonal_matrix.plan import Policy
from kernels_cuda.runtime.variant import Target

__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = Kernel("diagonal_matrix_cuda_plan", "kernels_cuda.diagonal_matrix.plan:plan", (INTEGERS,) * 3)
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]
