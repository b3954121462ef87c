"""Slices without gaps that lie otherwise between 16-byte boundaries in the input than in the output.

Runs of the output are covered by 16-byte vectors on 16-byte boundaries. Where both vectors of the input that
such a one takes bytes from lie in the slice, they are read whole and shifted; at the ends of a slice, the
words that lie in it are, and single bytes: nothing else is read or written.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.gather_nd.addressing import along, index_functions
from kernels_cuda.gather_nd.parameters import PLANAR_COORDINATES, STRIDED_THREADS, VECTOR, UnalignedParameters
from kernels_cuda.offsets import arithmetic
from kernels_cuda.ptx import i32, i64, u32
from kernels_cuda.runtime.compiler import device_function


def unaligned_kernel(index_size: int) -> Any:
    """Make the kernel, for elements of any size; runs have two vectors at least."""
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
        low_fill, high_fill = u32(runs.tuples.fill), u32(runs.tuples.fill >> 32)
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
                a, b, c, d, e, f = c, d, e, f, g, h
            if residue & 4 != 0:
                a, b, c, d, e = b, c, d, e, f
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
