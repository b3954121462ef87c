"""From a position in element order to byte offsets: division by invariant sizes, and tables of dimensions.

A kernel that must take any strides gets its dimensions as tuples of int64 parameters, fastest first: multipliers,
shifts, sizes and one tuple of strides a tensor. Narrow kernels count elements in 31 bits and take `NARROW_DEPTH`
dimensions, wide ones count in 63 bits and take `WIDE_DEPTH`, more than any array library allows.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.compiler import device_function
from kernels_cuda.ptx import multiply_high_u32, multiply_high_u64

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

NARROW_DEPTH = 4
WIDE_DEPTH = 64
NARROW_LIMIT = 1 << 31


def is_wide(n_elements: int, *n_dims: int) -> bool:
    """Tell whether a problem needs a wide kernel."""
    return n_elements > NARROW_LIMIT or max(n_dims, default=0) > NARROW_DEPTH


def depth_of(wide: bool) -> int:
    """Return how many dimensions a kernel's tables hold."""
    return WIDE_DEPTH if wide else NARROW_DEPTH


def divisor(size: int, wide: bool) -> tuple[int, int]:
    """Return the multiplier and the shift that divide by `size`.

    For x below 2^b, b = 31 or 63, x // size is the high half of 2x times the multiplier, shifted right: the multiplier
    exceeds 2^(b + shift) / size by less than one, hence the quotient by less than x / 2^(b + shift) < 1 / size.

    Examples
    --------
    >>> multiplier, shift = divisor(7, wide=False)
    >>> (2 * 699 * multiplier >> 32) >> shift
    99
    """
    bits = 63 if wide else 31
    shift = (size - 1).bit_length()
    multiplier = -(-(1 << (bits + shift)) // size)
    return (multiplier - (1 << 64) if multiplier >= 1 << 63 else multiplier), shift


class Arithmetic(NamedTuple):
    """The unsigned type that positions are counted in, and division in it."""

    register: Any
    divide: Any


@functools.cache
def arithmetic(wide: bool) -> Arithmetic:
    """Return the position arithmetic of narrow or wide kernels; ``divide(x, multiplier, shift)``."""
    register, multiply_high = (u64, multiply_high_u64) if wide else (u32, multiply_high_u32)

    @device_function
    def divide(x, multiplier, shift):
        return register(multiply_high(register(x << register(1)), register(multiplier)) >> register(shift))

    return Arithmetic(register, divide)


def table(dims: Sequence[tuple[int, ...]], wide: bool, scales: Sequence[int]) -> tuple[int, ...]:
    """Return the launch arguments for tuples of multipliers, shifts, sizes and each tensor's strides.

    Parameters
    ----------
    dims : sequence of tuples
        (size, stride, ...) of each dimension, slowest first, sizes positive.
    wide : bool
        Whether it is for a wide kernel.
    scales : sequence of int
        What the strides of each tensor are multiplied with: its element size.
    """
    depth = depth_of(wide)
    fastest_first = [*reversed(dims), *[(1, *(0 for _ in scales))] * (depth - len(dims))]
    divisors = [divisor(size, wide) for size, *_ in fastest_first]
    columns = [
        [multiplier for multiplier, _ in divisors],
        [shift for _, shift in divisors],
        [size for size, *_ in fastest_first],
        *([dim[1 + i] * scale for dim in fastest_first] for i, scale in enumerate(scales)),
    ]
    return tuple(value for column in columns for value in column)


@functools.cache
def offset_functions(wide: bool) -> tuple[Any, Any, Any]:
    """Return device functions that make one, two and three byte offsets of a position.

    Each takes the position, the number of dimensions (at least one entry is used) and the tuples of a `table`. What is
    left of the position after the last dimension but one belongs to the last, whose size is not looked at.
    """
    depth = depth_of(wide)
    register, divide = arithmetic(wide)

    @device_function
    def one_offset(position, n_dims, multipliers, shifts, sizes, strides):
        offset = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                offset += i64(rest) * strides[d]
                break
            quotient = divide(rest, multipliers[d], shifts[d])
            offset += i64(register(rest - register(quotient * register(sizes[d])))) * strides[d]
            rest = quotient
        return offset

    @device_function
    def two_offsets(position, n_dims, multipliers, shifts, sizes, first_strides, second_strides):
        first = i64(0)
        second = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * first_strides[d]
                second += i64(rest) * second_strides[d]
                break
            quotient = divide(rest, multipliers[d], shifts[d])
            coordinate = i64(register(rest - register(quotient * register(sizes[d]))))
            first += coordinate * first_strides[d]
            second += coordinate * second_strides[d]
            rest = quotient
        return first, second

    @device_function
    def three_offsets(
        position, n_dims, multipliers, shifts, sizes, first_strides, second_strides, third_strides
    ):
        first = i64(0)
        second = i64(0)
        third = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * first_strides[d]
                second += i64(rest) * second_strides[d]
                third += i64(rest) * third_strides[d]
                break
            quotient = divide(rest, multipliers[d], shifts[d])
            coordinate = i64(register(rest - register(quotient * register(sizes[d]))))
            first += coordinate * first_strides[d]
            second += coordinate * second_strides[d]
            third += coordinate * third_strides[d]
            rest = quotient
        return first, second, third

    return one_offset, two_offsets, three_offsets
