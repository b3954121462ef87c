"""Sums over the lanes of a warp and the warps of a block."""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import warp_add, warp_inclusive_sum
from kernels_cuda.runtime.compiler import device_function

u32 = types.uint32


def block_scan(n_threads: int) -> Any:
    """Make the device function ``block_exclusive_sum(value, thread, totals)`` for blocks of `n_threads`.

    It returns the sum of `value` over the threads before this one and over all. `totals` is a shared array of
    one uint32 per warp; all threads must call, and pass a barrier before they call again with the same array.
    """
    n_warps = n_threads // 32

    @device_function
    def block_exclusive_sum(value, thread, totals):
        lane = thread & 31
        warp = thread >> 5
        inclusive = warp_inclusive_sum(value)
        if lane == 31:
            totals[warp] = inclusive
        cuda.syncthreads()
        of_warp = u32(0)
        if lane < n_warps:
            of_warp = totals[lane]
        before = u32(0)
        if lane < warp:
            before = of_warp
        return warp_add(before) + (inclusive - value), warp_add(of_warp)

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
