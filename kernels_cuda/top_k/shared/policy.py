"""The block shapes and limits that may be tuned, for a compute capability and an element size.

`dmlops info` prints it. Which algorithm runs is not said here, but in a table (`fastest`).
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from kernels_cuda.runtime.variant import CLUSTERS_FROM
from kernels_cuda.top_k.shared.shapes import (
    LONGEST_COLUMN_PART,
    NARROW_COUNTS,
    ONE_PASS_THREADS,
    BlockShape,
    PartitionShape,
    RoundsShape,
    TileShape,
    group_key_bytes,
)

ELEMENT_SIZES = (1, 2, 4, 8)
KIB = 1 << 10
MIB = 1 << 20
# A block may have this many KiB of shared memory, by compute capability (CUDA C++ programming guide,
# technical specifications).
BLOCK_KIB = {
    (7, 5): 64,
    (8, 0): 163,
    (8, 6): 99,
    (8, 7): 163,
    (8, 9): 99,
    (9, 0): 227,
    (10, 0): 227,
    (10, 1): 227,
    (10, 3): 227,
    (11, 0): 227,
    (12, 0): 99,
    (12, 1): 99,
}
# Devices whose blocks may have less shared memory than this do without the two largest shapes of the block
# algorithm.
LARGE_BLOCK_KIB = 99
# The shapes of the block algorithm have these numbers of threads.
BLOCK_THREADS = (128, 256, 512, 1024)
# From this compute capability on, a sample is worth its time; older devices have not been measured.
SAMPLED_FROM = (9, 0)
# Each pair gives the lanes that hold a short row, and the keys of each lane.
ROUNDS_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((4, 16), (4, 32), (8, 32), (16, 32))),
    8: ((4, 16), (8, 16), (16, 16), (32, 16)),
}
# Each pair gives the threads of a block that sorts a row, and the elements of each thread. Positions are
# counted in 16 bits.
TILE_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((256, 8), (384, 16), (512, 16), (1024, 16))),
    8: ((256, 8), (512, 8), (1024, 8)),
}

# Each pair gives the threads of a block that holds a row in registers, and the keys of each thread.
PARTITION_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((256, 16), (512, 16), (512, 32), (1024, 16), (1024, 32))),
    8: ((256, 8), (512, 8), (512, 16), (1024, 8), (1024, 16)),
}


@dataclass(frozen=True, kw_only=True)
class RoundsPolicy:
    """Several rows per warp, or one; each round selects one element."""

    # The shapes ascend; the first that holds a row serves it.
    shapes: tuple[RoundsShape, ...]


@dataclass(frozen=True, kw_only=True)
class WarpPolicy:
    """One warp per row."""

    # The two kernels serve rows up to these lengths: they hold 8 and 32 keys per lane (16 and 32 of one
    # byte).
    row_elements: tuple[int, int] = (256, 1024)


@dataclass(frozen=True, kw_only=True)
class TilePolicy:
    """One block per row, which sorts it."""

    # The shapes ascend; the first that holds a row serves it.
    shapes: tuple[TileShape, ...]


@dataclass(frozen=True, kw_only=True)
class PartitionPolicy:
    """One block per row, which holds it in registers, for results by ascending index or for a large k."""

    # The shapes ascend; the first that holds a row serves it. Few rows are faster with more threads each, but
    # with fewer keys per thread only if the results need not be sorted.
    shapes: tuple[PartitionShape, ...]
    shapes_of_few_rows: tuple[PartitionShape, ...]
    shapes_of_few_sorted_rows: tuple[PartitionShape, ...]
    # Rows are few if there are at most this many per multiprocessor.
    few_rows_per_multiprocessor: int = 1


@dataclass(frozen=True, kw_only=True)
class BlockPolicy:
    """One block per row, which filters it."""

    # The first shape serves rows of some thousand elements, and the second a k of some hundred. The third
    # serves more rows than multiprocessors, and the last no more than that; both are missing where blocks
    # have too little shared memory.
    shapes: tuple[BlockShape, ...]
    # Rows up to `small_elements` with k up to `small_k` use the smallest blocks.
    small_elements: int = 4096
    small_k: int = 512
    # Up to this k, rows use the second smallest blocks. Many rows use them up to a larger k, because more
    # blocks at a time are worth more than larger ones. The largest blocks serve k up to `largest_k`.
    middle_k: int
    middle_k_of_many_rows: int
    largest_k: int
    # A threshold should be found among this many groups per selected element, so that few other elements are
    # at or above it. From `small_k` on, there are fewer groups to search, but more elements to read.
    groups_per_selected: int = 8
    groups_per_selected_of_large_k: int = 4
    # Up to this size, a block reads all fine maxima as fast as the coarse ones and the fine ones that they
    # lead to.
    fine_bytes: int = 256 * KIB
    # Up to this many maxima per thread are groups by themselves; of fine ones, only up to `unit_fine_groups`
    # if there are enough coarse ones.
    unit_groups_per_thread: int = 16
    unit_fine_groups: int = 2048
    # Blocks that share a multiprocessor start one after the other if each reads at least this many bytes, and
    # if there are at least `staggered_waves` times as many blocks as run at a time.
    staggered_bytes: int = 32 * KIB
    staggered_waves: int = 2
    # These determine how many blocks are expected to share a multiprocessor; a wrong value costs only time.
    registers_per_multiprocessor: int = 1 << 16
    registers_per_thread: int = 64


@dataclass(frozen=True, kw_only=True)
class GridPolicy:
    """Many blocks per row find group maxima, then one block per row finishes."""

    # A thread of one block is expected to read this many bytes.
    thread_bytes_per_microsecond: int = 80
    # If there are more rows than multiprocessors, the smallest blocks finish those of at most this many fine
    # groups, for k up to `small_block_k`.
    small_block_groups: int = 1024
    small_block_k: int = 256
    # A coarse group has one of these numbers of chunks. Few chunks make many groups to search for a
    # threshold; many make each group at or above it long to read. The choice rests on the times of a round of
    # a block's loads and of a stage.
    coarse_chunks: tuple[int, ...] = (1, 2, 4)
    round_microseconds: float = 2.0
    stage_microseconds: float = 2.0
    # A part of a row has at most this many elements, because positions in it are counted in 31 bits.
    part_elements: int = 1 << 31


@dataclass(frozen=True, kw_only=True)
class OnePassPolicy:
    """One block per row, which reads it once."""

    # Threads of a block, and those for long rows where no two blocks share a multiprocessor.
    n_threads: int = min(ONE_PASS_THREADS)
    n_threads_of_few_rows: int = max(ONE_PASS_THREADS)
    # Long rows have at least this size.
    long_bytes: int = 256 * KIB


@dataclass(frozen=True, kw_only=True)
class ClusterPolicy:
    """One cluster of blocks per row."""

    # A cluster has one of these numbers of blocks; there are none for devices that have no clusters.
    blocks: tuple[int, ...]
    # Clusters run at the same time on this many eighths of the multiprocessors: those of a cluster are
    # neighbours, and some are left over.
    eighths_of_multiprocessors: int = 7


@dataclass(frozen=True, kw_only=True)
class SampledPolicy:
    """Batches of long rows: a threshold from a sample, one pass over the row, an exact selection."""

    # A sample has the first of these sizes, powers of two, that leaves few candidates, or else the last; its
    # keys take at most `sample_bytes`. Up to 2k candidates are always few.
    sample_sizes: tuple[int, ...] = (4096, 8192, 16384)
    few_candidates: int = 6144
    sample_bytes: int = 64 * KIB
    # A row is not sampled if it may have more candidates or segments than these.
    most_candidates: int = 10240
    most_segments: int = 2048
    # A warp lists the candidates of about this many segments of a row.
    segments_per_warp: int = 2


@dataclass(frozen=True, kw_only=True)
class ColumnsPolicy:
    """One lane per row, where rows lie side by side."""

    # This many warps keep a multiprocessor's share of the memory busy.
    warps_per_multiprocessor: int = 12
    # A part of a column has at least this many elements, and this many per selected one, to be worth its
    # selection. It has at most `longest_part`, because positions in it are counted in 16 bits.
    part_elements: int = 64
    part_elements_per_selected: int = 8
    longest_part: int = LONGEST_COLUMN_PART
    # Each lane has room for at least this many more candidates before it must drop some.
    spare_slots: int = 12
    # Each of 16 warps of a multiprocessor may use `warp_bytes` of shared memory, and a block `block_bytes`.
    warp_bytes: int = 14080
    block_bytes: int = 56 * KIB


@dataclass(frozen=True, kw_only=True)
class SortPolicy:
    """Radix sort of whole rows by many blocks."""

    # The launch that counts digits has about this many blocks.
    blocks_per_multiprocessor: int = 2
    # Rows are sorted in batches that need at most this much workspace; a row that needs more is a batch by
    # itself.
    batch_bytes: int = 256 * MIB
    # With more tiles than these, those of fewer threads with more elements each are faster.
    tiles_per_multiprocessor: int = 3
    # Rows from this length on have positions and counts of 8 bytes.
    narrow_elements: int = NARROW_COUNTS


@dataclass(frozen=True, kw_only=True)
class ByIndexPolicy:
    """Results by ascending index: the selected elements are reordered, or the row is read again."""

    # If k is too large for a warp, the first of these blocks that holds k elements reorders them; rows up to
    # `warp_row_elements` are read again instead.
    reorder_shapes: tuple[TileShape, ...] = (TileShape(256, 4), TileShape(512, 4), TileShape(512, 8))
    # One warp reads a row up to this length again, and a block a longer one.
    warp_row_elements: int = 1024
    # If there are few rows, about `blocks_per_multiprocessor` blocks per multiprocessor read them again, in
    # parts of at least this many elements.
    part_elements: int = 1 << 15
    blocks_per_multiprocessor: int = 4


@dataclass(frozen=True, kw_only=True)
class Policy:
    """All block shapes and thresholds that may be tuned.

    Examples
    --------
    >>> policy = Policy.auto((9, 0), 4)
    >>> policy.warp.row_elements, policy.block.largest_k
    ((256, 1024), 4096)
    """

    capability: tuple[int, int]
    element_size: int
    # A block may have this much shared memory.
    block_bytes: int
    rounds: RoundsPolicy
    warp: WarpPolicy = WarpPolicy()
    tile: TilePolicy
    partition: PartitionPolicy
    block: BlockPolicy
    grid: GridPolicy = GridPolicy()
    cluster: ClusterPolicy
    one_pass: OnePassPolicy = OnePassPolicy()
    sampled: SampledPolicy = SampledPolicy()
    columns: ColumnsPolicy = ColumnsPolicy()
    sort: SortPolicy = SortPolicy()
    by_index: ByIndexPolicy = ByIndexPolicy()
    # If at least this many rows lie side by side, lanes read one each; with fewer, most of what is loaded is
    # wasted.
    transposed_rows: int = 16
    # Rows are many if there are at least this many per multiprocessor.
    many_rows_per_multiprocessor: int = 7
    # Longer rows have positions of 8 bytes in the workspace.
    narrow_axis_elements: int = 1 << 32
    # A launch has at most this many blocks.
    launch_blocks: int = 1 << 30
    # The whole device is expected to read this many bytes.
    device_bytes_per_microsecond: int = 4_000_000

    def changed(self, values: Mapping[str, Any]) -> "Policy":
        """Return the policy with other values, by name.

        Examples
        --------
        >>> Policy.auto((9, 0), 4).changed({"block.largest_k": 5, "launch_blocks": 7}).block.largest_k
        5
        """
        policy = self
        for name, value in values.items():
            section, _, field = name.rpartition(".")
            if section:
                value = replace(getattr(policy, section), **{field: value})  # noqa: PLW2901
            policy = replace(policy, **{section or field: value})
        return policy

    def values(self) -> dict[str, Any]:
        """Return all values by name, those of each algorithm as ``"algorithm.value"``."""
        found: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if is_dataclass(value):
                found |= {f"{name}.{field.name}": getattr(value, field.name) for field in fields(value)}
            elif name not in ("capability", "element_size"):
                found[name] = value
        return found

    @staticmethod
    @functools.cache
    def auto(capability: tuple[int, int], element_size: int) -> "Policy":
        """Return the policy for a device and the bytes of an element (1, 2, 4, 8)."""
        block_bytes = block_shared_bytes(capability)
        is_large = block_bytes >= LARGE_BLOCK_KIB * KIB
        tiles = [TileShape(*shape) for shape in TILE_SHAPES[element_size]]
        small, medium, large, wide, largest = (
            PartitionShape(*shape) for shape in PARTITION_SHAPES[element_size]
        )
        return Policy(
            capability=capability,
            element_size=element_size,
            block_bytes=block_bytes,
            rounds=RoundsPolicy(
                shapes=tuple(RoundsShape(*shape) for shape in ROUNDS_SHAPES[element_size]),
            ),
            tile=TilePolicy(
                shapes=tuple(tile for tile in tiles if tile.shared_bytes(element_size) <= block_bytes),
            ),
            partition=PartitionPolicy(
                shapes=(small, medium, large, largest),
                shapes_of_few_rows=(medium, wide, largest),
                shapes_of_few_sorted_rows=(medium, large, largest),
            ),
            block=BlockPolicy(
                shapes=tuple(
                    block_shape(element_size, n_threads, block_bytes)
                    for n_threads in (BLOCK_THREADS if is_large else BLOCK_THREADS[:2])
                ),
                middle_k=512 if is_large else 2048,
                middle_k_of_many_rows=1024 if is_large else 2048,
                largest_k=4096 if is_large else 2048,
            ),
            cluster=ClusterPolicy(blocks=cluster_blocks(capability)),
        )


def block_shared_bytes(capability: tuple[int, int]) -> int:
    """Return the shared memory that a block may have; for an unknown device, the least of its generation."""
    return BLOCK_KIB.get(capability, LARGE_BLOCK_KIB if capability >= (8, 0) else 64) * KIB


def cluster_blocks(capability: tuple[int, int]) -> tuple[int, ...]:
    """Return how many blocks a cluster may have: on large devices, more than every device can run."""
    if capability < CLUSTERS_FROM:
        return ()
    return (4, 8, 16) if capability < (11, 0) else (4, 8)


def block_shape(element_size: int, n_threads: int, block_bytes: int) -> BlockShape:
    """Return the most that blocks hold; those of 512 and 1024 threads need more than 48 KiB.

    Where a block may have no more than 99 KiB, those of 1024 threads hold a little less.
    """
    n_bytes = group_key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    large, less = (
        BlockShape(
            n_threads, size // (n_bytes + 4) // 512 * 512, size // n_bytes, n_candidate_groups, n_bytes
        )
        for size, n_candidate_groups in ((65536, 6144), (57344, 5632))
    )
    return large if large.shared_bytes <= block_bytes else less
