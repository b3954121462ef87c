"""Units of runs of any layout.

A thread moves several units, a block apart, so that stores (and, within a run, loads) of a warp lie side by
side. Threads of a run share its index tuple in the L1 cache. Where a block begins is divided into coordinates
once; its units are mostly steps along the fastest dimension from there.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.addressing import index_functions
from kernels_cuda.gather_nd.parameters import THREADS, VECTOR, Dims, UnitsParameters, units_per_thread
from kernels_cuda.layout import NARROW_DEPTH
from kernels_cuda.offsets import arithmetic, column_entry, depth_of, dims_type, first_entry, offset_functions
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function


def units_kernel(unit: int, index_size: int, wide: bool) -> Any:
    """Make the kernel that copies units of `unit` bytes."""
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
