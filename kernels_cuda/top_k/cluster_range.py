"""The range of keys in which the k-th key of a row lies, found digit by digit by all blocks of a cluster.

For each digit:

1. Each block counts those of its keys that are in the range so far, in bins of its own.
2. It sends all blocks how many are in each page of 64 bins. They add these totals up, so that all know the page
   that the k-th key is in.
3. Each block sends all blocks the counts of that page. They add up to the digit, and to how many selected keys
   the blocks before have: that is where the results of this block begin.

One warp does what follows the counting. There are two sets of bins, one of which is cleared meanwhile.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    ballot,
    count_shared_if,
    load_shared_u16,
    load_shared_u32,
    load_shared_u32x4,
    load_shared_u64,
    next_pass,
    popcount_u32,
    send_u32x4,
    store_shared_u16,
    store_shared_u32x4,
    store_shared_u64,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_messages import PAGES, TOTALS, announce, barrier_at, of_block, wait_for_all
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.shapes import (
    CLUSTER_BINS,
    CLUSTER_LARGEST_K,
    CLUSTER_THREADS,
    LARGEST_CLUSTER,
    VECTOR_BYTES,
    WARP_LANES,
)
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions

u32 = types.uint32
u64 = types.uint64

DIGIT_BITS = CLUSTER_BINS.bit_length() - 1
# A page per warp, of which a lane has two bins.
_N_PAGES = CLUSTER_THREADS // WARP_LANES
_PAGE_BINS = CLUSTER_BINS // _N_PAGES
# The areas lie one behind the other, and begin at these bytes. They hold: two sets of bins, of 4 bytes each; how
# many keys each page has in all blocks, and in this one, in 2 bytes each; and the counts of a page in all blocks.
_BINS = 4 * CLUSTER_BINS
_BLOCK_TOTALS = 2 * _N_PAGES
_TOTALS = 2 * _BINS
_OWN_TOTALS = _TOTALS + LARGEST_CLUSTER * _BLOCK_TOTALS
_BLOCK_PAGE = 2 * _PAGE_BINS
_PAGE = _OWN_TOTALS + _BLOCK_TOTALS
RANGE_BYTES = _PAGE + LARGEST_CLUSTER * _BLOCK_PAGE
_TOTALS_VECTORS = _BLOCK_TOTALS // VECTOR_BYTES
_PAGE_VECTORS = _BLOCK_PAGE // VECTOR_BYTES
# The counts of so many blocks are added two in a word. More than are selected do not matter.
_PACKED_BLOCKS = 8
_LARGEST_COUNT = 0xFFFF // _PACKED_BLOCKS
assert _LARGEST_COUNT > CLUSTER_LARGEST_K
# What `find_digit` finds: the digit, the number of the k-th key among those that have it, and how many these
# are; and how many keys the blocks before have that are above, and that have it.
DIGIT, N_LEFT, N_TIES, N_ABOVE_BEFORE, N_TIES_BEFORE, N_FOUND = range(6)


class RangeFunctions(NamedTuple):
    """Device functions for one element width; `memory` is the address of `RANGE_BYTES` of shared memory."""

    begin: Any
    find_digit: Any


@linked_function
def count_pages(bins, own_totals, thread):
    """Write down how many keys each page of this block has: each warp counts one."""
    pair = load_shared_u64(bins + (thread << 3))
    total = warp_add(u32(pair) + u32(pair >> 32))
    if thread & 31 == 0:
        store_shared_u16(own_totals + (thread >> 5 << 1), min(total, u32(_LARGEST_COUNT)))


@linked_function
def send_totals(own_totals, totals, barrier, lane, rank, n_blocks):
    """Send all blocks how many keys each page of this one has: a lane sends half of it to a block."""
    block = lane % LARGEST_CLUSTER
    at = lane // LARGEST_CLUSTER * (_BLOCK_TOTALS // 2)
    if block < n_blocks:
        to, at_barrier = of_block(totals + rank * _BLOCK_TOTALS + at, barrier, block)
        for vector in range(0, _BLOCK_TOTALS // 2, VECTOR_BYTES):
            send_u32x4(to + vector, *load_shared_u32x4(own_totals + at + vector), at_barrier)


@device_function
def packed_counts(first, second):
    return min(first, u32(_LARGEST_COUNT)) | (min(second, u32(_LARGEST_COUNT)) << 16)


@linked_function
def send_page(bins, page, barrier, lane, rank, n_blocks):
    """Send all blocks the counts of a page, of which a lane has a vector."""
    vector = lane % _PAGE_VECTORS
    at = bins + vector * (2 * VECTOR_BYTES)
    a, b, c, d = load_shared_u32x4(at)
    e, f, g, h = load_shared_u32x4(at + VECTOR_BYTES)
    words = packed_counts(a, b), packed_counts(c, d), packed_counts(e, f), packed_counts(g, h)
    block = lane // _PAGE_VECTORS
    while block < n_blocks:
        to, at_barrier = of_block(page + rank * _BLOCK_PAGE + vector * VECTOR_BYTES, barrier, block)
        send_u32x4(to, *words, at_barrier)
        block += WARP_LANES // _PAGE_VECTORS


@linked_function
def find_page(totals, n_left, lane, rank):
    """Return the page of the key that is number `n_left` from the top, and its number within it.

    Lanes go through the pages from the last to the first. What is returned third is how many keys the blocks
    before have that are above the page.
    """
    at = totals + ((_N_PAGES - 1 - lane) << 1)
    amount = u32(0)
    before = u32(0)
    for block in range(LARGEST_CLUSTER):
        of_one = load_shared_u16(at + block * _BLOCK_TOTALS)
        amount += of_one
        if block < rank:
            before += of_one
    through = warp_inclusive_sum(amount)
    is_above = through < n_left
    place = popcount_u32(ballot(is_above))
    if not is_above:
        amount = u32(0)
        before = u32(0)
    return _N_PAGES - 1 - place, n_left - warp_add(amount), warp_add(before)


@linked_function
def read_page(page, found, first, n_left, n_above_before, lane, rank):
    """Find the digit in its page, whose first bin is number `first`, and write it down.

    Lanes go through the bins from the last to the first, two at a time.
    """
    at = page + ((WARP_LANES - 1 - lane) << 2)
    upper = u32(0)
    lower = u32(0)
    upper_before = u32(0)
    lower_before = u32(0)
    for begin in range(0, LARGEST_CLUSTER, _PACKED_BLOCKS):
        pairs = u32(0)
        before = u32(0)
        for block in range(begin, begin + _PACKED_BLOCKS):
            pair = load_shared_u32(at + block * _BLOCK_PAGE)
            pairs += pair
            if block < rank:
                before += pair
        upper += pairs >> 16
        lower += pairs & 0xFFFF
        upper_before += before >> 16
        lower_before += before & 0xFFFF
    through = warp_inclusive_sum(upper + lower)
    is_above = through < n_left
    place = popcount_u32(ballot(is_above))
    amount = u32(0)
    before = u32(0)
    if is_above:
        amount = upper + lower
        before = upper_before + lower_before
    n_left -= warp_add(amount)
    before = n_above_before + warp_add(before)
    if lane == place:
        bin = first + 2 * (WARP_LANES - 1 - lane) + 1
        if n_left > upper:
            bin -= 1
            n_left -= upper
            before += upper_before
            upper = lower
            upper_before = lower_before
        found[DIGIT] = bin
        found[N_LEFT] = n_left
        found[N_TIES] = upper
        found[N_ABOVE_BEFORE] = before
        found[N_TIES_BEFORE] = upper_before


@functools.cache
def range_functions(element_size: int) -> RangeFunctions:
    """Make the functions for one element width."""
    key_type = element_functions(element_size).key_type
    keys = key_functions(element_size)
    load_vector, key_at, n_words = keys.load_vector, keys.key_at, keys.n_words
    per_vector = VECTOR_BYTES // element_size

    @linked_function
    def begin(memory, thread, n_blocks):
        """Clear what is read before it is written, in this block: bins, and what no block writes."""
        at = thread * VECTOR_BYTES
        while at < RANGE_BYTES:
            is_of_block = at >= _TOTALS and at < _TOTALS + n_blocks * _BLOCK_TOTALS
            is_of_block |= at >= _PAGE and at < _PAGE + n_blocks * _BLOCK_PAGE
            if not is_of_block:
                store_shared_u32x4(memory + at, u32(0), u32(0), u32(0), u32(0))
            at += CLUSTER_THREADS * VECTOR_BYTES

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

    @device_function
    def find_digit(areas, turn, row_keys, bounds, shift, n_left, ids):
        """Write down the digit at bit `shift` of the key that is number `n_left` from the top of a range.

        `areas` are the shared array `found`, and the addresses of room for the search, and of the barriers;
        `turn` tells how many digits the cluster has found before. `row_keys` are ``(own, n_steps)``, `bounds`
        ``(low, span)`` of the range, and `ids` ``(thread, rank, n_blocks)``.
        """
        found, memory, barriers = areas
        thread, rank, n_blocks = ids
        lane = thread & 31
        half = turn & 1
        bins = memory + half * _BINS
        totals = memory + _TOTALS
        page = memory + _PAGE
        own_totals = memory + _OWN_TOTALS
        for_totals = barrier_at(barriers, TOTALS)
        for_page = barrier_at(barriers, PAGES)
        count_digits(*row_keys, bins, *bounds, shift)
        cuda.syncthreads()
        count_pages(bins, own_totals, thread)
        cuda.syncthreads()
        if thread < WARP_LANES:
            if lane == 0:
                announce(for_totals, n_blocks * _BLOCK_TOTALS)
                announce(for_page, n_blocks * _BLOCK_PAGE)
            send_totals(own_totals, totals, for_totals, lane, rank, n_blocks)
            wait_for_all(for_totals, half)
            number, n_left, n_above_before = find_page(totals, n_left, lane, rank)
            first = number * _PAGE_BINS
            send_page(bins + (first << 2), page, for_page, lane, rank, n_blocks)
            wait_for_all(for_page, half)
            read_page(page, found, first, n_left, n_above_before, lane, rank)
        else:
            # Nobody reads the bins of the digit before any more.
            bin = thread - WARP_LANES
            while bin < CLUSTER_BINS // 2:
                store_shared_u64(memory + (1 - half) * _BINS + (bin << 3), u64(0))
                bin += CLUSTER_THREADS - WARP_LANES
        cuda.syncthreads()

    return RangeFunctions(begin, find_digit)
