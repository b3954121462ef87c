"""The coordinates of non-zero elements, in ascending element order.

Up to 4,096 elements one block does everything in one launch (`small`). Beyond:

1. `masks` reads the input once and leaves one bit per element in the workspace, and the number of non-zeros
   of each granule of 16,384 elements. Contiguous input is read in 16-byte vectors: a lane holds the bits
   of what it loaded, and an exchange between lanes makes words in element order of them. Input that
   starts between two 16-byte boundaries is counted from the first: positions are *virtual* there,
   `skipped` more than the real ones. Of matrices whose columns are contiguous, lanes read rows (`turned`).
2. `expand` turns each tile of 1 to 4 granules into ranked positions in shared memory and writes rows side
   by side. It adds up the counts of all granules before its own; with more granules than `DIRECT_LIMIT`,
   or if the caller wants the count first, `scan` does that once for all.

Bytes moved: the input, an eighth of a byte an element twice, and the rows written. No block waits for
another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from kernels_cuda.layout import (
    NARROW_LIMIT,
    TABLE_WRITER,
    Table,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
)
from kernels_cuda.nonzero_coordinates import plan_turned
from kernels_cuda.nonzero_coordinates.sizes import (
    EXPAND_THREADS,
    GENERAL_COLUMNS,
    GRANULE,
    MASK_THREADS,
    SCAN_THREADS,
    SMALL_LIMIT,
    block_elements,
    column_depth,
    small_threads,
)
from kernels_cuda.runtime.launch import (
    NULL,
    WORKSPACE_ALIGNMENT,
    Kernel,
    Launch,
    LaunchList,
    Pointer,
    as_signed,
    load,
)
from kernels_cuda.runtime.variant import Target, Variant

DIRECT_LIMIT = 8192  # counts that every block of `expand` may read: 32 KiB from L2
MAX_GRANULES_A_TILE = 4
SMALL_FILL = 1 << 16  # coordinates that one block may fill
FILL_ROWS_A_BLOCK = 1 << 13
# The addresses that lists of launches are told, in order.
_X, _COORDINATES, _COUNT, _WORKSPACE = range(4)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield _SCAN
    yield plan_turned.count_variant()
    for element_size in (1, 2, 4, 8):
        yield _small(element_size)
        yield _mask_contiguous(element_size)
        yield plan_turned.mask_variant(element_size)
        for wide in (False, True):
            yield _mask_strided(element_size, wide)
    for coordinate_size in (4, 8):
        for n_columns in (1, 2, 3, 4, GENERAL_COLUMNS):
            yield _expand(n_columns, coordinate_size, wide=False)
        yield _expand(GENERAL_COLUMNS, coordinate_size, wide=True)


_SCAN = Variant("nonzero_scan", "kernels_cuda.nonzero_coordinates.expand:scan_source")


def _small(element_size: int) -> Variant:
    return Variant("nonzero_small", "kernels_cuda.nonzero_coordinates.small:small_source", (element_size,))


def _mask_contiguous(element_size: int) -> Variant:
    factory = "kernels_cuda.nonzero_coordinates.masks:mask_contiguous_source"
    return Variant("nonzero_mask", factory, (element_size,))


def _mask_strided(element_size: int, wide: bool) -> Variant:
    factory = "kernels_cuda.nonzero_coordinates.masks:mask_strided_source"
    return Variant("nonzero_mask_strided", factory, (element_size, wide))


def _expand(n_columns: int, coordinate_size: int, wide: bool) -> Variant:
    factory = "kernels_cuda.nonzero_coordinates.expand:expand_source"
    return Variant("nonzero_expand", factory, (n_columns, coordinate_size, wide))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns that one launch writes: which, how many, and the divisions that make them."""

    first: int
    count: int
    arguments: tuple[int, ...]


def _column_tables(sizes: Sequence[int], n_columns: int, wide: bool) -> list[_Columns]:
    """Split the columns into launches of at most `n_columns`, or one of exactly that many."""
    periods = [prod(sizes[i:]) for i in range(len(sizes) + 1)]
    groups = []
    for first in range(0, len(sizes), n_columns):
        count = min(n_columns, len(sizes) - first)
        kept = periods[first + 1 : first + count + 1]
        depth = column_depth(n_columns)
        kept = [*kept, *[1] * depth][:depth]
        divisors = [divisor(period, wide) for period in kept]
        leading = (*divisor(periods[first], wide), periods[first])
        steps = ([m for m, _ in divisors], [s for _, s in divisors], kept)
        groups.append(_Columns(first, count, (count, *leading, *(value for step in steps for value in step))))
    return groups


class _Small(NamedTuple):
    """The one launch for a few elements."""

    whole: LaunchList
    counting: LaunchList


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernels; see `plan`."""

    variant: str
    workspace_size: int
    _n_elements: int
    _element_size: int
    _magnitude: int
    _capacity: int
    _coordinate_strides: tuple[int, int]
    _coordinate_size: int
    _count_size: int
    _fill: int | None
    _multiprocessors: int
    _counts_at: int
    _prefix_at: int
    _table_at: int
    _n_dims: int
    _table: Table | None
    _turned: tuple[Launch, ...]
    _columns: tuple[_Columns, ...]
    _small: _Small | None
    _mask: Kernel | None
    _scan: Kernel
    _expand: Kernel | None
    # LaunchList by what they depend on: where, modulo 16, input and coordinates begin.
    _counting: dict[int, LaunchList] = field(default_factory=dict)
    _whole: dict[tuple[int, int], LaunchList] = field(default_factory=dict)
    _expanding: dict[tuple[int, int], LaunchList] = field(default_factory=dict)

    def launch(self, stream: int, x: int, coordinates: int, count: int, workspace: int) -> None:
        """Write the coordinates and the count."""
        if self._small is not None:
            self._small.whole(stream, x, coordinates, count)
            return
        if not self._columns or self._capacity == 0:
            self.count(stream, x, count, workspace)
            return
        launches = self._whole.get((x % 16, coordinates % 16)) or self._whole_launches(
            stream, x, coordinates, workspace
        )
        launches(stream, x, coordinates, count, workspace)

    def launches(self, x: int, coordinates: int, count: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        if self._small is not None:
            return self._small.whole
        return self._whole.get((x % 16, coordinates % 16))

    def _whole_launches(self, stream: int, x: int, coordinates: int, workspace: int) -> LaunchList:
        kind = x % 16, coordinates % 16
        steps = self._mask_steps(stream, x, workspace)
        is_direct = self._granules(x) <= DIRECT_LIMIT
        if not is_direct:
            steps += self._scan_steps(x)
        steps += self._expand_steps(*kind, self._capacity, *self._coordinate_strides, is_direct)
        launches = LaunchList(steps)
        if self._has_lasting_table:
            self._whole[kind] = launches
        return launches

    def count(self, stream: int, x: int, count: int, workspace: int) -> None:
        """Write the count, and leave in the workspace what `expand` needs."""
        if self._small is not None:
            self._small.counting(stream, x, 0, count)
            return
        launches = self._counting.get(x % 16)
        if launches is None:
            launches = LaunchList([*self._mask_steps(stream, x, workspace), *self._scan_steps(x)])
            if self._has_lasting_table:
                self._counting[x % 16] = launches
        launches(stream, x, 0, count, workspace)

    def expand(self, stream: int, x: int, coordinates: int, workspace: int) -> None:
        """Write the coordinates, to as many rows as `count` with the same input and workspace counted."""
        if self._small is not None:
            self._small.whole(stream, x, coordinates, 0)
            return
        kind = x % 16, coordinates % 16
        launches = self._expanding.get(kind)
        if launches is None:
            steps = self._expand_steps(*kind, self._capacity, *self._coordinate_strides, False)
            launches = self._expanding[kind] = LaunchList(steps)
        launches(stream, x, coordinates, 0, workspace)

    @property
    def _has_lasting_table(self) -> bool:
        return self._table is None or self._table.workspace_size == 0

    def _skipped(self, x: int) -> int:
        return x % 16 // self._element_size if self._table is None and not self._turned else 0

    def _granules(self, x: int) -> int:
        return -(-(self._n_elements + self._skipped(x)) // GRANULE) if self._n_elements else 0

    def _mask_steps(self, stream: int, x: int, workspace: int) -> list[Launch]:
        if self._n_elements == 0 or self._turned:
            return [*self._turned]
        skipped = self._skipped(x)
        numbers: tuple[int, ...]
        if self._table is None:
            end = self._n_elements + skipped
            n_blocks = -(-end // block_elements(self._element_size))
            numbers = (skipped, end, self._magnitude)
        else:
            n_blocks = self._granules(x)
            tables = self._table.arguments(stream, workspace + self._table_at)
            numbers = (self._n_elements, self._magnitude, self._n_dims, *tables)
        assert self._mask is not None
        pointers = (
            Pointer(_X, -skipped * self._element_size),
            Pointer(_WORKSPACE),
            Pointer(_WORKSPACE, self._counts_at),
        )
        return [Launch(self._mask, n_blocks, MASK_THREADS, 0, pointers, numbers)]

    def _scan_steps(self, x: int) -> list[Launch]:
        pointers = Pointer(_WORKSPACE, self._counts_at), Pointer(_WORKSPACE, self._prefix_at), Pointer(_COUNT)
        return [Launch(self._scan, 1, SCAN_THREADS, 0, pointers, (self._granules(x), self._count_size))]

    def _expand_steps(
        self,
        x_lead: int,
        output_lead: int,
        capacity: int,
        row_stride: int,
        column_stride: int,
        is_direct: bool,
    ) -> list[Launch]:
        """Return the launches of `expand`; the addresses of input and coordinates are the leads modulo 16.

        If it `is_direct`, its blocks add up counts themselves, and the one for the first columns tells the
        count as well.
        """
        if capacity == 0 or self._expand is None:
            return []
        steps = []
        granules = self._granules(x_lead)
        tile = MAX_GRANULES_A_TILE
        while tile > 1 and granules < 2 * self._multiprocessors * tile:
            tile //= 2
        tiles = -(-granules // tile)
        fills = self._fill is not None
        blocks = max(tiles, 1)
        if fills:
            blocks = max(blocks, min(capacity // FILL_ROWS_A_BLOCK, 8 * self._multiprocessors))
        size = self._coordinate_size
        for columns in self._columns:
            offset = columns.first * column_stride * size
            vector = size * (columns.count if columns.count in (2, 4) else 1)
            side_by_side = column_stride == 1 or columns.count == 1
            is_aligned = (output_lead + offset) % min(vector, 16) == 0
            numbers = (
                granules,
                tile,
                tiles,
                self._skipped(x_lead),
                capacity,
                row_stride * size,
                column_stride * size,
                int(side_by_side and row_stride == columns.count and is_aligned),
                int(fills),
                self._fill or 0,
                self._count_size,
                *columns.arguments,
            )
            prefix = NULL if is_direct else Pointer(_WORKSPACE, self._prefix_at)
            tells = is_direct and offset == 0
            pointers = (
                Pointer(_WORKSPACE),
                Pointer(_WORKSPACE, self._counts_at),
                prefix,
                Pointer(_COORDINATES, offset),
                Pointer(_COUNT) if tells else NULL,
            )
            steps.append(Launch(self._expand, blocks, EXPAND_THREADS, 0, pointers, numbers))
        return steps


def plan(
    *,
    element_size: int,
    magnitude: int,
    sizes: tuple[int, ...],
    dims: tuple[tuple[int, int], ...],
    x_offset: int,
    coordinate_offset: int,
    capacity: int,
    coordinate_strides: tuple[int, int],
    coordinate_size: int,
    count_size: int,
    fill: int | None,
    target: Target,
) -> Plan:
    """Choose and load the kernels that list the non-zero elements.

    Parameters
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    magnitude : int
        An element is non-zero where ``bits & magnitude`` is.
    sizes : tuple of int
        The dimensions whose coordinates are columns of the output, slowest first.
    dims : tuple of (size, stride)
        The merged layout of the input.
    x_offset, coordinate_offset : int
        Not used: addresses are those of the first elements.
    capacity : int
        Rows that may be written.
    coordinate_strides : tuple of two ints
        Elements from row to row and from column to column.
    coordinate_size, count_size : int
        Bytes of a coordinate and of the count: 4 or 8.
    fill : int or None
        Bits for the rows that are left, or None to leave them as they are.
    target : Target
        The device.
    """
    del x_offset, coordinate_offset
    n_elements = prod(size for size, _ in dims) if all(sizes) else 0
    is_contiguous = n_elements == 1 or (len(dims) == 1 and dims[0][1] == 1) or n_elements == 0
    wide_layout = is_wide(n_elements, len(dims))
    wide_rows = n_elements > NARROW_LIMIT
    n_columns = len(sizes) if 0 < len(sizes) <= 4 and not wide_rows else GENERAL_COLUMNS
    columns = _column_tables([max(size, 1) for size in sizes], n_columns, wide_rows)

    fills_little = fill is None or capacity * len(sizes) <= SMALL_FILL
    fits_small = 0 < n_elements <= SMALL_LIMIT and not wide_layout and len(sizes) <= GENERAL_COLUMNS
    few = None
    if fits_small and fills_little:
        kernel = load(_small(element_size), target)
        (group,) = _column_tables(sizes, GENERAL_COLUMNS, wide=False) or [_Columns(0, 0, (0,) * 28)]
        layout = make_table(dimension_columns(dims, False, (element_size,)), False, target)

        def numbers(rows: int, strides: tuple[int, int]) -> tuple[int, ...]:
            return (
                n_elements,
                as_signed(magnitude),
                rows,
                *(stride * coordinate_size for stride in strides),
                coordinate_size,
                group.count,
                int(fill is not None),
                as_signed(fill or 0),
                count_size,
                max(len(dims), 1),
                *layout.arguments(None, 0),
                *group.arguments[4:],
            )

        n_threads = small_threads(n_elements)
        few = _Small(
            whole=kernel.prepare(1, n_threads, 0, 3, *numbers(capacity, coordinate_strides)),
            counting=kernel.prepare(1, n_threads, 0, 3, *numbers(0, (0, 0))),
        )

    matrices = plan_turned.matrices_of(dims) if not is_contiguous and not wide_layout else None
    mask = table = None
    block = GRANULE
    if is_contiguous:
        mask = load(_mask_contiguous(element_size), target)
        block = block_elements(element_size)
    elif matrices is None:
        mask = load(_mask_strided(element_size, wide_layout), target)
        table = make_table(dimension_columns(dims, wide_layout, (element_size,)), wide_layout, target)
    # A misaligned start adds less than 16 elements.
    masked = -(-(n_elements + 15) // block) * block
    counts_at = _aligned(masked // 8)
    prefix_at = counts_at + _aligned(masked // GRANULE * 4 + 16)
    table_at = prefix_at + _aligned(masked // GRANULE * 8 + 8)
    turned_steps: list[Launch] = []
    if matrices is not None:
        pointers = Pointer(_X), Pointer(_WORKSPACE), Pointer(_WORKSPACE, counts_at)
        turned_steps = plan_turned.steps_of(matrices, element_size, magnitude, pointers, target)
    if magnitude < 1 << (8 * element_size) and element_size < 4:
        magnitude *= 0xFFFFFFFF // ((1 << (8 * element_size)) - 1)
    name = "contiguous mask" if is_contiguous else "turned mask" if matrices else "strided mask"
    name = "one block" if few else name
    return Plan(
        variant=f"nonzero_coordinates {8 * element_size}-bit, {name}, {len(sizes)} columns",
        workspace_size=0 if few else table_at + (table.workspace_size if table else 0),
        _n_elements=n_elements,
        _element_size=element_size,
        _magnitude=as_signed(magnitude),
        _capacity=capacity,
        _coordinate_strides=coordinate_strides,
        _coordinate_size=coordinate_size,
        _count_size=count_size,
        _fill=None if fill is None else as_signed(fill),
        _multiprocessors=target.multiprocessors,
        _counts_at=counts_at,
        _prefix_at=prefix_at,
        _table_at=table_at,
        _n_dims=len(dims),
        _table=table,
        _turned=tuple(turned_steps),
        _columns=tuple(columns),
        _small=few,
        _mask=mask,
        _scan=load(_SCAN, target),
        _expand=load(_expand(n_columns, coordinate_size, wide_rows), target) if sizes else None,
    )


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
