"""Top-k on CUDA: sorted, ties by ascending position, whatever the data.

`dispatch` picks one of eleven algorithms by the shape alone, from a table of what was measured (`fastest`):

==========  ============================================  ==============================================
rounds      rows of up to 512, k <= 8                     several rows per warp; a round selects one each
warp        rows of up to 1024, k <= 32; of 256, any k    one warp per row, the row in registers
partition   rows of up to 32768                           one block per row, the row in registers
cluster     few long rows, k <= 4096                      one cluster per row, the row in shared memory
one_pass    rows from about 1000 elements on, k <= 128    one block per row, which reads the row once
sampled     batches of long rows                          one pass with a threshold from a sample
block       k up to what fits into shared memory          one block per row, which reads little more
grid        the same, of few rows, very long or strided   many blocks find group maxima, then one block
columns     small k of rows that lie side by side         one lane per row, as along any axis but the last
tile        large k of rows of up to 16384                one block per row, which sorts it
sort        any k                                         radix sort of whole rows
==========  ============================================  ==============================================

All compare ordered keys (`keys`), so a kernel is compiled for an element width, not for a data type. Each
gives the exact answer for any data. Only the sort waits for other blocks, and a cluster for its own.

Block and grid rely on groups of neighbouring elements: the first k groups, by largest element and position,
hold all selected elements, even if all keys tie. If these groups have too many candidates, histograms find
the k-th key, and of the elements that equal it, the first are selected. Partition and cluster always use
histograms of whole rows.

====================================  ====================================================================
`problem`, `policy`                   what is asked for, and what may be tuned
`dispatch`, `fastest`                 the choice of an algorithm, and the plan
`launches`, `block_launches`,         each algorithm's launches, as data
`grid_launches`,
`partition_launches`,
`sampled_launches`, `cluster_launches`
`kernels`, `parameters`, `shapes`     what launches and kernels agree on
`rounds`, `warp`, `partition`,        the algorithms: one file each, with their kernels
`block`, `grid`,
`columns`, `tile`, `sampled`,
`cluster`, `one_pass`, `sort`
`keys`, `aligned_keys`, `rows`        what is compared, and where rows lie
`groups`, `threshold`                 the first pass of a block: group maxima, and the groups to read again
`filter_pass`, `select`               further passes, over these groups, and the candidates that they leave
`rank`                                the order of the candidates
`pair_sort`                           the order of what a partition has selected
`lengths`                             rows that end early
`optional_launches`, `reorder`,       results in ascending order of index, where an algorithm's are not
`by_index`
`sampled_threshold`,                  the threshold that a sample of a row gives, its candidates in order, and
`sampled_candidates`,                 the end of the row
`sampled_finish`
`marks`                               which elements reach such a threshold
`shared_keys`, `cluster_range`,       what a cluster keeps of a row, where its k-th key is, what it selects,
`cluster_select`, `cluster_sort`,     and in which order; how it selects few elements; and how its blocks
`cluster_few`, `cluster_messages`     tell each other what they have found
`few`                                 a threshold for few elements, and their order
`candidates`                          what a lane of the columns algorithm keeps
`digits`                              ranks by a digit, for sorts in shared memory
`cooperate`                           what the lanes of a warp, and the warps of a block, do together
====================================  ====================================================================
"""

from kernels_cuda.top_k.dispatch import Algorithm, Plan, plan
from kernels_cuda.top_k.kernels import variants
from kernels_cuda.top_k.shared.policy import Policy

__all__ = ["Algorithm", "Plan", "Policy", "plan", "variants"]
