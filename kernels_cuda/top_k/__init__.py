"""Top-k on CUDA: sorted, ties by ascending position, whatever the data.

Six ways, of which `plan` picks one by the shape alone:

=======  ==============================================  =================================================
warp     short rows, k <= 32                             a warp a row, the row in registers
block    k up to what a block can sort in shared memory  a block a row, reading little more than the row
grid     the same, few rows, very long ones or strided   group maxima by many blocks, then a block a row
columns  small k of rows that lie side by side           a lane a row, as along any axis but the last
tile     larger k of rows of up to 16384                 a block sorts the row
sort     any k                                           radix sort of whole rows
=======  ==============================================  =================================================

All compare order keys (`keys`), so a kernel is compiled for an element width, not for a data type. None
gives up on any data, and none but the sort waits for other blocks: the first k groups of neighbouring
elements, by largest element and position, hold the winners even where all keys tie, and where these groups
still have too many candidates, the last wanted key is found by histograms, and of those that equal it the
first are taken in order.

=============================  ===========================================================================
`groups`, `maxima`             the first look at a row: maxima of groups of neighbouring elements
`maxima_turned`                the same of rows that lie side by side
`threshold`                    which groups are looked at again
`sweep`, `select`              that second look, and the candidates that it leaves
`rank`, `finish`               the final order
`block`                        all of this for a row
`columns`, `candidates`        a lane's row, and what it keeps of it
`warp`, `tile`, `sort`         the other ways
`keys`, `elements`             what is compared
`rows`, `row_offsets`          where rows lie, and how kernels find them
`locate`                       where a part of a row lies
`planning`, `steps`, `plan_*`  the choice of a way, launches as data, and each way's launches
`*_shape`                      what fits into blocks: the sizes that plans and kernels agree on
=============================  ===========================================================================
"""

from kernels_cuda.top_k.planning import Plan, plan
from kernels_cuda.top_k.variants import variants

__all__ = ["Plan", "plan", "variants"]
