"""The search for the first index tuple out of range."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.addressing import index_functions
from kernels_cuda.gather_nd.parameters import CHECKED_TUPLES, THREADS, CheckDims, CheckParameters
from kernels_cuda.layout import NARROW_DEPTH
from kernels_cuda.offsets import dims_type, offset_functions
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function

# The answer if all tuples are in range.
NO_TUPLE = (1 << 63) - 1


def check_kernel(index_size: int, is_long: bool) -> Any:
    """Make the kernel that finds the first tuple out of range, if that is lower than one found before."""
    index_register, read_index, bring = index_functions(index_size, is_long)
    one_offset, _, _ = offset_functions(wide=False)

    @device_function
    def bad_among(addresses, c, bound, p):
        """Return one bit per tuple, set where its coordinate number `c` is out of range."""
        offset = c * p.tuples.coordinate_bytes
        found = cuda.local.array(CHECKED_TUPLES, index_register)
        bad = u32(0)
        for k in range(CHECKED_TUPLES):
            found[k] = read_index(addresses[k] + offset, p.tuples.least_index)
        for k in range(CHECKED_TUPLES):
            _, is_in_range = bring(found[k], bound, p.tuples.least_index)
            if not is_in_range:
                bad |= u32(1 << k)
        return bad

    @cuda.jit
    def gather_check(indices, first_output, p: CheckParameters, dims: dims_type(CheckDims, wide=False)):
        ptx.grid_dependency_wait()
        addresses = cuda.local.array(CHECKED_TUPLES, i64)
        last = u32(p.n_tuples - 1)
        step = u32(cuda.gridDim.x) * u32(THREADS * CHECKED_TUPLES)
        start = u32(cuda.blockIdx.x) * u32(THREADS * CHECKED_TUPLES) + u32(cuda.threadIdx.x)
        lowest = u32(0xFFFFFFFF)
        # A thread goes through tuples in ascending order: its first bad one is its lowest.
        while start <= last and lowest == 0xFFFFFFFF:
            for k in range(CHECKED_TUPLES):
                position = min(start + u32(k * THREADS), last)
                addresses[k] = indices + one_offset(position, dims, dims.index_strides)
            bad = u32(0)
            # The compiler unrolls this loop, and so knows all indices of columns, which have no addresses.
            for c in range(NARROW_DEPTH):
                if c == 0 or p.tuples.n_coordinates > c:
                    bad |= bad_among(addresses, c, dims.bounds[c], p)
            if bad != 0:
                k = ptx.popcount_u32((bad & (0 - bad)) - 1)
                lowest = min(start + k * THREADS, last)
            start += step
        lowest = ptx.warp_min(lowest)
        if lowest != 0xFFFFFFFF and u32(cuda.threadIdx.x) & 31 == 0:
            ptx.reduce_min_u64(first_output, u64(p.first_position + i64(lowest)))

    return gather_check


def clear_kernel() -> Any:
    """Make the kernel that says that no tuple is out of range."""

    @cuda.jit
    def gather_clear(first_output):
        ptx.store_u64(first_output, u64(NO_TUPLE))

    return gather_clear
