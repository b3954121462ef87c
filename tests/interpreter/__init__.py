"""An interpreter of PTX: it runs the kernels for GPUs without a GPU, and detects their mistakes.

It interprets NVVM's output for a kernel instruction by instruction, with all threads of a block or of a
cluster at a time. Each instruction is one NumPy operation over the threads that have reached it. A
`FaultError` is raised for

- accesses outside of the arrays that `GlobalMemory` knows, and of the shared memory that a launch requests;
- addresses that are not a multiple of the size of the access;
- barriers that not all threads reach, and warp operations without some of the lanes that they name;
- two accesses of shared memory by different warps, one of them a write, without a barrier between them.

Shared memory and registers are not zero before they are written. Interactions of blocks through global memory
are not tested: no block waits for a later one, and no time is measured.

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
