"""Units of runs along up to two dimensions, all of whose strides fit 32 bits: most gathers there are.

What lies between the load of an index and the load of the unit that it names, and the code altogether, is as
short as it can be. A launch for few units ends when its first instructions have come in and two loads have
followed each other, so there a thread has one; of many it has several, for more loads in flight, and writes
them at one address and fixed distances from it: outputs have no gaps then.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.addressing import along, index_functions
from kernels_cuda.gather_nd.parameters import PLANAR_COORDINATES, THREADS, VECTOR, PlanarParameters
from kernels_cuda.offsets import arithmetic
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function


def planar_kernel(unit: int, index_size: int, n_units_per_thread: int) -> Any:
    """Make the kernel."""
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
