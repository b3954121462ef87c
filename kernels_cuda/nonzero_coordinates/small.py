"""All steps in one block, for inputs that it reads in about the time of one more launch."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.nonzero_coordinates.expand import columns_type, store_count
from kernels_cuda.nonzero_coordinates.parameters import (
    GENERAL_COLUMNS,
    SMALL_IN_FLIGHT,
    SMALL_LIMIT,
    Dims,
    SmallParameters,
)
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function

_WORDS = SMALL_LIMIT // 32


def small_kernel(element_size: int) -> Any:
    """Make the kernel for any layout of up to `SMALL_LIMIT` elements, and up to `GENERAL_COLUMNS` columns.

    A warp turns every element into a bit of a word, and adds up the counts of all words before its own.
    """
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    _, _, quotient = arithmetic(wide=False)
    one_offset, _, _ = offset_functions(wide=False)

    @device_function
    def write_column(address, rest, multiplier, shift, period, size):
        """Write a coordinate, and return what is left of the position for the columns after it."""
        coordinate = quotient(rest, multiplier, shift)
        if size == 8:
            ptx.store_u64(address, u64(coordinate))
        else:
            ptx.store_u32(address, coordinate)
        return rest - coordinate * u32(period)

    @cuda.jit
    def nonzero_small(
        x,
        output,
        count_output,
        p: SmallParameters,
        dims: dims_type(Dims, wide=False),
        columns: columns_type(GENERAL_COLUMNS),
    ):
        words = cuda.shared.array(_WORDS, u32)
        elements = cuda.local.array(SMALL_IN_FLIGHT, register)
        threads = u32(cuda.blockDim.x)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        n_warps = threads >> 5
        n_elements = u32(p.end)
        for k in range(SMALL_IN_FLIGHT):
            position = u32(k) * threads + thread
            elements[k] = register(0)
            if position < n_elements and dims.n_dims == 1:
                elements[k] = read(x + i64(position) * dims.strides[0])
        if dims.n_dims > 1:
            for k in range(SMALL_IN_FLIGHT):
                position = u32(k) * threads + thread
                if position < n_elements:
                    elements[k] = read(x + one_offset(position, dims, dims.strides))
        for k in range(SMALL_IN_FLIGHT):
            if u32(k) * threads < n_elements:
                holds = ptx.ballot(elements[k] & register(p.magnitude) != 0)
                if lane == 0:
                    words[u32(k) * n_warps + warp] = holds
        cuda.syncthreads()

        below = ptx.lanes_below()
        total = u32(0)
        first = u32(0)
        while first < n_elements:
            first_word = first >> 5
            of_lane = u32(0)
            if lane < n_warps:
                of_lane = ptx.popcount_u32(words[first_word + lane])
            word = words[first_word + warp]
            before = ptx.warp_add(of_lane if lane < warp else u32(0))
            row = i64(total + before + ptx.popcount_u32(word & below))
            total += ptx.warp_add(of_lane)
            if (word >> lane) & 1 != 0 and row < p.capacity:
                address = output + row * p.row_bytes
                step, size = p.column_bytes, p.coordinate_size
                factors, shifts, periods = columns.multipliers, columns.shifts, columns.periods
                rest = first + thread
                # The compiler unrolls this loop, and so knows all indices of tables without addresses.
                for c in range(GENERAL_COLUMNS):
                    if p.n_columns > c:
                        rest = write_column(address, rest, factors[c], shifts[c], periods[c], size)
                        address += step
            first += threads
        if thread == 0 and count_output != 0:
            store_count(count_output, p.count_size, i64(total))
        if p.fills:
            row = i64(total) + i64(thread)
            while row < p.capacity:
                address = output + row * p.row_bytes
                for c in range(GENERAL_COLUMNS):
                    if p.n_columns > c:
                        if p.coordinate_size == 8:
                            ptx.store_u64(address, u64(columns.fills[c]))
                        else:
                            ptx.store_u32(address, u32(columns.fills[c]))
                        address += p.column_bytes
                row += i64(threads)

    return nonzero_small
