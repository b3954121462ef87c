"""Launches that order results by index, after algorithms whose results come otherwise."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.launch import Pointer
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

# Blocks whose warps reorder a row each, and the most selected elements that a lane of them has. A larger k is
# marked in bitmaps.
REORDER_THREADS = 256
REORDER_ITEMS = 4
BY_INDEX_THREADS = 512
# The bitmaps of few rows are read in parts of at least so many words, by about so many blocks.
PART_WORDS = 1 << 8
BLOCKS_PER_MULTIPROCESSOR = 4
WORD_BYTES = 4
# What is marked in a part is an int64.
PART_BYTES = 8
# The steps of `by_index.order_by_index`, which a launch takes one or all of.
CLEARING, MARKING, COUNTING, WRITING = 1, 2, 4, 8


class ByIndexParameters(NamedTuple):
    """More parameters of `by_index.order_by_index`, whose blocks have a part of a row's `n_words` each."""

    steps: int
    n_words: int
    n_parts: int
    part_words: int


def _reorder(element_size: int) -> Variant:
    return variant("reorder", "shared.reorder:reorder_kernel", element_size)


def _by_index(element_size: int) -> Variant:
    return variant("by_index", "shared.by_index:by_index_kernel", element_size, BY_INDEX_THREADS)


def order_variants() -> Iterator[Variant]:
    """List the kernels for all element sizes."""
    for element_size in ELEMENT_SIZES:
        yield _reorder(element_size)
        yield _by_index(element_size)


def by_index(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Bring the selected elements into the order of their indices."""
    is_narrow = problem.axis_size <= policy.narrow_axis_elements
    if not is_narrow or problem.k > WARP_LANES * REORDER_ITEMS:
        return _mark(problem, policy, workspace)
    offsets, launches = fill_offsets(problem, workspace)
    rows_per_block = REORDER_THREADS // WARP_LANES
    kernel, n_blocks = _reorder(problem.element_size), ceil_div(problem.n_rows, rows_per_block)
    pointers = lengths_of(problem), Pointer(VALUES), Pointer(INDICES), offsets
    parameters = row_parameters(problem)
    return launches + launch_all(Launch(kernel, n_blocks, REORDER_THREADS, pointers, parameters), policy)


def _mark(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Mark the indices in a bitmap of each row, and write what is marked, one block per row or part of it."""
    n_words = ceil_div(problem.axis_size, 32)
    n_blocks = ceil_div(BLOCKS_PER_MULTIPROCESSOR * problem.target.multiprocessors, problem.n_rows)
    part_words = max(PART_WORDS, ceil_div(n_words, n_blocks))
    n_parts = ceil_div(n_words, part_words)
    words = workspace.take(problem.n_rows * n_words * WORD_BYTES)
    parts = workspace.take(problem.n_rows * n_parts * PART_BYTES)
    offsets, launches = fill_offsets(problem, workspace)
    at_once = CLEARING | MARKING | WRITING
    for steps in (at_once,) if n_parts == 1 else (CLEARING, MARKING, COUNTING, WRITING):
        launch = Launch(
            _by_index(problem.element_size),
            problem.n_rows * n_parts,
            BY_INDEX_THREADS,
            (*operands_of(problem), words, parts, offsets),
            row_parameters(problem),
            more=(ByIndexParameters(steps, n_words, n_parts, part_words),),
        )
        launches += launch_all(launch, policy)
    return launches
