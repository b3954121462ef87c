"""Top-k on CUDA: sorted, ties by ascending position, whatever the data.

Four ways, of which `plan` picks one by the shape alone:

=====  ==============================================  ===================================================
warp   short rows, k <= 32                             a warp a row, the row in registers
block  k up to what a block can sort in shared memory  a block a row, reading little more than the row
grid   the same, few long rows                         a block a part of a row, then the parts' winners
sort   any k                                           radix sort of whole rows
=====  ==============================================  ===================================================

All compare order keys (`keys`), so a kernel is compiled for an element width, not for a data type. None
depends on the order in which blocks run, and none gives up on any data: where many keys tie, the exact
bounds of the winners are found by radix select over keys and positions.
"""

from kernels_cuda.top_k.planning import Plan, plan
from kernels_cuda.top_k.variants import variants

__all__ = ["Plan", "plan", "variants"]
