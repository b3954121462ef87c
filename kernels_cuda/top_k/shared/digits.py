"""Ranks of keys by a digit, within a warp and within a block, for sorts in shared memory."""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u16, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.shapes import N_DIGITS, WARP_LANES


@functools.cache
def digit_functions(key_type: Any, n_items: int) -> tuple[Any, Any]:
    """Make `digit_of`, whose digits ascend as keys descend, and `rank_in_warp`, `n_items` keys per lane."""

    @device_function
    def digit_of(key, shift):
        return u32(N_DIGITS - 1) - (u32(key >> key_type(shift)) & u32(N_DIGITS - 1))

    @device_function
    def rank_in_warp(keys, places, warp_counts, own_counts, shift):
        """Rank each key among those of its digit in its warp: 32 keys at a time, in order."""
        below = ptx.lanes_below()
        for item in range(n_items):
            digit = digit_of(keys[item], shift)
            same = ptx.match_byte(digit)
            counter = own_counts + digit
            already = u32(warp_counts[counter])
            cuda.syncwarp()
            earlier = same & below
            if earlier == 0:
                warp_counts[counter] = u16(already + ptx.popcount_u32(same))
            cuda.syncwarp()
            places[item] = already + ptx.popcount_u32(earlier)

    return digit_of, rank_in_warp


@functools.cache
def block_digit_functions(n_threads: int) -> tuple[Any, Any]:
    """Make `clear_counts` and `counts_to_starts` of the counters that each warp of a block has for digits."""
    n_warps = n_threads // WARP_LANES
    exclusive_sum = block_scan(n_threads)

    @device_function
    def clear_counts(warp_counts, thread):
        counter = thread
        while counter < n_warps * N_DIGITS:
            warp_counts[counter] = u16(0)
            counter += n_threads

    @device_function
    def counts_to_starts(warp_counts, sums, thread):
        """Replace each count by how many keys come before: of smaller digits, or of earlier warps."""
        amount = u32(0)
        if thread < N_DIGITS:
            for other in range(n_warps):
                amount += u32(warp_counts[u32(other * N_DIGITS) + thread])
        start, _ = exclusive_sum(amount, thread, sums)
        if thread < N_DIGITS:
            for other in range(n_warps):
                of_warp = u32(warp_counts[u32(other * N_DIGITS) + thread])
                warp_counts[u32(other * N_DIGITS) + thread] = u16(start)
                start += of_warp

    return clear_counts, counts_to_starts
