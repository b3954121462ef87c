"""The launches around an algorithm's: rows with lengths, and results by ascending index.

An algorithm knows nothing of either. Rows with lengths are copied first (`lengths`), and every other launch
takes the copy for x.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernels_cuda.layout import divisor
from kernels_cuda.runtime.launch import NULL, Pointer, as_signed
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.launches import (
    INDICES,
    VALUES,
    WORKSPACE,
    Launch,
    Workspace,
    X,
    batches,
    ceil_div,
    fill_offsets,
)
from kernels_cuda.top_k.parameters import ByIndexParameters, MaskParameters, PadParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem, RowDimension, Rows, describe_rows
from kernels_cuda.top_k.shapes import BY_INDEX_THREADS, LENGTH_BYTES, LENGTHS_THREADS, PART_BYTES

# The pointer slots of a launch if rows have lengths, in order.
LENGTHS = WORKSPACE + 1
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


@dataclass(frozen=True, kw_only=True)
class RowLengths:
    """The lengths of rows, and the rows of x that they belong to.

    Attributes
    ----------
    size, is_signed : int, bool
        Bytes of one length, and whether it is signed.
    rows : Rows
        Where the rows of x and, in place of values, their lengths are.
    x_stride : int
        Stride of x along the axis.
    filler, padding : int
        Bits of an element that comes before no other, and of the value that the output is filled up with.
    """

    size: int
    is_signed: bool
    rows: Rows
    x_stride: int
    filler: int
    padding: int


def rows_with_lengths(dimensions: Sequence[RowDimension], length_strides: Sequence[int]) -> Rows:
    """Return the rows of x, with their lengths in place of values.

    Examples
    --------
    >>> tuple(rows_with_lengths([(5, 60, 6, 6), (4, 3, 1, 1)], (4, 1)).layout)
    (4, 60, 4, 0, 3, 1, 0)
    """
    return describe_rows(
        [(size, x, length, 0) for (size, x, _, _), length in zip(dimensions, length_strides, strict=True)], 1
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
    policy: Policy,
    algorithm: Sequence[Launch],
    is_in_order: bool,
    lengths: RowLengths | None,
    workspace: Workspace,
) -> list[Launch]:
    """Return the launches of an algorithm with those that the two options ask for.

    `problem` is what the algorithm solves: with lengths its rows are those of the copy. `is_in_order` tells
    that the algorithm's results are in the order that is asked for.
    """
    if is_in_order and lengths is None:
        return list(algorithm)
    offsets, table = fill_offsets(problem, workspace)
    launches = [*algorithm, *table]
    if lengths is None:
        return launches + _reorder(problem, policy, offsets, NULL, workspace)
    masked = workspace.take(problem.n_rows * problem.axis_size * problem.element_size)
    clamped = workspace.take(problem.n_rows * LENGTH_BYTES)
    if not is_in_order:
        launches += _reorder(problem, policy, offsets, clamped, workspace)
    launches += _pad(problem, policy, lengths, offsets, clamped)
    launches = [_with_pointers(launch, lambda pointer: _in_copy(pointer, masked)) for launch in launches]
    launches = _mask(problem, policy, lengths, masked, clamped, workspace) + launches
    return [_with_pointers(launch, _with_lengths) for launch in launches]


def _with_pointers(launch: Launch, change: Callable[[Pointer], Pointer]) -> Launch:
    return launch._replace(pointers=tuple(map(change, launch.pointers)))


def _in_copy(pointer: Pointer, masked: Pointer) -> Pointer:
    """Return where the copy has what a pointer finds in x."""
    return masked._replace(offset=masked.offset + pointer.offset) if pointer.slot == X else pointer


def _with_lengths(pointer: Pointer) -> Pointer:
    """Return a pointer among the addresses of rows with lengths."""
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


def _mask(
    problem: Problem,
    policy: Policy,
    lengths: RowLengths,
    masked: Pointer,
    clamped: Pointer,
    workspace: Workspace,
) -> list[Launch]:
    """Copy the rows of x, and write the clamped lengths down."""
    offsets, launches = fill_offsets(replace(problem, rows=lengths.rows), workspace)
    n_elements = problem.n_rows * problem.axis_size
    _, multiplier, shift = divisor(problem.axis_size, wide=True)
    return launches + [
        Launch(
            kernels.mask(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(X), Pointer(LENGTHS), masked, clamped, offsets),
            MaskParameters(
                first=first * LENGTHS_THREADS,
                n_elements=n_elements,
                axis_size=problem.axis_size,
                multiplier=multiplier,
                shift=shift,
                x_stride=lengths.x_stride,
                length_size=lengths.size,
                is_signed=int(lengths.is_signed),
                filler=as_signed(lengths.filler),
                layout=lengths.rows.layout,
            ),
        )
        for first, n_blocks in batches(ceil_div(n_elements, LENGTHS_THREADS), policy.launch_blocks)
    ]


def _reorder(
    problem: Problem, policy: Policy, offsets: Pointer, lengths: Pointer, workspace: Workspace
) -> list[Launch]:
    """Bring the selected elements into the order of their indices, one block per row or part of a row."""
    by_index = policy.by_index
    n_threads = BY_INDEX_THREADS[problem.axis_size > by_index.warp_row_elements]
    blocks_per_row = ceil_div(by_index.blocks_per_multiprocessor * problem.multiprocessors, problem.n_rows)
    part_size = max(by_index.part_elements, ceil_div(problem.axis_size, blocks_per_row))
    n_parts = ceil_div(problem.axis_size, part_size)
    parts = NULL if n_parts == 1 else workspace.take(problem.n_rows * (n_parts + 1) * PART_BYTES)
    return [
        Launch(
            kernels.by_index(problem.element_size, n_threads),
            n_blocks,
            n_threads,
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), lengths, parts, offsets),
            ByIndexParameters(
                index_size=problem.index_size,
                is_counting=is_counting,
                first_unit=first,
                n_parts=n_parts,
                part_size=part_size,
                axis_size=problem.axis_size,
                k=problem.k,
                strides=problem.strides,
                layout=problem.rows.layout,
                key_format=problem.key_format,
            ),
        )
        for is_counting in ((0,) if n_parts == 1 else (1, 0))
        for first, n_blocks in batches(problem.n_rows * n_parts, policy.launch_blocks)
    ]


def _pad(
    problem: Problem, policy: Policy, lengths: RowLengths, offsets: Pointer, clamped: Pointer
) -> list[Launch]:
    """Fill the output up where rows have fewer than k elements."""
    n_outputs = problem.n_rows * problem.k
    _, multiplier, shift = divisor(problem.k, wide=True)
    return [
        Launch(
            kernels.pad(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(VALUES), Pointer(INDICES), clamped, offsets),
            PadParameters(
                first=first * LENGTHS_THREADS,
                n_outputs=n_outputs,
                k=problem.k,
                multiplier=multiplier,
                shift=shift,
                index_size=problem.index_size,
                strides=problem.strides,
                padding=as_signed(lengths.padding),
                layout=problem.rows.layout,
            ),
        )
        for first, n_blocks in batches(ceil_div(n_outputs, LENGTHS_THREADS), policy.launch_blocks)
    ]
