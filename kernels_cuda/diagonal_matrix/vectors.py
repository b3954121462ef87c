"""Vectors of a row that the band covers in part."""

from typing import Any

from kernels_cuda.diagonal_matrix.parameters import VECTOR
from kernels_cuda.ptx import i32, u32, u64
from kernels_cuda.runtime.compiler import device_function


@device_function
def bytes_below(n):
    """Return the mask of the lowest `n` bytes of a word, for any n."""
    inside = u32(min(max(n, 0), 4))
    return u32((1 << u64(inside << 3)) - 1)


@device_function
def merged(word, value, first, last, inverted):
    """Replace the bytes of a word from `first` to `last`, or all others."""
    kept = bytes_below(last) & ~bytes_below(first)
    if inverted:
        kept = ~kept
    return (word & ~kept) | (u32(value) & kept)


def edge_function(element_size: int) -> Any:
    """Make the function that sets the elements of a vector from `low` to `high`, or all others."""
    per_vector = VECTOR // element_size
    size_shift = element_size.bit_length() - 1

    @device_function
    def with_band(a, b, c, d, low, high, band):
        first = i32(min(max(low, 0), per_vector) << size_shift)
        last = i32(min(max(high, 0), per_vector) << size_shift)
        return (
            merged(a, band.low_value, first, last, band.inverted),
            merged(b, band.high_value, i32(first - 4), i32(last - 4), band.inverted),
            merged(c, band.low_value, i32(first - 8), i32(last - 8), band.inverted),
            merged(d, band.high_value, i32(first - 12), i32(last - 12), band.inverted),
        )

    return with_band
