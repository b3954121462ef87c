"""Kernels that move units, which runs are cut into, and those that check index tuples.

Indices are read, and brought into range, by `index_functions`, which all kernels of gathers share.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.parameters import (
    CHECKED_TUPLES,
    LEAST_LONG,
    LEAST_SHORT,
    PLANAR_COORDINATES,
    THREADS,
    VECTOR,
    CheckDims,
    CheckParameters,
    Dims,
    PlanarParameters,
    UnitsParameters,
    units_per_thread,
)
from kernels_cuda.layout import NARROW_DEPTH
from kernels_cuda.offsets import arithmetic, column_entry, depth_of, dims_type, first_entry, offset_functions
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function


def index_functions(index_size: int, is_long: bool) -> tuple[Any, Any, Any]:
    """Make what deals with indices of a size in registers of 32 bits, or of 64 if `is_long`.

    Returns
    -------
    register : Numba type
        Unsigned; sums in it wrap, so that a negative index too low for its bound ends up above it.
    read : device function
        ``read(address, least)`` returns the bits of an index.
    bring : device function
        ``bring(index, bound, least)`` returns the position that the index names, or the nearest there is,
        and whether it names one.

    Indices below `least` count from the end (`parameters.TupleParameters`).
    """
    register, signed = (u64, i64) if is_long else (u32, i32)
    without_sign = LEAST_LONG if is_long else LEAST_SHORT
    load_bits = ptx.READ[index_size]
    extends = is_long and index_size == 4

    @device_function
    def read_index(address, least):
        bits = load_bits(address)
        if extends and least != without_sign:
            return register(i64(i32(bits)))
        return bits

    @device_function
    def bring(index, bound, least):
        limit = register(bound)
        at = index + limit if signed(index) < signed(least) else index
        is_in_range = at < limit
        if not is_in_range:
            is_negative = signed(index) < 0 and signed(least) != without_sign
            at = register(0) if is_negative else limit - 1
        return at, is_in_range

    return register, read_index, bring


@device_function
def along(address, outer, inner, strides):
    """Return the address of a run in a tensor that begins at `address`."""
    return ptx.add_product(ptx.add_product(address, outer, strides[0]), inner, strides[1])


def units_kernel(unit: int, index_size: int, wide: bool) -> Any:
    """Make the kernel that copies units of `unit` bytes, of runs of any layout.

    A thread moves several units, a block apart, so that stores (and, within a run, loads) of a warp lie side
    by side. Threads of a run share its index tuple in the L1 cache. Where a block begins is divided into
    coordinates once; its units are mostly steps along the fastest dimension from there.
    """
    depth = depth_of(wide)
    fastest = first_entry(wide)
    is_vector = unit == VECTOR
    index_register, read_index, bring = index_functions(index_size, wide or index_size == 8)
    register, divide, quotient = arithmetic(wide)
    _, _, three_offsets = offset_functions(wide)
    read = ptx.READ[min(unit, 8)]
    store = ptx.STORE_STREAM[min(unit, 8)]
    scalar = ptx.REGISTER[min(unit, 8)]
    n_units_per_thread = units_per_thread(unit, wide)
    n_words = 4 * n_units_per_thread

    @device_function
    def follow(sources, in_range, tuples, c, bound, stride, p):
        """Read coordinate number `c` of every tuple, and add what it leads to."""
        offset = c * p.tuples.coordinate_bytes
        found = cuda.local.array(n_units_per_thread, index_register)
        for k in range(n_units_per_thread):
            found[k] = read_index(tuples[k] + offset, p.tuples.least_index)
        for k in range(n_units_per_thread):
            index, is_in_range = bring(found[k], bound, p.tuples.least_index)
            if not is_in_range:
                in_range[k] = u32(p.tuples.clips)
            sources[k] += i64(index) * stride

    @device_function
    def follow_some(sources, in_range, tuples, p, dims):
        bounds, strides = dims.bounds, dims.coordinate_strides
        # The compiler unrolls this loop, and so knows all indices of columns, which have no addresses.
        for c in range(NARROW_DEPTH):
            if c == 0 or p.tuples.n_coordinates > c:
                follow(sources, in_range, tuples, c, bounds[c], strides[c], p)

    @device_function
    def follow_any(sources, in_range, tuples, p, dims):
        for c in range(depth):
            if c >= p.tuples.n_coordinates:
                break
            bound, stride = column_entry(dims.bounds, c), column_entry(dims.coordinate_strides, c)
            follow(sources, in_range, tuples, c, bound, stride, p)

    follow_all = follow_any if wide else follow_some

    @cuda.jit
    def gather_units(x, indices, output, p: UnitsParameters, dims: dims_type(Dims, wide)):
        words = cuda.local.array(n_words, u32)
        scalars = cuda.local.array(n_units_per_thread, scalar)
        sources = cuda.local.array(n_units_per_thread, i64)
        tuples = cuda.local.array(n_units_per_thread, i64)
        targets = cuda.local.array(n_units_per_thread, i64)
        in_range = cuda.local.array(n_units_per_thread, u32)
        # Along the fastest dimension a block's runs are a stride apart: what the others add is the same for
        # all of them, unless the block goes on past the end of that dimension.
        first = register(cuda.blockIdx.x) * register(THREADS * n_units_per_thread)
        first_run = divide(first, p.units_per_run)
        first_within = first - first_run * register(p.units_per_run.size)
        size = register(fastest(dims.sizes)) if dims.n_dims > 1 else register(p.n_units)
        first_inner = first_run
        if dims.n_dims > 1:
            rows = quotient(first_run, fastest(dims.multipliers), fastest(dims.shifts))
            first_inner = first_run - rows * size
        x_base, index_base, output_base = three_offsets(
            first_run - first_inner, dims, dims.x_strides, dims.index_strides, dims.output_strides
        )
        # Threads past the end repeat the last unit and do not store it.
        last = register(p.n_units) - 1 - first
        thread = u32(cuda.threadIdx.x)
        for k in range(n_units_per_thread):
            at = first_within + min(register(thread + u32(k * THREADS)), last)
            run = divide(at, p.units_per_run)
            within = i64(at - run * register(p.units_per_run.size)) * unit
            inner = first_inner + run
            if inner < size:
                x_at = x_base + i64(inner) * fastest(dims.x_strides)
                index_at = index_base + i64(inner) * fastest(dims.index_strides)
                output_at = output_base + i64(inner) * fastest(dims.output_strides)
            else:
                x_at, index_at, output_at = three_offsets(
                    first_run + run, dims, dims.x_strides, dims.index_strides, dims.output_strides
                )
            sources[k] = x + x_at + within
            tuples[k] = indices + index_at
            targets[k] = output + output_at + within
            in_range[k] = u32(1)
        follow_all(sources, in_range, tuples, p, dims)
        for k in range(n_units_per_thread):
            if is_vector:
                for q in range(4):
                    words[4 * k + q] = u32(p.tuples.fill >> 32) if q & 1 else u32(p.tuples.fill)
            else:
                scalars[k] = scalar(p.tuples.fill)
            if in_range[k] != 0:
                if is_vector:
                    words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3] = ptx.read_u32x4(
                        sources[k]
                    )
                else:
                    scalars[k] = read(sources[k])
        for k in range(n_units_per_thread):
            if register(thread + u32(k * THREADS)) <= last:
                if is_vector:
                    ptx.store_stream_u32x4(
                        targets[k], words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]
                    )
                else:
                    store(targets[k], scalars[k])

    return gather_units


def planar_kernel(unit: int, index_size: int, n_units_per_thread: int) -> Any:
    """Make the kernel for runs along up to two dimensions, all of whose strides fit 32 bits: most gathers.

    What lies between the load of an index and the load of the unit that it names, and the code altogether, is
    as short as it can be. A launch for few units ends when its first instructions have come in and two loads
    have followed each other, so there a thread has one; of many it has several, for more loads in flight, and
    writes them at one address and fixed distances from it: outputs have no gaps then.
    """
    is_vector = unit == VECTOR
    is_alone = n_units_per_thread == 1
    n_words = 4 * n_units_per_thread
    index_register, _, bring = index_functions(index_size, index_size == 8)
    _, divide, _ = arithmetic(wide=False)
    load_index = ptx.LOAD[index_size]
    read = ptx.READ_OR[min(unit, 8)]
    # An output of few units is likely to be read soon.
    store = (ptx.STORE if is_alone else ptx.STORE_STREAM)[min(unit, 8)]
    store_vector = ptx.store_u32x4 if is_alone else ptx.store_stream_u32x4
    scalar = ptx.REGISTER[min(unit, 8)]

    @device_function
    def follow(sources, in_range, tuples, c, bound, stride, runs):
        """Read coordinate number `c` of every tuple, and add what it leads to."""
        offset = c * runs.tuples.coordinate_bytes
        found = cuda.local.array(n_units_per_thread, index_register)
        highest = index_register(0)
        for k in range(n_units_per_thread):
            found[k] = load_index(tuples[k] + offset)
        for k in range(n_units_per_thread):
            highest = max(highest, index_register(found[k]))
        # One test of all of them: mostly none is negative or out of range. And no load waits for another.
        if is_alone or highest >= index_register(bound):
            for k in range(n_units_per_thread):
                found[k], is_in_range = bring(found[k], bound, runs.tuples.least_index)
                in_range[k] = in_range[k] & u32(is_in_range)
        for k in range(n_units_per_thread):
            sources[k] = ptx.add_product(sources[k], found[k], stride)

    # As many as fit without spills: the compiler takes a few more, and a multiprocessor has less in flight.
    max_registers = None if is_alone or index_size == 8 else 40

    @cuda.jit(max_registers=max_registers)
    def gather_planar(x, indices, output, p: PlanarParameters):
        runs = p.runs
        words = cuda.local.array(n_words, u32)
        scalars = cuda.local.array(n_units_per_thread, scalar)
        sources = cuda.local.array(n_units_per_thread, i64)
        tuples = cuda.local.array(n_units_per_thread, i64)
        in_range = cuda.local.array(n_units_per_thread, u32)
        first = u32(cuda.blockIdx.x) * u32(THREADS * n_units_per_thread) + u32(cuda.threadIdx.x)
        last = u32(p.n_units) - 1
        target = output + i64(first) * unit
        if is_alone and first > last:
            return
        for k in range(n_units_per_thread):
            # Units past the end are the last one, and are not stored.
            position = first if is_alone else min(first + u32(k * THREADS), last)
            run = divide(position, p.units_per_run)
            within = i64((position - run * u32(p.units_per_run.size)) * unit)
            outer = divide(run, runs.inner_size)
            inner = run - outer * u32(runs.inner_size.size)
            tuples[k] = along(indices, outer, inner, runs.index_strides)
            sources[k] = along(x + within, outer, inner, runs.x_strides)
            if is_alone:
                target = along(output + within, outer, inner, runs.output_strides)
            in_range[k] = u32(1)
        # The compiler unrolls this loop, and so knows all indices of columns, which have no addresses.
        for c in range(PLANAR_COORDINATES):
            if c == 0 or u32(runs.tuples.n_coordinates) > u32(c):
                follow(sources, in_range, tuples, c, runs.bounds[c], runs.coordinate_strides[c], runs)
        fill = runs.tuples.fill
        for k in range(n_units_per_thread):
            is_read = in_range[k] | u32(runs.tuples.clips)
            if is_vector:
                words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3] = ptx.read_u32x4_or(
                    sources[k], is_read, u32(fill), u32(fill >> 32)
                )
            else:
                scalars[k] = read(sources[k], is_read, scalar(fill))
        for k in range(n_units_per_thread):
            if is_alone or first + u32(k * THREADS) <= last:
                if is_vector:
                    store_vector(
                        target + k * THREADS * unit,
                        words[4 * k],
                        words[4 * k + 1],
                        words[4 * k + 2],
                        words[4 * k + 3],
                    )
                else:
                    store(target + k * THREADS * unit, scalars[k])

    return gather_planar


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
