"""The launches of the algorithms that take one kernel for all of a row.

They are rounds, one_pass, warp, columns, tile and sort. The others have files of their own.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import NULL, WORKSPACE_ALIGNMENT, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared import shapes
from kernels_cuda.top_k.shared.parameters import (
    ClearParameters,
    ColumnsParameters,
    HistogramParameters,
    OffsetsParameters,
    OnePassParameters,
    RoundsParameters,
    SortParameters,
    TileParameters,
    WarpParameters,
)
from kernels_cuda.top_k.shared.policy import ColumnsPolicy, Policy

# The pointer slots of a launch, in the order of the addresses that a plan is launched with.
X, VALUES, INDICES, WORKSPACE = range(4)
# That of the rows' lengths, where these have any: a plan takes them after x (`optional_launches`).
LENGTHS = WORKSPACE + 1
# Kernels that serve whole rows of the problem take these operands.
OPERANDS = (Pointer(X), Pointer(VALUES), Pointer(INDICES))


class Launch(NamedTuple):
    """One kernel launch: blocks, threads per block, what the kernel takes, and blocks per cluster."""

    variant: Variant
    grid: int
    block: int
    pointers: tuple[Pointer, ...]
    parameters: Any
    shared_bytes: int = 0
    cluster: int = 1


class UnservedError(ValueError):
    """Raised where an algorithm cannot serve a problem."""

    def __init__(self, problem: Problem, algorithm: str) -> None:
        super().__init__(
            f"top_k: algorithm {algorithm!r} does not take k {problem.k} of rows of {problem.axis_size}"
        )


def lengths_of(problem: Problem) -> Pointer:
    """Return where the rows' lengths are, if they have any."""
    return NULL if problem.lengths is None else Pointer(LENGTHS)


def operands_of(problem: Problem) -> tuple[Pointer, ...]:
    """Return where x, lengths, values and indices of all rows are."""
    return Pointer(X), lengths_of(problem), Pointer(VALUES), Pointer(INDICES)


class Workspace:
    """Gives out aligned pieces of the workspace; `size` bytes so far."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, n_bytes: int) -> Pointer:
        """Return the next piece."""
        piece = Pointer(WORKSPACE, self.size)
        self.size += ceil_div(n_bytes, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        return piece


def batches(count: int, largest: int) -> Iterator[tuple[int, int]]:
    """Split a number of rows or blocks into (first, how many)."""
    for first in range(0, count, largest):
        yield first, min(largest, count - first)


def position_bytes(problem: Problem, policy: Policy) -> int:
    """Return the bytes of a position of a row in the workspace."""
    return 4 if problem.axis_size <= policy.narrow_axis_elements else 8


def fill_offsets(problem: Problem, workspace: Workspace) -> tuple[Pointer, list[Launch]]:
    """Return where the table of row offsets is, if the rows need one, and what fills it."""
    if not problem.rows.table:
        return NULL, []
    offsets = workspace.take(problem.n_rows * shapes.OFFSETS_BYTES)
    return offsets, [
        Launch(
            kernels.offsets(),
            ceil_div(problem.n_rows, shapes.OFFSETS_THREADS),
            shapes.OFFSETS_THREADS,
            (offsets,),
            OffsetsParameters(n_rows=problem.n_rows, is_first=int(number == 0), dimension=dimension),
        )
        for number, dimension in enumerate(problem.rows.table)
    ]


def fitting_rounds(problem: Problem, policy: Policy) -> shapes.RoundsShape | None:
    """Return the smallest shape that holds a row, or None."""
    return next((shape for shape in policy.rounds.shapes if problem.axis_size <= shape.n_elements), None)


def rounds_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row as many lanes as hold it."""
    shape = fitting_rounds(problem, policy)
    if shape is None or problem.k > shapes.ROUNDS_LARGEST_K:
        raise UnservedError(problem, "rounds")
    offsets, launches = fill_offsets(problem, workspace)
    n_blocks = ceil_div(problem.n_rows * shape.n_lanes, shapes.ROUNDS_THREADS)
    return launches + [
        Launch(
            kernels.rounds(problem.element_size, shape),
            batch,
            shapes.ROUNDS_THREADS,
            (*operands_of(problem), offsets),
            RoundsParameters(
                **problem.register_parameters,
                is_sorted=int(not problem.is_by_index),
                first_block=first,
                n_rows=problem.n_rows,
            ),
        )
        for first, batch in batches(n_blocks, policy.launch_blocks)
    ]


def one_pass_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a block that reads it once."""
    if (
        problem.element_size not in shapes.ONE_PASS_ELEMENTS
        or problem.strides.x != 1
        or problem.axis_size > shapes.ONE_PASS_LONGEST_ROW
        or problem.k > shapes.ONE_PASS_LARGEST_K
    ):
        raise UnservedError(problem, "one_pass")
    n_threads = policy.one_pass.n_threads
    if problem.n_rows <= problem.multiprocessors and problem.row_bytes >= policy.one_pass.long_bytes:
        n_threads = policy.one_pass.n_threads_of_few_rows
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.one_pass(problem.element_size, n_threads),
            batch,
            n_threads,
            (*operands_of(problem), offsets),
            OnePassParameters(
                **problem.row_parameters,
                is_sorted=int(not problem.is_by_index),
                first_row=first,
                n_maxima=shapes.one_pass_maxima(problem.k),
                unfolded_format=problem.unfolded_format,
            ),
        )
        for first, batch in batches(problem.n_rows, policy.launch_blocks)
    ]


def warp_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a warp."""
    has_threshold = problem.k <= shapes.WARP_LARGEST_K
    n_slots = shapes.FEW_SLOTS if has_threshold else shapes.MANY_SLOTS
    longest = policy.warp.row_elements[-1] if has_threshold else shapes.MANY_SLOTS
    if problem.axis_size > longest:
        raise UnservedError(problem, "warp")
    row_elements = next(size for size in policy.warp.row_elements if problem.axis_size <= size)
    offsets, launches = fill_offsets(problem, workspace)
    n_blocks = ceil_div(problem.n_rows, shapes.WARP_KERNEL_WARPS)
    return launches + [
        Launch(
            kernels.warp(problem.element_size, row_elements),
            batch,
            shapes.WARP_KERNEL_THREADS,
            (*operands_of(problem), offsets),
            WarpParameters(
                **problem.row_parameters,
                is_by_index=int(problem.is_by_index),
                first_block=first,
                n_rows=problem.n_rows,
                n_slots=n_slots,
                unfolded_format=problem.unfolded_format,
            ),
            shapes.warp_shared_bytes(problem.element_size, n_slots),
        )
        for first, batch in batches(n_blocks, policy.launch_blocks)
    ]


def fitting_tile(problem: Problem, policy: Policy) -> shapes.TileShape | None:
    """Return the smallest tile that holds a row, or None."""
    return next((tile for tile in policy.tile.shapes if problem.axis_size <= tile.n_elements), None)


def tile_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Sort every row in a block."""
    tile = fitting_tile(problem, policy)
    if tile is None:
        raise UnservedError(problem, "tile")
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.tile(problem.element_size, tile),
            batch,
            tile.n_threads,
            (*operands_of(problem), offsets),
            TileParameters(
                **problem.row_parameters,
                first_row=first,
            ),
            tile.dynamic_bytes(problem.element_size),
        )
        for first, batch in batches(problem.n_rows, policy.launch_blocks)
    ]


def columns_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Walk down all columns; columns of elements selected from parts are walked down once more."""
    launches: list[Launch] = []
    shape = column_shape(problem, policy.columns)
    if shape is None:
        raise UnservedError(problem, "columns")
    most_warps = policy.columns.warps_per_multiprocessor * problem.multiprocessors
    n_groups = ceil_div(problem.n_rows, shapes.WARP_LANES)
    position_size = position_bytes(problem, policy)
    smallest_part = max(policy.columns.part_elements, policy.columns.part_elements_per_selected * problem.k)
    stage, x, sources, source_size = problem, Pointer(X), NULL, 0
    while True:
        n_parts = 1
        while n_parts < shape.n_warps and (
            n_groups * n_parts < most_warps and stage.axis_size >= 2 * n_parts * smallest_part
        ):
            n_parts *= 2
        n_stacked = ceil_div(stage.axis_size, policy.columns.longest_part)
        if stage is problem:
            # What is selected from parts takes at most a quarter of the space that the columns do.
            pair_bytes = problem.element_size + position_size
            most_stacked = min(
                problem.row_bytes // (4 * problem.k * pair_bytes),
                problem.axis_size // (n_parts * smallest_part),
            )
            n_stacked = max(n_stacked, min(most_warps // (n_groups * n_parts), most_stacked))
        values, indices, part = Pointer(VALUES), Pointer(INDICES), stage
        if n_stacked > 1:
            n_left = n_stacked * problem.k
            values = workspace.take(problem.n_rows * n_left * problem.element_size)
            indices = workspace.take(problem.n_rows * n_left * position_size)
            part = replace(
                stage,
                index_size=position_size,
                strides=stage.strides._replace(values=problem.n_rows, indices=problem.n_rows),
                rows=stage.rows.with_packed_outputs(1),
                lengths=problem.lengths and problem.lengths._replace(padding=problem.filler),
            )
        n_column_blocks = ceil_div(problem.n_rows, shapes.WARP_LANES * (shape.n_warps // n_parts))
        offsets, table = fill_offsets(part, workspace)
        launches += table
        launches.append(
            Launch(
                kernels.columns(problem.element_size),
                n_column_blocks * n_stacked,
                shape.n_warps * shapes.WARP_LANES,
                (x, lengths_of(problem), values, indices, sources, offsets),
                ColumnsParameters(
                    source_size=source_size,
                    index_size=part.index_size,
                    n_column_blocks=n_column_blocks,
                    n_rows=problem.n_rows,
                    axis_size=part.axis_size,
                    n_stacked=n_stacked,
                    parts_per_block=n_parts,
                    k=problem.k,
                    n_slots=shape.n_slots,
                    n_spare=shapes.spare_candidates(problem.k),
                    position_offset=shape.first_position,
                    strides=part.strides,
                    layout=part.rows.layout,
                    unfolded_format=problem.unfolded_format,
                    key_format=problem.key_format,
                    length_format=part.length_format,
                ),
                shape.shared_bytes,
            )
        )
        if n_stacked == 1:
            return launches
        x, sources, source_size = values, indices, position_size
        stage = replace(
            problem,
            axis_size=n_left,
            strides=problem.strides._replace(x=problem.n_rows),
            rows=problem.rows.with_packed_x(1),
        )


def column_shape(problem: Problem, policy: ColumnsPolicy) -> shapes.ColumnShape | None:
    """Return the shape of blocks, or None if what a warp selects does not fit."""
    k, key_bytes = problem.k, shapes.column_key_bytes(problem.element_size)
    slot_bytes = shapes.WARP_LANES * (key_bytes + shapes.POSITION_BYTES)
    chunk = shapes.CHUNK_ROWS[problem.element_size]
    fewest = k + shapes.spare_candidates(k) + chunk + max(policy.spare_slots, k // 2)
    # The kernel reads candidates in eights. Several warps merge what they select, and read one beyond two
    # lists.
    n_slots = max(_ceil_to_eight(fewest), policy.warp_bytes // slot_bytes // 8 * 8)
    n_slots = min(n_slots, _ceil_to_eight(max(problem.axis_size, k)))
    n_merging = max(n_slots, _ceil_to_eight(2 * k + 1))
    for n_warps, n_each in ((4, n_merging), (2, n_merging), (1, n_slots)):
        if n_warps * n_each * slot_bytes <= policy.block_bytes:
            first_position = n_warps * n_each * shapes.WARP_LANES * key_bytes
            shared_bytes = first_position + n_warps * n_each * shapes.POSITION_STEP
            return shapes.ColumnShape(n_warps, n_each, first_position, shared_bytes)
    return None


def _ceil_to_eight(count: int) -> int:
    return ceil_div(count, 8) * 8


def sort_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Sort whole rows, as many at a time as the workspace has room for."""
    element_size, axis_size = problem.element_size, problem.axis_size
    position_size = 4 if axis_size < policy.sort.narrow_elements else 8
    n_passes = element_size * 8 // shapes.DIGIT_BITS
    pair_bytes = shapes.pair_bytes(element_size, position_size)
    tile, *others = shapes.SORT_TILES[pair_bytes]
    n_tiles = ceil_div(axis_size, tile.n_elements)
    # The last pass writes the results, the others one buffer after the other.
    n_buffers = min(2, n_passes - 1)
    histogram_bytes = shapes.N_DIGITS * shapes.COUNT_BYTES
    state_bytes = n_tiles * shapes.N_DIGITS * position_size
    buffer_bytes = axis_size * pair_bytes
    row_bytes = n_buffers * buffer_bytes + n_passes * (histogram_bytes + state_bytes)
    n_rows = min(
        problem.n_rows, max(1, policy.sort.batch_bytes // row_bytes), max(1, policy.launch_blocks // n_tiles)
    )
    if others and n_rows * n_tiles > policy.sort.tiles_per_multiprocessor * problem.multiprocessors:
        (tile,) = others

    counters = [workspace.take(WORKSPACE_ALIGNMENT) for _ in range(n_passes)]
    histograms = workspace.take(n_rows * n_passes * histogram_bytes)
    states = [workspace.take(n_rows * state_bytes) for _ in range(n_passes)]
    n_cleared = workspace.size - counters[0].offset
    buffers = [workspace.take(n_rows * buffer_bytes) for _ in range(n_buffers)]

    lengths = lengths_of(problem)
    offsets, launches = fill_offsets(problem, workspace)
    clear = Launch(
        kernels.clear(),
        ceil_div(n_cleared, shapes.CLEARED_BYTES),
        shapes.CLEARING_THREADS,
        (counters[0],),
        ClearParameters(n_vectors=n_cleared // shapes.VECTOR_BYTES),
    )
    for first, batch in batches(problem.n_rows, n_rows):
        launches.append(clear)
        blocks_per_row = min(
            ceil_div(axis_size, shapes.COUNTED_ELEMENTS),
            ceil_div(policy.sort.blocks_per_multiprocessor * problem.multiprocessors, batch),
        )
        launches.append(
            Launch(
                kernels.histogram(element_size),
                batch * blocks_per_row,
                shapes.COUNTING_THREADS,
                (Pointer(X), lengths, histograms, offsets),
                HistogramParameters(
                    first_row=first,
                    axis_size=axis_size,
                    blocks_per_row=blocks_per_row,
                    x_stride=problem.strides.x,
                    layout=problem.rows.layout,
                    key_format=problem.key_format,
                    length_format=problem.length_format,
                ),
            )
        )
        for number in range(n_passes):
            is_last = number == n_passes - 1
            source = buffers[(number - 1) % 2] if number else NULL
            destination = NULL if is_last else buffers[number % 2]
            histogram = histograms._replace(offset=histograms.offset + number * histogram_bytes)
            launches.append(
                Launch(
                    kernels.sort(element_size, position_size, tile),
                    batch * n_tiles,
                    tile.n_threads,
                    (
                        *(Pointer(X), lengths, source, destination, Pointer(VALUES), Pointer(INDICES)),
                        *(histogram, states[number], counters[number], offsets),
                    ),
                    SortParameters(
                        index_size=problem.index_size,
                        first_row=first,
                        axis_size=axis_size,
                        n_tiles=n_tiles,
                        k=problem.k,
                        shift=number * shapes.DIGIT_BITS,
                        is_first=int(number == 0),
                        is_last=int(is_last),
                        strides=problem.strides,
                        layout=problem.rows.layout,
                        key_format=problem.key_format,
                        length_format=problem.length_format,
                    ),
                    tile.n_elements * pair_bytes,
                )
            )
    return launches
