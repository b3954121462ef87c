"""What follows an algorithm: launches that order results by index, and where plans take lengths."""

from collections.abc import Sequence

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
from kernels_cuda.top_k.parameters import ByIndexParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shapes import BY_INDEX_THREADS, PART_BYTES

# The pointer slots of a launch if rows have lengths, in the order of the addresses that a plan takes.
WITH_LENGTHS = (X, LENGTHS, VALUES, INDICES, WORKSPACE)


def take_lengths(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches whose pointers are among the addresses of a plan that takes lengths."""
    return [launch._replace(pointers=tuple(map(_with_lengths, launch.pointers))) for launch in launches]


def _with_lengths(pointer: Pointer) -> Pointer:
    return pointer if pointer == NULL else pointer._replace(slot=WITH_LENGTHS.index(pointer.slot))


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
