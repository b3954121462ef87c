"""The coordinates of non-zero elements, in ascending element order.

Up to 4,096 elements one block does everything in one launch (`small`). Beyond:

1. A *mask* is made: the input is read once, and one bit per element is left in the workspace, with the number
   of non-zeros of each granule of 16,384 elements. Contiguous input is read in 16-byte vectors: a lane holds
   the bits of what it loaded, and an exchange between lanes makes words in element order of them. Input that
   starts between two 16-byte boundaries is counted from the first: positions are *virtual* there, `skipped`
   more than the real ones. Of matrices whose columns are contiguous, lanes read rows (`transposed`).
2. `expand` turns each tile of 1 to 4 granules into ranked positions in shared memory and writes rows side
   by side. It adds up the counts of all granules before its own; with more granules than the policy's
   `direct_granules`, or if the caller wants the count first, `scan` does that once for all.

Bytes moved: the input, an eighth of a byte per element twice, and the rows written. No block waits for
another.

=====================================  ==========================================================
`plan`                                 what may be tuned, the choice of an algorithm, and the
                                       launches of each step, as a function of integers
`dispatch`                             a planned problem, ready to be launched
`parameters`                           what launches and kernels agree on
`small`, `masks`, `transposed`,        the kernels
`expand`
=====================================  ==========================================================
"""

from functools import partial

from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.nonzero_coordinates.dispatch import Plan, plan
from kernels_cuda.nonzero_coordinates.parameters import FAMILIES, variants
from kernels_cuda.nonzero_coordinates.plan import Policy
from kernels_cuda.runtime.variant import Target

__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = Kernel("nonzero_coordinates_cuda_plan", "kernels_cuda.nonzero_coordinates.plan:plan", (INTEGERS,) * 3)
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]
