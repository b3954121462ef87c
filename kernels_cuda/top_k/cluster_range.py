"""The range of keys in which the k-th key of a row lies, found digit by digit by all blocks of a cluster.

For each digit:

1. Each block counts those of its keys that are in the range so far, in bins of its own.
2. It sends all blocks its counts, as far as they matter.
3. Each block adds up the counts of all of them: that tells the digit, and how many selected keys the blocks
   before have, which is where the results of this block begin.

There are two of everything, for a block may go on to the next digit while others still read.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.ptx import (
    ballot,
    count_shared_if,
    leading_zeros_u32,
    load_shared_u32x4,
    next_pass,
    send_u32x4,
    store_shared_u32x4,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_messages import DIGITS, announce, barrier_at, of_block, wait_for_all
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.shapes import (
    CLUSTER_LARGEST_K,
    CLUSTER_THREADS,
    DIGIT_BITS,
    LARGEST_CLUSTER,
    N_DIGITS,
    VECTOR_BYTES,
    WARP_LANES,
)
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions

u32 = types.uint32

# In bytes, from set to set: the bins, of 4 bytes each; the counts of all blocks, of 2 bytes each.
_BINS = 4 * N_DIGITS
_BLOCK_COUNTS = 2 * N_DIGITS
_COUNTS = LARGEST_CLUSTER * _BLOCK_COUNTS
RANGE_BYTES = 2 * (_BINS + _COUNTS)
_FIRST_COUNTS = 2 * _BINS
# Each lane of a warp has a vector of counts.
_LANE_BINS = N_DIGITS // WARP_LANES
_LANE_WORDS = VECTOR_BYTES // 4
# Blocks whose counts are added as they are, two in a word. More than are selected do not matter.
_PACKED_BLOCKS = 8
_LARGEST_COUNT = 0xFFFF // _PACKED_BLOCKS
assert _LARGEST_COUNT > CLUSTER_LARGEST_K
# More warps than these are no faster.
_SENDING_WARPS = 4
_RECEIVING_WARP = _SENDING_WARPS
# What `find_digit` finds: the digit, the number of the k-th key among those that have it, and how many these
# are; and how many keys the blocks before have that are above, and that have it.
DIGIT, N_LEFT, N_TIES, N_ABOVE_BEFORE, N_TIES_BEFORE, N_FOUND = range(6)


class RangeFunctions(NamedTuple):
    """Device functions for one element width; `memory` is the address of `RANGE_BYTES` of shared memory."""

    begin: Any
    find_digit: Any


@device_function
def pack_counts(first, second):
    return min(first, u32(_LARGEST_COUNT)) | (min(second, u32(_LARGEST_COUNT)) << 16)


@device_function
def sum_of_halves(words):
    total = u32(0)
    for word in range(_LANE_WORDS):
        total += (words[word] & 0xFFFF) + (words[word] >> 16)
    return total


@linked_function
def send_counts(bins, counts, barrier, lane, warp, rank, n_blocks):
    """Send the counts of this block to all: each sending warp to some of them."""
    at = bins + lane * (4 * _LANE_BINS)
    a, b, c, d = load_shared_u32x4(at)
    e, f, g, h = load_shared_u32x4(at + VECTOR_BYTES)
    words = pack_counts(a, b), pack_counts(c, d), pack_counts(e, f), pack_counts(g, h)
    at = counts + rank * _BLOCK_COUNTS + lane * VECTOR_BYTES
    block = warp
    while block < n_blocks:
        to, at_barrier = of_block(at, barrier, block)
        send_u32x4(to, *words, at_barrier)
        block += _SENDING_WARPS


@linked_function
def read_digit(counts, found, n_left, lane, rank):
    """Find the digit of the key that is number `n_left` from the top, and write it down.

    The lanes of a warp go through the bins from the last to the first, as many at a time as a vector has.
    """
    totals = cuda.local.array(_LANE_BINS, u32)
    totals_before = cuda.local.array(_LANE_BINS, u32)
    sums = cuda.local.array(_LANE_WORDS, u32)
    sums_before = cuda.local.array(_LANE_WORDS, u32)
    for bin in range(_LANE_BINS):
        totals[bin] = u32(0)
        totals_before[bin] = u32(0)
    group = u32(WARP_LANES - 1) - lane
    at = counts + group * VECTOR_BYTES
    for first in range(0, LARGEST_CLUSTER, _PACKED_BLOCKS):
        for word in range(_LANE_WORDS):
            sums[word] = u32(0)
            sums_before[word] = u32(0)
        for block in range(first, first + _PACKED_BLOCKS):
            words = load_shared_u32x4(at + block * _BLOCK_COUNTS)
            for word in range(_LANE_WORDS):
                sums[word] += words[word]
                if block < rank:
                    sums_before[word] = sums[word]
        for word in range(_LANE_WORDS):
            totals[2 * word] += sums[word] & 0xFFFF
            totals[2 * word + 1] += sums[word] >> 16
            totals_before[2 * word] += sums_before[word] & 0xFFFF
            totals_before[2 * word + 1] += sums_before[word] >> 16
    amount = u32(0)
    before = u32(0)
    for bin in range(_LANE_BINS):
        amount += totals[bin]
        before += totals_before[bin]
    through = warp_inclusive_sum(amount)
    n_left -= through - amount
    place = 31 - leading_zeros_u32(ballot(n_left - 1 < amount))
    if lane >= place:
        before = u32(0)
    before = warp_add(before)
    if lane == place:
        bin = u32(_LANE_BINS - 1)
        n_ties = totals[_LANE_BINS - 1]
        n_ties_before = totals_before[_LANE_BINS - 1]
        for other in range(_LANE_BINS - 2, -1, -1):
            if n_left > n_ties:
                n_left -= n_ties
                before += n_ties_before
                n_ties = totals[other]
                n_ties_before = totals_before[other]
                bin -= 1
        found[DIGIT] = group * _LANE_BINS + bin
        found[N_LEFT] = n_left
        found[N_TIES] = n_ties
        found[N_ABOVE_BEFORE] = before
        found[N_TIES_BEFORE] = n_ties_before


@functools.cache
def range_functions(element_size: int) -> RangeFunctions:
    """Make the functions for one element width."""
    key_type = element_functions(element_size).key_type
    keys = key_functions(element_size)
    load_vector, key_at, n_words = keys.load_vector, keys.key_at, keys.n_words
    per_vector = VECTOR_BYTES // element_size

    @linked_function
    def begin(memory, thread):
        """Clear all that is read before it is written, in this block."""
        at = thread * VECTOR_BYTES
        while at < RANGE_BYTES:
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

        `areas` are the shared array `found`, the address of room for the search, and that of the barriers;
        `turn` tells how many digits the cluster has found before. `row_keys` are ``(own, n_steps)``, `bounds`
        ``(low, span)`` of the range, and `ids` ``(thread, rank, n_blocks)``.
        """
        found, memory, barriers = areas
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        half = turn & 1
        bins = memory + half * _BINS
        counts = memory + _FIRST_COUNTS + half * _COUNTS
        barrier = barrier_at(barriers, DIGITS + half)
        count_digits(*row_keys, bins, *bounds, shift)
        cuda.syncthreads()
        if warp < _SENDING_WARPS:
            send_counts(bins, counts, barrier, lane, warp, rank, n_blocks)
        elif warp == _RECEIVING_WARP:
            if lane == 0:
                announce(barrier, n_blocks * _BLOCK_COUNTS)
            wait_for_all(barrier, (turn >> 1) & 1)
            read_digit(counts, found, n_left, lane, rank)
        elif thread >= CLUSTER_THREADS - _BINS // VECTOR_BYTES:
            # Nobody reads the bins of the digit before any more.
            at = memory + (1 - half) * _BINS + (CLUSTER_THREADS - 1 - thread) * VECTOR_BYTES
            store_shared_u32x4(at, u32(0), u32(0), u32(0), u32(0))
        cuda.syncthreads()

    return RangeFunctions(begin, find_digit)
