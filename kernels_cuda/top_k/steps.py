"""What every way is planned with: the problem, launches as data, and the workspace."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels_cuda.runtime.launch import NULL, WORKSPACE_ALIGNMENT, Arguments, Pointer
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.rows import OFFSETS_BYTES, OFFSETS_THREADS, RowLayout
from kernels_cuda.top_k.variants import offsets_variant

# Longer rows have positions of 8 bytes in the workspace.
LARGEST_NARROW_AXIS = 1 << 32
LARGEST_GRID = 1 << 30
# The block kernel looks for groups in rows with more elements than this for each that is wanted.
ELEMENTS_A_WINNER = 4
# Of fewer neighbours, most of what is loaded along with an element would be wasted.
LEAST_NEIGHBOURS = 16

# So many rows a multiprocessor are many.
MANY_ROWS = 8
# All devices have this but the oldest, which have 64 KiB.
LARGE_BLOCK_SHARED_BYTES = 99 << 10

# The addresses that a list of launches is told, in order.
X, VALUES, INDICES, WORKSPACE = range(4)


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


class Step(NamedTuple):
    """One kernel launch: pointers, then integers and tuples of them."""

    variant: Variant
    grid: int
    block: int
    pointers: tuple[Pointer, ...]
    integers: Arguments
    shared_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What `plan` is asked for, with the rows described for kernels.

    Of the rows, `n_neighbours` at a time lie side by side in x.
    """

    element_size: int
    index_size: int
    masks: tuple[int, ...]
    numbers: tuple[int, ...]
    k: int
    axis_size: int
    n_rows: int
    n_neighbours: int
    layout: RowLayout
    axis_strides: tuple[int, int, int]
    multiprocessors: int
    block_shared_bytes: int

    @property
    def has_large_blocks(self) -> bool:
        """Whether blocks may have more shared memory than the 64 KiB of the oldest devices."""
        return self.block_shared_bytes >= LARGE_BLOCK_SHARED_BYTES

    @property
    def has_neighbours(self) -> bool:
        """Whether enough rows lie side by side for lanes to read a row each."""
        return self.n_neighbours >= LEAST_NEIGHBOURS

    @property
    def has_many_rows(self) -> bool:
        """Whether there are enough to keep every multiprocessor busy with several at a time."""
        return self.n_rows >= MANY_ROWS * self.multiprocessors

    @property
    def wants_most(self) -> bool:
        """Whether the row has so few groups for each winner that the block kernel would order all of it."""
        return self.axis_size <= self.k * max(ELEMENTS_A_WINNER, VECTOR_BYTES // self.element_size)


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


def grids(n_blocks: int) -> Iterator[tuple[int, int]]:
    """Split a number of blocks into what launches take: (first, how many)."""
    return batches(n_blocks, LARGEST_GRID)


def fill_offsets(problem: Problem, workspace: Workspace) -> tuple[Pointer, list[Step]]:
    """Return where the table of row offsets is, if the layout needs one, and what fills it."""
    if not problem.layout.table_dimensions:
        return NULL, []
    offsets = workspace.take(problem.n_rows * OFFSETS_BYTES)
    grid = ceil_div(problem.n_rows, OFFSETS_THREADS)
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
