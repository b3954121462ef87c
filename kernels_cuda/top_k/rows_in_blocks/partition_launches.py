"""The launches of `partition`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import (
    PARTITIONS,
    PARTITIONS_OF_FEW_ROWS,
    PARTITIONS_OF_SINGLE_ROWS,
    PARTITIONS_OF_SINGLE_SORTED_ROWS,
    SORTED_SHARE,
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
    pair_bytes,
    pair_counters_offset,
    pair_sort_bytes,
)

# The most static shared memory of a block.
PARTITION_STATIC_BYTES = 1024
# Threads of the blocks, and how many keys of at most 4 bytes each has; of 8 bytes there are half as many.
PARTITION_THREADS = (64, 128, 128, 256, 512, 512, 1024, 1024)
PARTITION_KEYS = (16, 16, 32, 32, 16, 32, 16, 32)
# Blocks that share rows (`long_rows`) hold rows up to this length; their number, by the bytes of an element.
SHARED_ROW_ELEMENTS = 4096
SHARING_PARTITIONS = {1: 2, 2: 2, 4: 2, 8: 3}
# Rows up to this length are never sorted whole: comparisons sort what is selected from them.
WHOLE_ROWS_FROM = 256
# Few rows up to this length are sorted whole from a smaller k on.
FEW_WHOLE_ROWS_UP_TO = 2048


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


class OrderOfRows(NamedTuple):
    """More parameters of `partition`: where counters of a sort begin, or 0; whether whole rows are sorted."""

    counters_offset: int
    sorts_rows: int


def most_sorted(shape: PartitionShape) -> int:
    """Return the most pairs that a block sorts: they take twice the registers of keys alone."""
    return shape.n_threads * shape.n_keys // 2


def sorts_whole_rows(device: Words, selection: Selection) -> int:
    """Tell whether it is faster to sort all elements of a row than to select some and sort these."""
    length = selection.axis_size
    longest = most_sorted(partition_shape(selection.element_size, len(PARTITION_THREADS) - 1))
    if selection.is_sorted == 0 or selection.least > 0 or not WHOLE_ROWS_FROM < length <= longest:
        return 0
    # With few rows, blocks mostly wait, and a selection takes longer than it saves.
    are_few = selection.n_rows <= 2 * device[MULTIPROCESSORS]
    is_short = length <= FEW_WHOLE_ROWS_UP_TO and selection.element_size < 8
    least = length if are_few and is_short else 3 * length
    return int(least <= selection.k * device[SORTED_SHARE])


def n_sorted(device: Words, selection: Selection) -> int:
    """Return how many elements of a row are sorted; 0 if results come by index."""
    if sorts_whole_rows(device, selection):
        return selection.axis_size
    return selection.k * selection.is_sorted


def dynamic_bytes(n_threads: int, element_size: int, k: int, sorted_pairs: int) -> int:
    """Return the dynamic shared memory for a histogram, and then for what is selected, or sorted."""
    n_bytes = k * pair_bytes(element_size)
    if sorted_pairs > 0:
        n_bytes = pair_sort_bytes(element_size, sorted_pairs, n_threads)
    # The last bin is for keys that are out of range.
    return max(4 * (partition_bins(n_threads) + 1), n_bytes)


def partition_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for number in range(len(PARTITION_THREADS)):
        shape = partition_shape(element_size, number)
        needed = max(
            dynamic_bytes(shape.n_threads, element_size, shape.n_threads * shape.n_keys, 0),
            dynamic_bytes(shape.n_threads, element_size, 0, most_sorted(shape)),
        )
        needed = min(needed, MOST_SHARED_BYTES - PARTITION_STATIC_BYTES)
        factory = "rows_in_blocks.partition:partition_kernel"
        yield variant("partition", factory, element_size, *shape, dynamic_shared_bytes=needed)
        if number == SHARING_PARTITIONS[element_size]:
            yield variant("partition", factory, element_size, *shape, 1, dynamic_shared_bytes=needed)


def _fits(device: Words, selection: Selection, shape: PartitionShape) -> bool:
    """Tell whether blocks hold a row each."""
    n_elements, sorted_pairs = shape.n_threads * shape.n_keys, n_sorted(device, selection)
    if min(selection.axis_size, selection.most) > n_elements:
        return False
    if sorted_pairs > most_sorted(shape):
        return False
    room: int = device[BLOCK_SHARED_BYTES]
    needed = dynamic_bytes(shape.n_threads, selection.element_size, selection.k, sorted_pairs)
    return needed <= room - PARTITION_STATIC_BYTES


def partition_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a block that holds it."""
    element_size, n_rows = selection.element_size, selection.n_rows
    tried = device[PARTITIONS]
    if n_rows <= 2 * device[MULTIPROCESSORS] and sorts_whole_rows(device, selection):
        tried = device[PARTITIONS_OF_SINGLE_SORTED_ROWS]
    elif n_rows <= device[MULTIPROCESSORS]:
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
            sorted_pairs = n_sorted(device, selection)
            n_bytes = dynamic_bytes(shape.n_threads, element_size, selection.k, sorted_pairs)
            counters_offset = 0
            if sorted_pairs > 0:
                counters_offset = pair_counters_offset(element_size, sorted_pairs, shape.n_threads)
            n_blocks = n_rows
            if selection.least > 0:
                kernel = with_more(kernel, 1, 0)
                n_blocks = min(n_rows, sharing_blocks(device[MULTIPROCESSORS], shape.n_threads))
            sizes = Sizes(n_blocks, shape.n_threads, n_bytes, 1)
            begin_rows(problem, device, selection, out, kernel, sizes)
            put_values(out, OrderOfRows(counters_offset, sorts_whole_rows(device, selection)))
            return split(device, out)
    return UNSERVED
