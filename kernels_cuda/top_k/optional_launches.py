"""The launches around an algorithm's: rows with lengths, and results by ascending index.

An algorithm knows nothing of either. Rows with lengths are copied first (`lengths`), and every other launch
takes the copy for x.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels_cuda.layout import divisor
from kernels_cuda.runtime.launch import NULL, Pointer, as_signed
from kernels_cuda.top_k.rows import LENGTH_BYTES, LENGTHS_THREADS, RowDimension, RowLayout, row_layout
from kernels_cuda.top_k.steps import (
    INDICES,
    VALUES,
    WORKSPACE,
    Problem,
    Step,
    Workspace,
    X,
    ceil_div,
    fill_offsets,
    grids,
)
from kernels_cuda.top_k.variants import BY_INDEX_THREADS, by_index_variant, mask_variant, pad_variant

# The longest rows that one warp reorders.
LONGEST_WARP_ROW = 1024
# The addresses that a list of launches is told if rows have lengths, in order.
LENGTHS = WORKSPACE + 1
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


class Selected(NamedTuple):
    """Parameters of the kernel that reorders by index, `by_index`: what an algorithm has written."""

    index_size: int
    first_row: int
    axis_size: int
    k: int
    x_stride: int
    value_stride: int
    index_stride: int


class MaskedRows(NamedTuple):
    """Parameters of the kernel that copies rows up to their lengths, `lengths.mask_source`.

    `multiplier` and `shift` divide by the size of the axis.
    """

    first: int
    n_elements: int
    axis_size: int
    multiplier: int
    shift: int
    x_stride: int
    length_size: int
    is_signed: int
    filler: int


class PaddedRows(NamedTuple):
    """Parameters of the kernel that fills the output up, `lengths.pad_source`.

    `multiplier` and `shift` divide by `k`.
    """

    first: int
    n_outputs: int
    k: int
    multiplier: int
    shift: int
    index_size: int
    value_stride: int
    index_stride: int
    padding: int


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """The lengths of rows, and the rows of x that they belong to.

    Attributes
    ----------
    size, is_signed : int, bool
        Bytes of one length, and whether it is signed.
    layout : RowLayout
        Where the rows of x and their lengths are.
    x_stride : int
        Stride of x along the axis.
    filler, padding : int
        Bits of an element that comes before no other, and of the value that the output is filled up with.
    """

    size: int
    is_signed: bool
    layout: RowLayout
    x_stride: int
    filler: int
    padding: int


def layout_with_lengths(rows: Sequence[RowDimension], length_strides: Sequence[int]) -> RowLayout:
    """Return the layout of the rows of x and of their lengths.

    Examples
    --------
    >>> layout_with_lengths([(5, 60, 6, 6), (4, 3, 1, 1)], (4, 1)).layout
    (4, 60, 4, 0, 3, 1, 0)
    """
    return row_layout(
        [(size, x, length, 0) for (size, x, _, _), length in zip(rows, length_strides, strict=True)]
    )


def packed_rows(rows: Sequence[RowDimension], axis_size: int) -> tuple[RowDimension, ...]:
    """Return the dimensions of rows that lie one after the other in x.

    Examples
    --------
    >>> packed_rows([(4, 1, 7, 7), (5, 8, 2, 2)], 40)
    ((4, 200, 7, 7), (5, 40, 2, 2))
    """
    packed, x_stride = [], axis_size
    for size, _, value_stride, index_stride in reversed(rows):
        packed.append((size, x_stride, value_stride, index_stride))
        x_stride *= size
    return tuple(reversed(packed))


def with_optional_launches(
    problem: Problem,
    algorithm: Sequence[Step],
    is_sorted: bool,
    lengths: RowLengths | None,
    workspace: Workspace,
) -> list[Step]:
    """Return the launches of an algorithm with those that the two options ask for.

    `problem` is what the algorithm solves: with lengths its rows are those of the copy.
    """
    if is_sorted and lengths is None:
        return list(algorithm)
    offsets, table = fill_offsets(problem, workspace)
    launches = [*algorithm, *table]
    if lengths is None:
        return launches + _reorder(problem, offsets, NULL)
    masked = workspace.take(problem.n_rows * problem.axis_size * problem.element_size)
    clamped = workspace.take(problem.n_rows * LENGTH_BYTES)
    if not is_sorted:
        launches += _reorder(problem, offsets, clamped)
    launches += _pad(problem, lengths, offsets, clamped)
    launches = [_with_pointers(launch, lambda pointer: _in_copy(pointer, masked)) for launch in launches]
    launches = _mask(problem, lengths, masked, clamped, workspace) + launches
    return [_with_pointers(launch, _with_lengths) for launch in launches]


def _with_pointers(launch: Step, change: Callable[[Pointer], Pointer]) -> Step:
    return launch._replace(pointers=tuple(map(change, launch.pointers)))


def _in_copy(pointer: Pointer, masked: Pointer) -> Pointer:
    """Return where the copy has what a pointer finds in x."""
    return masked._replace(offset=masked.offset + pointer.offset) if pointer.slot == X else pointer


def _with_lengths(pointer: Pointer) -> Pointer:
    """Return a pointer among the addresses of rows with lengths."""
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


def _mask(
    problem: Problem, lengths: RowLengths, masked: Pointer, clamped: Pointer, workspace: Workspace
) -> list[Step]:
    """Copy the rows of x, and write the clamped lengths down."""
    offsets, launches = fill_offsets(replace(problem, layout=lengths.layout), workspace)
    n_elements = problem.n_rows * problem.axis_size
    return launches + [
        Step(
            mask_variant(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(X), Pointer(LENGTHS), masked, clamped, offsets),
            (
                MaskedRows(
                    first * LENGTHS_THREADS,
                    n_elements,
                    problem.axis_size,
                    *divisor(problem.axis_size, wide=True),
                    x_stride=lengths.x_stride,
                    length_size=lengths.size,
                    is_signed=int(lengths.is_signed),
                    filler=as_signed(lengths.filler),
                ),
                lengths.layout.layout,
            ),
        )
        for first, n_blocks in grids(ceil_div(n_elements, LENGTHS_THREADS))
    ]


def _reorder(problem: Problem, offsets: Pointer, lengths: Pointer) -> list[Step]:
    """Bring the selected elements into the order of their indices, one block per row."""
    n_threads = BY_INDEX_THREADS[problem.axis_size > LONGEST_WARP_ROW]
    return [
        Step(
            by_index_variant(problem.element_size, n_threads),
            n_blocks,
            n_threads,
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), lengths, offsets),
            (
                Selected(problem.index_size, first, problem.axis_size, problem.k, *problem.axis_strides),
                problem.layout.layout,
                problem.masks,
            ),
        )
        for first, n_blocks in grids(problem.n_rows)
    ]


def _pad(problem: Problem, lengths: RowLengths, offsets: Pointer, clamped: Pointer) -> list[Step]:
    """Fill the output up where rows have fewer than k elements."""
    n_outputs = problem.n_rows * problem.k
    return [
        Step(
            pad_variant(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(VALUES), Pointer(INDICES), clamped, offsets),
            (
                PaddedRows(
                    first * LENGTHS_THREADS,
                    n_outputs,
                    problem.k,
                    *divisor(problem.k, wide=True),
                    problem.index_size,
                    *problem.axis_strides[1:],
                    padding=as_signed(lengths.padding),
                ),
                problem.layout.layout,
            ),
        )
        for first, n_blocks in grids(ceil_div(n_outputs, LENGTHS_THREADS))
    ]
