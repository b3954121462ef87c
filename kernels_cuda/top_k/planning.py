"""Which kernels run for a shape, with which grids and workspace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kernels_cuda.launch import Kernel, Target, Variant, load
from kernels_cuda.top_k import sort
from kernels_cuda.top_k.block import capacity
from kernels_cuda.top_k.keys import VECTOR_BYTES, key_masks
from kernels_cuda.top_k.rows import OFFSETS_BYTES, OFFSETS_THREADS, RowDimension, RowLayout, row_layout
from kernels_cuda.top_k.variants import (
    BLOCK_THREADS,
    WARP_ROWS,
    block_variant,
    offsets_variant,
    sort_variants,
    warp_variant,
)
from kernels_cuda.top_k.warp import N_THREADS as WARP_THREADS
from kernels_cuda.top_k.warp import WARPS_A_BLOCK

# A warp takes at most this many lane maxima away.
WARP_LARGEST_K = 32
# Rows for blocks of 128 threads, and the k for which they leave room for candidates beyond the winners.
SMALL_BLOCK_ROW = 4096
SMALL_BLOCK_K = 512
# Beyond this k few candidates but the winners fit.
BLOCK_LARGEST_K = 2048
# Longer rows have positions of 8 bytes in the workspace.
LARGEST_NARROW_AXIS = 1 << 32
# A part of a row counts positions in 31 bits.
LARGEST_PART = 1 << 30
# A part must be worth a block, and leave far fewer winners than it has elements.
SMALLEST_PART = 8192
ELEMENTS_A_WINNER = 32
# One block merges the winners of the parts up to this many.
LARGEST_MERGE = 1 << 16
BLOCKS_A_MULTIPROCESSOR = 2
# More tiles than these are scanned by a launch of its own.
UNSCANNED_TILES = 16
# Rows are sorted in batches that need about this many bytes, or one by one.
SORT_BYTES = 1 << 28
LARGEST_GRID = 1 << 30
ALIGNMENT = 256

# The arrays of a launch, in the order of its arguments; "nothing" is a null pointer.
X, VALUES, INDICES, WORKSPACE, NOTHING = range(5)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class Pointer(NamedTuple):
    """An address known at launch: an array and an offset in bytes."""

    array: int
    offset: int = 0


_NULL = Pointer(NOTHING)


class Step(NamedTuple):
    """One kernel launch: pointers, then integers."""

    variant: Variant
    grid: int
    block: int
    pointers: tuple[Pointer, ...]
    integers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What `plan` is asked for, with the rows described for kernels."""

    element_size: int
    index_size: int
    masks: tuple[int, ...]
    k: int
    axis_size: int
    n_rows: int
    layout: RowLayout
    axis_strides: tuple[int, int, int]
    multiprocessors: int


class Plan:
    """A top-k of one shape on one device; may be launched from any thread.

    Attributes
    ----------
    variant : str
        What runs and why.
    workspace_size : int
        Bytes of scratch memory that one launch needs.
    """

    __slots__ = ("_launches", "variant", "workspace_size")

    def __init__(self, variant: str, workspace_size: int, steps: Sequence[Step], target: Target) -> None:
        self.variant = variant
        self.workspace_size = workspace_size
        self._launches: tuple[tuple[Kernel, Step], ...] = tuple(
            (load(step.variant, target), step) for step in steps
        )

    def launch(self, stream: Any, x: int, values: int, indices: int, workspace: int) -> None:
        """Put the kernels on `stream`; addresses are those of the first elements.

        Parameters
        ----------
        stream : cuda.core.Stream
            Where they run.
        x, values, indices : int
            Addresses of element [0, ..., 0].
        workspace : int
            Address of `workspace_size` bytes, a multiple of 256.
        """
        arrays = (x, values, indices, workspace, 0)
        for kernel, step in self._launches:
            addresses = [arrays[array] + offset for array, offset in step.pointers]
            kernel.launch(stream, step.grid, step.block, 0, *addresses, *step.integers)


class _Workspace:
    """Gives out aligned pieces of the workspace."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, n_bytes: int) -> Pointer:
        piece = Pointer(WORKSPACE, self.size)
        self.size += _ceil_div(n_bytes, ALIGNMENT) * ALIGNMENT
        return piece


def plan(
    *,
    element_size: int,
    index_size: int,
    sign: int,
    flip: int,
    infinity: int,
    largest: bool,
    k: int,
    axis_size: int,
    rows: Sequence[RowDimension],
    axis_strides: tuple[int, int, int],
    x_offset: int = 0,
    value_offset: int = 0,
    index_offset: int = 0,
    target: Target,
    variant: str | None = None,
) -> Plan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    sign, flip, infinity : int
        The format: the sign bit, the bits that a set sign bit inverts, and the bits of infinity; 0, 0 and
        all ones for unsigned integers.
    largest : bool
        Whether large elements come first.
    k, axis_size : int
        How many elements of how many, with ``0 <= k <= axis_size``.
    rows : sequence of (size, x_stride, value_stride, index_stride)
        The other dimensions, slowest first; strides in elements.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    x_offset, value_offset, index_offset : int
        Not needed: addresses are those of the first elements.
    target : Target
        The device.
    variant : {"warp", "block", "grid", "sort"}, optional
        Force one way, if it can serve the problem.

    Returns
    -------
    Plan
        To be launched any number of times.

    Raises
    ------
    ValueError
        If the forced variant cannot serve the problem.

    Notes
    -----
    Kernels that no process has compiled before are compiled here.
    """
    del x_offset, value_offset, index_offset
    n_rows = math.prod(size for size, *_ in rows)
    if n_rows == 0 or k == 0:
        return Plan("nothing to do", 0, (), target)
    problem = Problem(
        element_size=element_size,
        index_size=index_size,
        masks=key_masks(element_size, sign, flip, infinity, largest),
        k=k,
        axis_size=axis_size,
        n_rows=n_rows,
        layout=row_layout(rows),
        axis_strides=axis_strides,
        multiprocessors=target.multiprocessors,
    )
    name = variant or _choose(problem)
    if name not in _STEPS:
        msg = f"top_k has no variant {name!r}; there are {', '.join(_STEPS)}"
        raise ValueError(msg)
    workspace = _Workspace()
    steps = _STEPS[name](problem, workspace)
    shape = f"{n_rows} rows of {axis_size}, k {k}, {element_size}-byte elements, {len(steps)} launches"
    return Plan(f"{name} ({shape})", workspace.size, steps, target)


def _choose(problem: Problem) -> str:
    if problem.k <= WARP_LARGEST_K and problem.axis_size <= WARP_ROWS[-1]:
        return "warp"
    if _block_threads(problem) is None:
        return "sort"
    return "grid" if _n_parts(problem) > 1 else "block"


def _block_threads(problem: Problem) -> int | None:
    """Return the threads of the block kernel that serves the problem well, or None."""
    small, large = BLOCK_THREADS
    n_slots = capacity(problem.element_size, small)
    if problem.axis_size <= n_slots or (problem.axis_size <= SMALL_BLOCK_ROW and problem.k <= SMALL_BLOCK_K):
        return small
    n_slots = capacity(problem.element_size, large)
    return large if problem.axis_size <= n_slots or problem.k <= BLOCK_LARGEST_K else None


def _part_size(problem: Problem, n_parts: int) -> int:
    # Parts start on the same 16-byte boundaries as the row.
    per_vector = VECTOR_BYTES // problem.element_size
    return _ceil_div(problem.axis_size, n_parts * per_vector) * per_vector


def _n_parts(problem: Problem) -> int:
    """Return into how many parts a row is split to occupy the device, 1 if it does so whole."""
    wanted = _ceil_div(BLOCKS_A_MULTIPROCESSOR * problem.multiprocessors, problem.n_rows)
    if problem.n_rows * 2 > problem.multiprocessors * BLOCKS_A_MULTIPROCESSOR:
        wanted = 1
    smallest = max(SMALLEST_PART, problem.k * ELEMENTS_A_WINNER)
    most = max(1, problem.axis_size // smallest)
    needed = _ceil_div(problem.axis_size, LARGEST_PART)
    return max(min(wanted, most), needed)


def _batches(n_blocks: int, largest: int) -> Iterator[tuple[int, int]]:
    """Split a number of blocks into (first, how many)."""
    for first in range(0, n_blocks, largest):
        yield first, min(largest, n_blocks - first)


def _fill_offsets(problem: Problem, workspace: _Workspace) -> tuple[Pointer, list[Step]]:
    """Return where the table of row offsets is, if the layout needs one, and what fills it."""
    if not problem.layout.table_dimensions:
        return _NULL, []
    offsets = workspace.take(problem.n_rows * OFFSETS_BYTES)
    grid = _ceil_div(problem.n_rows, OFFSETS_THREADS)
    return offsets, [
        Step(
            offsets_variant(),
            grid,
            OFFSETS_THREADS,
            (offsets,),
            (problem.n_rows, int(number == 0), *dimension),
        )
        for number, dimension in enumerate(problem.layout.table_dimensions)
    ]


def _warp_steps(problem: Problem, workspace: _Workspace) -> list[Step]:
    if problem.k > WARP_LARGEST_K or problem.axis_size > WARP_ROWS[-1]:
        msg = f"variant 'warp' takes k up to {WARP_LARGEST_K} and rows up to {WARP_ROWS[-1]}"
        raise ValueError(msg)
    kernel = warp_variant(problem.element_size, problem.axis_size)
    offsets, steps = _fill_offsets(problem, workspace)
    return steps + [
        Step(
            kernel,
            n_blocks,
            WARP_THREADS,
            (Pointer(X), Pointer(VALUES), Pointer(INDICES), offsets),
            (
                problem.index_size,
                first,
                problem.n_rows,
                problem.axis_size,
                problem.k,
                *problem.axis_strides,
                *problem.layout.layout,
                *problem.masks,
            ),
        )
        for first, n_blocks in _batches(_ceil_div(problem.n_rows, WARPS_A_BLOCK), LARGEST_GRID)
    ]


def _block_steps(problem: Problem, workspace: _Workspace) -> list[Step]:
    if problem.axis_size > LARGEST_PART:
        msg = f"variant 'block' takes rows up to {LARGEST_PART}"
        raise ValueError(msg)
    whole = (Pointer(X), Pointer(VALUES), Pointer(INDICES), _NULL)
    return _block_launches(problem, problem.axis_size, 1, whole, 0, workspace)


def _block_launches(
    problem: Problem,
    part_size: int,
    n_parts: int,
    pointers: tuple[Pointer, ...],
    source_size: int,
    workspace: _Workspace,
) -> list[Step]:
    n_threads = _block_threads(replace(problem, axis_size=part_size)) or BLOCK_THREADS[-1]
    n_slots = capacity(problem.element_size, n_threads)
    if min(problem.k, part_size) > n_slots:
        msg = f"a block sorts {n_slots} elements of {problem.element_size} bytes, not {problem.k}"
        raise ValueError(msg)
    # One vector more than the elements fill: a row may begin and end inside a vector.
    per_vector = VECTOR_BYTES // problem.element_size
    n_vectors = _ceil_div(part_size, per_vector) + 1
    vectors_a_group = _ceil_div(_ceil_div(n_vectors, n_threads) * n_threads, n_slots)
    group_shift = (vectors_a_group - 1).bit_length()
    enough = _enough_groups(problem.k, n_vectors >> group_shift, n_slots)
    offsets, steps = _fill_offsets(problem, workspace)
    return steps + [
        Step(
            block_variant(problem.element_size, n_threads),
            n_blocks,
            n_threads,
            (*pointers, offsets),
            (
                source_size,
                problem.index_size,
                first,
                problem.axis_size,
                part_size,
                n_parts,
                problem.k,
                *problem.axis_strides,
                group_shift,
                enough,
                *problem.layout.layout,
                *problem.masks,
            ),
        )
        for first, n_blocks in _batches(problem.n_rows * n_parts, LARGEST_GRID)
    ]


def _enough_groups(k: int, n_groups: int, n_slots: int) -> int:
    """Return how many groups may reach the threshold: some more than k, to find it soon, yet few enough.

    If the elements come in no order, c of n groups are reached by about ``-n * log(1 - c / n)`` elements, and
    these should fit.
    """
    n_groups = max(n_groups, 1)
    fitting = int(n_groups * (1 - math.exp(-0.9 * n_slots / n_groups)))
    return max(k, min(k + k // 4 + 8, fitting))


def _grid_steps(problem: Problem, workspace: _Workspace) -> list[Step]:
    """Reduce every row to the winners of its parts until one block can take what is left of it."""
    steps: list[Step] = []
    x, sources, source_size = Pointer(X), _NULL, 0
    stage = problem
    n_parts = max(2, _n_parts(stage))
    position_size = 4 if problem.axis_size <= LARGEST_NARROW_AXIS else 8
    while n_parts > 1:
        part_size = _part_size(stage, n_parts)
        n_parts = _ceil_div(stage.axis_size, part_size)
        if part_size < stage.k or n_parts < 2:
            msg = f"variant 'grid' takes rows of at least two parts of {stage.k} elements"
            raise ValueError(msg)
        last_part = stage.axis_size - (n_parts - 1) * part_size
        left = (n_parts - 1) * stage.k + min(stage.k, last_part)
        values = workspace.take(stage.n_rows * left * stage.element_size)
        indices = workspace.take(stage.n_rows * left * position_size)
        winners = replace(
            stage,
            index_size=position_size,
            axis_strides=(stage.axis_strides[0], 1, 1),
            layout=stage.layout.with_packed_outputs(left),
        )
        pointers = (x, values, indices, sources)
        steps += _block_launches(winners, part_size, n_parts, pointers, source_size, workspace)
        x, sources, source_size = values, indices, position_size
        stage = replace(
            problem,
            axis_size=left,
            axis_strides=(1, *problem.axis_strides[1:]),
            layout=problem.layout.with_packed_x(left),
        )
        n_parts = _n_parts(stage) if left > LARGEST_MERGE else 1
    pointers = (x, Pointer(VALUES), Pointer(INDICES), sources)
    return steps + _block_launches(stage, stage.axis_size, 1, pointers, source_size, workspace)


def _sort_steps(problem: Problem, workspace: _Workspace) -> list[Step]:
    """Sort whole rows, as many at a time as the workspace has room for."""
    element_size, axis_size = problem.element_size, problem.axis_size
    position_size = 4 if axis_size <= LARGEST_NARROW_AXIS else 8
    n_passes = element_size * 8 // sort.DIGIT_BITS
    n_tiles = _ceil_div(axis_size, sort.tile_elements(element_size, position_size))
    is_scanned = n_tiles > UNSCANNED_TILES
    n_buffers = min(2, n_passes - 1)
    count_bytes = sort.N_DIGITS * n_tiles * position_size
    row_bytes = n_buffers * axis_size * (element_size + position_size) + count_bytes
    n_rows = min(problem.n_rows, max(1, SORT_BYTES // row_bytes), max(1, LARGEST_GRID // n_tiles))

    counts = workspace.take(n_rows * count_bytes)
    totals = workspace.take(n_rows * sort.N_DIGITS * position_size) if is_scanned else _NULL
    keys = [workspace.take(n_rows * axis_size * element_size) for _ in range(n_buffers)]
    positions = [workspace.take(n_rows * axis_size * position_size) for _ in range(n_buffers)]
    histogram, scan, scatter = sort_variants(element_size, position_size)
    x_stride, value_stride, index_stride = problem.axis_strides
    rows = (*problem.layout.layout, *problem.masks)

    offsets, steps = _fill_offsets(problem, workspace)
    for first, batch in _batches(problem.n_rows, n_rows):
        grid = batch * n_tiles
        source, source_positions = Pointer(X), _NULL
        for number in range(n_passes):
            is_first, is_last = int(number == 0), int(number == n_passes - 1)
            shift = number * sort.DIGIT_BITS
            to_keys = _NULL if is_last else keys[number % 2]
            to_positions = _NULL if is_last else positions[number % 2]
            steps.append(
                Step(
                    histogram,
                    grid,
                    sort.N_THREADS,
                    (Pointer(X), source, counts, offsets),
                    (first, axis_size, n_tiles, shift, is_first, x_stride, *rows),
                )
            )
            if is_scanned:
                grid_of_digits = batch * sort.N_DIGITS
                steps.append(Step(scan, grid_of_digits, sort.N_THREADS, (counts, totals), (n_tiles,)))
            pointers = (
                Pointer(X),
                source,
                source_positions,
                to_keys,
                to_positions,
                Pointer(VALUES),
                Pointer(INDICES),
                counts,
                totals,
                offsets,
            )
            integers = (
                problem.index_size,
                first,
                axis_size,
                n_tiles,
                problem.k,
                shift,
                is_first,
                is_last,
                int(is_scanned),
                x_stride,
                value_stride,
                index_stride,
                *rows,
            )
            steps.append(Step(scatter, grid, sort.N_THREADS, pointers, integers))
            source, source_positions = to_keys, to_positions
    return steps


_STEPS = {"warp": _warp_steps, "block": _block_steps, "grid": _grid_steps, "sort": _sort_steps}
