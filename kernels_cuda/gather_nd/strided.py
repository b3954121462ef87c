"""Slices whose elements lie apart in the input and side by side in the output.

Runs of the output are covered by 16-byte vectors on 16-byte boundaries, as rows of `diagonal_matrix` are. A
thread has one, and takes so few registers and instructions that many are in flight.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.gather_nd.runs import run_function
from kernels_cuda.gather_nd.sizes import STRIDED_THREADS, VECTOR
from kernels_cuda.offsets import NarrowColumn, arithmetic
from kernels_cuda.strided import LOADED_WORDS, strided_functions

i32 = types.int32
u32 = types.uint32
i64 = types.int64


def strided_source(element_size: int) -> Any:
    """Make the kernel."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1
    _, divide = arithmetic(wide=False)
    find_run = run_function()
    read = ptx.READ[element_size]
    store = ptx.STORE[element_size]
    scalar = ptx.REGISTER[element_size]
    read_strided, pack = strided_functions(element_size)

    @cuda.jit
    def gather_strided(
        x,
        indices,
        output,
        n_vectors,
        vectors_a_run,
        multiplier,
        shift,
        run_elements,
        step,
        n_coordinates,
        coordinate_bytes,
        index_size,
        least,
        clips,
        n_dims,
        multipliers: NarrowColumn,
        shifts: NarrowColumn,
        sizes: NarrowColumn,
        x_strides: NarrowColumn,
        index_strides: NarrowColumn,
        output_strides: NarrowColumn,
        bounds: NarrowColumn,
        coordinate_strides: NarrowColumn,
    ):
        words = cuda.local.array(LOADED_WORDS, u32)
        elements = cuda.local.array(per_vector, scalar)
        position = u32(cuda.blockIdx.x) * STRIDED_THREADS + u32(cuda.threadIdx.x)
        if position >= u32(n_vectors):
            return
        run = divide(position, multiplier, shift)
        vector = position - run * u32(vectors_a_run)
        x_at, output_at, is_read = find_run(
            run,
            indices,
            n_coordinates,
            coordinate_bytes,
            index_size,
            least,
            clips,
            n_dims,
            multipliers,
            shifts,
            sizes,
            x_strides,
            index_strides,
            output_strides,
            bounds,
            coordinate_strides,
        )
        target = output + output_at
        # Vectors lie on 16-byte boundaries: the first one of a run may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        column = i32(start >> size_shift)
        behind = i32(column + per_vector)
        run_end = i32(run_elements)
        target += i64(start)
        source = x + x_at + i64(column) * step
        if column >= 0 and behind <= run_end:
            for i in range(LOADED_WORDS):
                words[i] = u32(0)
            is_odd = u32(0)
            if is_read:
                (
                    words[0],
                    words[1],
                    words[2],
                    words[3],
                    words[4],
                    words[5],
                    words[6],
                    words[7],
                    is_odd,
                ) = read_strided(source, step, column > 0, behind < run_end)
            a, b, c, d = pack(words, 0, is_odd)
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        for e in range(per_vector):
            elements[e] = scalar(0)
            if is_read and column >= -e and i32(column + e) < run_end:
                elements[e] = read(source + e * step)
        for e in range(per_vector):
            if column >= -e and i32(column + e) < run_end:
                store(target + e * element_size, elements[e])

    return gather_strided
