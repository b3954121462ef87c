"""Any layout as integers for kernels: divisors of positions in element order, and tables of dimensions.

A kernel that takes any strides gets columns of integers, fastest dimension first: multipliers, shifts,
sizes, and a column of strides per tensor. Narrow kernels count elements in 31 bits and get up to
`NARROW_DEPTH` dimensions as parameters. Wide kernels count in 63 bits and read any number of dimensions
from the workspace, where a launch before theirs has put them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernels_cuda.runtime.launch import Kernel, load
from kernels_cuda.runtime.variant import Target, Variant

NARROW_DEPTH = 4
NARROW_LIMIT = 1 << 31
WRITTEN_AT_ONCE = 64  # integers of a table that one launch puts into the workspace


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def is_wide(n_elements: int, *n_dims: int, limit: int = NARROW_LIMIT) -> bool:
    """Return whether a problem of more elements than `limit`, or of many dimensions, needs a wide kernel."""
    return n_elements > limit or max(n_dims, default=0) > NARROW_DEPTH


class Divisor(NamedTuple):
    """A number that kernels divide by, with the multiplier and the shift that they do it with."""

    size: int
    multiplier: int
    shift: int


def divisor(size: int, wide: bool) -> Divisor:
    """Return a divisor of positions.

    For x below 2^b, b = 31 or 63, x // size is the high half of 2x times the multiplier, shifted right: the
    multiplier exceeds 2^(b + shift) / size by less than one, so the quotient by less than x / 2^(b + shift),
    which is less than 1 / size.

    Examples
    --------
    >>> _, multiplier, shift = divisor(7, wide=False)
    >>> (2 * 699 * multiplier >> 32) >> shift
    99
    """
    bits = 63 if wide else 31
    shift = (size - 1).bit_length()
    multiplier = ceil_div(1 << (bits + shift), size)
    return Divisor(size, multiplier - (1 << 64) if multiplier >= 1 << 63 else multiplier, shift)


Column = tuple[int, ...] | int
"""Integers of dimensions, fastest first: as many as `NARROW_DEPTH`, or the address of any number."""

TABLE_WRITER = Variant("write_table", "kernels_cuda.offsets:write_table_kernel")


@dataclass(frozen=True, slots=True)
class Table:
    """Dimensions for one kernel: parameters of a narrow one, in the workspace for a wide one.

    Attributes
    ----------
    workspace_size : int
        Bytes that they take there.
    kind : type
        The NamedTuple that the kernel takes: the number of dimensions, and columns.
    columns : sequence of sequences of int
        The columns.
    """

    workspace_size: int
    kind: type
    columns: Sequence[Sequence[int]]
    _writer: Kernel | None

    def parameters(self, stream: int = 0, workspace: int = 0) -> tuple[Any, ...]:
        """Return what a launch on `stream` passes; a wide table is written to the workspace first."""
        made: tuple[Any, ...]
        n_dims = len(self.columns[0])
        if self._writer is None:
            unused = (0,) * NARROW_DEPTH
            made = self.kind(n_dims, *((*column, *unused)[:NARROW_DEPTH] for column in self.columns))
            return made
        values = [value for column in self.columns for value in column]
        for first in range(0, len(values), WRITTEN_AT_ONCE):
            written = values[first : first + WRITTEN_AT_ONCE]
            padding = (0,) * (WRITTEN_AT_ONCE - len(written))
            self._writer.launch(stream, 1, 1, 0, workspace + first * 8, len(written), *written, *padding)
        starts = [sum(len(column) for column in self.columns[:i]) for i in range(len(self.columns))]
        made = self.kind(n_dims, *(workspace + start * 8 for start in starts))
        return made


class WideLaunch(NamedTuple):
    """A launch of a wide kernel, whose dimensions are written to the workspace before."""

    kernel: Kernel
    n_blocks: int
    n_threads: int
    parameters: Any
    table: Table

    def __call__(self, stream: int, workspace: int, *addresses: int) -> None:
        """Write the dimensions, and launch."""
        dims = self.table.parameters(stream, workspace)
        self.kernel.launch(stream, self.n_blocks, self.n_threads, 0, *addresses, self.parameters, dims)


def make_table(
    kind: type,
    dims: Sequence[tuple[int, ...]],
    scales: Sequence[int],
    wide: bool,
    target: Target,
    *more: Sequence[int],
) -> Table:
    """Make the table of some dimensions (`dimension_columns`), and of more columns."""
    columns = [*dimension_columns(dims, wide, scales), *more]
    if not wide:
        return Table(0, kind, columns, None)
    return Table(8 * sum(map(len, columns)), kind, columns, load(TABLE_WRITER, target))


def dimension_columns(
    dims: Sequence[tuple[int, ...]], wide: bool, scales: Sequence[int]
) -> list[Sequence[int]]:
    """Return the columns of multipliers, shifts, sizes and each tensor's strides.

    Parameters
    ----------
    dims : sequence of tuples
        (size, stride, ...) of each dimension, slowest first, sizes positive.
    wide : bool
        Whether they are for a wide kernel.
    scales : sequence of int
        What the strides of each tensor are multiplied with: its element size.
    """
    fastest_first = list(reversed(dims)) or [(1, *(0 for _ in scales))]
    divisors = [divisor(size, wide) for size, *_ in fastest_first]
    return [
        [divisor.multiplier for divisor in divisors],
        [divisor.shift for divisor in divisors],
        [divisor.size for divisor in divisors],
        *([dim[1 + i] * scale for dim in fastest_first] for i, scale in enumerate(scales)),
    ]
