"""The kernel that copies slices, and those that look for an index tuple out of range."""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.gather_nd.indices import index_functions
from kernels_cuda.gather_nd.sizes import CHECKED_TUPLES, THREADS, VECTOR, units_a_thread
from kernels_cuda.offsets import (
    NarrowColumn,
    arithmetic,
    column_entry,
    column_type,
    depth_of,
    first_entry,
    offset_functions,
)
from kernels_cuda.runtime.compiler import device_function

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

NO_TUPLE = (1 << 63) - 1  # what `check` writes if all tuples are in range


def gather_source(unit: int, index_size: int, wide: bool) -> Any:
    """Make the kernel that copies units of `unit` bytes."""
    column = column_type(wide)
    depth = depth_of(wide)
    entry = column_entry(wide)
    fastest = first_entry(wide)
    is_vector = unit == VECTOR
    index_register, read_index, bring = index_functions(index_size, wide or index_size == 8)
    register, divide = arithmetic(wide)
    _, _, three_offsets = offset_functions(wide)
    read = ptx.READ[min(unit, 8)]
    store = ptx.STORE_STREAM[min(unit, 8)]
    scalar = ptx.REGISTER[min(unit, 8)]
    n_units_a_thread = units_a_thread(unit, wide)
    n_words = 4 * n_units_a_thread

    @device_function
    def follow(sources, in_range, tuples, offset, bound, stride, least, clips):
        """Read the next index of every tuple, and add what it leads to."""
        found = cuda.local.array(n_units_a_thread, index_register)
        for k in range(n_units_a_thread):
            found[k] = read_index(tuples[k] + offset, least)
        for k in range(n_units_a_thread):
            index, is_in_range = bring(found[k], bound, least)
            if not is_in_range:
                in_range[k] = u32(clips)
            sources[k] += i64(index) * stride

    @device_function
    def follow_some(
        sources, in_range, tuples, n_coordinates, coordinate_bytes, bounds, strides, least, clips
    ):
        # Not a loop, which the compiler would not unroll: columns have no addresses.
        follow(sources, in_range, tuples, 0, bounds[0], strides[0], least, clips)
        if n_coordinates > 1:
            follow(sources, in_range, tuples, coordinate_bytes, bounds[1], strides[1], least, clips)
        if n_coordinates > 2:
            follow(sources, in_range, tuples, 2 * coordinate_bytes, bounds[2], strides[2], least, clips)
        if n_coordinates > 3:
            follow(sources, in_range, tuples, 3 * coordinate_bytes, bounds[3], strides[3], least, clips)

    @device_function
    def follow_any(sources, in_range, tuples, n_coordinates, coordinate_bytes, bounds, strides, least, clips):
        for c in range(depth):
            if c >= n_coordinates:
                break
            bound, stride = entry(bounds, c), entry(strides, c)
            follow(sources, in_range, tuples, c * coordinate_bytes, bound, stride, least, clips)

    follow_all = follow_any if wide else follow_some

    @cuda.jit
    def gather(
        x,
        indices,
        output,
        n_units,
        units_a_run,
        multiplier,
        shift,
        n_coordinates,
        coordinate_bytes,
        least,
        clips,
        n_dims,
        multipliers: column,
        shifts: column,
        sizes: column,
        x_strides: column,
        index_strides: column,
        output_strides: column,
        bounds: column,
        coordinate_strides: column,
    ):
        words = cuda.local.array(n_words, u32)
        scalars = cuda.local.array(n_units_a_thread, scalar)
        sources = cuda.local.array(n_units_a_thread, i64)
        tuples = cuda.local.array(n_units_a_thread, i64)
        targets = cuda.local.array(n_units_a_thread, i64)
        in_range = cuda.local.array(n_units_a_thread, u32)
        # Along the fastest dimension a block's runs are a stride apart: what the others add is the same for
        # all of them, unless the block goes on past the end of that dimension.
        first = register(cuda.blockIdx.x) * register(THREADS * n_units_a_thread)
        first_run = divide(first, multiplier, shift)
        first_within = first - first_run * register(units_a_run)
        size = register(fastest(sizes)) if n_dims > 1 else register(n_units)
        first_inner = first_run
        if n_dims > 1:
            rows = divide(first_run, fastest(multipliers), fastest(shifts))
            first_inner = first_run - rows * size
        x_base, index_base, output_base = three_offsets(
            first_run - first_inner,
            n_dims,
            multipliers,
            shifts,
            sizes,
            x_strides,
            index_strides,
            output_strides,
        )
        # Threads past the end repeat the last unit and do not store it.
        last = register(n_units) - 1 - first
        thread = u32(cuda.threadIdx.x)
        for k in range(n_units_a_thread):
            at = first_within + min(register(thread + u32(k * THREADS)), last)
            run = divide(at, multiplier, shift)
            within = i64(at - run * register(units_a_run)) * unit
            inner = first_inner + run
            if inner < size:
                x_at = x_base + i64(inner) * fastest(x_strides)
                index_at = index_base + i64(inner) * fastest(index_strides)
                output_at = output_base + i64(inner) * fastest(output_strides)
            else:
                x_at, index_at, output_at = three_offsets(
                    first_run + run,
                    n_dims,
                    multipliers,
                    shifts,
                    sizes,
                    x_strides,
                    index_strides,
                    output_strides,
                )
            sources[k] = x + x_at + within
            tuples[k] = indices + index_at
            targets[k] = output + output_at + within
            in_range[k] = u32(1)
        follow_all(
            sources,
            in_range,
            tuples,
            n_coordinates,
            coordinate_bytes,
            bounds,
            coordinate_strides,
            least,
            clips,
        )
        for k in range(n_units_a_thread):
            if is_vector:
                for q in range(4):
                    words[4 * k + q] = u32(0)
            else:
                scalars[k] = scalar(0)
            if in_range[k] != 0:
                if is_vector:
                    words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3] = ptx.read_u32x4(
                        sources[k]
                    )
                else:
                    scalars[k] = read(sources[k])
        for k in range(n_units_a_thread):
            if register(thread + u32(k * THREADS)) <= last:
                if is_vector:
                    ptx.store_stream_u32x4(
                        targets[k], words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]
                    )
                else:
                    store(targets[k], scalars[k])

    return gather


def check_source(index_size: int, is_long: bool) -> Any:
    """Make the kernel that finds the first tuple out of range, if that is lower than one found before."""
    index_register, read_index, bring = index_functions(index_size, is_long)
    one_offset, _, _ = offset_functions(wide=False)

    @device_function
    def bad_among(addresses, offset, bound, least):
        """Return one bit a tuple whose index at `offset` is out of range."""
        found = cuda.local.array(CHECKED_TUPLES, index_register)
        bad = u32(0)
        for k in range(CHECKED_TUPLES):
            found[k] = read_index(addresses[k] + offset, least)
        for k in range(CHECKED_TUPLES):
            _, is_in_range = bring(found[k], bound, least)
            if not is_in_range:
                bad |= u32(1 << k)
        return bad

    @cuda.jit
    def check(
        indices,
        first_output,
        first_position,
        n_tuples,
        n_coordinates,
        coordinate_bytes,
        least,
        n_dims,
        multipliers: NarrowColumn,
        shifts: NarrowColumn,
        sizes: NarrowColumn,
        index_strides: NarrowColumn,
        bounds: NarrowColumn,
    ):
        ptx.take_turn()
        addresses = cuda.local.array(CHECKED_TUPLES, i64)
        last = u32(n_tuples - 1)
        step = u32(cuda.gridDim.x) * u32(THREADS * CHECKED_TUPLES)
        start = u32(cuda.blockIdx.x) * u32(THREADS * CHECKED_TUPLES) + u32(cuda.threadIdx.x)
        lowest = u32(0xFFFFFFFF)
        # A thread goes through tuples in ascending order: its first bad one is its lowest.
        while start <= last and lowest == 0xFFFFFFFF:
            for k in range(CHECKED_TUPLES):
                position = min(start + u32(k * THREADS), last)
                addresses[k] = indices + one_offset(
                    position, n_dims, multipliers, shifts, sizes, index_strides
                )
            bad = bad_among(addresses, 0, bounds[0], least)
            if n_coordinates > 1:
                bad |= bad_among(addresses, coordinate_bytes, bounds[1], least)
            if n_coordinates > 2:
                bad |= bad_among(addresses, 2 * coordinate_bytes, bounds[2], least)
            if n_coordinates > 3:
                bad |= bad_among(addresses, 3 * coordinate_bytes, bounds[3], least)
            if bad != 0:
                k = ptx.popcount_u32((bad & (0 - bad)) - 1)
                lowest = min(start + k * THREADS, last)
            start += step
        lowest = ptx.warp_min(lowest)
        if lowest != 0xFFFFFFFF and u32(cuda.threadIdx.x) & 31 == 0:
            ptx.reduce_min_u64(first_output, u64(first_position + i64(lowest)))

    return check


def clear_source() -> Any:
    """Make the kernel that says that no tuple is out of range."""

    @cuda.jit
    def clear(first_output):
        ptx.store_u64(first_output, u64(NO_TUPLE))

    return clear
