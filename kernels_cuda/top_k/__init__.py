"""Top-k on CUDA: sorted, ties by ascending position, whatever the data.

One of ten algorithms is chosen by the shape alone (`choice`); if the caller numbers the elements,
`numbered` completes its result. Each of the eight families has a folder with everything that belongs to its
algorithms:

==============  =========  ======================================  ===========================================
family          algorithm  rows that it is for                     what it promises
==============  =========  ======================================  ===========================================
short_rows      rounds     up to 1024, k <= 64                     one read, several rows per warp
rows_in_blocks  partition  up to 32768, large k up to 16384        one read, the row in a block's registers
read_once       one_pass   from about 1000 on, k <= 128            one read, the same time even if all tie
                sampled    many long ones                          one read, a threshold from a sample
                block      k up to what shared memory holds        one read, then little more, from cache
many_blocks     cluster    few long ones; by value, k <= 4096      one read, in a cluster's shared memory
                grid       few, very long or strided ones          all blocks read; then one block per row
columns         columns    side by side in memory, k <= 32         one read, one lane per row
sort            sort       any, any k                              a radix sort, or a selection by index
copy            copy       any, k is all of it, by index           one read
numbers         numbered   the caller numbers elements             what another finds; ties by number
==============  =========  ======================================  ===========================================

The `plan` of a problem is one function of integers, which Python runs, and which is compiled as it is;
`problem`, `key_formats` and `policy` tell of its words, and `dispatch` makes plans for dmlops. An algorithm
has its kernels in the module of its name, and its limits, shapes, variants and launches in
``<name>_launches``, which needs neither Numba nor CUDA. Longer ones are divided: the modules that begin with
the same name, and `lanes` and `slots` of rounds, for segments, `marks` of sampled, `filter_pass` and `select`
of block, `shared_keys` of cluster, `counting`, `filter` and `select` of sort. `shared` has what several
families use: keys, rows and their results, groups of neighbouring elements and their maxima, thresholds, the
order of candidates, and launches that order results by index.

All compare ordered keys (`shared.keys`), so a kernel is compiled for an element width, not for a data type.
Each gives the exact answer for any data. Only the sort waits for other blocks, and a cluster for its own.
"""

from kernels_cpu.top_k.problem_words import RESIDUES
from kernels_cpu.top_k.problem_words import problem_words as words_of_problem
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k import policy
from kernels_cuda.top_k.choice import NO_ALGORITHM
from kernels_cuda.top_k.dispatch import ALGORITHMS, PLAN, described, forced_algorithm, plan, table_of
from kernels_cuda.top_k.variants import variant_of, variants

__all__ = [
    "ALGORITHMS",
    "PLAN",
    "RESIDUES",
    "described",
    "measured_on",
    "plan",
    "plan_device",
    "variant_of",
    "variants",
    "words_of_problem",
]


def plan_device(target: Target) -> list[int]:
    """Return the words of a device, and of the algorithm that the user asks for."""
    forced = forced_algorithm()
    return policy.plan_device(target, NO_ALGORITHM if forced is None else ALGORITHMS[forced])


def measured_on(target: Target) -> list[int]:
    """Return the words of what was measured on the architecture of a device."""
    return table_of(target.arch)
