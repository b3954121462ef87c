"""Launches that order results by index, after algorithms whose results come otherwise."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    VALUES,
    Launch,
    Policy,
    Workspace,
    fill_offsets,
    launch_all,
    lengths_of,
    operands_of,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES, WARP_LANES

# Blocks whose warps reorder a row each, and the most selected elements that a lane of them has. Rows of a
# larger k are read again.
REORDER_THREADS = 256
REORDER_ITEMS = 4
BY_INDEX_THREADS = 512
# Few rows are read again in parts of at least so many elements, by about so many blocks.
PART_ELEMENTS = 1 << 13
BLOCKS_PER_MULTIPROCESSOR = 4
# A row's threshold, and what a part of it selects, are an int64 each.
PART_BYTES = 8


class ByIndexParameters(NamedTuple):
    """More parameters of `by_index.order_by_index`, whose blocks have one part of a row each."""

    is_counting: int
    n_parts: int
    part_size: int


def _reorder(element_size: int) -> Variant:
    return variant("reorder", "shared.reorder:reorder_kernel", element_size)


def _read_again(element_size: int) -> Variant:
    return variant("by_index", "shared.by_index:by_index_kernel", element_size, BY_INDEX_THREADS)


def order_variants() -> Iterator[Variant]:
    """List the kernels for all element sizes."""
    for element_size in ELEMENT_SIZES:
        yield _reorder(element_size)
        yield _read_again(element_size)


def by_index(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Bring the selected elements into the order of their indices."""
    is_narrow = problem.axis_size <= policy.narrow_axis_elements
    if not is_narrow or problem.k > WARP_LANES * REORDER_ITEMS:
        return _read_rows_again(problem, policy, workspace)
    offsets, launches = fill_offsets(problem, workspace)
    rows_per_block = REORDER_THREADS // WARP_LANES
    kernel, n_blocks = _reorder(problem.element_size), ceil_div(problem.n_rows, rows_per_block)
    pointers = lengths_of(problem), Pointer(VALUES), Pointer(INDICES), offsets
    parameters = row_parameters(problem)
    return launches + launch_all(Launch(kernel, n_blocks, REORDER_THREADS, pointers, parameters), policy)


def _read_rows_again(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Read each row once more, one block per row or part of a row, and write what is selected as it comes."""
    n_blocks = ceil_div(BLOCKS_PER_MULTIPROCESSOR * problem.target.multiprocessors, problem.n_rows)
    part_size = max(PART_ELEMENTS, ceil_div(problem.axis_size, n_blocks))
    n_parts = ceil_div(problem.axis_size, part_size)
    parts = NULL if n_parts == 1 else workspace.take(problem.n_rows * (n_parts + 1) * PART_BYTES)
    offsets, launches = fill_offsets(problem, workspace)
    for is_counting in (0,) if n_parts == 1 else (1, 0):
        launch = Launch(
            _read_again(problem.element_size),
            problem.n_rows * n_parts,
            BY_INDEX_THREADS,
            (*operands_of(problem), parts, offsets),
            row_parameters(problem),
            more=(ByIndexParameters(is_counting, n_parts, part_size),),
        )
        launches += launch_all(launch, policy)
    return launches
