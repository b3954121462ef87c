"""From a position in element order to byte offsets, by the tables of `layout`: what kernels do with these."""

import functools
from typing import Any, NamedTuple

from numba import cuda, types

from kernels_cuda.layout import NARROW_DEPTH, WRITTEN_AT_ONCE
from kernels_cuda.ptx import i64, multiply_high_u32, multiply_high_u64, read_u64, store_u64, u32, u64
from kernels_cuda.runtime.compiler import device_function, integers

_ENDLESS = 1 << 30  # loops over dimensions end by a break; this keeps them from being unrolled


def depth_of(wide: bool) -> int:
    """Return the bound of loops over dimensions, which also end by a break."""
    return _ENDLESS if wide else NARROW_DEPTH


def dims_type(kind: Any, wide: bool) -> Any:
    """Return the type of a kernel's dimensions: a NamedTuple of their number and columns (`layout.Table`)."""
    column = i64 if wide else integers(NARROW_DEPTH)
    return types.BaseTuple.from_types([i64, *[column] * (len(kind._fields) - 1)], kind)


class Arithmetic(NamedTuple):
    """The unsigned type that positions are counted in, and division in it.

    ``divide(x, divisor)`` takes a `layout.Divisor`, ``quotient(x, multiplier, shift)`` what it consists of.
    """

    register: Any
    divide: Any
    quotient: Any


@functools.cache
def arithmetic(wide: bool) -> Arithmetic:
    """Return the position arithmetic of narrow or wide kernels."""
    register, multiply_high = (u64, multiply_high_u64) if wide else (u32, multiply_high_u32)

    @device_function
    def quotient(x, multiplier, shift):
        return multiply_high(x << 1, register(multiplier)) >> register(shift)

    @device_function
    def divide(x, divisor):
        return multiply_high(x << 1, register(divisor.multiplier)) >> register(divisor.shift)

    return Arithmetic(register, divide, quotient)


@device_function
def column_entry(column, d):
    """Return an entry of a column of a wide `Table`, by its address."""
    return i64(read_u64(column + d * 8))


@functools.cache
def first_entry(wide: bool) -> Any:
    """Return the device function ``first(column)``: the entry of the fastest dimension."""

    @device_function
    def of_parameters(column):
        return column[0]

    @device_function
    def of_memory(column):
        return column_entry(column, 0)

    return of_memory if wide else of_parameters


@functools.cache
def offset_functions(wide: bool) -> tuple[Any, Any, Any]:
    """Return device functions that make one, two and three byte offsets of a position.

    Each takes the position, the dimensions (at least one; `layout.Table`), and the strides of each tensor.
    What is left of the position after the last dimension but one belongs to the last, whose size is not read.
    """
    three_offsets = _wide_offsets() if wide else _narrow_offsets()

    # The compiler drops what is computed twice, or not used.
    @device_function
    def one_offset(position, dims, strides):
        offset, _, _ = three_offsets(position, dims, strides, strides, strides)
        return offset

    @device_function
    def two_offsets(position, dims, first_strides, second_strides):
        first, second, _ = three_offsets(position, dims, first_strides, second_strides, second_strides)
        return first, second

    return one_offset, two_offsets, three_offsets


def _narrow_offsets() -> Any:
    register, _, quotient = arithmetic(wide=False)

    # None is a loop that ends at the last dimension: the compiler would not unroll it, and choose among the
    # entries of a column, which has no addresses, by branches.
    @device_function
    def offset(first, second, third, fourth, dims, strides):
        at = i64(first) * strides[0]
        if dims.n_dims > 1:
            at += i64(second) * strides[1]
        if dims.n_dims > 2:
            at += i64(third) * strides[2]
        if dims.n_dims > 3:
            at += i64(fourth) * strides[3]
        return at

    @device_function
    def three_offsets(position, dims, first_strides, second_strides, third_strides):
        first = register(position)
        second = register(0)
        third = register(0)
        fourth = register(0)
        if dims.n_dims > 1:
            second = quotient(first, dims.multipliers[0], dims.shifts[0])
            first -= second * register(dims.sizes[0])
        if dims.n_dims > 2:
            third = quotient(second, dims.multipliers[1], dims.shifts[1])
            second -= third * register(dims.sizes[1])
        if dims.n_dims > 3:
            fourth = quotient(third, dims.multipliers[2], dims.shifts[2])
            third -= fourth * register(dims.sizes[2])
        return (
            offset(first, second, third, fourth, dims, first_strides),
            offset(first, second, third, fourth, dims, second_strides),
            offset(first, second, third, fourth, dims, third_strides),
        )

    return three_offsets


def _wide_offsets() -> Any:
    depth = depth_of(wide=True)
    register, _, quotient = arithmetic(wide=True)

    @device_function
    def three_offsets(position, dims, first_strides, second_strides, third_strides):
        first = i64(0)
        second = i64(0)
        third = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= dims.n_dims:
                first += i64(rest) * column_entry(first_strides, d)
                second += i64(rest) * column_entry(second_strides, d)
                third += i64(rest) * column_entry(third_strides, d)
                break
            upper = quotient(rest, column_entry(dims.multipliers, d), column_entry(dims.shifts, d))
            coordinate = i64(rest - upper * register(column_entry(dims.sizes, d)))
            first += coordinate * column_entry(first_strides, d)
            second += coordinate * column_entry(second_strides, d)
            third += coordinate * column_entry(third_strides, d)
            rest = upper
        return first, second, third

    return three_offsets


def write_table_kernel() -> Any:
    """Make the kernel that puts integers of a table into the workspace."""

    @cuda.jit
    def write_table(address, count, values: integers(WRITTEN_AT_ONCE)):
        for i in range(WRITTEN_AT_ONCE):
            if i < count:
                store_u64(address + i * 8, u64(values[i]))

    return write_table
