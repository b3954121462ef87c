"""All steps in one block, for inputs that it reads in about the time of one more launch."""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.nonzero_coordinates.expand import store_count
from kernels_cuda.nonzero_coordinates.sizes import GENERAL_COLUMNS, SMALL_IN_FLIGHT, SMALL_LIMIT
from kernels_cuda.offsets import NarrowColumn, arithmetic, offset_functions
from kernels_cuda.runtime.compiler import device_function, integers

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_WORDS = SMALL_LIMIT // 32


def small_source(element_size: int) -> Any:
    """Make the kernel for any layout of up to `SMALL_LIMIT` elements, and up to `GENERAL_COLUMNS` columns.

    A warp turns every element into a bit of a word, and adds up the counts of all words before its own.
    """
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    _, divide = arithmetic(wide=False)
    one_offset, _, _ = offset_functions(wide=False)

    @device_function
    def column(address, rest, multiplier, shift, period, size):
        """Write a coordinate, and return what is left of the position for the columns after it."""
        quotient = divide(rest, multiplier, shift)
        if size == 8:
            ptx.store_u64(address, u64(quotient))
        else:
            ptx.store_u32(address, quotient)
        return rest - quotient * u32(period)

    @cuda.jit
    def small(
        x,
        output,
        count_output,
        end,
        magnitude,
        capacity,
        row_bytes,
        column_bytes,
        coordinate_size,
        n_columns,
        fills,
        fill,
        count_size,
        n_dims,
        multipliers: NarrowColumn,
        shifts: NarrowColumn,
        sizes: NarrowColumn,
        strides: NarrowColumn,
        m: integers(GENERAL_COLUMNS),
        s: integers(GENERAL_COLUMNS),
        p: integers(GENERAL_COLUMNS),
    ):
        words = cuda.shared.array(_WORDS, u32)
        elements = cuda.local.array(SMALL_IN_FLIGHT, register)
        threads = u32(cuda.blockDim.x)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        n_warps = threads >> 5
        n_elements = u32(end)
        for k in range(SMALL_IN_FLIGHT):
            position = u32(k) * threads + thread
            elements[k] = register(0)
            if position < n_elements and n_dims == 1:
                elements[k] = read(x + i64(position) * strides[0])
        if n_dims > 1:
            for k in range(SMALL_IN_FLIGHT):
                position = u32(k) * threads + thread
                if position < n_elements:
                    elements[k] = read(x + one_offset(position, n_dims, multipliers, shifts, sizes, strides))
        for k in range(SMALL_IN_FLIGHT):
            if u32(k) * threads < n_elements:
                holds = ptx.ballot(elements[k] & register(magnitude) != 0)
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
            if (word >> lane) & 1 != 0 and row < capacity:
                address = output + row * row_bytes
                rest = first + thread
                # Not a loop, which the compiler would not unroll: the tables have no addresses.
                if n_columns > 0:
                    rest = column(address, rest, m[0], s[0], p[0], coordinate_size)
                if n_columns > 1:
                    rest = column(address + column_bytes, rest, m[1], s[1], p[1], coordinate_size)
                if n_columns > 2:
                    rest = column(address + 2 * column_bytes, rest, m[2], s[2], p[2], coordinate_size)
                if n_columns > 3:
                    rest = column(address + 3 * column_bytes, rest, m[3], s[3], p[3], coordinate_size)
                if n_columns > 4:
                    rest = column(address + 4 * column_bytes, rest, m[4], s[4], p[4], coordinate_size)
                if n_columns > 5:
                    rest = column(address + 5 * column_bytes, rest, m[5], s[5], p[5], coordinate_size)
                if n_columns > 6:
                    rest = column(address + 6 * column_bytes, rest, m[6], s[6], p[6], coordinate_size)
                if n_columns > 7:
                    column(address + 7 * column_bytes, rest, m[7], s[7], p[7], coordinate_size)
            first += threads
        if thread == 0 and count_output != 0:
            store_count(count_output, count_size, i64(total))
        if fills:
            row = i64(total) + i64(thread)
            while row < capacity:
                for c in range(n_columns):
                    address = output + row * row_bytes + c * column_bytes
                    if coordinate_size == 8:
                        ptx.store_u64(address, u64(fill))
                    else:
                        ptx.store_u32(address, u32(fill))
                row += i64(threads)

    return small
