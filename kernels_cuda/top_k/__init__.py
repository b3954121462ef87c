"""Top-k on CUDA: sorted, ties by ascending position, whatever the data.

Four ways, of which `plan` picks one by the shape alone:

=====  ==============================================  ===================================================
warp   short rows, k <= 32                             a warp a row, the row in registers
block  k up to what a block can sort in shared memory  a block a row, reading little more than the row
grid   the same, few rows or very long ones            group maxima by many blocks, then a block a row
sort   any k                                           radix sort of whole rows
=====  ==============================================  ===================================================

All compare order keys (`keys`), so a kernel is compiled for an element width, not for a data type. None
depends on the order in which blocks run, and none gives up on any data: the first k groups of neighbouring
elements, by largest element and position, hold the winners even where all keys tie, and where these groups
still have too many candidates, exact bounds of the winners are found by histograms of keys and positions.

====================  ====================================================================================
`groups`, `maxima`    the first look at a row: maxima of groups of neighbouring elements
`threshold`           which groups are looked at again
`block`               the whole of it for a row: groups, candidates, order
`rank`                the final order
`warp`, `sort`        the other ways
`keys`, `locate`      what is compared, and where rows lie
====================  ====================================================================================
"""

from kernels_cuda.top_k.planning import Plan, plan
from kernels_cuda.top_k.variants import variants

__all__ = ["Plan", "plan", "variants"]
