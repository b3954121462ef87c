"""The launches of each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from kernels_cuda.nonzero_coordinates.kernels import kernel
from kernels_cuda.nonzero_coordinates.parameters import (
    EXPAND_THREADS,
    FILLED_WORDS,
    GENERAL_COLUMNS,
    GRANULE,
    MASK_THREADS,
    SCAN_THREADS,
    TRANSPOSED_THREADS,
    ColumnDivisors,
    Dims,
    ExpandParameters,
    MaskParameters,
    SmallParameters,
    TransposedMaskParameters,
    block_elements,
    column_depth,
    small_threads,
)
from kernels_cuda.nonzero_coordinates.policy import Policy
from kernels_cuda.nonzero_coordinates.problem import Matrices, Problem
from kernels_cuda.runtime.launch import (
    NULL,
    WORKSPACE_ALIGNMENT,
    Arguments,
    Kernel,
    Launch,
    LaunchList,
    Pointer,
    as_signed,
    load,
)
from kernels_cuda.runtime.variant import Target
from kernels_cuda.tables import Table, ceil_div, divisor, is_wide, make_table

# The pointer slots of a launch, in the order of the addresses that lists are launched with.
X, COORDINATES, COUNT, WORKSPACE = range(4)
# A start that is not on a 16-byte boundary adds fewer elements than these.
_MOST_SKIPPED = 15


class Columns(NamedTuple):
    """Columns that one launch writes: the first, how many, and the divisions that make them."""

    first: int
    n_columns: int
    multiplier: int
    shift: int
    period: int
    divisors: ColumnDivisors


def split_columns(sizes: Sequence[int], n_columns: int, wide: bool) -> list[Columns]:
    """Split the columns into launches of at most `n_columns`, or one of exactly that many."""
    periods = [prod(sizes[i:]) for i in range(len(sizes) + 1)]
    depth = column_depth(n_columns)
    groups = []
    for first in range(0, len(sizes), n_columns):
        count = min(n_columns, len(sizes) - first)
        kept = [*periods[first + 1 : first + count + 1], *[1] * depth][:depth]
        kept_periods, multipliers, shifts = zip(*(divisor(period, wide) for period in kept), strict=True)
        period, multiplier, shift = divisor(periods[first], wide)
        divisors = ColumnDivisors(multipliers, shifts, kept_periods)
        groups.append(Columns(first, count, multiplier, shift, period, divisors))
    return groups


class SmallLaunch(NamedTuple):
    """The one launch for a few elements; with no rows to write it only counts."""

    kernel: Kernel
    n_threads: int
    parameters: SmallParameters
    tables: tuple[Any, ...]

    @classmethod
    def of(cls, problem: Problem, target: Target) -> "SmallLaunch":
        """Return the launch, with the problem's capacity."""
        unused = (0,) * GENERAL_COLUMNS
        columns = split_columns(problem.sizes, GENERAL_COLUMNS, wide=False)
        divisors = columns[0].divisors if columns else ColumnDivisors(unused, unused, unused)
        row_bytes, column_bytes = (stride * problem.coordinate_size for stride in problem.coordinate_strides)
        parameters = SmallParameters(
            end=problem.n_elements,
            magnitude=as_signed(problem.magnitude),
            capacity=problem.capacity,
            row_bytes=row_bytes,
            column_bytes=column_bytes,
            coordinate_size=problem.coordinate_size,
            n_columns=len(problem.sizes),
            fills=int(problem.fill is not None),
            fill=problem.signed_fill,
            count_size=problem.count_size,
        )
        dims = make_table(Dims, problem.dims, (problem.element_size,), False, target).parameters()
        small = load(kernel("small", problem.element_size), target)
        return cls(small, small_threads(problem.n_elements), parameters, (dims, divisors))

    def prepare(self, capacity: int) -> LaunchList:
        """Return the launch with another capacity."""
        parameters = self.parameters._replace(capacity=capacity)
        return self.kernel.prepare(1, self.n_threads, 0, 3, parameters, *self.tables)

    def expand(self, stream: int, x: int, coordinates: int, rows: int) -> None:
        """Write so many rows, and no count."""
        parameters = self.parameters._replace(capacity=rows)
        self.kernel.launch(stream, 1, self.n_threads, 0, x, coordinates, 0, parameters, *self.tables)


class Areas(NamedTuple):
    """Where the areas of the workspace begin, after the mask, and where they end."""

    counts: int
    prefix: int
    table: int

    @classmethod
    def of(cls, n_elements: int, block: int) -> "Areas":
        """Return the areas for masks that are written in blocks of so many elements."""
        masked = ceil_div(n_elements + _MOST_SKIPPED, block) * block
        counts = _aligned(masked // 8)
        prefix = counts + _aligned(masked // GRANULE * 4 + 16)
        return cls(counts, prefix, prefix + _aligned(masked // GRANULE * 8 + 8))


def _aligned(n_bytes: int) -> int:
    return ceil_div(n_bytes, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def transposed_mask_launches(
    problem: Problem, matrices: Matrices, areas: Areas, target: Target
) -> tuple[Launch, ...]:
    """Make the launches that fill the mask of matrices with contiguous columns, and count."""
    row_words = matrices.width // 32
    n_row_tiles = ceil_div(matrices.height, 32)
    n_word_tiles = ceil_div(row_words, FILLED_WORDS)
    n_units = matrices.n_matrices * n_row_tiles * n_word_tiles
    n_words = matrices.n_matrices * matrices.height * row_words
    parameters = TransposedMaskParameters(
        magnitude=as_signed(problem.magnitude),
        n_units=n_units,
        height=matrices.height,
        n_row_tiles=n_row_tiles,
        row_words=row_words,
        n_word_tiles=n_word_tiles,
        batch_bytes=matrices.batch_stride * problem.element_size,
        column_bytes=matrices.column_stride * problem.element_size,
    )
    fill, count = load(kernel("mask_transposed", problem.element_size), target), load(kernel("count"), target)
    fill_blocks = ceil_div(n_units, TRANSPOSED_THREADS // 32)
    x, mask, counts = Pointer(X), Pointer(WORKSPACE), Pointer(WORKSPACE, areas.counts)
    return (
        Launch(fill, fill_blocks, TRANSPOSED_THREADS, 0, (x, mask), (parameters,)),
        Launch(count, ceil_div(n_words * 32, GRANULE), TRANSPOSED_THREADS, 0, (mask, counts), (n_words,)),
    )


@dataclass(frozen=True, kw_only=True)
class MaskLaunches:
    """The launches that make a mask, add up counts, and expand the mask.

    Contiguous input has a mask kernel; input of any layout has a table of dimensions besides; matrices with
    contiguous columns have launches of their own (`transposed`).
    """

    problem: Problem
    policy: Policy
    multiprocessors: int
    areas: Areas
    columns: tuple[Columns, ...]
    table: Table | None
    transposed: tuple[Launch, ...]
    mask_kernel: Kernel | None
    scan_kernel: Kernel
    expand_kernel: Kernel | None

    @classmethod
    def of(cls, problem: Problem, policy: Policy, target: Target) -> "MaskLaunches":
        """Choose how the mask is made and which columns each launch writes, and load the kernels."""
        size, n_elements = problem.element_size, problem.n_elements
        wide = is_wide(n_elements, len(problem.dims), limit=policy.narrow_elements)
        wide_rows = n_elements > policy.narrow_rows
        is_strided = not problem.is_contiguous
        matrices = problem.matrices(policy.transposed_rows) if is_strided and not wide else None
        areas = Areas.of(n_elements, GRANULE if is_strided else block_elements(size))
        table = mask = None
        transposed: tuple[Launch, ...] = ()
        if matrices is not None:
            transposed = transposed_mask_launches(problem, matrices, areas, target)
        elif is_strided:
            table = make_table(Dims, problem.dims, (size,), wide, target)
            mask = load(kernel("mask_strided", size, wide), target)
        else:
            mask = load(kernel("mask", size), target)
        n_columns = len(problem.sizes)
        if not 0 < n_columns <= 4 or wide_rows:
            n_columns = GENERAL_COLUMNS
        expand = kernel("expand", n_columns, problem.coordinate_size, wide_rows)
        return cls(
            problem=problem,
            policy=policy,
            multiprocessors=target.multiprocessors,
            areas=areas,
            columns=tuple(split_columns([max(size, 1) for size in problem.sizes], n_columns, wide_rows)),
            table=table,
            transposed=transposed,
            mask_kernel=mask,
            scan_kernel=load(kernel("scan"), target),
            expand_kernel=load(expand, target) if problem.sizes else None,
        )

    @property
    def name(self) -> str:
        """How the mask is made."""
        return "transposed mask" if self.transposed else "strided mask" if self.table else "contiguous mask"

    @property
    def workspace_size(self) -> int:
        """Bytes of scratch memory."""
        return self.areas.table + (self.table.workspace_size if self.table else 0)

    @property
    def has_wide_table(self) -> bool:
        """Whether the dimensions must be written to the workspace for each call."""
        return self.table is not None and self.table.workspace_size > 0

    def skipped(self, x: int) -> int:
        """Return the elements before the first, from the 16-byte boundary that contiguous input begins on."""
        return 0 if self.table or self.transposed else x % 16 // self.problem.element_size

    def granules(self, x: int) -> int:
        """Return how many granules there are."""
        n_elements = self.problem.n_elements
        return ceil_div(n_elements + self.skipped(x), GRANULE) if n_elements else 0

    def mask(self, stream: int, x: int, workspace: int) -> list[Launch]:
        """Return the launches that make the mask and count; a wide table is written first."""
        if self.problem.n_elements == 0 or self.transposed:
            return [*self.transposed]
        assert self.mask_kernel is not None
        n_elements, magnitude = self.problem.n_elements, self.problem.word_magnitude
        skipped = self.skipped(x)
        parameters = MaskParameters(skipped=skipped, end=n_elements + skipped, magnitude=magnitude)
        if self.table is None:
            n_blocks = ceil_div(parameters.end, block_elements(self.problem.element_size))
            arguments: Arguments = (parameters,)
        else:
            n_blocks = self.granules(x)
            arguments = parameters, self.table.parameters(stream, workspace + self.areas.table)
        pointers = (
            Pointer(X, -skipped * self.problem.element_size),
            Pointer(WORKSPACE),
            Pointer(WORKSPACE, self.areas.counts),
        )
        return [Launch(self.mask_kernel, n_blocks, MASK_THREADS, 0, pointers, arguments)]

    def scan(self, x: int) -> list[Launch]:
        """Return the launch that adds up the counts, and writes the count."""
        areas = self.areas
        pointers = Pointer(WORKSPACE, areas.counts), Pointer(WORKSPACE, areas.prefix), Pointer(COUNT)
        arguments = self.granules(x), self.problem.count_size
        return [Launch(self.scan_kernel, 1, SCAN_THREADS, 0, pointers, arguments)]

    def expand(self, x: int, coordinates: int, is_direct: bool) -> list[Launch]:
        """Return the launches that write the rows, for addresses like these modulo 16.

        If they are direct, their blocks add up counts themselves, and the first launch writes the count.
        """
        problem, policy, capacity = self.problem, self.policy, self.problem.capacity
        if capacity == 0 or self.expand_kernel is None:
            return []
        granules = self.granules(x)
        tile = policy.most_granules_per_tile
        while tile > 1 and granules < 2 * self.multiprocessors * tile:
            tile //= 2
        n_tiles = ceil_div(granules, tile)
        n_blocks = max(n_tiles, 1)
        if problem.fill is not None:
            fill_blocks = min(capacity // policy.fill_rows_per_block, 8 * self.multiprocessors)
            n_blocks = max(n_blocks, fill_blocks)
        size, (row_stride, column_stride) = problem.coordinate_size, problem.coordinate_strides
        launches = []
        for columns in self.columns:
            offset = columns.first * column_stride * size
            vector = size * (columns.n_columns if columns.n_columns in (2, 4) else 1)
            is_contiguous = (column_stride == 1 or columns.n_columns == 1) and row_stride == columns.n_columns
            is_aligned = (coordinates + offset) % min(vector, 16) == 0
            parameters = ExpandParameters(
                n_granules=granules,
                granules_per_tile=tile,
                n_tiles=n_tiles,
                skipped=self.skipped(x),
                capacity=capacity,
                row_bytes=row_stride * size,
                column_bytes=column_stride * size,
                is_packed=int(is_contiguous and is_aligned),
                fills=int(problem.fill is not None),
                fill=problem.signed_fill,
                count_size=problem.count_size,
                n_columns=columns.n_columns,
                multiplier=columns.multiplier,
                shift=columns.shift,
                period=columns.period,
            )
            pointers = (
                Pointer(WORKSPACE),
                Pointer(WORKSPACE, self.areas.counts),
                NULL if is_direct else Pointer(WORKSPACE, self.areas.prefix),
                Pointer(COORDINATES, offset),
                Pointer(COUNT) if is_direct and columns.first == 0 else NULL,
            )
            arguments = parameters, columns.divisors
            launches.append(Launch(self.expand_kernel, n_blocks, EXPAND_THREADS, 0, pointers, arguments))
        return launches
