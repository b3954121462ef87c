"""From a position in element order to byte offsets: division by invariant sizes, and tables of dimensions.

A kernel that takes any strides gets columns of integers, fastest dimension first: multipliers, shifts,
sizes and a column of strides a tensor. Narrow kernels count elements in 31 bits and get up to
`NARROW_DEPTH` dimensions as parameters. Wide kernels count in 63 bits and read any number of dimensions
from the workspace, where a launch before theirs has put them.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.launch import Kernel, Target, Variant, load
from kernels_cuda.ptx import multiply_high_u32, multiply_high_u64, read_u64, store_u64

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

NARROW_DEPTH = 4
NARROW_LIMIT = 1 << 31
_ENDLESS = 1 << 30  # loops over dimensions end by a break; this keeps them from being unrolled
_WRITTEN_AT_ONCE = 64


def is_wide(n_elements: int, *n_dims: int) -> bool:
    """Tell whether a problem needs a wide kernel."""
    return n_elements > NARROW_LIMIT or max(n_dims, default=0) > NARROW_DEPTH


def depth_of(wide: bool) -> int:
    """Return the bound of loops over dimensions, which also end by a break."""
    return _ENDLESS if wide else NARROW_DEPTH


def table_lengths(names: Iterable[str], wide: bool) -> dict[str, int]:
    """Return the `KernelSource.tables` of a kernel whose parameters `names` are columns of a `Table`."""
    return {} if wide else dict.fromkeys(names, NARROW_DEPTH)


def divisor(size: int, wide: bool) -> tuple[int, int]:
    """Return the multiplier and the shift that divide by `size`.

    For x below 2^b, b = 31 or 63, x // size is the high half of 2x times the multiplier, shifted right: the
    multiplier exceeds 2^(b + shift) / size by less than one, so the quotient by less than x / 2^(b + shift),
    which is less than 1 / size.

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


@functools.cache
def column_entry(wide: bool) -> Any:
    """Return the device function ``entry(column, d)`` for columns of a `Table`."""

    @device_function
    def of_parameters(column, d):
        return column[d]

    @device_function
    def of_memory(column, d):
        return i64(read_u64(column + i64(d) * 8))

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
    depth = depth_of(wide)
    register, divide = arithmetic(wide)
    entry = column_entry(wide)

    @device_function
    def one_offset(position, n_dims, multipliers, shifts, sizes, strides):
        offset = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                offset += i64(rest) * entry(strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            offset += i64(register(rest - register(quotient * register(entry(sizes, d))))) * entry(strides, d)
            rest = quotient
        return offset

    @device_function
    def two_offsets(position, n_dims, multipliers, shifts, sizes, first_strides, second_strides):
        first = i64(0)
        second = i64(0)
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * entry(first_strides, d)
                second += i64(rest) * entry(second_strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            coordinate = i64(register(rest - register(quotient * register(entry(sizes, d)))))
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
        rest = register(position)
        for d in range(depth):
            if d + 1 >= n_dims:
                first += i64(rest) * entry(first_strides, d)
                second += i64(rest) * entry(second_strides, d)
                third += i64(rest) * entry(third_strides, d)
                break
            quotient = divide(rest, entry(multipliers, d), entry(shifts, d))
            coordinate = i64(register(rest - register(quotient * register(entry(sizes, d)))))
            first += coordinate * entry(first_strides, d)
            second += coordinate * entry(second_strides, d)
            third += coordinate * entry(third_strides, d)
            rest = quotient
        return first, second, third

    return one_offset, two_offsets, three_offsets


def _write_table() -> KernelSource:
    def write_table(address, count, values):
        for i in range(_WRITTEN_AT_ONCE):
            if i < count:
                store_u64(address + i * 8, u64(values[i]))

    return KernelSource(write_table, {"values": _WRITTEN_AT_ONCE})


TABLE_WRITER = Variant("write_table", _write_table)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of integers for one kernel: parameters of a narrow one, in the workspace for a wide one."""

    workspace_size: int
    _values: tuple[int, ...]
    _starts: tuple[int, ...]
    _writer: Kernel | None

    def arguments(self, stream: Any, workspace: int) -> tuple[int, ...]:
        """Return what a launch on `stream` passes for the columns; a wide table is written there first."""
        if self._writer is None:
            return self._values
        for first in range(0, len(self._values), _WRITTEN_AT_ONCE):
            values = self._values[first : first + _WRITTEN_AT_ONCE]
            padding = (0,) * (_WRITTEN_AT_ONCE - len(values))
            self._writer.launch(stream, 1, 1, 0, workspace + first * 8, len(values), *values, *padding)
        return tuple(workspace + start * 8 for start in self._starts)


def make_table(columns: Sequence[Sequence[int]], wide: bool, target: Target) -> Table:
    """Make the table of the given columns."""
    if not wide:
        values = [value for column in columns for value in (*column, *[0] * (NARROW_DEPTH - len(column)))]
        return Table(0, tuple(values), (), None)
    starts = [sum(len(column) for column in columns[:i]) for i in range(len(columns))]
    values = [value for column in columns for value in column]
    return Table(len(values) * 8, tuple(values), tuple(starts), load(TABLE_WRITER, target))


def dimension_columns(
    dims: Sequence[tuple[int, ...]], wide: bool, scales: Sequence[int]
) -> list[Sequence[int]]:
    """Return the columns of multipliers, shifts, sizes and each tensor's strides.

    Parameters
    ----------
    dims : sequence of tuples
        (size, stride, ...) of each dimension, slowest first, sizes positive.
    wide : bool
        Whether it is for a wide kernel.
    scales : sequence of int
        What the strides of each tensor are multiplied with: its element size.
    """
    fastest_first = list(reversed(dims)) or [(1, *(0 for _ in scales))]
    divisors = [divisor(size, wide) for size, *_ in fastest_first]
    return [
        [multiplier for multiplier, _ in divisors],
        [shift for _, shift in divisors],
        [size for size, *_ in fastest_first],
        *([dim[1 + i] * scale for dim in fastest_first] for i, scale in enumerate(scales)),
    ]
