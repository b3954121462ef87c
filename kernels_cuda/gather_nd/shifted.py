"""Slices without gaps that lie otherwise between 16-byte boundaries in the input than in the output.

Runs of the output are covered by 16-byte vectors on 16-byte boundaries. Where both vectors of the input that
such a one takes bytes from lie in the slice, they are read whole and shifted; at the ends of a slice, the
words that lie in it are, and single bytes: nothing else is read or written.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.gather_nd.indices import index_functions
from kernels_cuda.gather_nd.places import along
from kernels_cuda.gather_nd.sizes import PLAIN_COORDINATES, PLAIN_DIMS, STRIDED_THREADS, VECTOR
from kernels_cuda.offsets import arithmetic
from kernels_cuda.runtime.compiler import device_function, integers

i32 = types.int32
u32 = types.uint32
i64 = types.int64


def shifted_source(index_size: int) -> Any:
    """Make the kernel, for elements of any size; runs have two vectors at least."""
    _, read_index, bring = index_functions(index_size, index_size == 8)
    _, divide = arithmetic(wide=False)

    @device_function
    def follow(address, place, bound, stride, least):
        """Return where the index at `place` leads, and whether it is in range."""
        index, is_in_range = bring(read_index(place, least), bound, least)
        return ptx.add_product(address, index, stride), is_in_range

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
    def gather_shifted(
        x,
        indices,
        output,
        n_vectors,
        vectors_a_run,
        multiplier,
        shift,
        run_bytes,
        inner_size,
        inner_multiplier,
        inner_shift,
        n_coordinates,
        coordinate_bytes,
        least,
        clips,
        x_strides: integers(PLAIN_DIMS),
        index_strides: integers(PLAIN_DIMS),
        output_strides: integers(PLAIN_DIMS),
        bounds: integers(PLAIN_COORDINATES),
        coordinate_strides: integers(PLAIN_COORDINATES),
    ):
        position = u32(cuda.blockIdx.x) * STRIDED_THREADS + u32(cuda.threadIdx.x)
        if position >= u32(n_vectors):
            return
        run = divide(position, multiplier, shift)
        vector = position - run * u32(vectors_a_run)
        outer = divide(run, inner_multiplier, inner_shift)
        inner = run - outer * u32(inner_size)
        place = along(indices, outer, inner, index_strides)
        first = along(x, outer, inner, x_strides)
        first, is_read = follow(first, place, bounds[0], coordinate_strides[0], least)
        # Not a loop, which the compiler would not unroll: columns have no addresses.
        if u32(n_coordinates) > 1:
            place += coordinate_bytes
            first, is_in_range = follow(first, place, bounds[1], coordinate_strides[1], least)
            is_read = is_read and is_in_range
        if u32(n_coordinates) > 2:
            place += coordinate_bytes
            first, is_in_range = follow(first, place, bounds[2], coordinate_strides[2], least)
            is_read = is_read and is_in_range
        is_read = is_read or u32(clips) != 0
        target = along(output, outer, inner, output_strides)
        # Vectors lie on 16-byte boundaries: the first one of a run may begin ahead of it.
        start = i32(i32(vector << 4) - i32(target & (VECTOR - 1)))
        behind = i32(i32(run_bytes) - start)
        target += i64(start)
        end = first + run_bytes
        source = first + i64(start)
        lead = i32(source & (VECTOR - 1))
        n_bytes = u32(lead) & 3
        if start >= lead and behind >= (VECTOR if lead == 0 else 2 * VECTOR - lead):
            a, b, c, d = ptx.read_if_u32x4(source - i64(lead), u32(is_read))
            e, f, g, h = ptx.read_if_u32x4(source - i64(lead) + VECTOR, u32(is_read and lead != 0))
            if lead & 8 != 0:
                a, b, c, d, e, f = c, d, e, f, g, h
            if lead & 4 != 0:
                a, b, c, d, e = b, c, d, e, f
            ptx.store_stream_u32x4(
                target,
                shifted(a, b, n_bytes),
                shifted(b, c, n_bytes),
                shifted(c, d, n_bytes),
                shifted(d, e, n_bytes),
            )
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
        a = shifted(a, b, n_bytes)
        b = shifted(b, c, n_bytes)
        c = shifted(c, d, n_bytes)
        d = shifted(d, e, n_bytes)
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
        edge = low if low > 0 else high
        if edge & 3 != 0:
            part = i32(edge & -4)
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

    return gather_shifted
