"""Kernels that write the output in 16-byte vectors on 16-byte boundaries, as `diagonal_matrix` does."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.parameters import (
    PLANAR_COORDINATES,
    STRIDED_THREADS,
    VECTOR,
    Dims,
    StridedParameters,
    UnalignedParameters,
)
from kernels_cuda.gather_nd.units import along, index_functions
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i32, i64, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.strided import LOADED_WORDS, strided_functions


def unaligned_kernel(index_size: int) -> Any:
    """Make the kernel for slices without gaps that lie otherwise between boundaries in the input.

    Elements have any size, and runs two vectors at least. Where both vectors of the input that one of the
    output takes bytes from lie in the slice, they are read whole and shifted; at the ends of a slice, the
    words that lie in it are, and single bytes: nothing else is read or written.
    """
    _, read_index, bring = index_functions(index_size, index_size == 8)
    _, divide, _ = arithmetic(wide=False)

    @device_function
    def follow(address, tuple_address, c, bound, stride, runs):
        """Return where coordinate number `c` of a tuple leads, and whether it is in range."""
        least = runs.tuples.least_index
        index = read_index(tuple_address + c * runs.tuples.coordinate_bytes, least)
        at, is_in_range = bring(index, bound, least)
        return ptx.add_product(address, at, stride), is_in_range

    @device_function
    def shifted(a, b, n_bytes):
        """Return the word that begins `n_bytes` of 0 to 3 after the first of two."""
        return ptx.permute(a, b, 0x3210 + 0x1111 * n_bytes)

    @device_function
    def word_at(address, first, end, straddling, bits, is_read):
        """Return the word at an address if it lies between two others, or the one that straddles an end."""
        word = ptx.read_if_u32(address, u32(is_read and address >= first and address + 4 <= end))
        return bits if address == straddling else word

    @cuda.jit
    def gather_unaligned(x, indices, output, p: UnalignedParameters):
        runs = p.runs
        position = u32(cuda.blockIdx.x) * STRIDED_THREADS + u32(cuda.threadIdx.x)
        if position >= u32(p.n_vectors):
            return
        run = divide(position, p.vectors_per_run)
        vector = position - run * u32(p.vectors_per_run.size)
        outer = divide(run, runs.inner_size)
        inner = run - outer * u32(runs.inner_size.size)
        tuple_address = along(indices, outer, inner, runs.index_strides)
        first = along(x, outer, inner, runs.x_strides)
        bounds, strides = runs.bounds, runs.coordinate_strides
        is_read = True
        # The compiler unrolls this loop, and so knows all indices of columns, which have no addresses.
        for c in range(PLANAR_COORDINATES):
            if c == 0 or u32(runs.tuples.n_coordinates) > u32(c):
                first, is_in_range = follow(first, tuple_address, c, bounds[c], strides[c], runs)
                is_read = is_read and is_in_range
        is_read = is_read or u32(runs.tuples.clips) != 0
        low_fill = u32(runs.tuples.fill)
        high_fill = u32(runs.tuples.fill >> 32)
        target = along(output, outer, inner, runs.output_strides)
        # Vectors lie on 16-byte boundaries: the first one of a run may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        behind = i32(i32(p.run_bytes) - start)
        target += i64(start)
        end = first + p.run_bytes
        source = first + i64(start)
        residue = i32(source & (VECTOR - 1))
        n_bytes = u32(residue) & 3
        if start >= residue and behind >= (VECTOR if residue == 0 else 2 * VECTOR - residue):
            a, b, c, d = ptx.read_if_u32x4(source - i64(residue), u32(is_read))
            e, f, g, h = ptx.read_if_u32x4(source - i64(residue) + VECTOR, u32(is_read and residue != 0))
            if residue & 8 != 0:
                a = c
                b = d
                c = e
                d = f
                e = g
                f = h
            if residue & 4 != 0:
                a = b
                b = c
                c = d
                d = e
                e = f
            a = shifted(a, b, n_bytes) if is_read else low_fill
            b = shifted(b, c, n_bytes) if is_read else high_fill
            c = shifted(c, d, n_bytes) if is_read else low_fill
            d = shifted(d, e, n_bytes) if is_read else high_fill
            ptx.store_stream_u32x4(target, a, b, c, d)
            return

        near = source - i64(n_bytes)
        # Of the words at the two ends of the run, the one that can be among those of this vector.
        straddling = (first if near < first else end) & -4
        bits = u32(0)
        if straddling < first or straddling + 4 > end:
            for k in range(4):
                is_inside = straddling + k >= first and straddling + k < end
                byte = ptx.read_if_u8(straddling + k, u32(is_read and is_inside))
                bits |= byte << u32(8 * k)
        else:
            straddling = i64(0)
        a = word_at(near, first, end, straddling, bits, is_read)
        b = word_at(near + 4, first, end, straddling, bits, is_read)
        c = word_at(near + 8, first, end, straddling, bits, is_read)
        d = word_at(near + 12, first, end, straddling, bits, is_read)
        e = word_at(near + 16, first, end, straddling, bits, is_read)
        a = shifted(a, b, n_bytes) if is_read else low_fill
        b = shifted(b, c, n_bytes) if is_read else high_fill
        c = shifted(c, d, n_bytes) if is_read else low_fill
        d = shifted(d, e, n_bytes) if is_read else high_fill
        if start >= 0 and behind >= VECTOR:
            ptx.store_stream_u32x4(target, a, b, c, d)
            return
        # The vector is stored from byte to byte, and of one word only a part.
        low = max(i32(-start), i32(0))
        high = min(behind, i32(VECTOR))
        if low <= 0 and high >= 4:
            ptx.store_u32(target, a)
        if low <= 4 and high >= 8:
            ptx.store_u32(target + 4, b)
        if low <= 8 and high >= 12:
            ptx.store_u32(target + 8, c)
        if low <= 12 and high >= 16:
            ptx.store_u32(target + 12, d)
        partial_end = low if low > 0 else high
        if partial_end & 3 != 0:
            part = i32(partial_end & -4)
            bits = a
            if part == 4:
                bits = b
            if part == 8:
                bits = c
            if part == 12:
                bits = d
            for k in range(4):
                if part + k >= low and part + k < high:
                    ptx.store_u8(target + i64(part) + k, bits >> u32(8 * k))

    return gather_unaligned


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
    """Make the kernel for slices whose elements lie apart in the input and side by side in the output.

    A thread has one vector, and takes so few registers and instructions that many are in flight.
    """
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
            a = u32(fill)
            b = u32(fill >> 32)
            c = u32(fill)
            d = u32(fill >> 32)
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
