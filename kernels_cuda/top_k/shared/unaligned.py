"""Vectors of rows that begin anywhere: read whole with their neighbours, and shifted.

Windows begin between two 16-byte boundaries, and so do rows of an odd number of elements. Nothing outside x
is read: its first and its last vectors may have to be read element by element.
"""

from typing import Any

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES


def extent_function(element_size: int) -> Any:
    """Make the device function that returns the addresses between which all rows of x lie."""

    @device_function
    def extent_of(x, p):
        return x + p.window_format.first * element_size, x + p.window_format.end * element_size

    return extent_of


@device_function
def is_readable(address, extent):
    """Return whether both aligned vectors that cover 16 bytes at an address lie in x."""
    first, end = extent
    residue = address & (VECTOR_BYTES - 1)
    behind = i64(0)
    if residue != 0:
        behind = VECTOR_BYTES - residue
    return address - residue >= first and address + VECTOR_BYTES + behind <= end


@linked_function
def read_unaligned(address, is_read):
    """Return the four words at an address, if they are to be read: 0 otherwise."""
    residue = u32(address & (VECTOR_BYTES - 1))
    near = address - i64(residue)
    a, b, c, d = ptx.read_if_u32x4(near, u32(is_read))
    e, f, g, h = ptx.read_if_u32x4(near + VECTOR_BYTES, u32(is_read and residue != 0))
    if residue & 8 != 0:
        a, b, c, d, e, f = c, d, e, f, g, h
    if residue & 4 != 0:
        a, b, c, d, e = b, c, d, e, f
    select = 0x3210 + 0x1111 * (residue & 3)
    return (
        ptx.permute(a, b, select),
        ptx.permute(b, c, select),
        ptx.permute(c, d, select),
        ptx.permute(d, e, select),
    )
