"""An interpreter of PTX: it runs the kernels for GPUs without a GPU, and detects their mistakes.

It interprets NVVM's output for a kernel instruction by instruction, with all threads of a block or of a
cluster at a time. Each instruction is one NumPy operation over the threads that have reached it. A
`FaultError` is raised for

- accesses outside of the arrays that `GlobalMemory` knows, and of the shared memory that a launch requests;
- addresses that are not a multiple of the size of the access;
- barriers that not all threads reach, and warp operations without some of the lanes that they name;
- messages between blocks of a cluster that are not announced, do not come, or come to a block that has left;
- accesses of another block's shared memory before the blocks of the cluster have met;
- two accesses of shared memory by different warps, one of them a write, of which neither is known to come
  first, by barriers and messages.

Shared memory, local memory and registers are noise before they are written. Dynamic shared memory is aligned
to 16 bytes and no more, and static arrays lie in a random order. Messages come late, in a random order. What
a warp stores in global memory is seen by its block after a barrier, and by other blocks when the launch has
ended and they have waited for that; only relaxed and atomic stores are seen at once. A relaxed arrival at the
barrier of a cluster tells of no access. No block waits for a later one, and no time is measured.

=============  ===========================================================================
`program`      from text to instructions
`arithmetic`   instructions that compute
`memory`       global and shared memory
`messages`     the barriers that count messages between blocks
`threads`      the threads of blocks, and their registers
`steps`        instructions as functions of threads
`machine`      which threads go on: branches, barriers, messages, warp operations
`device`       stands for the driver: plans launch as they do on a GPU
=============  ===========================================================================
"""

from tests.interpreter.device import interpreted
from tests.interpreter.memory import FaultError, GlobalMemory

__all__ = ["FaultError", "GlobalMemory", "interpreted"]
