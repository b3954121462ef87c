"""Vectors of elements that lie a stride apart."""

from typing import Any

from kernels_cuda import ptx
from kernels_cuda.ptx import u32
from kernels_cuda.runtime.compiler import device_function

VECTOR = 16
LOADED_WORDS = 8  # that a vector's elements travel in before they are packed


def strided_functions(element_size: int) -> tuple[Any, Any]:
    """Make what reads 16 bytes of elements from a strided tensor, in two steps.

    Every second element is read in 16-byte vectors along with what lies between, if that belongs to the
    tensor; what has another stride, or starts between two boundaries, element by element. Nothing waits for
    the elements before they are packed.

    Returns
    -------
    read : device function
        ``read(source, step, has_before, has_after)`` returns `LOADED_WORDS` words, and 1 if the elements are
        the odd ones of them. The elements from address `source` on are `step` bytes apart; there are others
        of the same row before or after them.
    pack : device function
        ``pack(words, first, is_odd)`` returns the four words of the vector from `LOADED_WORDS` words of a
        local array.
    """
    read_one = ptx.READ[element_size]

    @device_function
    def byte(source, step, i):
        return read_one(source + i * step)

    @device_function
    def two_bytes(source, step, i):
        return byte(source, step, i) | (byte(source, step, i + 1) << 16)

    @device_function
    def scalars_1(source, step):
        return (
            two_bytes(source, step, 0),
            two_bytes(source, step, 2),
            two_bytes(source, step, 4),
            two_bytes(source, step, 6),
            two_bytes(source, step, 8),
            two_bytes(source, step, 10),
            two_bytes(source, step, 12),
            two_bytes(source, step, 14),
        )

    @device_function
    def scalars_2(source, step):
        return (
            read_one(source),
            read_one(source + step),
            read_one(source + 2 * step),
            read_one(source + 3 * step),
            read_one(source + 4 * step),
            read_one(source + 5 * step),
            read_one(source + 6 * step),
            read_one(source + 7 * step),
        )

    @device_function
    def scalars_4(source, step):
        none = u32(0)
        a, b, c, d = (
            read_one(source),
            read_one(source + step),
            read_one(source + 2 * step),
            read_one(source + 3 * step),
        )
        return a, none, b, none, c, none, d, none

    @device_function
    def scalars_8(source, step):
        none = u32(0)
        a, b = read_one(source), read_one(source + step)
        return u32(a), u32(a >> 32), none, none, u32(b), u32(b >> 32), none, none

    scalars = {1: scalars_1, 2: scalars_2, 4: scalars_4, 8: scalars_8}[element_size]

    @device_function
    def read(source, step, has_before, has_after):
        residue = source & (VECTOR - 1)
        if step == 2 * element_size and (
            (residue == 0 and has_after) or (residue == element_size and has_before)
        ):
            a, b, c, d = ptx.read_u32x4(source - residue)
            e, f, g, h = ptx.read_u32x4(source - residue + VECTOR)
            return a, b, c, d, e, f, g, h, u32(residue != 0)
        a, b, c, d, e, f, g, h = scalars(source, step)
        return a, b, c, d, e, f, g, h, u32(0)

    @device_function
    def permuted(words, first, selector):
        return (
            ptx.permute(words[first], words[first + 1], selector),
            ptx.permute(words[first + 2], words[first + 3], selector),
            ptx.permute(words[first + 4], words[first + 5], selector),
            ptx.permute(words[first + 6], words[first + 7], selector),
        )

    @device_function
    def pack_1(words, first, is_odd):
        return permuted(words, first, u32(0x7531) if is_odd != 0 else u32(0x6420))

    @device_function
    def pack_2(words, first, is_odd):
        return permuted(words, first, u32(0x7632) if is_odd != 0 else u32(0x5410))

    @device_function
    def pack_4(words, first, is_odd):
        if is_odd != 0:
            return words[first + 1], words[first + 3], words[first + 5], words[first + 7]
        return words[first], words[first + 2], words[first + 4], words[first + 6]

    @device_function
    def pack_8(words, first, is_odd):
        if is_odd != 0:
            return words[first + 2], words[first + 3], words[first + 6], words[first + 7]
        return words[first], words[first + 1], words[first + 4], words[first + 5]

    return read, {1: pack_1, 2: pack_2, 4: pack_4, 8: pack_8}[element_size]
