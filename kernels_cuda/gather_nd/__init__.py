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
`plan`                                what may be tuned, the choice of an algorithm, and the launches of
                                      each, as a function of integers
`dispatch`                            a planned problem, ready to be launched
`parameters`                          what launches and kernels agree on
`units`, `planar`, `unaligned`,       the algorithms: one file each, with their kernel
`strided`
`check`                               the search for the first index tuple out of range
`addressing`                          indices, and the addresses of runs
====================================  ===================================================================
"""

from kernels_cuda.gather_nd.dispatch import Plan, plan
from kernels_cuda.gather_nd.parameters import variants
from kernels_cuda.gather_nd.plan import Policy

__all__ = ["Plan", "Policy", "plan", "variants"]
