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
    join_u32,
    load_shared_u16,
    load_shared_u32x2,
    load_shared_u32x4,
    next_pass,
    popcount_u32,
    send_u32x4,
    store_shared_u32x4,
    store_shared_u64,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.cluster_messages import DIGITS, announce, barrier_at, of_block, wait_for_all
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.shapes import (
    CLUSTER_THREADS,
    DIGIT_BITS,
    LARGEST_CLUSTER,
    N_DIGITS,
    VECTOR_BYTES,
    WARP_LANES,
)
from kernels_cuda.top_k.shared_keys import STEP_BYTES, key_functions

u32 = types.uint32

# In bytes, from set to set: the bins, of 4 bytes each; the counts of all blocks, of 2 bytes each. There is one
# set only of sums, for a digit is found before the next one is added up.
_BINS = 4 * N_DIGITS
_BLOCK_COUNTS = 2 * N_DIGITS
_COUNTS = LARGEST_CLUSTER * _BLOCK_COUNTS
_FIRST_COUNTS = 2 * _BINS
_SUMS = _FIRST_COUNTS + 2 * _COUNTS
_SUM_BYTES = 8
RANGE_BYTES = _SUMS + N_DIGITS * _SUM_BYTES
# A lane sends a vector of counts: of so many bins. More than are selected do not matter.
_LANE_BINS = N_DIGITS // WARP_LANES
_LARGEST_COUNT = 0xFFFF
# More warps than these send no faster. Those that add have a thread for each bin.
_SENDING_WARPS = 4
_FIRST_ADDING_WARP = 8
_ADDING_WARPS = N_DIGITS // WARP_LANES


class RangeFunctions(NamedTuple):
    """Device functions for one element width; `memory` is the address of `RANGE_BYTES` of shared memory."""

    begin: Any
    find_digit: Any


@device_function
def pack_counts(first, second):
    return min(first, u32(_LARGEST_COUNT)) | (min(second, u32(_LARGEST_COUNT)) << 16)


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
def add_counts(counts, sums, place, rank):
    """Add up the counts of a bin, and those of the bins of this warp that are above it.

    Threads go through the bins from the last to the first, and write down for each: how many keys all blocks
    have, and how many those before have.
    """
    at = counts + (u32(N_DIGITS - 1) - place) * 2
    total = u32(0)
    before = u32(0)
    for block in range(LARGEST_CLUSTER):
        count = load_shared_u16(at + block * _BLOCK_COUNTS)
        total += count
        if block < rank:
            before += count
    through = warp_inclusive_sum(total)
    through_before = warp_inclusive_sum(before)
    store_shared_u64(sums + place * _SUM_BYTES, join_u32(through, through_before))


@linked_function
def read_digit(sums, n_left, lane):
    """Return what `find_digit` does, of the sums that warps have written down."""
    through = u32(0)
    before = u32(0)
    if lane < _ADDING_WARPS:
        through, before = load_shared_u32x2(sums + (lane * WARP_LANES + (WARP_LANES - 1)) * _SUM_BYTES)
    # First the warp whose bins have the digit, then the bin.
    warp = popcount_u32(ballot(warp_inclusive_sum(through) < n_left))
    if lane >= warp:
        through = u32(0)
        before = u32(0)
    n_left -= warp_add(through)
    n_above_before = warp_add(before)
    at = sums + warp * WARP_LANES * _SUM_BYTES
    through, _ = load_shared_u32x2(at + lane * _SUM_BYTES)
    place = popcount_u32(ballot(through < n_left))
    above = u32(0)
    before = u32(0)
    if place > 0:
        above, before = load_shared_u32x2(at + (place - 1) * _SUM_BYTES)
    n_ties, n_ties_before = load_shared_u32x2(at + place * _SUM_BYTES)
    digit = u32(N_DIGITS - 1) - (warp * WARP_LANES + place)
    return digit, n_left - above, n_ties - above, n_above_before + before, n_ties_before - before


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
        """Find the digit at bit `shift` of the key that is number `n_left` from the top of a range.

        Returns the digit; the number of the key among those that have it, and how many these are; and how many
        keys the blocks before have that are above, and that have it.

        `areas` are the addresses of room for the search, and of the barriers; `turn` tells how many digits the
        cluster has found before. `row_keys` are ``(own, n_steps)``, `bounds` ``(low, span)`` of the range, and
        `ids` ``(thread, rank, n_blocks)``.
        """
        memory, barriers = areas
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
        elif _FIRST_ADDING_WARP <= warp < _FIRST_ADDING_WARP + _ADDING_WARPS:
            place = thread - _FIRST_ADDING_WARP * WARP_LANES
            if place == 0:
                announce(barrier, n_blocks * _BLOCK_COUNTS)
            wait_for_all(barrier, (turn >> 1) & 1)
            add_counts(counts, memory + _SUMS, place, rank)
        elif thread >= CLUSTER_THREADS - _BINS // VECTOR_BYTES:
            # Nobody reads the bins of the digit before any more.
            at = memory + (1 - half) * _BINS + (CLUSTER_THREADS - 1 - thread) * VECTOR_BYTES
            store_shared_u32x4(at, u32(0), u32(0), u32(0), u32(0))
        cuda.syncthreads()
        return read_digit(memory + _SUMS, n_left, lane)

    return RangeFunctions(begin, find_digit)
