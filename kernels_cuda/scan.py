"""Sums over the lanes of a warp and the warps of a block."""

from typing import Any

from numba import cuda

from kernels_cuda.ptx import u32, warp_add, warp_inclusive_sum
from kernels_cuda.runtime.compiler import device_function


def scan_of_warps(n_threads: int) -> Any:
    """Make the device function ``exclusive_sum_of_warps(of_warp, thread, totals)`` for such blocks.

    It returns the sum of `of_warp`, which the last lane of each warp must know, over the warps before this
    one and over all. `totals` is a shared array of one uint32 per warp; all threads must call, and pass a
    barrier before they call again with the same array.
    """
    n_warps = n_threads // 32

    @device_function
    def exclusive_sum_of_warps(of_warp, thread, totals):
        lane = thread & 31
        warp = thread >> 5
        if lane == 31:
            totals[warp] = of_warp
        cuda.syncthreads()
        total = u32(0)
        if lane < n_warps:
            total = totals[lane]
        before = u32(0)
        if lane < warp:
            before = total
        return warp_add(before), warp_add(total)

    return exclusive_sum_of_warps


def block_scan(n_threads: int) -> Any:
    """Make the device function ``block_exclusive_sum(value, thread, totals)`` for blocks of `n_threads`.

    It returns the sum of `value` over the threads before this one and over all. `totals` is a shared array of
    one uint32 per warp; all threads must call, and pass a barrier before they call again with the same array.
    """
    exclusive_sum_of_warps = scan_of_warps(n_threads)

    @device_function
    def block_exclusive_sum(value, thread, totals):
        inclusive = warp_inclusive_sum(value)
        before, total = exclusive_sum_of_warps(inclusive, thread, totals)
        return before + (inclusive - value), total

    return block_exclusive_sum


@device_function
def block_add(value, thread, totals, n_warps):
    """Return the sum of `value` (uint32) over the block; `totals` as in `block_scan`."""
    of_warp = warp_add(value)
    lane = thread & 31
    if lane == 0:
        totals[thread >> 5] = of_warp
    cuda.syncthreads()
    share = u32(0)
    if lane < n_warps:
        share = totals[lane]
    return warp_add(share)
