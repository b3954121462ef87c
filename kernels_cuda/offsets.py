"""From a position in element order to byte offsets, by the tables of `layout`: what kernels do with these."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.layout import NARROW_DEPTH, WRITTEN_AT_ONCE
from kernels_cuda.ptx import multiply_high_u32, multiply_high_u64, read_u64, store_u64
from kernels_cuda.runtime.compiler import device_function, integers

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_ENDLESS = 1 << 30  # loops over dimensions end by a break; this keeps them from being unrolled


def depth_of(wide: bool) -> int:
    """Return the bound of loops over dimensions, which also end by a break."""
    return _ENDLESS if wide else NARROW_DEPTH


NarrowColumn = integers(NARROW_DEPTH)


def column_type(wide: bool) -> Any:
    """Return the type of a kernel's parameter that is a column of a `Table`: its entries, or its address."""
    return i64 if wide else NarrowColumn


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
        return multiply_high(x << 1, register(multiplier)) >> register(shift)

    return Arithmetic(register, divide)


@functools.cache
def column_entry(wide: bool) -> Any:
    """Return the device function ``entry(column, d)`` for columns of a `Table`."""

    @device_function
    def of_parameters(column, d):
        return column[d]

    @device_function
    def of_memory(column, d):
        return i64(read_u64(column + d * 8))

    return of_memory if wide else of_parameters


@functools.cache
def first_entry(wide: bool) -> Any:
    """Return the device function ``first(column)``: the entry of the fastest dimension."""

    @device_function
    def of_parameters(column):
        return column[0]

    @device_function
    def of_memory(column):
        return i64(read_u64(column))

    return of_memory if wide else of_parameters


@functools.cache
def offset_functions(wide: bool) -> tuple[Any, Any, Any]:
    """Return device functions that make one, two and three byte offsets of a position.

    Each takes the position, the number of dimensions (at least one) and the columns of a `Table`. What is
    left of the position after the last dimension but one belongs to the last, whose size is not looked at.
    """
    return _wide_offset_functions() if wide else _narrow_offset_functions()


def _narrow_offset_functions() -> tuple[Any, Any, Any]:
    register, divide = arithmetic(wide=False)

    # None is a loop that ends at the last dimension: the compiler would not unroll it, and choose among the
    # entries of a column, which has no addresses, by branches.
    @device_function
    def coordinates(position, n_dims, multipliers, shifts, sizes):
        first = register(position)
        second = register(0)
        third = register(0)
        fourth = register(0)
        if n_dims > 1:
            second = divide(first, multipliers[0], shifts[0])
            first -= second * register(sizes[0])
        if n_dims > 2:
            third = divide(second, multipliers[1], shifts[1])
            second -= third * register(sizes[1])
        if n_dims > 3:
            fourth = divide(third, multipliers[2], shifts[2])
            third -= fourth * register(sizes[2])
        return first, second, third, fourth

    @device_function
    def offset(first, second, third, fourth, n_dims, strides):
        at = i64(first) * strides[0]
        if n_dims > 1:
            at += i64(second) * strides[1]
        if n_dims > 2:
            at += i64(third) * strides[2]
        if n_dims > 3:
            at += i64(fourth) * strides[3]
        return at

    @device_function
    def one_offset(position, n_dims, multipliers, shifts, sizes, strides):
        a, b, c, d = coordinates(position, n_dims, multipliers, shifts, sizes)
        return offset(a, b, c, d, n_dims, strides)

    @device_function
    def two_offsets(position, n_dims, multipliers, shifts, sizes, first_strides, second_strides):
        a, b, c, d = coordinates(position, n_dims, multipliers, shifts, sizes)
        return offset(a, b, c, d, n_dims, first_strides), offset(a, b, c, d, n_dims, second_strides)

    @device_function
    def three_offsets(
        position, n_dims, multipliers, shifts, sizes, first_strides, second_strides, third_strides
    ):
        a, b, c, d = coordinates(position, n_dims, multipliers, shifts, sizes)
        return (
            offset(a, b, c, d, n_dims, first_strides),
            offset(a, b, c, d, n_dims, second_strides),
            offset(a, b, c, d, n_dims, third_strides),
        )

    return one_offset, two_offsets, three_offsets


def _wide_offset_functions() -> tuple[Any, Any, Any]:
    depth = depth_of(wide=True)
    register, divide = arithmetic(wide=True)
    entry = column_entry(wide=True)

    @device_function
    def one_offset(position, n_dims, multipliers, shifts, sizes, strides):
        offset = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                offset += i64(rest) * entry(strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            offset += i64(rest - quotient * register(entry(sizes, d))) * entry(strides, d)
            rest = quotient
        return offset

    @device_function
    def two_offsets(position, n_dims, multipliers, shifts, sizes, first_strides, second_strides):
        first = i64(0)
        second = i64(0)
        rest = position
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * entry(first_strides, d)
                second += i64(rest) * entry(second_strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            coordinate = i64(rest - quotient * register(entry(sizes, d)))
            first += coordinate * entry(first_strides, d)
            second += coordinate * entry(second_strides, d)
            rest = quotient
        return first, second

    @device_function
    def three_offsets(
        position, n_dims, multipliers, shifts, sizes, first_strides, second_strides, third_strides
    ):
        first = i64(0)
        second = i64(0)
        third = i64(0)
        rest = position
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * entry(first_strides, d)
                second += i64(rest) * entry(second_strides, d)
                third += i64(rest) * entry(third_strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            coordinate = i64(rest - quotient * register(entry(sizes, d)))
            first += coordinate * entry(first_strides, d)
            second += coordinate * entry(second_strides, d)
            third += coordinate * entry(third_strides, d)
            rest = quotient
        return first, second, third

    return one_offset, two_offsets, three_offsets


def write_table_source() -> Any:
    """Make the kernel that puts integers of a table into the workspace."""

    @cuda.jit
    def write_table(address, count, values: integers(WRITTEN_AT_ONCE)):
        for i in range(WRITTEN_AT_ONCE):
            if i < count:
                store_u64(address + i * 8, u64(values[i]))

    return write_table
