"""The range of keys in which the k-th key of a row lies, found digit by digit by all blocks of a cluster.

For each digit, a block counts those of its keys that are in the range so far, in bins of its own. How many
are in each of its pages, of 64 bins, it tells all blocks. After a barrier, every block adds these up and
knows the page that the k-th key is in, and reads the bins of that page of all blocks. So it learns the digit,
and also how many selected keys the blocks before it have, which is where its own results begin.

There are two sets of bins and totals, for a block may go on to the next digit while others still read.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    ballot,
    cluster_address,
    count_shared_if,
    leading_zeros_u32,
    load_cluster_u64,
    load_shared_u32,
    load_shared_u64,
    next_pass,
    shuffle_from_u32,
    store_cluster_u32,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.shapes import CLUSTER_BINS, CLUSTER_THREADS, LARGEST_CLUSTER, VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions

u32 = types.uint32
u64 = types.uint64

DIGIT_BITS = CLUSTER_BINS.bit_length() - 1
# A page per warp, of which a lane has two bins.
N_PAGES = CLUSTER_THREADS // WARP_LANES
_PAGE_BINS = CLUSTER_BINS // N_PAGES
# What `find_digit` finds.
DIGIT, N_LEFT, N_TIES, N_ABOVE_BEFORE, N_TIES_BEFORE, N_FOUND = range(6)


class RangeFunctions(NamedTuple):
    """Device functions for one element width."""

    count_digits: Any
    share_totals: Any
    find_digit: Any


@functools.cache
def range_functions(element_size: int) -> RangeFunctions:
    """Make the functions for one element width."""
    key_type = element_functions(element_size).key_type
    keys = key_functions(element_size)
    load_vector, key_at, n_words = keys.load_vector, keys.key_at, keys.n_words
    per_vector = VECTOR_BYTES // element_size

    @linked_function
    def count_digits(own, n_steps, bins, low, span, shift):
        """Count the digits at bit `shift` of a thread's keys from `low` to ``low + span``."""
        words = cuda.local.array(n_words, key_type)
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            for element in range(per_vector):
                offset = key_at(words, element) - low
                count_shared_if(bins + (u32(offset >> key_type(shift)) << 2), offset <= span)
            own += STEP_BYTES
            step = next_pass(step)

    @linked_function
    def share_totals(bins, totals, thread, rank, n_blocks):
        """Tell all blocks how many keys each page has; `totals` are by block and page."""
        lane = thread & 31
        page = thread >> 5
        pair = load_shared_u64(bins + (thread << 3))
        total = warp_add(u32(pair) + u32(pair >> 32))
        if lane < n_blocks:
            store_cluster_u32(cluster_address(totals + ((rank * N_PAGES + page) << 2), lane), total)

    @linked_function
    def find_digit(found, bins, totals, n_left, lane, rank, n_blocks):
        """Find the digit of the key that is number `n_left` from the top, and write it down.

        A warp does, whose lanes go through the pages from the last to the first, then so through the bins of
        one of them.
        """
        amount = u32(0)
        amount_before = u32(0)
        for block in range(LARGEST_CLUSTER):
            if block < n_blocks:
                of_block = load_shared_u32(totals + ((block * N_PAGES + (N_PAGES - 1 - lane)) << 2))
                amount += of_block
                if block < rank:
                    amount_before += of_block
        through = warp_inclusive_sum(amount)
        place = 31 - leading_zeros_u32(ballot(through - amount < n_left <= through))
        n_left -= shuffle_from_u32(through - amount, place)
        if lane >= place:
            amount_before = u32(0)

        # A lane has the bins `first` and the one above.
        first = (N_PAGES - 1 - place) * _PAGE_BINS + (_PAGE_BINS - 2) - 2 * lane
        pairs = cuda.local.array(LARGEST_CLUSTER, u64)
        for block in range(LARGEST_CLUSTER):
            pairs[block] = load_cluster_u64(cluster_address(bins + (first << 2), u32(block) & (n_blocks - 1)))
        lower = u32(0)
        upper = u32(0)
        lower_before = u32(0)
        upper_before = u32(0)
        for block in range(LARGEST_CLUSTER):
            if block < n_blocks:
                lower += u32(pairs[block])
                upper += u32(pairs[block] >> 32)
            if block < rank:
                lower_before += u32(pairs[block])
                upper_before += u32(pairs[block] >> 32)
        through = warp_inclusive_sum(lower + upper)
        n_left -= through - lower - upper
        is_here = ballot(n_left - 1 < lower + upper)
        place = 31 - leading_zeros_u32(is_here)
        is_lower = n_left > upper
        if lane < place:
            amount_before += lower_before + upper_before
        elif lane == place and is_lower:
            amount_before += upper_before
        n_above_before = warp_add(amount_before)
        if lane == place:
            found[N_ABOVE_BEFORE] = n_above_before
            if is_lower:
                found[DIGIT] = first
                found[N_LEFT] = n_left - upper
                found[N_TIES] = lower
                found[N_TIES_BEFORE] = lower_before
            else:
                found[DIGIT] = first + 1
                found[N_LEFT] = n_left
                found[N_TIES] = upper
                found[N_TIES_BEFORE] = upper_before

    return RangeFunctions(count_digits, share_totals, find_digit)
