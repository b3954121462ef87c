"""The launches of `partition`, and what they and its kernel agree on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    Algorithm,
    Launch,
    Policy,
    UnservedError,
    Workspace,
    launch_rows,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    ELEMENT_SIZES,
    MOST_SHARED_BYTES,
    SORTED_PAIRS,
    pair_bytes,
    pair_counters_offset,
    pair_sort_bytes,
)

# Shared memory of a block besides, at most.
PARTITION_STATIC_BYTES = 1024


class PartitionShape(NamedTuple):
    """What a block holds: `n_keys` elements per thread."""

    n_threads: int
    n_keys: int

    @property
    def n_elements(self) -> int:
        """The longest row."""
        return self.n_threads * self.n_keys

    @property
    def n_bins(self) -> int:
        """The bins of a histogram: at most four per thread."""
        return min(4 * self.n_threads, 2048)

    @property
    def most_sorted(self) -> int:
        """The most that it sorts of what it selects: a thread's pairs are in registers."""
        return min(SORTED_PAIRS, self.n_threads * min(self.n_keys, 16))

    def dynamic_bytes(self, element_size: int, k: int, is_sorted: bool) -> int:
        """Return the dynamic shared memory for a histogram, and then for what is selected."""
        n_bytes = k * pair_bytes(element_size)
        if is_sorted:
            n_bytes = pair_sort_bytes(element_size, k, self.n_threads)
        # The last bin is for keys that are out of range.
        return max(4 * (self.n_bins + 1), n_bytes)


# Threads, and keys of at most 4 bytes for each; of 8 bytes there are half as many.
_SHAPES = ((64, 16), (128, 16), (128, 32), (256, 32), (512, 16), (512, 32), (1024, 16), (1024, 32))
PARTITION_SHAPES = {
    size: tuple(PartitionShape(n_threads, n_keys // max(1, size // 4)) for n_threads, n_keys in _SHAPES)
    for size in ELEMENT_SIZES
}


@dataclass(frozen=True, kw_only=True)
class PartitionPolicy(Policy):
    """Which of the shapes are tried, by their numbers; the first that holds a row serves it.

    Few rows, up to two per multiprocessor, are faster with more threads each. If there is at most one, short
    rows are too where results are sorted, and long ones where they are not.
    """

    shapes: tuple[int, ...] = (0, 1, 2, 3, 5, 7)
    shapes_of_few_rows: tuple[int, ...] = (0, 1, 4, 5, 7)
    shapes_of_single_rows: tuple[int, ...] = (0, 1, 4, 6, 7)
    shapes_of_single_sorted_rows: tuple[int, ...] = (4, 5, 7)


def _variant(element_size: int, shape: PartitionShape) -> Variant:
    needed = max(
        shape.dynamic_bytes(element_size, shape.n_elements, is_sorted=False),
        shape.dynamic_bytes(element_size, shape.most_sorted, is_sorted=True),
    )
    needed = min(needed, MOST_SHARED_BYTES - PARTITION_STATIC_BYTES)
    factory = "rows_in_blocks.partition:partition_kernel"
    return variant("partition", factory, element_size, *shape, dynamic_shared_bytes=needed)


def partition_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for shape in PARTITION_SHAPES[element_size]:
        yield _variant(element_size, shape)


def _fitting_shape(problem: Problem, policy: PartitionPolicy) -> PartitionShape | None:
    """Return the shape of blocks that hold a row each, or None if there is none."""
    numbers = policy.shapes
    if problem.n_rows <= problem.target.multiprocessors:
        numbers = policy.shapes_of_single_sorted_rows if problem.is_sorted else policy.shapes_of_single_rows
    elif problem.n_rows <= 2 * problem.target.multiprocessors:
        numbers = policy.shapes_of_few_rows
    room = problem.target.block_shared_bytes - PARTITION_STATIC_BYTES
    for shape in (PARTITION_SHAPES[problem.element_size][number] for number in numbers):
        needed = shape.dynamic_bytes(problem.element_size, problem.k, problem.is_sorted)
        most = shape.most_sorted if problem.is_sorted else shape.n_elements
        if problem.axis_size <= shape.n_elements and problem.k <= most and needed <= room:
            return shape
    return None


def partition_launches(problem: Problem, policy: PartitionPolicy, workspace: Workspace) -> list[Launch]:
    """Give every row a block that holds it."""
    shape = _fitting_shape(problem, policy)
    if shape is None:
        raise UnservedError(problem, "partition")
    element_size, k = problem.element_size, problem.k
    counters_offset = pair_counters_offset(element_size, k, shape.n_threads) if problem.is_sorted else 0
    launch = Launch(
        _variant(element_size, shape),
        problem.n_rows,
        shape.n_threads,
        (),
        row_parameters(problem, key_format=problem.aligned_format),
        shape.dynamic_bytes(element_size, k, problem.is_sorted),
        more=(counters_offset,),
    )
    return launch_rows(launch, problem, policy, workspace)


PARTITION = Algorithm(partition_launches, partition_variants, PartitionPolicy())
