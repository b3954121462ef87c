"""The problem in plain integers: its size, where its rows lie, and how its elements are compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernels_cuda.runtime.launch import as_signed
from kernels_cuda.runtime.variant import Target, capability_of


class RowDimension(NamedTuple):
    """A dimension of rows: its size, and the strides of what belongs to a row along it, in elements."""

    size: int
    x: int
    values: int
    indices: int
    lengths: int = 0


class AxisStrides(NamedTuple):
    """Strides along the axis, in elements."""

    x: int
    values: int
    indices: int


class RowLayout(NamedTuple):
    """Rows in up to two dimensions, as kernels find them: strides in elements, all int64."""

    inner_size: int
    x_outer: int
    value_outer: int
    index_outer: int
    length_outer: int
    x_inner: int
    value_inner: int
    index_inner: int
    length_inner: int


class TableDimension(NamedTuple):
    """One of more than two dimensions of rows; `rows_below` rows share a coordinate."""

    rows_below: int
    size: int
    x_stride: int
    value_stride: int
    index_stride: int
    length_stride: int


class LengthFormat(NamedTuple):
    """How a row's length is stored, and what fills its results up where it has fewer than k elements.

    Attributes
    ----------
    size, is_signed : int
        Bytes of a length (4, 8), and whether it is signed.
    padding : int
        Bits of the value; the index has all bits set.
    """

    size: int = 0
    is_signed: int = 0
    padding: int = 0


class KeyFormat(NamedTuple):
    """How an element becomes its ordered key (see `keys`): the largest key comes first.

    `sign`, `flip` and `infinity` are the masks of `describe`, but see `bool_key_format`. An element is XORed
    with `positive`, or with `negative` if its sign bit is set. All NaNs have the key `unordered`.
    """

    sign: int
    flip: int
    infinity: int
    positive: int
    negative: int
    unordered: int


class UnfoldedFormat(NamedTuple):
    """How an element becomes its unfolded key, and that its ordered key (see `keys`).

    `flip`, `turn` and `offset` make an unfolded key (`ptx.unfolded_key_u32`); `change` is XORed with a word
    of integers to make unfolded keys of all of them. Adding `shift` makes an ordered key, but `lone_zero`
    stands for the zero that has no ordered key of its own, and unfolded keys from `first_nan` to `last_nan`
    are NaNs.
    """

    shift: int
    lone_zero: int
    first_nan: int
    last_nan: int
    flip: int
    turn: int
    offset: int
    change: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """All rows of a problem: a layout, or a table of offsets that launches fill, one for each dimension.

    Attributes
    ----------
    count : int
        How many rows there are.
    n_neighbours : int
        How many of them at a time lie side by side in x.
    layout : RowLayout
        Where they lie, if `table` is empty.
    table : tuple of TableDimension
        All dimensions where there are more than two, slowest first.
    """

    count: int
    n_neighbours: int
    layout: RowLayout
    table: tuple[TableDimension, ...]

    def with_packed_x(self, row_size: int) -> "Rows":
        """Return the rows with those of x one after the other, `row_size` elements each."""
        inner_size = self.layout.inner_size
        layout = self.layout._replace(x_outer=inner_size * row_size, x_inner=row_size)
        table = tuple(dim._replace(x_stride=dim.rows_below * row_size) for dim in self.table)
        return Rows(count=self.count, n_neighbours=self.n_neighbours, layout=layout, table=table)

    def with_packed_outputs(self, row_size: int) -> "Rows":
        """Return the rows with those of values and indices one after the other."""
        outer = self.layout.inner_size * row_size
        layout = self.layout._replace(
            value_outer=outer, index_outer=outer, value_inner=row_size, index_inner=row_size
        )
        table = tuple(
            dim._replace(value_stride=dim.rows_below * row_size, index_stride=dim.rows_below * row_size)
            for dim in self.table
        )
        return Rows(count=self.count, n_neighbours=self.n_neighbours, layout=layout, table=table)


def describe_rows(dimensions: Sequence[RowDimension], axis_stride: int) -> Rows:
    """Describe rows of any number of dimensions, slowest first, whose elements are `axis_stride` apart.

    Examples
    --------
    >>> tuple(describe_rows([RowDimension(5, 60, 6, 6, 4), RowDimension(4, 3, 1, 1, 1)], 1).layout)
    (4, 60, 6, 6, 4, 3, 1, 1, 1)
    >>> rows = describe_rows([RowDimension(*row) for row in ((5, 9, 9, 9), (4, 3, 1, 1), (2, 1, 1, 1))], 1)
    >>> rows.count, [tuple(dimension) for dimension in rows.table]
    (40, [(8, 5, 9, 9, 9, 0), (2, 4, 3, 1, 1, 0), (1, 2, 1, 1, 1, 0)])
    """
    count = math.prod(dimension.size for dimension in dimensions)
    dimensions, n_neighbours = neighbours_last(dimensions, axis_stride)
    if len(dimensions) > 2:
        below = [math.prod(dim.size for dim in dimensions[at + 1 :]) for at in range(len(dimensions))]
        table = tuple(TableDimension(rows, *dim) for rows, dim in zip(below, dimensions, strict=True))
        layout = RowLayout(*(1,) * len(RowLayout._fields))
        return Rows(count=count, n_neighbours=n_neighbours, layout=layout, table=table)
    _, *outer = dimensions[0] if dimensions else RowDimension(1, 0, 0, 0)
    inner_size, *inner = dimensions[1] if len(dimensions) == 2 else RowDimension(1, 0, 0, 0)
    layout = RowLayout(inner_size, *outer, *inner)
    return Rows(count=count, n_neighbours=n_neighbours, layout=layout, table=())


def neighbours_last(
    dimensions: Sequence[RowDimension], axis_stride: int
) -> tuple[tuple[RowDimension, ...], int]:
    """Put the dimension of rows that are neighbours in x last; return how many there are, too.

    Examples
    --------
    >>> rows, n_neighbours = neighbours_last([RowDimension(4, 1, 7, 7), RowDimension(5, 8, 2, 2)], 40)
    >>> [row.size for row in rows], n_neighbours
    ([5, 4], 4)
    >>> neighbours_last([RowDimension(4, 8, 7, 7)], 1)[1]
    1
    """
    if abs(axis_stride) > 1:
        for at, dimension in enumerate(dimensions):
            if abs(dimension.x) == 1:
                return (*dimensions[:at], *dimensions[at + 1 :], dimension), dimension.size
    return tuple(dimensions), 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What `describe` is asked for, and on which device.

    If `is_sorted` is false, the selected elements are to come by ascending position. If there are no
    `lengths`, all rows have `axis_size` elements.
    """

    element_size: int
    index_size: int
    key_format: KeyFormat
    unfolded_format: UnfoldedFormat
    k: int
    axis_size: int
    rows: Rows
    strides: AxisStrides
    target: Target
    is_sorted: bool = True
    lengths: LengthFormat | None = None

    @property
    def length_format(self) -> LengthFormat:
        """What kernels take for `lengths`, which they do not read where there are none."""
        return self.lengths or LengthFormat()

    @property
    def is_by_index(self) -> bool:
        """Whether ascending position is another order than that of a sorted answer."""
        return not self.is_sorted and self.k > 1

    @property
    def aligned_format(self) -> KeyFormat:
        """The key format as `aligned_keys` takes it: that of bools without a sign."""
        is_bool = self.key_format == bool_key_format(self.key_format.unordered != 0)
        return self.key_format._replace(sign=0, flip=0xFF) if is_bool else self.key_format

    @property
    def filler(self) -> int:
        """Bits of an element that comes before no other, to fill up what a part of a row selects."""
        ones = (1 << 8 * self.element_size) - 1
        sign, flip, infinity = (mask & ones for mask in self.aligned_format[:3])
        is_largest = self.key_format.unordered != 0
        return as_signed(last_element(self.element_size, sign, flip, infinity, is_largest))

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.rows.count

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of x, without gaps."""
        return self.axis_size * self.element_size

    @property
    def layout(self) -> RowLayout:
        """Where the rows lie, if there is no table of their offsets."""
        return self.rows.layout

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the device."""
        return capability_of(self.target.arch)


def key_format(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> KeyFormat:
    """Return how elements of a data type become ordered keys.

    Examples
    --------
    >>> [hex(mask) for mask in key_format(2, 0x8000, 0x7FFF, 0x7C00, True)]
    ['0x8000', '0x7fff', '0x7c00', '0x8000', '0xffff', '0xffff']
    """
    if flip and not sign:
        return bool_key_format(largest)
    ones = (1 << 8 * element_size) - 1
    direction = 0 if largest else ones
    masks = (sign, flip, infinity, sign ^ direction, sign ^ flip ^ direction, ones ^ direction)
    return KeyFormat(*map(as_signed, masks))


def bool_key_format(is_largest: bool) -> KeyFormat:
    """Return how bools become ordered keys: all set bytes are NaNs, and share one key.

    A byte is a magnitude without a sign. But `keys.unfold_threshold` computes the least unfolded key of set
    bytes, 1 or 255, from `sign` and `flip`: modulo 256 both have to be 255 there, and `flip` the larger one.
    """
    zero, others = (0, 0xFF) if is_largest else (0xFF, 0)
    return KeyFormat(sign=0xFF, flip=0x1FF, infinity=0, positive=zero, negative=zero, unordered=others)


def last_element(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> int:
    """Return the bits of an element that comes before no other.

    Examples
    --------
    >>> [hex(last_element(2, 0x8000, 0x7FFF, 0x7C00, largest)) for largest in (True, False)]
    ['0xfc00', '0x7fff']
    >>> [hex(last_element(1, 0x80, 0, 0xFF, largest)) for largest in (True, False)]
    ['0x80', '0x7f']
    """
    if flip:
        # Minus infinity, or a NaN; of bools, False or True.
        return sign | infinity if largest else flip
    ones = (1 << 8 * element_size) - 1
    return sign if largest else sign ^ ones


def unfolded_format(element_size: int, sign: int, flip: int, infinity: int, largest: bool) -> UnfoldedFormat:
    """Return how elements of a data type become unfolded keys, and these ordered keys.

    Examples
    --------
    >>> [hex(number) for number in unfolded_format(4, 1 << 31, (1 << 31) - 1, 0x7F800000, True)]
    ['0x7fffff', '0x7fffffff', '0xff000002', '0xffffffff', '0x7fffffff', '0x1', '0x7f800001', '0x0']
    """
    bits = 8 * element_size
    ones = (1 << bits) - 1
    direction = 0 if largest else ones
    zero = sign ^ direction
    shift, lone_zero, first_nan, last_nan, offset = 0, zero, ones, 0, sign
    if flip:
        lowest = flip ^ infinity
        if largest:
            shift, lone_zero = lowest, zero - 1
            first_nan, last_nan = (sign ^ infinity) - lowest + 1, ones
            offset = infinity + 1
        else:
            shift, lone_zero = -lowest & ones, zero + 1
            first_nan, last_nan = 0, 2 * lowest - 1
            offset = infinity ^ ones
        if not sign:  # bools are made unfolded as integers are, and all but 0 are NaNs
            shift, lone_zero, first_nan, last_nan = (0, ones, 1, ones) if largest else (1, 0, 0, ones - 1)
            flip = offset = 0
    unused = max(32 - bits, 0)
    repeated = sum(1 << at for at in range(0, max(32, bits), bits))
    change = 0 if flip else (direction ^ sign) * repeated
    if element_size == 8:
        turn = direction
    else:
        # As a factor of a 32-bit product, whose sum with -1 is the complement.
        turn = 1 if largest else 0xFFFFFFFF
        offset = ((offset << unused) - (not largest)) & 0xFFFFFFFF
    numbers = (shift, lone_zero, first_nan, last_nan, flip << unused, turn, offset, change)
    return UnfoldedFormat(*map(as_signed, numbers))


def describe(given: Any, target: Target) -> Problem:
    """Return a problem of `dmlops.operators.top_k` on a device, as kernels need it."""
    masks = (*given.masks, given.largest)
    strides = given.length_strides or (0,) * len(given.rows)
    dimensions = [RowDimension._make((*row, length)) for row, length in zip(given.rows, strides, strict=True)]
    lengths = LengthFormat(given.length_size, int(given.length_signed), as_signed(given.padding))
    return Problem(
        element_size=given.element_size,
        index_size=given.index_size,
        key_format=key_format(given.element_size, *masks),
        unfolded_format=unfolded_format(given.element_size, *masks),
        k=given.k,
        axis_size=given.axis_size,
        rows=describe_rows(dimensions, given.axis_strides[0]),
        strides=AxisStrides(*given.axis_strides),
        target=target,
        is_sorted=given.is_sorted,
        lengths=lengths if given.length_size else None,
    )
