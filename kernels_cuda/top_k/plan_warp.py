"""Plans of a warp a row."""

from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.top_k import warp_shape
from kernels_cuda.top_k.steps import (
    INDICES,
    VALUES,
    Problem,
    Step,
    Workspace,
    X,
    ceil_div,
    fill_offsets,
    grids,
)
from kernels_cuda.top_k.variants import WARP_ROWS, warp_variant

# The longest rows that a warp ranks all of, by the size of elements: of few rows and of many. Others are
# sorted by a block, in a pass for each byte.
RANKED_ROW = {1: (0, 128), 2: (64, 128), 4: (128, 256), 8: (128, 128)}


def is_warp(problem: Problem) -> bool:
    """Tell whether a warp a row is enough."""
    if problem.k <= warp_shape.LARGEST_K:
        return problem.axis_size <= WARP_ROWS[-1]
    of_few, of_many = RANKED_ROW[problem.element_size]
    return problem.wants_most and problem.axis_size <= (of_many if problem.has_many_rows else of_few)


def warp_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Give every row a warp."""
    if problem.axis_size > (WARP_ROWS[-1] if problem.k <= warp_shape.LARGEST_K else warp_shape.MANY_SLOTS):
        msg = f"variant 'warp' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    n_slots = warp_shape.FEW_SLOTS if problem.k <= warp_shape.LARGEST_K else warp_shape.MANY_SLOTS
    kernel = warp_variant(problem.element_size, problem.axis_size)
    offsets, steps = fill_offsets(problem, workspace)
    return steps + [
        Step(
            kernel,
            n_blocks,
            warp_shape.N_THREADS,
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), offsets),
            (
                problem.index_size,
                first,
                problem.n_rows,
                problem.axis_size,
                problem.k,
                *problem.axis_strides,
                n_slots,
                *problem.layout.layout,
                *problem.numbers,
                *problem.masks,
            ),
            warp_shape.slot_bytes(problem.element_size, n_slots),
        )
        for first, n_blocks in grids(ceil_div(problem.n_rows, warp_shape.WARPS_A_BLOCK))
    ]
