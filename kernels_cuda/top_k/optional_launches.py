"""The launches around an algorithm's: results by ascending index, and rows with lengths.

Most algorithms read lengths themselves. For others the rows are copied first (`lengths`), and every other
launch takes the copy for x.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels_cuda.layout import divisor
from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.launches import (
    INDICES,
    LENGTHS,
    VALUES,
    WORKSPACE,
    Launch,
    Workspace,
    X,
    batches,
    ceil_div,
    fill_offsets,
    lengths_of,
)
from kernels_cuda.top_k.parameters import ByIndexParameters, MaskParameters, PadParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shapes import BY_INDEX_THREADS, LENGTHS_THREADS, PART_BYTES

# The pointer slots of a launch if rows have lengths, in the order of the addresses that a plan takes.
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


def without_lengths(problem: Problem) -> Problem:
    """Return the problem that an algorithm solves in the copy of rows with lengths."""
    rows = replace(problem.rows.with_packed_x(problem.axis_size), n_neighbours=1)
    return replace(problem, rows=rows, strides=problem.strides._replace(x=1), lengths=None)


def in_copy(
    problem: Problem, policy: Policy, algorithm: Sequence[Launch], workspace: Workspace
) -> list[Launch]:
    """Return launches that solve a problem with lengths by those that solve it `without_lengths`."""
    masked = workspace.take(problem.n_rows * problem.axis_size * problem.element_size)
    offsets, table = fill_offsets(problem, workspace)
    launches = table + _mask(problem, policy, offsets, masked)
    launches += [_with_pointers(launch, lambda pointer: _in_copy(pointer, masked)) for launch in algorithm]
    return launches + _pad(problem, policy, offsets)


def take_lengths(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches whose pointers are among the addresses of a plan that takes lengths."""
    return [_with_pointers(launch, _with_lengths) for launch in launches]


def _with_pointers(launch: Launch, change: Callable[[Pointer], Pointer]) -> Launch:
    return launch._replace(pointers=tuple(map(change, launch.pointers)))


def _in_copy(pointer: Pointer, masked: Pointer) -> Pointer:
    """Return where the copy has what a pointer finds in x."""
    return masked._replace(offset=masked.offset + pointer.offset) if pointer.slot == X else pointer


def _with_lengths(pointer: Pointer) -> Pointer:
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


def _mask(problem: Problem, policy: Policy, offsets: Pointer, masked: Pointer) -> list[Launch]:
    """Copy the rows of x."""
    n_elements = problem.n_rows * problem.axis_size
    _, multiplier, shift = divisor(problem.axis_size, wide=True)
    return [
        Launch(
            kernels.mask(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(X), Pointer(LENGTHS), masked, offsets),
            MaskParameters(
                first=first * LENGTHS_THREADS,
                n_elements=n_elements,
                axis_size=problem.axis_size,
                multiplier=multiplier,
                shift=shift,
                x_stride=problem.strides.x,
                filler=problem.filler,
                layout=problem.rows.layout,
                length_format=problem.length_format,
            ),
        )
        for first, n_blocks in batches(ceil_div(n_elements, LENGTHS_THREADS), policy.launch_blocks)
    ]


def by_index(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Bring the selected elements into the order of their indices, one block per row or part of a row."""
    by_index = policy.by_index
    n_threads = BY_INDEX_THREADS[problem.axis_size > by_index.warp_row_elements]
    blocks_per_row = ceil_div(by_index.blocks_per_multiprocessor * problem.multiprocessors, problem.n_rows)
    part_size = max(by_index.part_elements, ceil_div(problem.axis_size, blocks_per_row))
    n_parts = ceil_div(problem.axis_size, part_size)
    parts = NULL if n_parts == 1 else workspace.take(problem.n_rows * (n_parts + 1) * PART_BYTES)
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.by_index(problem.element_size, n_threads),
            n_blocks,
            n_threads,
            (Pointer(X), lengths_of(problem), Pointer(VALUES), Pointer(INDICES), parts, offsets),
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
                length_format=problem.length_format,
            ),
        )
        for is_counting in ((0,) if n_parts == 1 else (1, 0))
        for first, n_blocks in batches(problem.n_rows * n_parts, policy.launch_blocks)
    ]


def _pad(problem: Problem, policy: Policy, offsets: Pointer) -> list[Launch]:
    """Fill the output up where rows have fewer than k elements."""
    n_outputs = problem.n_rows * problem.k
    _, multiplier, shift = divisor(problem.k, wide=True)
    return [
        Launch(
            kernels.pad(problem.element_size),
            n_blocks,
            LENGTHS_THREADS,
            (Pointer(LENGTHS), Pointer(VALUES), Pointer(INDICES), offsets),
            PadParameters(
                first=first * LENGTHS_THREADS,
                n_outputs=n_outputs,
                k=problem.k,
                multiplier=multiplier,
                shift=shift,
                index_size=problem.index_size,
                strides=problem.strides,
                layout=problem.rows.layout,
                length_format=problem.length_format,
            ),
        )
        for first, n_blocks in batches(ceil_div(n_outputs, LENGTHS_THREADS), policy.launch_blocks)
    ]
