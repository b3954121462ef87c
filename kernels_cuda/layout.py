"""Any layout as integers for kernels: divisors of positions in element order, and tables of dimensions.

A kernel that takes any strides gets a *table*, columns of integers, fastest dimension first: multipliers,
shifts, sizes, and a column of strides per tensor. Narrow kernels count elements in 31 bits, and take tables
of up to `NARROW_DEPTH` dimensions as parameters. Wide kernels count in 63 bits, and read tables of any number
of dimensions from the workspace, where launches before theirs put them.

Plans call these functions (`plan_words`): all numbers are integers of 64 bits.
"""

from typing import NamedTuple

from kernels_cpu.integers import bit_length, ceil_div
from kernels_cpu.plan_words import (
    CONTENT,
    END,
    Words,
    begin_launch,
    put_last_pointer,
    put_pointer,
    put_value,
    take_workspace,
    wait_for_last,
)
from kernels_cuda.kernel_keys import KernelFamily

NARROW_DEPTH = 4
NARROW_LIMIT = 1 << 31
WRITTEN_AT_ONCE = 64  # integers of a table that one launch puts into the workspace

# Every operator's first family of kernels.
TABLE_WRITERS = KernelFamily("write_table", "kernels_cuda.offsets:write_table_kernel")
WRITE_TABLE = 0
_WRITER_WORDS = CONTENT + 2 + 1 + WRITTEN_AT_ONCE  # a pointer, a count, and the integers

LEAST_INTEGER = -(1 << 63)
LAUNCH_WORDS = 128
"""The words of a plan that a launch of a kernel takes, at most: room that there must be before it is put."""

Column = tuple[int, ...] | int
"""Integers of dimensions, fastest first: as many as `NARROW_DEPTH`, or the address of any number."""


def is_wide(n_elements: int, n_dims: int, limit: int) -> bool:
    """Return whether a problem of more elements than `limit`, or of many dimensions, needs a wide kernel."""
    return n_elements > limit or n_dims > NARROW_DEPTH


class Divisor(NamedTuple):
    """A number that kernels divide by, with the multiplier and the shift that they do it with."""

    size: int
    multiplier: int
    shift: int


def divisor(size: int, wide: bool) -> Divisor:
    """Return a divisor of positions: a size from 1 to 2^31, or if wide to 2^63 - 1.

    For x below 2^b, b = 31 or 63, x // size is the high half of 2x times the multiplier, shifted right: the
    multiplier exceeds 2^(b + shift) / size by less than one, so the quotient by less than x / 2^(b + shift),
    which is less than 1 / size.

    Examples
    --------
    >>> _, multiplier, shift = divisor(7, wide=False)
    >>> (2 * 699 * multiplier >> 32) >> shift
    99
    """
    shift = bit_length(size - 1)
    if wide:
        return Divisor(size, _wide_multiplier(size, shift), shift)
    return Divisor(size, ceil_div(1 << (31 + shift), size), shift)


def _wide_multiplier(size: int, shift: int) -> int:
    """Return 2^(63 + shift) / size, rounded up, as the int64 of the same 64 bits.

    It is 2^63 and 2^63 * rest / size, for the rest by which 2^shift exceeds size, which is below size: the
    long division of that gives 63 bits.
    """
    half = 1 << (shift - 1) if shift else 0
    rest = (half - size) + half if shift else 0
    quotient = 0
    for _ in range(63):
        quotient <<= 1
        if rest >= size - rest:
            quotient += 1
            rest -= size - rest
        else:
            rest += rest
    return LEAST_INTEGER + quotient + (1 if rest else 0)


class Table(NamedTuple):
    """A table that a plan has made room for, as `n_integers` zeros."""

    at: int
    """Where the first integer is in the words of the plan; `place` tells where the others are."""
    workspace_at: int
    """Where it is in the workspace, if it is wide."""


def wide_table(out: Words, workspace_slot: int, n_integers: int) -> Table:
    """Put launches that write a table to the workspace: they come before that of the kernel that reads it."""
    workspace_at = take_workspace(out, 8 * n_integers, 8)
    at = out[END] + _WRITER_WORDS - WRITTEN_AT_ONCE
    for first in range(0, n_integers, WRITTEN_AT_ONCE):
        begin_launch(out, WRITE_TABLE, 1, 1, 0, 1)
        wait_for_last(out)
        put_pointer(out, workspace_slot, workspace_at + first * 8)
        put_value(out, min(WRITTEN_AT_ONCE, n_integers - first))
        for _ in range(WRITTEN_AT_ONCE):
            put_value(out, 0)
    return Table(at, workspace_at)


def wide_table_words(n_integers: int) -> int:
    """Return how many words of a plan the launches take that write a table."""
    return ceil_div(n_integers, WRITTEN_AT_ONCE) * _WRITER_WORDS


def narrow_table(out: Words, n_columns: int) -> Table:
    """Put a table of so many columns of `NARROW_DEPTH` integers, the next values of a launch."""
    at = out[END]
    for _ in range(n_columns * NARROW_DEPTH):
        put_value(out, 0)
    return Table(at, 0)


def place(table: Table, number: int) -> int:
    """Return which word of a plan holds an integer of a table; narrow tables have fewer than one launch."""
    return table.at + number // WRITTEN_AT_ONCE * _WRITER_WORDS + number % WRITTEN_AT_ONCE


def put_columns(out: Words, workspace_slot: int, table: Table, n_columns: int, n_dims: int) -> None:
    """Put pointers at the first columns of a wide table, all of so many integers."""
    for column in range(n_columns):
        put_last_pointer(out, workspace_slot, table.workspace_at + 8 * column * n_dims)


def fill_dimension(out: Words, table: Table, depth: int, d: int, size: int, wide: bool) -> None:
    """Fill in what divides by the size of dimension `d`, in the first three columns of `depth` integers."""
    by = divisor(size, wide)
    out[place(table, d)] = by.multiplier
    out[place(table, depth + d)] = by.shift
    out[place(table, 2 * depth + d)] = by.size
