"""The launches of `sort`, and what they and its kernels agree on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cuda.diagonal_matrix.parameters import FAMILIES as MATRIX_FAMILIES
from kernels_cuda.diagonal_matrix.parameters import THREADS as MATRIX_THREADS
from kernels_cuda.diagonal_matrix.parameters import TRANSPOSED_KERNEL
from kernels_cuda.diagonal_matrix.plan import one_batch, transposed_copy
from kernels_cuda.kernel_keys import kernel_key, variant_of
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
from kernels_cuda.top_k.shared.shapes import DIGIT_BITS, N_DIGITS, VECTOR_BYTES, WARP_LANES, pair_bytes

# An entry of a row's histogram, and the state of a tile with less than 2^30 elements before it.
COUNT_BYTES, STATE_BYTES = 8, 4
# So many of the highest bits of keys tell which are kept, by the bytes of an element.
TOP_BITS = {1: 8, 2: 12, 4: 12, 8: 12}
# What is kept is marked in so many words of a block, whose threads load so many elements at a time.
KEEPING_THREADS = 512
KEPT_PER_THREAD = 16
KEEPING_ROUND = KEEPING_THREADS * KEPT_PER_THREAD
KEPT_WORDS = 4096
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
    # Most elements are dropped first if at most one in `kept_share` is selected, of so many bytes in all. Not
    # more rows count than `filtered_rows`: that of many short ones takes longer than it saves.
    filtered_bytes: int = 1 << 22
    filtered_rows: int = 16
    kept_share: int = 4

    def filters(self, problem: Problem) -> bool:
        """Tell whether elements are dropped before those left are sorted."""
        is_large = problem.row_bytes * min(problem.n_rows, self.filtered_rows) >= self.filtered_bytes
        selects_few = problem.k * self.kept_share <= problem.axis_size
        return is_large and selects_few and problem.axis_size < self.narrow_elements


class ClearParameters(NamedTuple):
    """Parameters of `sort.clear_words`."""

    n_vectors: int


def clear_variant() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return variant("clear", "sort.sort:clear_kernel")


def _histogram(element_size: int, digit_bits: int, n_digits: int) -> Variant:
    return variant("histogram", "sort.sort:histogram_kernel", element_size, digit_bits, n_digits)


def _transposed(element_size: int) -> Variant:
    return variant_of(kernel_key(TRANSPOSED_KERNEL, element_size), MATRIX_FAMILIES)


def _keep(element_size: int) -> Variant:
    return variant("keep", "sort.filter:keep_kernel", element_size)


def _sort(element_size: int, position_size: int, tile: SortTile) -> Variant:
    needed = tile.n_elements * pair_bytes(element_size, position_size)
    factory = "sort.sort:sort_kernel"
    return variant("sort", factory, element_size, position_size, *tile, dynamic_shared_bytes=needed)


def sort_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they count digits, drop elements, and sort by a digit."""
    yield _transposed(element_size)
    counted = (DIGIT_BITS, element_size), (TOP_BITS[element_size], 1)
    yield from dict.fromkeys(_histogram(element_size, *each) for each in counted)
    yield _keep(element_size)
    for position_size in POSITION_SIZES:
        for tile in SORT_TILES[pair_bytes(element_size, position_size)]:
            yield _sort(element_size, position_size, tile)


def _transpose(problem: Problem, copy: Pointer) -> Launch:
    """Copy rows that lie side by side, one after the other."""
    n_each, axis_size, layout = problem.rows.n_neighbours, problem.axis_size, problem.layout
    x_row = layout.x_outer if layout.inner_size == 1 else layout.x_inner
    n_batch, size = problem.n_rows // n_each, problem.element_size
    copy_of = transposed_copy(n_batch, n_each, axis_size, size, x_row * size, problem.strides.x * size)
    dims = one_batch(n_batch, layout.x_outer * size, n_each * axis_size * size)
    kernel, parameters = _transposed(size), copy_of.parameters
    return Launch(kernel, copy_of.n_blocks, MATRIX_THREADS, (Pointer(X), copy), parameters, more=(dims,))


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
    is_filtered = policy.filters(problem)
    # The last pass writes the results, what comes before it one buffer after the other.
    n_buffers = min(2, n_passes - 1 + is_filtered)
    histogram_bytes = N_DIGITS * COUNT_BYTES
    top_bytes = COUNT_BYTES << TOP_BITS[element_size] if is_filtered else 0
    state_bytes = n_tiles * N_DIGITS * position_size
    buffer_bytes = axis_size * n_pair_bytes
    row_bytes = n_buffers * buffer_bytes + n_passes * (histogram_bytes + state_bytes) + top_bytes
    n_rows = min(
        problem.n_rows, max(1, policy.batch_bytes // row_bytes), max(1, policy.launch_blocks // n_tiles)
    )
    if others and n_rows * n_tiles > TILES_PER_MULTIPROCESSOR * multiprocessors:
        (tile,) = others

    counters = [workspace.take(WORKSPACE_ALIGNMENT) for _ in range(n_passes + is_filtered)]
    histograms = workspace.take(n_rows * n_passes * histogram_bytes)
    blocks = BLOCKS_PER_MULTIPROCESSOR * multiprocessors
    n_rounds = ceil_div(n_rows * axis_size, blocks * KEEPING_ROUND)
    keep_size = min(n_rounds * KEEPING_ROUND, KEPT_WORDS * WARP_LANES)
    n_keep_tiles = ceil_div(axis_size, keep_size)
    kept, tops, tile_sums = (
        workspace.take(n_rows * n_bytes * is_filtered)
        for n_bytes in (STATE_BYTES, top_bytes, n_keep_tiles * STATE_BYTES)
    )
    n_kept = kept if is_filtered else NULL
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
    counted = (TOP_BITS[element_size], 1) if is_filtered else (DIGIT_BITS, element_size)
    sorter = _sort(element_size, position_size, tile)
    histogram, first_counts = _histogram(element_size, *counted), tops if is_filtered else histograms
    for first, batch in batches(problem.n_rows, n_rows):
        blocks_per_row = min(ceil_div(axis_size, COUNTED_ELEMENTS), ceil_div(blocks, batch))
        parameters = row_parameters(problem, first=first)
        counting, n_blocks = (x, lengths, first_counts, offsets), batch * blocks_per_row
        count = Launch(histogram, n_blocks, COUNTING_THREADS, counting, parameters, more=(blocks_per_row,))
        launches += [clear, count]
        if is_filtered:
            written = buffers[0], histograms, kept, tile_sums, counters[n_passes]
            keeping, n_blocks = (x, lengths, tops, *written, offsets), batch * n_keep_tiles
            keep, more = _keep(element_size), (n_keep_tiles, keep_size)
            launches.append(Launch(keep, n_blocks, KEEPING_THREADS, keeping, parameters, more=more))
        for number in range(n_passes):
            is_first, is_last = number == 0 and not is_filtered, number == n_passes - 1
            source = NULL if is_first else buffers[(number - 1 + is_filtered) % 2]
            destination = NULL if is_last else buffers[(number + is_filtered) % 2]
            digits = histograms._replace(offset=histograms.offset + number * histogram_bytes)
            moved = x, lengths, source, destination, Pointer(VALUES), Pointer(INDICES)
            sorting = *moved, digits, n_kept, states[number], counters[number], offsets
            this_pass = n_tiles, number * DIGIT_BITS, int(is_first), int(is_last)
            n_blocks, n_bytes = batch * n_tiles, tile.n_elements * n_pair_bytes
            sort = Launch(sorter, n_blocks, tile.n_threads, sorting, parameters, n_bytes, more=this_pass)
            launches.append(sort)
    return launches


SORT = Algorithm(sort_launches, sort_variants, SortPolicy(), orders_by_index=False)
