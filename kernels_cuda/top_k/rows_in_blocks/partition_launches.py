"""The launches of `partition`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.plan_words import Words, put_value
from kernels_cuda.device_words import BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import (
    PARTITIONS,
    PARTITIONS_OF_FEW_ROWS,
    PARTITIONS_OF_SINGLE_ROWS,
    PARTITIONS_OF_SINGLE_SORTED_ROWS,
)
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import PARTITION, kernel_key, with_more
from kernels_cuda.top_k.shared.launches import (
    UNSERVED,
    Sizes,
    begin_rows,
    sharing_blocks,
    split,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    MOST_SHARED_BYTES,
    SORTED_PAIRS,
    pair_bytes,
    pair_counters_offset,
    pair_sort_bytes,
)

# Shared memory of a block besides, at most.
PARTITION_STATIC_BYTES = 1024


# Threads of the blocks, and how many keys of at most 4 bytes each has; of 8 bytes there are half as many.
PARTITION_THREADS = (64, 128, 128, 256, 512, 512, 1024, 1024)
PARTITION_KEYS = (16, 16, 32, 32, 16, 32, 16, 32)
# The blocks that share rows (`long_rows`), by the bytes of an element, hold rows up to this length.
SHARED_ROW_ELEMENTS = 4096
SHARING_PARTITIONS = {1: 2, 2: 2, 4: 2, 8: 3}


class PartitionShape(NamedTuple):
    """The threads of a block, and the elements that each of them holds."""

    n_threads: int
    n_keys: int


def partition_shape(element_size: int, number: int) -> PartitionShape:
    """Return the blocks of a number."""
    return PartitionShape(PARTITION_THREADS[number], PARTITION_KEYS[number] // max(1, element_size // 4))


def partition_bins(n_threads: int) -> int:
    """Return the bins of a histogram: at most four per thread."""
    return min(4 * n_threads, 2048)


def most_sorted(shape: PartitionShape) -> int:
    """Return the most that a block sorts of what it selects: a thread's pairs are in registers."""
    return min(SORTED_PAIRS, shape.n_threads * min(shape.n_keys, 16))


def dynamic_bytes(n_threads: int, element_size: int, k: int, is_sorted: int) -> int:
    """Return the dynamic shared memory for a histogram, and then for what is selected."""
    n_bytes = pair_sort_bytes(element_size, k, n_threads) if is_sorted else k * pair_bytes(element_size)
    # The last bin is for keys that are out of range.
    return max(4 * (partition_bins(n_threads) + 1), n_bytes)


def partition_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for number in range(len(PARTITION_THREADS)):
        shape = partition_shape(element_size, number)
        needed = max(
            dynamic_bytes(shape.n_threads, element_size, shape.n_threads * shape.n_keys, is_sorted=False),
            dynamic_bytes(shape.n_threads, element_size, most_sorted(shape), is_sorted=True),
        )
        needed = min(needed, MOST_SHARED_BYTES - PARTITION_STATIC_BYTES)
        factory = "rows_in_blocks.partition:partition_kernel"
        yield variant("partition", factory, element_size, *shape, dynamic_shared_bytes=needed)
        if number == SHARING_PARTITIONS[element_size]:
            yield variant("partition", factory, element_size, *shape, 1, dynamic_shared_bytes=needed)


def _fits(device: Words, selection: Selection, shape: PartitionShape) -> bool:
    """Tell whether blocks hold a row each."""
    n_elements, k = shape.n_threads * shape.n_keys, selection.k
    if min(selection.axis_size, selection.most) > n_elements or (
        selection.is_sorted and k > most_sorted(shape)
    ):
        return False
    room: int = device[BLOCK_SHARED_BYTES]
    needed = dynamic_bytes(shape.n_threads, selection.element_size, k, selection.is_sorted)
    return needed <= room - PARTITION_STATIC_BYTES


def partition_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a block that holds it."""
    element_size, n_rows = selection.element_size, selection.n_rows
    tried = device[PARTITIONS]
    if n_rows <= device[MULTIPROCESSORS]:
        tried = device[PARTITIONS_OF_SINGLE_ROWS]
        if selection.is_sorted:
            tried = device[PARTITIONS_OF_SINGLE_SORTED_ROWS]
    elif n_rows <= 2 * device[MULTIPROCESSORS]:
        tried = device[PARTITIONS_OF_FEW_ROWS]
    for number in range(len(PARTITION_THREADS)):
        shape = partition_shape(element_size, number)
        is_tried = tried >> number & 1
        if selection.least > 0:
            is_tried = shape.n_threads * shape.n_keys == SHARED_ROW_ELEMENTS
        if is_tried and _fits(device, selection, shape):
            kernel = kernel_key(PARTITION, element_size, shape.n_threads, shape.n_keys)
            n_bytes = dynamic_bytes(shape.n_threads, element_size, selection.k, selection.is_sorted)
            counters_offset = 0
            if selection.is_sorted:
                counters_offset = pair_counters_offset(element_size, selection.k, shape.n_threads)
            n_blocks = n_rows
            if selection.least > 0:
                kernel = with_more(kernel, 1, 0)
                n_blocks = min(n_rows, sharing_blocks(device[MULTIPROCESSORS], shape.n_threads))
            sizes = Sizes(n_blocks, shape.n_threads, n_bytes, 1)
            begin_rows(problem, device, selection, out, kernel, sizes)
            put_value(out, counters_offset)
            return split(device, out)
    return UNSERVED
