"""The launches of `sort`, and what they and its kernels agree on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels_cuda.diagonal_matrix.kernels import kernel as matrix_kernel
from kernels_cuda.diagonal_matrix.launches import NO_BAND, transposing
from kernels_cuda.diagonal_matrix.parameters import THREADS as MATRIX_THREADS
from kernels_cuda.diagonal_matrix.problem import Problem as MatrixProblem
from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import NULL, WORKSPACE_ALIGNMENT, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    VALUES,
    Algorithm,
    Launch,
    Policy,
    Workspace,
    X,
    batches,
    fill_offsets,
    lengths_of,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, VECTOR_BYTES, pair_bytes

# An entry of a row's histogram.
COUNT_BYTES = 8
CLEARING_THREADS = 256
CLEARED_BYTES = VECTOR_BYTES * CLEARING_THREADS
# Large blocks, for each adds its counts to those of the whole row.
COUNTING_THREADS = 1024
# Elements that a thread counts at a time.
COUNTED_PER_THREAD = 8
COUNTED_ELEMENTS = COUNTING_THREADS * COUNTED_PER_THREAD
# The launch that counts digits has about this many blocks.
BLOCKS_PER_MULTIPROCESSOR = 2
# With more tiles than these, those of fewer threads with more elements each are faster.
TILES_PER_MULTIPROCESSOR = 3
# Bytes of a position in the workspace.
POSITION_SIZES = (4, 8)


class SortTile(NamedTuple):
    """What a block takes of a row, and the limit on its registers."""

    n_threads: int
    n_items: int
    max_registers: int

    @property
    def n_elements(self) -> int:
        """Elements of a tile."""
        return self.n_threads * self.n_items


# By the bytes of a pair: what is best for few tiles, all of which run at once, and for many. Both are of the
# same number of elements.
SORT_TILES = {8: (SortTile(384, 16, 80), SortTile(256, 24, 80)), 16: (SortTile(384, 8, 56),)}


@dataclass(frozen=True, kw_only=True)
class SortPolicy(Policy):
    """Limits of `sort`."""

    # Rows are sorted in batches that need at most this much workspace; a row that needs more is a batch by
    # itself.
    batch_bytes: int = 1 << 28
    # Rows from this length on have positions and counts of 8 bytes: counts have two bits of state.
    narrow_elements: int = 1 << 30


class ClearParameters(NamedTuple):
    """Parameters of `sort.clear_words`."""

    n_vectors: int


def clear_variant() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return variant("clear", "sort.sort:clear_kernel")


def _histogram(element_size: int) -> Variant:
    return variant("histogram", "sort.sort:histogram_kernel", element_size)


def _sort(element_size: int, position_size: int, tile: SortTile) -> Variant:
    needed = tile.n_elements * pair_bytes(element_size, position_size)
    factory = "sort.sort:sort_kernel"
    return variant("sort", factory, element_size, position_size, *tile, dynamic_shared_bytes=needed)


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, and sort by one of them."""
    yield matrix_kernel("transposed", element_size)
    yield _histogram(element_size)
    for position_size in POSITION_SIZES:
        for tile in SORT_TILES[pair_bytes(element_size, position_size)]:
            yield _sort(element_size, position_size, tile)


def _transpose(problem: Problem, copy: Pointer) -> Launch:
    """Copy rows that lie side by side, one after the other."""
    n_each, axis_size, layout = problem.rows.n_neighbours, problem.axis_size, problem.layout
    x_row = layout.x_outer if layout.inner_size == 1 else layout.x_inner
    all_rows = MatrixProblem(
        element_size=problem.element_size,
        batch=((problem.n_rows // n_each, layout.x_outer, n_each * axis_size),),
        height=n_each,
        width=axis_size,
        x_strides=(x_row, problem.strides.x),
        output_strides=(axis_size, 1),
        band=NO_BAND,
    )
    kernel, n_blocks, (parameters, dims) = transposing(all_rows, problem.target)
    return Launch(kernel, n_blocks, MATRIX_THREADS, (Pointer(X), copy), parameters, more=(dims,))


def sort_launches(problem: Problem, policy: SortPolicy, workspace: Workspace) -> list[Launch]:
    """Sort whole rows, as many at a time as the workspace has room for."""
    x, launches, n_bytes = Pointer(X), [], problem.n_rows * problem.row_bytes
    if policy.is_transposed(problem) and not problem.rows.table and n_bytes <= policy.batch_bytes:
        x = workspace.take(n_bytes)
        launches = [_transpose(problem, x)]
        packed = problem.rows.with_packed_x(problem.axis_size)
        problem = replace(problem, rows=packed, strides=problem.strides._replace(x=1))
    element_size, axis_size = problem.element_size, problem.axis_size
    multiprocessors = problem.target.multiprocessors
    position_size = POSITION_SIZES[axis_size >= policy.narrow_elements]
    n_passes = element_size * 8 // DIGIT_BITS
    n_pair_bytes = pair_bytes(element_size, position_size)
    tile, *others = SORT_TILES[n_pair_bytes]
    n_tiles = ceil_div(axis_size, tile.n_elements)
    # The last pass writes the results, the others one buffer after the other.
    n_buffers = min(2, n_passes - 1)
    histogram_bytes = N_DIGITS * COUNT_BYTES
    state_bytes = n_tiles * N_DIGITS * position_size
    buffer_bytes = axis_size * n_pair_bytes
    row_bytes = n_buffers * buffer_bytes + n_passes * (histogram_bytes + state_bytes)
    n_rows = min(
        problem.n_rows, max(1, policy.batch_bytes // row_bytes), max(1, policy.launch_blocks // n_tiles)
    )
    if others and n_rows * n_tiles > TILES_PER_MULTIPROCESSOR * multiprocessors:
        (tile,) = others

    counters = [workspace.take(WORKSPACE_ALIGNMENT) for _ in range(n_passes)]
    histograms = workspace.take(n_rows * n_passes * histogram_bytes)
    states = [workspace.take(n_rows * state_bytes) for _ in range(n_passes)]
    n_cleared = workspace.size - counters[0].offset
    buffers = [workspace.take(n_rows * buffer_bytes) for _ in range(n_buffers)]

    lengths = lengths_of(problem)
    offsets, filling = fill_offsets(problem, workspace)
    launches += filling
    clear = Launch(
        clear_variant(),
        ceil_div(n_cleared, CLEARED_BYTES),
        CLEARING_THREADS,
        (counters[0],),
        ClearParameters(n_vectors=n_cleared // VECTOR_BYTES),
    )
    for first, batch in batches(problem.n_rows, n_rows):
        blocks_per_row = min(
            ceil_div(axis_size, COUNTED_ELEMENTS),
            ceil_div(BLOCKS_PER_MULTIPROCESSOR * multiprocessors, batch),
        )
        parameters = row_parameters(problem, first=first)
        launches += [
            clear,
            Launch(
                _histogram(element_size),
                batch * blocks_per_row,
                COUNTING_THREADS,
                (x, lengths, histograms, offsets),
                parameters,
                more=(blocks_per_row,),
            ),
        ]
        for number in range(n_passes):
            is_last = number == n_passes - 1
            source = buffers[(number - 1) % 2] if number else NULL
            destination = NULL if is_last else buffers[number % 2]
            histogram = histograms._replace(offset=histograms.offset + number * histogram_bytes)
            launches.append(
                Launch(
                    _sort(element_size, position_size, tile),
                    batch * n_tiles,
                    tile.n_threads,
                    (
                        *(x, lengths, source, destination, Pointer(VALUES), Pointer(INDICES)),
                        *(histogram, states[number], counters[number], offsets),
                    ),
                    parameters,
                    tile.n_elements * n_pair_bytes,
                    more=(n_tiles, number * DIGIT_BITS, int(number == 0), int(is_last)),
                )
            )
    return launches


SORT = Algorithm(sort_launches, sort_variants, SortPolicy(), orders_by_index=False)
