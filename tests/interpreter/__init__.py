"""An interpreter of PTX: the kernels for GPUs run where there is no GPU, and their mistakes are seen.

It runs what NVVM makes of a kernel, instruction by instruction, all threads of a block or of a cluster at a
time, each instruction as one NumPy operation over the threads that are at it. A `FaultError` is raised at

- accesses outside of the arrays that `GlobalMemory` knows, and of the shared memory that a launch asks for;
- addresses that are no multiple of what is accessed;
- barriers that not all threads reach, and warp operations without some of the lanes that they name;
- two accesses of shared memory by different warps, one of them a write, without a barrier between them.

Shared memory and registers are not zero before they are written. What blocks do to each other through global
memory is not tested: none waits for a later one, and no time is measured.

=============  ===========================================================================
`program`      from text to instructions
`arithmetic`   instructions that compute
`memory`       global and shared memory
`threads`      the threads of blocks, and their registers
`steps`        instructions as functions of threads
`machine`      which threads go on: branches, barriers, warp operations
`device`       stands for the driver: plans launch as they do on a GPU
=============  ===========================================================================
"""

from tests.interpreter.device import interpreted
from tests.interpreter.memory import FaultError, GlobalMemory

__all__ = ["FaultError", "GlobalMemory", "interpreted"]
