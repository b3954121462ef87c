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

====================================  ===================================================================
`problem`                             what plans read of a problem, and what may be tuned
`plan`                                the choice of an algorithm, and the launches of each, as a function
                                      of integers
`check_launches`                      the launches of the check
`dispatch`                            a planned problem, ready to be launched
`parameters`                          what launches and kernels agree on
`units`, `planar`, `unaligned`,       the algorithms: one file each, with their kernel
`strided`
`check`                               the search for the first index tuple out of range
`addressing`                          indices, and the addresses of runs
====================================  ===================================================================
"""

from functools import partial

from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cuda import kernel_keys
from kernels_cuda.device_words import device_words
from kernels_cuda.gather_nd.dispatch import Plan, plan
from kernels_cuda.gather_nd.parameters import FAMILIES, variants
from kernels_cuda.gather_nd.problem import Policy
from kernels_cuda.runtime.variant import Target

__all__ = ["PLAN", "Plan", "Policy", "plan", "plan_device", "variant_of", "variants"]

PLAN = Kernel("gather_nd_cuda_plan", "kernels_cuda.gather_nd.plan:plan", (INTEGERS,) * 3)
"""The compiled plan, which the CPU runs."""

variant_of = partial(kernel_keys.variant_of, families=FAMILIES)


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the usual policy."""
    return [*device_words(target), *Policy()]
