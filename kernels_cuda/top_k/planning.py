"""Which kernels run for a shape, with which grids and workspace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kernels_cuda.compiler import capability_of
from kernels_cuda.launch import Kernel, Target, Variant, load
from kernels_cuda.top_k import sort
from kernels_cuda.top_k.block import COARSE, ELEMENTS, FINE, BlockShape, block_shape
from kernels_cuda.top_k.groups import CHUNK_VECTORS, LARGEST_LANE_BITS
from kernels_cuda.top_k.keys import VECTOR_BYTES, key_masks
from kernels_cuda.top_k.maxima import CHUNKS_A_BLOCK, FINE_A_CHUNK, FINE_BITS
from kernels_cuda.top_k.maxima import N_THREADS as MAXIMA_THREADS
from kernels_cuda.top_k.rows import OFFSETS_BYTES, OFFSETS_THREADS, RowDimension, RowLayout, row_layout
from kernels_cuda.top_k.variants import (
    BLOCK_THREADS,
    WARP_ROWS,
    block_variant,
    maxima_variant,
    offsets_variant,
    sort_variants,
    warp_variant,
)
from kernels_cuda.top_k.warp import N_THREADS as WARP_THREADS
from kernels_cuda.top_k.warp import WARPS_A_BLOCK

# A warp takes at most this many lane maxima away.
WARP_LARGEST_K = 32
# Rows for blocks of 128 threads, and the k for which these and the next larger ones have room.
SMALL_BLOCK_ROW = 4096
SMALL_BLOCK_K = 512
BLOCK_LARGEST_K = 4096
# The k of devices whose blocks have no more than 64 KiB of shared memory.
OLD_BLOCK_LARGEST_K = 2048
# Groups that should be there for each that is wanted, so that few other elements reach the threshold.
GROUPS_A_WINNER = 8
# And those without which other blocks do not help.
GRID_GROUPS_A_WINNER = 4
# Bytes a microsecond that one block and the whole device read, and how long another launch takes.
BLOCK_RATE = 80_000
DEVICE_RATE = 4_000_000
LAUNCH_MICROSECONDS = 6
# Longer rows have positions of 8 bytes in the workspace.
LARGEST_NARROW_AXIS = 1 << 32
# A part of a row counts positions in 31 bits.
LARGEST_PART = 1 << 31
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
    shared_bytes: int = 0


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
    has_large_blocks: bool


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
            kernel.launch(stream, step.grid, step.block, step.shared_bytes, *addresses, *step.integers)


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
        has_large_blocks=capability_of(target.arch) >= (8, 0),
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
    if _is_long(problem):
        return "grid"
    return "sort" if _block_shape(problem) is None else "block"


def _n_vectors(problem: Problem) -> int:
    return problem.axis_size * problem.element_size // VECTOR_BYTES


def _is_long(problem: Problem) -> bool:
    """Tell whether other blocks should read the rows before a block a row finishes them."""
    if problem.k > _largest_k(problem) or _n_vectors(problem) < problem.k * GRID_GROUPS_A_WINNER << FINE_BITS:
        return False
    row_bytes = problem.axis_size * problem.element_size
    split = LAUNCH_MICROSECONDS + problem.n_rows * row_bytes / DEVICE_RATE
    fills_device = problem.n_rows > problem.multiprocessors or row_bytes / BLOCK_RATE < split
    return not fills_device or _block_shape(problem) is None


def _largest_k(problem: Problem) -> int:
    return BLOCK_LARGEST_K if problem.has_large_blocks else OLD_BLOCK_LARGEST_K


def _block_shape(problem: Problem) -> BlockShape | None:
    """Return the blocks that serve whole rows well, or None."""
    small, middle, *large_ones = (block_shape(problem.element_size, n_threads) for n_threads in BLOCK_THREADS)
    large = large_ones[problem.n_rows <= problem.multiprocessors]
    axis_size, k = problem.axis_size, problem.k
    if axis_size <= small.n_slots or (axis_size <= SMALL_BLOCK_ROW and k <= SMALL_BLOCK_K):
        return small
    largest_k = SMALL_BLOCK_K if problem.has_large_blocks else OLD_BLOCK_LARGEST_K
    if axis_size <= middle.n_slots or (k <= largest_k and _fits(problem, middle)):
        return middle
    is_served = axis_size <= large.n_slots or (k <= BLOCK_LARGEST_K and _fits(problem, large))
    return large if is_served and problem.has_large_blocks else None


def _fits(problem: Problem, shape: BlockShape) -> bool:
    return _n_vectors(problem) <= shape.n_groups << LARGEST_LANE_BITS


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
    shape = _block_shape(problem)
    if shape is None or min(problem.k, problem.axis_size) > shape.n_listed:
        msg = f"variant 'block' does not take k {problem.k} of rows of {problem.axis_size}"
        raise ValueError(msg)
    whole = (Pointer(X), Pointer(VALUES), Pointer(INDICES), _NULL, _NULL, _NULL)
    return _block_launches(problem, shape, problem.axis_size, ELEMENTS, whole, 0, workspace)


def _block_launches(
    problem: Problem,
    shape: BlockShape,
    part_size: int,
    top_level: int,
    pointers: tuple[Pointer, ...],
    source_size: int,
    workspace: _Workspace,
) -> list[Step]:
    n_parts = _ceil_div(problem.axis_size, part_size)
    n_chunks = _n_chunks(problem, part_size)
    keys_a_vector = VECTOR_BYTES // shape.key_bytes
    n_vectors = {
        ELEMENTS: part_size * problem.element_size // VECTOR_BYTES,
        FINE: n_chunks * FINE_A_CHUNK // keys_a_vector,
        COARSE: n_chunks // keys_a_vector,
    }[top_level]
    lane_bits = LARGEST_LANE_BITS
    while (
        lane_bits
        and n_vectors >> lane_bits < problem.k * GROUPS_A_WINNER
        and n_vectors <= shape.n_groups << (lane_bits - 1)
    ):
        lane_bits -= 1
    enough = _enough_groups(problem.k, n_vectors >> lane_bits, shape)
    offsets, steps = _fill_offsets(problem, workspace)
    return steps + [
        Step(
            block_variant(problem.element_size, shape.n_threads),
            n_blocks,
            shape.n_threads,
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
                top_level,
                lane_bits,
                enough,
                n_chunks,
                *problem.layout.layout,
                *problem.masks,
            ),
            shape.shared_bytes,
        )
        for first, n_blocks in _batches(problem.n_rows * n_parts, LARGEST_GRID)
    ]


def _enough_groups(k: int, n_groups: int, shape: BlockShape) -> int:
    """Return how many groups may reach the threshold: some more than k, to find it soon, yet few enough.

    If the elements come in no order, c of n groups are reached by about ``-n * log(1 - c / n)`` elements, and
    these should fit.
    """
    n_groups = max(n_groups, 1)
    fitting = int(n_groups * (1 - math.exp(-0.9 * shape.n_slots / n_groups)))
    return max(k, min(k + k // 8 + 8, fitting, shape.n_listed))


def _n_chunks(problem: Problem, part_size: int) -> int:
    """Return how many chunks of a part the grid's blocks read, some of them empty."""
    n_vectors = part_size * problem.element_size // VECTOR_BYTES
    return max(1, _ceil_div(n_vectors, CHUNK_VECTORS * CHUNKS_A_BLOCK)) * CHUNKS_A_BLOCK


def _grid_steps(problem: Problem, workspace: _Workspace) -> list[Step]:
    """Write the group maxima of every row, or part of one too long for a block, and finish it from these."""
    has_few_rows = problem.n_rows <= problem.multiprocessors
    is_large = problem.has_large_blocks and (has_few_rows or problem.k > SMALL_BLOCK_K)
    shape = block_shape(problem.element_size, BLOCK_THREADS[-1 if is_large else 1])
    if problem.k > min(_largest_k(problem), shape.n_listed):
        msg = f"variant 'grid' takes k up to {min(_largest_k(problem), shape.n_listed)}"
        raise ValueError(msg)
    per_vector = VECTOR_BYTES // problem.element_size
    keys_a_vector = VECTOR_BYTES // shape.key_bytes
    most_chunks = (shape.n_groups << LARGEST_LANE_BITS) * keys_a_vector
    largest_part = min(LARGEST_PART, most_chunks * CHUNK_VECTORS * per_vector)
    n_parts = _ceil_div(problem.axis_size, largest_part)
    part_size = problem.axis_size
    if n_parts > 1:
        part_size = _ceil_div(problem.axis_size, n_parts * per_vector) * per_vector
    n_chunks = _n_chunks(problem, part_size)
    n_units = problem.n_rows * n_parts
    fine = workspace.take(n_units * n_chunks * FINE_A_CHUNK * shape.key_bytes)
    coarse = workspace.take(n_units * n_chunks * shape.key_bytes)
    offsets, steps = _fill_offsets(problem, workspace)
    blocks_a_part = n_chunks // CHUNKS_A_BLOCK
    steps += [
        Step(
            maxima_variant(problem.element_size),
            n_blocks,
            MAXIMA_THREADS,
            (Pointer(X), fine, coarse, offsets),
            (
                first,
                problem.axis_size,
                part_size,
                n_parts,
                blocks_a_part,
                problem.axis_strides[0],
                *problem.layout.layout,
                *problem.masks,
            ),
        )
        for first, n_blocks in _batches(n_units * blocks_a_part, LARGEST_GRID)
    ]
    fits_fine = n_chunks * FINE_A_CHUNK // keys_a_vector <= shape.n_groups << LARGEST_LANE_BITS
    top_level = FINE if fits_fine and n_chunks < problem.k * GROUPS_A_WINNER else COARSE
    if n_parts == 1:
        pointers = (Pointer(X), Pointer(VALUES), Pointer(INDICES), _NULL, fine, coarse)
        return steps + _block_launches(problem, shape, part_size, top_level, pointers, 0, workspace)

    position_size = 4 if problem.axis_size <= LARGEST_NARROW_AXIS else 8
    left = (n_parts - 1) * problem.k + min(problem.k, problem.axis_size - (n_parts - 1) * part_size)
    values = workspace.take(problem.n_rows * left * problem.element_size)
    indices = workspace.take(problem.n_rows * left * position_size)
    winners = replace(
        problem,
        index_size=position_size,
        axis_strides=(problem.axis_strides[0], 1, 1),
        layout=problem.layout.with_packed_outputs(left),
    )
    pointers = (Pointer(X), values, indices, _NULL, fine, coarse)
    steps += _block_launches(winners, shape, part_size, top_level, pointers, 0, workspace)
    merged = replace(
        problem,
        axis_size=left,
        axis_strides=(1, *problem.axis_strides[1:]),
        layout=problem.layout.with_packed_x(left),
    )
    pointers = (values, Pointer(VALUES), Pointer(INDICES), indices, _NULL, _NULL)
    return steps + _block_launches(merged, shape, left, ELEMENTS, pointers, position_size, workspace)


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
