"""Where the rows lie: up to two dimensions in a kernel's arguments, any more in a table made before.

A layout is seven int64: the size of the inner dimension, and the strides of x, values and indices along the
outer one, then along the inner one. Offsets and strides are in elements.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

N_LAYOUT = 7
OFFSETS_THREADS = 256
# Three int64 a row.
OFFSETS_BYTES = 24
LENGTHS_THREADS = 256
# A row's length in the workspace is an int64.
LENGTH_BYTES = 8

RowDimension = tuple[int, int, int, int]


class RowLayout(NamedTuple):
    """How kernels find the rows: `layout`, or a table, filled by a launch for each of `table_dimensions`."""

    layout: tuple[int, ...]
    table_dimensions: tuple[tuple[int, ...], ...]

    def with_packed_x(self, row_size: int) -> "RowLayout":
        """Return the layout with the rows of x one after the other, `row_size` elements each."""
        inner, _, value_outer, index_outer, _, value_inner, index_inner = self.layout
        layout = (inner, inner * row_size, value_outer, index_outer, row_size, value_inner, index_inner)
        table = tuple(
            (below, size, below * row_size, value, index)
            for below, size, _, value, index in self.table_dimensions
        )
        return RowLayout(layout, table)

    def has_packed_outputs(self, n_rows: int, row_size: int) -> bool:
        """Tell whether the rows of values and indices lie one after the other, `row_size` elements each."""
        if n_rows == 1:
            return True
        inner_size, _, *outer, _, value_inner, index_inner = self.layout
        is_inner_packed = inner_size == 1 or value_inner == index_inner == row_size
        is_outer_packed = n_rows == inner_size or outer == [inner_size * row_size] * 2
        return not self.table_dimensions and is_inner_packed and is_outer_packed

    def with_packed_outputs(self, row_size: int) -> "RowLayout":
        """Return the layout with the rows of values and indices one after the other."""
        inner, x_outer, _, _, x_inner, _, _ = self.layout
        layout = (inner, x_outer, inner * row_size, inner * row_size, x_inner, row_size, row_size)
        table = tuple(
            (below, size, x, below * row_size, below * row_size)
            for below, size, x, _, _ in self.table_dimensions
        )
        return RowLayout(layout, table)


def columns_last(rows: Sequence[RowDimension], axis_stride: int) -> tuple[tuple[RowDimension, ...], int]:
    """Put the dimension of rows that are neighbours in x last; return how many there are, too.

    Examples
    --------
    >>> columns_last([(4, 1, 7, 7), (5, 8, 2, 2)], 40)
    (((5, 8, 2, 2), (4, 1, 7, 7)), 4)
    >>> columns_last([(4, 8, 7, 7)], 1)
    (((4, 8, 7, 7),), 1)
    """
    if abs(axis_stride) > 1:
        for at, dimension in enumerate(rows):
            if abs(dimension[1]) == 1:
                return (*rows[:at], *rows[at + 1 :], dimension), dimension[0]
    return tuple(rows), 1


def row_layout(rows: Sequence[RowDimension]) -> RowLayout:
    """Describe rows of any number of dimensions, slowest first, for kernels.

    Examples
    --------
    >>> row_layout([(5, 1, 2, 3)])
    RowLayout(layout=(1, 1, 2, 3, 0, 0, 0), table_dimensions=())
    >>> row_layout([(5, 60, 6, 6), (4, 3, 1, 1)]).layout
    (4, 60, 6, 6, 3, 1, 1)
    >>> row_layout([(5, 9, 9, 9), (4, 3, 1, 1), (2, 1, 1, 1)]).table_dimensions
    ((8, 5, 9, 9, 9), (2, 4, 3, 1, 1), (1, 2, 1, 1, 1))
    """
    if len(rows) > 2:
        below = [math.prod(size for size, *_ in rows[at + 1 :]) for at in range(len(rows))]
        table = tuple((count, *dimension) for count, dimension in zip(below, rows, strict=True))
        return RowLayout((1,) * N_LAYOUT, table)
    outer = rows[0][1:] if rows else (0, 0, 0)
    inner_size, *inner = rows[1] if len(rows) == 2 else (1, 0, 0, 0)
    return RowLayout((inner_size, *outer, *inner), ())
