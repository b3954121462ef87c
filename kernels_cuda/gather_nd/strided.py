"""Slices whose elements lie apart in the input and side by side in the output.

Runs of the output are covered by 16-byte vectors on 16-byte boundaries, as rows of `diagonal_matrix` are. A
thread has one, and takes so few registers and instructions that many are in flight.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.addressing import index_functions
from kernels_cuda.gather_nd.parameters import STRIDED_THREADS, VECTOR, Dims, StridedParameters
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i32, i64, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.strided import LOADED_WORDS, strided_functions


def run_function() -> Any:
    """Make the function that reads a run's index tuple.

    It returns how far the run is from the beginning of input and output, and whether it is read.
    """
    _, read_short, bring = index_functions(4, True)
    _, read_long, _ = index_functions(8, True)
    _, _, three_offsets = offset_functions(wide=False)

    @device_function
    def follow(tuple_address, c, bound, stride, p):
        """Return how far on coordinate number `c` of a tuple leads, and whether it is in range."""
        address = tuple_address + c * p.tuples.coordinate_bytes
        least = p.tuples.least_index
        index = read_long(address, least) if p.index_size == 8 else read_short(address, least)
        at, is_in_range = bring(index, bound, least)
        return i64(at) * stride, is_in_range

    @device_function
    def find_run(run, indices, p, dims):
        x_at = i64(run) * dims.x_strides[0]
        index_at = i64(run) * dims.index_strides[0]
        output_at = i64(run) * dims.output_strides[0]
        if dims.n_dims > 1:
            x_at, index_at, output_at = three_offsets(
                run, dims, dims.x_strides, dims.index_strides, dims.output_strides
            )
        tuple_address = indices + index_at
        bounds, strides = dims.bounds, dims.coordinate_strides
        offset, is_read = follow(tuple_address, 0, bounds[0], strides[0], p)
        # Not a loop, which the compiler would not unroll: columns have no addresses.
        if p.tuples.n_coordinates > 1:
            more, is_in_range = follow(tuple_address, 1, bounds[1], strides[1], p)
            offset += more
            is_read = is_read and is_in_range
        if p.tuples.n_coordinates > 2:
            more, is_in_range = follow(tuple_address, 2, bounds[2], strides[2], p)
            offset += more
            is_read = is_read and is_in_range
        if p.tuples.n_coordinates > 3:
            more, is_in_range = follow(tuple_address, 3, bounds[3], strides[3], p)
            offset += more
            is_read = is_read and is_in_range
        return x_at + offset, output_at, is_read or p.tuples.clips != 0

    return find_run


def strided_kernel(element_size: int) -> Any:
    """Make the kernel."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    _, divide, _ = arithmetic(wide=False)
    find_run = run_function()
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    read_strided, pack = strided_functions(element_size)

    @cuda.jit
    def gather_strided(x, indices, output, p: StridedParameters, dims: dims_type(Dims, wide=False)):
        words = cuda.local.array(LOADED_WORDS, u32)
        elements = cuda.local.array(per_vector, scalar)
        position = u32(cuda.blockIdx.x) * STRIDED_THREADS + u32(cuda.threadIdx.x)
        if position >= u32(p.n_vectors):
            return
        run = divide(position, p.vectors_per_run)
        vector = position - run * u32(p.vectors_per_run.size)
        x_at, output_at, is_read = find_run(run, indices, p, dims)
        target = output + output_at
        # Vectors lie on 16-byte boundaries: the first one of a run may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        behind = i32(column + per_vector)
        run_end = i32(p.run_elements)
        target += i64(start)
        source = x + x_at + i64(column) * p.step
        fill = p.tuples.fill
        if column >= 0 and behind <= run_end:
            a, b, c, d = u32(fill), u32(fill >> 32), u32(fill), u32(fill >> 32)
            if is_read:
                (words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], is_odd) = (
                    read_strided(source, p.step, column > 0, behind < run_end)
                )
                a, b, c, d = pack(words, 0, is_odd)
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        for e in range(per_vector):
            elements[e] = scalar(fill)
            if is_read and column >= -e and i32(column + e) < run_end:
                elements[e] = read(source + e * p.step)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < run_end:
                store(target + e * element_size, elements[e])

    return gather_strided
