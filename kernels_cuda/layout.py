"""Any layout as integers for kernels: divisors of positions in element order, and tables of dimensions.

A kernel that takes any strides gets columns of integers, fastest dimension first: multipliers, shifts,
sizes and a column of strides a tensor. Narrow kernels count elements in 31 bits and get up to
`NARROW_DEPTH` dimensions as parameters. Wide kernels count in 63 bits and read any number of dimensions
from the workspace, where a launch before theirs has put them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels_cuda.runtime.launch import Kernel, load
from kernels_cuda.runtime.variant import Target, Variant

NARROW_DEPTH = 4
NARROW_LIMIT = 1 << 31
WRITTEN_AT_ONCE = 64  # integers of a table that one launch puts into the workspace


def is_wide(n_elements: int, *n_dims: int) -> bool:
    """Tell whether a problem needs a wide kernel."""
    return n_elements > NARROW_LIMIT or max(n_dims, default=0) > NARROW_DEPTH


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


TABLE_WRITER = Variant("write_table", "kernels_cuda.offsets:write_table_source")


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
        for first in range(0, len(self._values), WRITTEN_AT_ONCE):
            values = self._values[first : first + WRITTEN_AT_ONCE]
            padding = (0,) * (WRITTEN_AT_ONCE - len(values))
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
