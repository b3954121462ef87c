"""Plans of columns: a lane a row, where neighbouring rows are neighbours in memory."""

from dataclasses import replace

from kernels_cuda.runtime.launch import NULL, Pointer
from kernels_cuda.top_k.column_shape import (
    LANES,
    LONGEST_PART,
    ColumnShape,
    column_shape,
    spare_candidates,
)
from kernels_cuda.top_k.steps import (
    INDICES,
    LARGEST_NARROW_AXIS,
    VALUES,
    Problem,
    Step,
    Workspace,
    X,
    ceil_div,
    fill_offsets,
)
from kernels_cuda.top_k.variants import columns_variant

# Larger k leave shared memory for too few warps; smaller problems, and fewer columns, occupy too few.
LARGEST_K = 64
LEAST_ELEMENTS = 1 << 23
COLUMNS_A_WINNER = 512
# Warps that keep a multiprocessor's share of the memory busy.
WARPS_A_MULTIPROCESSOR = 12
# A part of a column must be worth its winners.
SMALLEST_PART = 64
ELEMENTS_A_WINNER = 8


def are_columns(problem: Problem) -> bool:
    """Tell whether rows are better read side by side than one by one."""
    return (
        problem.has_neighbours
        and problem.k <= LARGEST_K
        and problem.n_rows >= COLUMNS_A_WINNER * problem.k
        and problem.n_rows * problem.axis_size >= LEAST_ELEMENTS
    )


def columns_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Walk down all columns; columns of winners of parts are walked down once more."""
    steps: list[Step] = []
    shape = column_shape(problem.element_size, problem.k, problem.axis_size)
    if shape is None:
        msg = f"variant 'columns' has no room for {problem.k} winners of {problem.element_size} bytes"
        raise ValueError(msg)
    n_warps_wanted = WARPS_A_MULTIPROCESSOR * problem.multiprocessors
    n_groups = ceil_div(problem.n_rows, LANES)
    position_size = 4 if problem.axis_size <= LARGEST_NARROW_AXIS else 8
    smallest_part = max(SMALLEST_PART, ELEMENTS_A_WINNER * problem.k)
    stage, x, sources, source_size = problem, Pointer(X), NULL, 0
    while True:
        n_parts = 1
        while n_parts < shape.n_warps and (
            n_groups * n_parts < n_warps_wanted and stage.axis_size >= 2 * n_parts * smallest_part
        ):
            n_parts *= 2
        n_stacked = ceil_div(stage.axis_size, LONGEST_PART)
        if stage is problem:
            # Winners of parts take at most a quarter of the space that the columns do.
            pair_bytes = problem.element_size + position_size
            most_stacked = min(
                problem.axis_size * problem.element_size // (4 * problem.k * pair_bytes),
                problem.axis_size // (n_parts * smallest_part),
            )
            n_stacked = max(n_stacked, min(n_warps_wanted // (n_groups * n_parts), most_stacked))
        values, indices, part_problem = Pointer(VALUES), Pointer(INDICES), stage
        if n_stacked > 1:
            left = n_stacked * problem.k
            values = workspace.take(problem.n_rows * left * problem.element_size)
            indices = workspace.take(problem.n_rows * left * position_size)
            part_problem = replace(
                stage,
                index_size=position_size,
                axis_strides=(stage.axis_strides[0], problem.n_rows, problem.n_rows),
                layout=stage.layout.with_packed_outputs(1),
            )
        pointers = (x, values, indices, sources)
        steps += _column_launch(part_problem, shape, n_parts, n_stacked, pointers, source_size, workspace)
        if n_stacked == 1:
            return steps
        x, sources, source_size = values, indices, position_size
        stage = replace(
            problem,
            axis_size=left,
            axis_strides=(problem.n_rows, *problem.axis_strides[1:]),
            layout=problem.layout.with_packed_x(1),
        )


def _column_launch(
    problem: Problem,
    shape: ColumnShape,
    n_parts: int,
    n_stacked: int,
    pointers: tuple[Pointer, ...],
    source_size: int,
    workspace: Workspace,
) -> list[Step]:
    n_column_blocks = ceil_div(problem.n_rows, LANES * (shape.n_warps // n_parts))
    offsets, steps = fill_offsets(problem, workspace)
    integers = (
        source_size,
        problem.index_size,
        n_column_blocks,
        problem.n_rows,
        problem.axis_size,
        n_stacked,
        n_parts,
        problem.k,
        shape.n_slots,
        spare_candidates(problem.k),
        shape.first_position,
        *problem.axis_strides,
        *problem.layout.layout,
        *problem.numbers,
        *problem.masks,
    )
    step = Step(
        columns_variant(problem.element_size),
        n_column_blocks * n_stacked,
        shape.n_warps * LANES,
        (*pointers, offsets),
        integers,
        shape.shared_bytes,
    )
    return [*steps, step]
