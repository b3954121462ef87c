"""Plans of the ways that sort all of a row: within a block, or by passes over the whole row."""

import math

from kernels_cuda.runtime.launch import NULL, WORKSPACE_ALIGNMENT, Pointer
from kernels_cuda.top_k import sort_shape, tile_shape
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.steps import (
    INDICES,
    LARGEST_GRID,
    VALUES,
    Problem,
    Step,
    Workspace,
    X,
    batches,
    ceil_div,
    fill_offsets,
    grids,
)
from kernels_cuda.top_k.variants import clear_variant, sort_variants, tile_variant

# Rows that the block kernel would order all of if so much is wanted, and the largest k for which it serves
# longer ones sooner than they are sorted; by the size of elements, each byte of which is a pass.
LARGEST_ORDERED_ROW = {1: 8192, 2: 8192, 4: 8192, 8: 5120}
LARGEST_SELECTED_K = {1: 0, 2: 0, 4: 4096, 8: 2560}
# Blocks a multiprocessor that count digits.
HISTOGRAM_BLOCKS = 2
# Rows are sorted in batches that need about this many bytes, or one by one.
SORT_BYTES = 1 << 28


def is_tile(problem: Problem) -> bool:
    """Tell whether a block had better sort the row."""
    if not problem.wants_most or _fitting_tile(problem) is None:
        return False
    size = problem.element_size
    return problem.axis_size <= LARGEST_ORDERED_ROW[size] or problem.k > LARGEST_SELECTED_K[size]


def _fitting_tile(problem: Problem) -> tuple[int, int] | None:
    """Return the smallest tile that holds a row, or None."""
    for shape in tile_shape.TILE_SHAPES[problem.element_size]:
        shared_bytes = tile_shape.shared_bytes(problem.element_size, *shape)
        if problem.axis_size <= math.prod(shape) and shared_bytes <= problem.block_shared_bytes:
            return shape
    return None


def tile_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Sort every row in a block."""
    shape = _fitting_tile(problem)
    if shape is None:
        msg = f"variant 'tile' does not take rows of {problem.axis_size}"
        raise ValueError(msg)
    shared_bytes = tile_shape.exchange_bytes(problem.element_size, *shape)
    offsets, steps = fill_offsets(problem, workspace)
    return steps + [
        Step(
            tile_variant(problem.element_size, *shape),
            n_blocks,
            shape[0],
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), offsets),
            (
                problem.index_size,
                first,
                problem.axis_size,
                problem.k,
                *problem.axis_strides,
                *problem.layout.layout,
                *problem.masks,
            ),
            shared_bytes,
        )
        for first, n_blocks in grids(problem.n_rows)
    ]


def sort_steps(problem: Problem, workspace: Workspace) -> list[Step]:
    """Sort whole rows, as many at a time as the workspace has room for."""
    element_size, axis_size = problem.element_size, problem.axis_size
    position_size = 4 if axis_size < sort_shape.LARGEST_NARROW_ROW else 8
    n_passes = element_size * 8 // sort_shape.DIGIT_BITS
    n_tiles = ceil_div(axis_size, sort_shape.tile_elements(element_size, position_size))
    # Even passes write to the first buffer; the outputs are the second one if pairs fit into them.
    n_buffers = min(2, n_passes - 1)
    uses_outputs = (
        n_buffers == 2
        and problem.k == axis_size
        and problem.index_size == position_size
        and problem.axis_strides[1:] == (1, 1)
        and problem.layout.has_packed_outputs(problem.n_rows, axis_size)
    )
    histogram_bytes = sort_shape.N_DIGITS * sort_shape.COUNT_BYTES
    state_bytes = n_tiles * sort_shape.N_DIGITS * position_size
    row_bytes = (n_buffers - uses_outputs) * axis_size * (element_size + position_size)
    row_bytes += n_passes * (histogram_bytes + state_bytes)
    n_rows = min(problem.n_rows, max(1, SORT_BYTES // row_bytes), max(1, LARGEST_GRID // n_tiles))

    counters = [workspace.take(WORKSPACE_ALIGNMENT) for _ in range(n_passes)]
    histograms = workspace.take(n_rows * n_passes * histogram_bytes)
    states = [workspace.take(n_rows * state_bytes) for _ in range(n_passes)]
    n_cleared = workspace.size - counters[0].offset
    keys = [workspace.take(n_rows * axis_size * element_size) for _ in range(n_buffers - uses_outputs)]
    positions = [workspace.take(n_rows * axis_size * position_size) for _ in range(n_buffers - uses_outputs)]
    histogram, sort_pass = sort_variants(element_size, position_size)
    n_threads, *_ = sort_shape.tile_shape(element_size, position_size)
    x_stride, value_stride, index_stride = problem.axis_strides
    rows = (*problem.layout.layout, *problem.masks)

    offsets, steps = fill_offsets(problem, workspace)
    for first, batch in batches(problem.n_rows, n_rows):
        n_blocks = ceil_div(n_cleared, sort_shape.CLEARED_BYTES)
        cleared = (counters[0],), (n_cleared // VECTOR_BYTES,)
        steps.append(Step(clear_variant(), n_blocks, sort_shape.CLEARING_THREADS, *cleared))
        n_blocks_a_row = min(
            ceil_div(axis_size, sort_shape.COUNTED_ELEMENTS),
            ceil_div(HISTOGRAM_BLOCKS * problem.multiprocessors, batch),
        )
        steps.append(
            Step(
                histogram,
                batch * n_blocks_a_row,
                sort_shape.COUNTING_THREADS,
                (Pointer(X), histograms, offsets),
                (first, axis_size, n_blocks_a_row, x_stride, *rows),
            )
        )
        buffers = list(zip(keys, positions, strict=True))
        if uses_outputs:
            done = first * axis_size
            buffers.append((Pointer(VALUES, done * element_size), Pointer(INDICES, done * position_size)))
        source, source_positions = Pointer(X), NULL
        for number in range(n_passes):
            is_last = number == n_passes - 1
            to_keys, to_positions = (NULL, NULL) if is_last else buffers[number % 2]
            pointers = (
                Pointer(X),
                source,
                source_positions,
                to_keys,
                to_positions,
                Pointer(VALUES),
                Pointer(INDICES),
                histograms._replace(offset=histograms.offset + number * histogram_bytes),
                states[number],
                counters[number],
                offsets,
            )
            integers = (
                problem.index_size,
                first,
                axis_size,
                n_tiles,
                problem.k,
                number * sort_shape.DIGIT_BITS,
                int(number == 0),
                int(is_last),
                x_stride,
                value_stride,
                index_stride,
                *rows,
            )
            shared_bytes = sort_shape.exchange_bytes(element_size, position_size)
            steps.append(Step(sort_pass, batch * n_tiles, n_threads, pointers, integers, shared_bytes))
            source, source_positions = to_keys, to_positions
    return steps
