"""The range of keys in which the k-th key of a row lies, found digit by digit by all blocks of a cluster.

For each digit:

1. Each block counts those of its keys that are in the range so far, in bins of its own.
2. It sends all blocks how many are in each page of 64 bins. Where all keys in the range may be equal, it also
   sends the largest and the smallest of its own: if they are, that is the end.
3. Each block adds these totals up, so that it knows the page that the k-th key is in, and reads the bins of
   this page, from one block per warp.
4. These add up to the digit, and to how many selected keys the blocks before have: that is where the results
   of this block begin.

State is double-buffered, because a block may go on to the next digit while others still read.
"""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.many_blocks.cluster_launches import (
    CLUSTER_BINS,
    CLUSTER_THREADS,
    CLUSTER_WARPS,
    LARGEST_CLUSTER,
)
from kernels_cuda.top_k.many_blocks.cluster_messages import (
    TOTALS,
    announce,
    barrier_at,
    of_block,
    wait_for_all,
)
from kernels_cuda.top_k.many_blocks.shared_keys import STEP_BYTES, key_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES

DIGIT_BITS = CLUSTER_BINS.bit_length() - 1
# A page per warp, of which a lane has two bins.
_N_PAGES = CLUSTER_THREADS // WARP_LANES
_PAGE_BINS = CLUSTER_BINS // _N_PAGES
# In bytes, from set to set: the bins; the totals, by block and page; the bins of a page, of all blocks and of
# those before. There is one set only of what is known of that page, and of the totals of this block.
_BINS = 4 * CLUSTER_BINS
_BLOCK_TOTALS = 4 * _N_PAGES
_TOTALS_VECTORS = _BLOCK_TOTALS // VECTOR_BYTES
_TOTALS = LARGEST_CLUSTER * _BLOCK_TOTALS
_PAGE = 2 * 4 * _PAGE_BINS
_FIRST_TOTALS = 2 * _BINS
_FIRST_PAGE = _FIRST_TOTALS + 2 * _TOTALS
_KNOWN = _FIRST_PAGE + 2 * _PAGE
_OWN_TOTALS = _KNOWN + VECTOR_BYTES
# The largest and the smallest key of each block, and of each warp of this one: two numbers of up to 8 bytes.
_FIRST_ENDS = _OWN_TOTALS + _BLOCK_TOTALS
_ENDS = LARGEST_CLUSTER * VECTOR_BYTES
_OWN_ENDS = _FIRST_ENDS + 2 * _ENDS
RANGE_BYTES = _OWN_ENDS + CLUSTER_WARPS * VECTOR_BYTES
# Places of what `find_digit` finds: the digit, the number of the k-th key among those that have it, and how
# many these are; and how many keys the blocks before have that are above, and that have it.
DIGIT, N_LEFT, N_TIES, N_ABOVE_BEFORE, N_TIES_BEFORE, N_FOUND = range(6)


@functools.cache
def range_functions(element_size: int) -> tuple[Any, Any]:
    """Make the device functions `begin` and `find_digit` for one element width.

    `memory` is the address of `RANGE_BYTES` of shared memory.
    """
    key_type = element_functions(element_size).key_type
    keys = key_functions(element_size)
    load_vector, key_at, n_words = keys.load_vector, keys.key_at, keys.n_words
    warp_max = warp_maximum(key_type)
    per_vector = VECTOR_BYTES // element_size

    @linked_function
    def begin(memory, thread, n_blocks):
        """Clear all that is read before it is written, in this block."""
        ptx.store_shared_u64(memory + (thread << 3), u64(0))
        if thread // _N_PAGES % LARGEST_CLUSTER >= n_blocks:
            ptx.store_shared_u32(memory + _FIRST_TOTALS + (thread << 2), u32(0))
        if thread < _PAGE // 8:
            ptx.store_shared_u64(memory + _FIRST_PAGE + (thread << 3), u64(0))

    @linked_function
    def count_digits(own, n_steps, bins, low, span, shift):
        """Count the digits at bit `shift` of a thread's keys from `low` to ``low + span``."""
        words = cuda.local.array(n_words, key_type)
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            for element in range(per_vector):
                offset = key_at(words, element) - low
                ptx.count_shared_if(bins + (u32(offset >> key_type(shift)) << 2), offset <= span)
            own += STEP_BYTES
            step = ptx.next_pass(step)

    @linked_function
    def find_ends(own, n_steps, low, span):
        """Return how far the largest of a thread's keys from `low` to ``low + span`` is above `low`.

        The second number is the complement of how far the smallest is. Both are 0 where there is none.
        """
        words = cuda.local.array(n_words, key_type)
        largest = key_type(0)
        smallest = key_type(0)
        step = u32(0)
        while step < n_steps:
            load_vector(words, own)
            for element in range(per_vector):
                offset = key_at(words, element) - low
                if offset <= span:
                    largest = max(largest, offset)
                    smallest = max(smallest, ~offset)
            own += STEP_BYTES
            step = ptx.next_pass(step)
        return largest, smallest

    @device_function
    def store_ends(address, largest, smallest):
        ptx.store_shared_u64(address, u64(largest))
        ptx.store_shared_u64(address + 8, u64(smallest))

    @linked_function
    def ends_of_all(address, n_ends, lane):
        """Return the maxima of up to 32 pairs, of which a lane takes one."""
        largest = key_type(0)
        smallest = key_type(0)
        if lane < n_ends:
            largest = key_type(ptx.load_shared_u64(address + lane * VECTOR_BYTES))
            smallest = key_type(ptx.load_shared_u64(address + lane * VECTOR_BYTES + 8))
        return warp_max(largest), warp_max(smallest)

    @linked_function
    def share(row_keys, bounds, bins, memory, half, barrier, parity, finds_ends, ids):
        """Send all blocks how many keys each page of this one has, and its ends; wait for theirs."""
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        own_totals = memory + _OWN_TOTALS
        totals = memory + _FIRST_TOTALS + half * _TOTALS
        pair = ptx.load_shared_u64(bins + (thread << 3))
        total = ptx.warp_add(u32(pair) + u32(pair >> 32))
        if finds_ends:
            largest, smallest = find_ends(*row_keys, *bounds)
            largest, smallest = warp_max(largest), warp_max(smallest)
            if lane == 0:
                store_ends(memory + _OWN_ENDS + warp * VECTOR_BYTES, largest, smallest)
        if lane == 0:
            ptx.store_shared_u32(own_totals + (warp << 2), total)
        cuda.syncthreads()
        if thread < n_blocks * _TOTALS_VECTORS:
            at = thread % _TOTALS_VECTORS * VECTOR_BYTES
            to, at_barrier = of_block(totals + rank * _BLOCK_TOTALS + at, barrier, thread // _TOTALS_VECTORS)
            ptx.send_u32x4(to, *ptx.load_shared_u32x4(own_totals + at), at_barrier)
        if finds_ends and warp == CLUSTER_WARPS - 1:
            largest, smallest = ends_of_all(memory + _OWN_ENDS, u32(CLUSTER_WARPS), lane)
            cuda.syncwarp()
            if lane == 0:
                store_ends(memory + _OWN_ENDS, largest, smallest)
            cuda.syncwarp()
            if lane < n_blocks:
                place = memory + _FIRST_ENDS + half * _ENDS + rank * VECTOR_BYTES
                to, at_barrier = of_block(place, barrier, lane)
                ptx.send_u32x4(to, *ptx.load_shared_u32x4(memory + _OWN_ENDS), at_barrier)
        wait_for_all(barrier, parity)

    @linked_function
    def read_page(bins, totals, page, known, n_left, lane, warp, rank):
        """Find the page of the key that is number `n_left` from the top, and add up its bins.

        Lanes go through the pages from the last to the first. Each warp adds the bins of another block.
        """
        at = totals + ((_N_PAGES - 1 - lane) << 2)
        amount = u32(0)
        before = u32(0)
        for block in range(LARGEST_CLUSTER):
            of_block = ptx.load_shared_u32(at + block * _BLOCK_TOTALS)
            amount += of_block
            if block < rank:
                before += of_block
        through = ptx.warp_inclusive_sum(amount)
        place = 31 - ptx.leading_zeros_u32(ptx.ballot(through - amount < n_left <= through))
        first = (_N_PAGES - 1 - place) * _PAGE_BINS
        pair = ptx.load_cluster_u64(ptx.cluster_address(bins + (first << 2) + (lane << 3), warp))
        ptx.reduce_add_shared_u32(page + (lane << 3), u32(pair))
        ptx.reduce_add_shared_u32(page + (lane << 3) + 4, u32(pair >> 32))
        if warp < rank:
            ptx.reduce_add_shared_u32(page + _PAGE // 2 + (lane << 3), u32(pair))
            ptx.reduce_add_shared_u32(page + _PAGE // 2 + (lane << 3) + 4, u32(pair >> 32))
        if warp == 0:
            if lane >= place:
                before = u32(0)
            before = ptx.warp_add(before)
            if lane == place:
                ptx.store_shared_u32(known, first)
                ptx.store_shared_u32(known + 4, n_left - (through - amount))
                ptx.store_shared_u32(known + 8, before)

    @linked_function
    def read_digit(page, known, found, lane):
        """Find the digit in its page, and write it down.

        A warp does, whose lanes go through the bins from the last to the first, two at a time.
        """
        n_left = ptx.load_shared_u32(known + 4)
        bin = 2 * (WARP_LANES - 1 - lane)
        pair = ptx.load_shared_u64(page + (bin << 2))
        pair_before = ptx.load_shared_u64(page + _PAGE // 2 + (bin << 2))
        n_ties = u32(pair >> 32)
        n_ties_before = u32(pair_before >> 32)
        both = n_ties + u32(pair)
        through = ptx.warp_inclusive_sum(both)
        n_left -= through - both
        place = 31 - ptx.leading_zeros_u32(ptx.ballot(n_left - 1 < both))
        before = u32(0)
        if lane < place:
            before = n_ties_before + u32(pair_before)
        bin += 1
        if n_left > n_ties:
            bin -= 1
            n_left -= n_ties
            if lane == place:
                before = n_ties_before
            n_ties = u32(pair)
            n_ties_before = u32(pair_before)
        before = ptx.warp_add(before)
        if lane == place:
            found[DIGIT] = ptx.load_shared_u32(known) + bin
            found[N_LEFT] = n_left
            found[N_TIES] = n_ties
            found[N_ABOVE_BEFORE] = ptx.load_shared_u32(known + 8) + before
            found[N_TIES_BEFORE] = n_ties_before

    @device_function
    def find_digit(areas, digit_number, row_keys, bounds, shift, n_left, finds_ends, ids):
        """Write down the digit at bit `shift` of the key that is number `n_left` from the top of a range.

        Or, with `finds_ends`, if all keys in the range are equal, write down nothing. Return whether that is
        so, and how far they are above the lower bound.

        `areas` are the shared array `found`, and the addresses of room for the search and of the barriers;
        `digit_number` is how many digits the cluster has looked for before. `row_keys` are ``(own,
        n_steps)``, `bounds` ``(low, span)`` of the range, and `ids` ``(thread, rank, n_blocks)``.
        """
        found, memory, barriers = areas
        thread, rank, n_blocks = ids
        lane = thread & 31
        warp = thread >> 5
        half = digit_number & 1
        other = 1 - half
        bins = memory + half * _BINS
        totals = memory + _FIRST_TOTALS + half * _TOTALS
        page = memory + _FIRST_PAGE + half * _PAGE
        known = memory + _KNOWN
        barrier = barrier_at(barriers, TOTALS + half)
        if thread == 0:
            n_bytes = u32(_BLOCK_TOTALS)
            if finds_ends:
                n_bytes += VECTOR_BYTES
            announce(barrier, n_blocks * n_bytes)
        count_digits(*row_keys, bins, *bounds, shift)
        cuda.syncthreads()
        parity = (digit_number >> 1) & 1
        share(row_keys, bounds, bins, memory, half, barrier, parity, finds_ends, ids)
        # No block reads the other set any more.
        ptx.store_shared_u64(memory + other * _BINS + (thread << 3), u64(0))
        if thread < _PAGE // 8:
            ptx.store_shared_u64(memory + _FIRST_PAGE + other * _PAGE + (thread << 3), u64(0))
        is_one = False
        smallest = key_type(0)
        if finds_ends:
            largest, smallest = ends_of_all(memory + _FIRST_ENDS + half * _ENDS, n_blocks, lane)
            smallest = ~smallest
            is_one = largest == smallest
        if not is_one:
            if warp < n_blocks:
                read_page(bins, totals, page, known, n_left, lane, warp, rank)
            cuda.syncthreads()
            if warp == 0:
                read_digit(page, known, found, lane)
        cuda.syncthreads()
        return is_one, smallest

    return begin, find_digit
