"""What follows an algorithm: launches that order results by index, and where plans take lengths."""

from collections.abc import Sequence

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    LENGTHS,
    VALUES,
    WORKSPACE,
    Launch,
    Workspace,
    X,
    batches,
    fill_offsets,
    lengths_of,
    operands_of,
)
from kernels_cuda.top_k.shared.parameters import ByIndexParameters, ReorderParameters
from kernels_cuda.top_k.shared.policy import Policy
from kernels_cuda.top_k.shared.shapes import (
    BY_INDEX_THREADS,
    PART_BYTES,
    REORDER_ITEMS,
    REORDER_THREADS,
    WARP_LANES,
)

# The pointer slots of a launch if rows have lengths, in the order of the addresses that a plan takes.
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


def take_lengths(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches whose pointers are among the addresses of a plan that takes lengths."""
    return [launch._replace(pointers=tuple(map(_with_lengths, launch.pointers))) for launch in launches]


def _with_lengths(pointer: Pointer) -> Pointer:
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


def by_index(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Bring the selected elements into the order of their indices."""
    return reorder(problem, policy, workspace) or read_again(problem, policy, workspace)


def reorder(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Sort the indices of the selected elements; return no launches where rows are better read again."""
    by_index, k = policy.by_index, problem.k
    shape = next((each for each in by_index.reorder_shapes if k <= each.n_elements), None)
    n_items = next((each for each in REORDER_ITEMS if k <= WARP_LANES * each), 0)
    if shape is None or problem.axis_size > policy.narrow_axis_elements:
        return []
    if n_items == 0 and problem.axis_size <= by_index.warp_row_elements:
        return []
    offsets, launches = fill_offsets(problem, workspace)
    rows_per_block = REORDER_THREADS // WARP_LANES if n_items else 1
    return launches + [
        Launch(
            kernels.reorder_few(n_items) if n_items else kernels.reorder_many(shape),
            n_blocks,
            REORDER_THREADS if n_items else shape.n_threads,
            (lengths_of(problem), Pointer(VALUES), Pointer(INDICES), offsets),
            ReorderParameters(
                element_size=problem.element_size,
                index_size=problem.index_size,
                index_bits=(problem.axis_size - 1).bit_length(),
                first_row=first * rows_per_block,
                n_rows=problem.n_rows,
                axis_size=problem.axis_size,
                k=k,
                strides=problem.strides,
                layout=problem.rows.layout,
                length_format=problem.length_format,
            ),
        )
        for first, n_blocks in batches(ceil_div(problem.n_rows, rows_per_block), policy.launch_blocks)
    ]


def read_again(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Read each row once more, one block per row or part of a row, and write what is selected as it comes."""
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
            (*operands_of(problem), parts, offsets),
            ByIndexParameters(
                **problem.row_parameters,
                is_counting=is_counting,
                first_unit=first,
                n_parts=n_parts,
                part_size=part_size,
            ),
        )
        for is_counting in ((0,) if n_parts == 1 else (1, 0))
        for first, n_blocks in batches(problem.n_rows * n_parts, policy.launch_blocks)
    ]
