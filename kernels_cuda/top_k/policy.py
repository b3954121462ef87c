"""What may be tuned: block shapes and thresholds, as one value for a compute capability and an element size.

`dmlops info` prints it. ``bench/top_k_policy.py`` measures both sides of each threshold, where the algorithms
that it chooses between should take the same time.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from kernels_cuda.runtime.variant import CLUSTERS_FROM
from kernels_cuda.top_k.shapes import (
    LONGEST_COLUMN_PART,
    NARROW_COUNTS,
    SORTED_PAIRS,
    BlockShape,
    PartitionShape,
    RoundsShape,
    TileShape,
    group_key_bytes,
)

ELEMENT_SIZES = (1, 2, 4, 8)
KIB = 1 << 10
MIB = 1 << 20
# Shared memory that a block may have, by compute capability (CUDA C++ programming guide, technical
# specifications).
BLOCK_KIB = {
    (7, 0): 96,
    (7, 2): 96,
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
# A block of the oldest devices may have less than this, and has less work to do then.
LARGE_BLOCK_KIB = 99
# Threads of the block kernels; devices with little shared memory do without the last two.
BLOCK_THREADS = (128, 256, 512, 1024)
# Samples are worth their time from this compute capability on; older devices have not been measured.
SAMPLED_FROM = (9, 0)
# Lanes that hold a short row, and keys of each.
ROUNDS_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((4, 16), (4, 32), (8, 32), (16, 32))),
    8: ((4, 16), (8, 16), (16, 16), (32, 16)),
}
# Elements of a row that a block sorts: threads, and elements of each; positions are counted in 16 bits.
TILE_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((256, 8), (384, 16), (512, 16), (1024, 16))),
    8: ((256, 8), (512, 8), (1024, 8)),
}

# Threads of a block that holds a row in registers, and keys of each.
PARTITION_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((256, 16), (512, 16), (512, 32), (1024, 16), (1024, 32))),
    8: ((256, 8), (512, 8), (512, 16), (1024, 8), (1024, 16)),
}


@dataclass(frozen=True, kw_only=True)
class RoundsPolicy:
    """Several rows per warp, or one, in a round per selected element."""

    # Smallest first; a row goes to the first that holds it.
    shapes: tuple[RoundsShape, ...]
    # The k up to which rows of each shape take no longer than with the warp algorithm. That one needs another
    # launch for results by ascending index: rounds serve every k then.
    largest_k: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WarpPolicy:
    """One warp per row."""

    # Longest rows of the two kernels, which hold 8 and 32 keys per lane (16 and 32 of one byte).
    row_elements: tuple[int, int] = (256, 1024)
    # Longest rows that a warp ranks all of, for a large k: a block sorts longer ones, in a pass per byte.
    ranked_elements: int
    ranked_elements_of_many_rows: int


@dataclass(frozen=True, kw_only=True)
class TilePolicy:
    """One block per row, which sorts it."""

    # Smallest first; a row goes to the first that holds it.
    shapes: tuple[TileShape, ...]
    # Elements for each selected one up to which a row is sorted: with few groups per selected element, the
    # block algorithm would order all of the row.
    elements_per_selected: int
    # Longer rows than this are sorted from a k above the next on; the block algorithm serves others sooner.
    sorted_elements: int
    selected_k: int
    # Rows up to this are sorted whatever k is, if they are few: a launch takes longer than the passes.
    short_elements: int


@dataclass(frozen=True, kw_only=True)
class PartitionPolicy:
    """One block per row, which holds it in registers, for results by ascending index or for a large k."""

    # Smallest first; a row goes to the first that holds it. Few rows are better off with more threads each,
    # but with fewer keys of each only if they need not be sorted.
    shapes: tuple[PartitionShape, ...]
    shapes_of_few_rows: tuple[PartitionShape, ...]
    shapes_of_few_sorted_rows: tuple[PartitionShape, ...]
    # Rows for each multiprocessor that are few.
    few_rows_per_multiprocessor: int = 1
    # By index: many rows up to this length are served sooner by warps. Of many rows as long as the next, and
    # of more long ones than there are multiprocessors, the block algorithm filters those with more elements
    # for each selected one.
    row_elements: int = 128
    filtered_elements: int = 8192
    filtered_per_selected: int = 48
    # Sorted results are for a k from one of these on, and for longer rows than the fourth: other rows are
    # finished sooner by group maxima, or sorted whole. Rows that are longer than the last are long.
    sorted_k: int
    sorted_k_of_few_rows: int
    sorted_k_of_long_rows: int
    sorted_row_elements: int
    long_row_elements: int = 1 << 14


@dataclass(frozen=True, kw_only=True)
class BlockPolicy:
    """One block per row, which filters it."""

    # For rows of some thousand elements, for k of some hundred, for many rows, and for so few that each may
    # have a multiprocessor. The last two are missing where blocks have too little shared memory.
    shapes: tuple[BlockShape, ...]
    # Rows for the smallest blocks, and the k that these have room for.
    small_elements: int = 4096
    small_k: int = 512
    # The k up to which the next blocks serve: of many rows, more blocks at a time are worth more than larger
    # ones.
    middle_k: int
    middle_k_of_many_rows: int
    largest_k: int
    # Groups that there should be for each selected element, so that few others are at or above the threshold.
    # From `small_k` on there may be fewer: more elements, but fewer groups to look for a threshold in.
    groups_per_selected: int = 8
    groups_per_selected_of_large_k: int = 4
    # Fine maxima that a block reads as soon as coarse ones and the fine ones that they lead to.
    fine_bytes: int = 256 * KIB
    # The most maxima that are groups by themselves, and of fine ones if there are coarse ones.
    unit_groups_per_thread: int = 16
    unit_fine_groups: int = 2048
    # Staggered starts: blocks that share a multiprocessor begin one after the other if each reads so much,
    # and there are so many blocks for each that can run at a time.
    staggered_bytes: int = 32 * KIB
    staggered_waves: int = 2
    # These tell how many blocks share a multiprocessor; a wrong guess costs time only.
    registers_per_multiprocessor: int = 1 << 16
    registers_per_thread: int = 64


@dataclass(frozen=True, kw_only=True)
class GridPolicy:
    """Many blocks per row find group maxima, then one block per row finishes."""

    # Fine groups for each selected element without which other blocks do not help.
    groups_per_selected: int = 4
    # These weigh a row that one block reads against another launch and the whole device.
    thread_bytes_per_microsecond: int = 80
    launch_microseconds: float = 6.0
    # Transposed rows of less input than this: another launch takes longer than a block's strided loads.
    transposed_bytes: int = 512 * KIB
    # Shorter transposed rows: maxima, which are those of whole chunks, would take a larger share of what the
    # rows do.
    transposed_row_bytes: int
    # The fine groups, and the k, that the smallest blocks finish many rows of.
    small_block_groups: int = 1024
    small_block_k: int = 256
    # Chunks that a coarse group may have: few chunks make many groups to look for a threshold in, many make
    # much to read in each group at or above it. The other two are the time of a round of a block's loads, and
    # of a stage.
    coarse_chunks: tuple[int, ...] = (1, 2, 4)
    round_microseconds: float = 2.0
    stage_microseconds: float = 2.0
    # Elements of a part of a row: positions in it are counted in 31 bits.
    part_elements: int = 1 << 31


@dataclass(frozen=True, kw_only=True)
class ClusterPolicy:
    """One cluster of blocks per row."""

    # How many blocks a cluster may have; none where devices have no clusters.
    blocks: tuple[int, ...]
    # The multiprocessors, of eight, that run clusters at a time: those of a cluster are neighbours, and some
    # are left over.
    eighths_of_multiprocessors: int = 7
    # By index: shorter rows are served sooner by one block each.
    row_elements: int = 1 << 14
    # Sorted results: shorter rows, a smaller k and more rows are served sooner by one block each.
    sorted_elements: int
    sorted_k: int = 512
    # Rows with more bytes for each block are served sooner by the whole device, unless k is large.
    block_bytes: int = 64 * KIB
    large_k: int = 2048
    fewest_sorting_blocks: int = 8


@dataclass(frozen=True, kw_only=True)
class SampledPolicy:
    """Batches of long rows: a threshold from a sample, one pass over the row, an exact selection."""

    # The rows whose results come by ascending index: of so many bytes, and for a k that is worth the sample,
    # which is larger for more rows, up to the last one.
    row_bytes: tuple[int, int] = (128 * KIB, 4096 * KIB)
    smallest_k: int = 200
    k_per_row: int = 2
    smallest_k_of_many_rows: int = 512
    # Those whose results are sorted: the block algorithm serves others as soon, or sooner.
    sorted_rows: int = 256
    sorted_row_bytes: tuple[int, int] = (256 * KIB, 4096 * KIB)
    sorted_k: int
    # Sizes of a sample, powers of two: the first whose candidates are few, or else the last.
    sample_sizes: tuple[int, ...] = (4096, 8192, 16384)
    few_candidates: int = 6144
    sample_bytes: int = 64 * KIB
    # The most candidates and segments of a row.
    most_candidates: int = 10240
    most_segments: int = 2048
    # Segments of a row for each warp that lists them.
    segments_per_warp: int = 4


@dataclass(frozen=True, kw_only=True)
class ColumnsPolicy:
    """One lane per row, where rows lie side by side."""

    # A larger k leaves shared memory for too few warps; smaller problems, and fewer columns, occupy too few.
    largest_k: int = 64
    input_elements: int = 1 << 20
    columns_per_selected: int = 1024
    # Warps that keep a multiprocessor's share of the memory busy.
    warps_per_multiprocessor: int = 12
    # A part of a column must be worth the elements selected of it, and is counted in 16 bits.
    part_elements: int = 64
    part_elements_per_selected: int = 8
    longest_part: int = LONGEST_COLUMN_PART
    # Slots beyond k that each lane has before it must drop candidates, at least.
    spare_slots: int = 12
    # Shared memory that each of 16 warps of a multiprocessor may use, and a block.
    warp_bytes: int = 14080
    block_bytes: int = 56 * KIB


@dataclass(frozen=True, kw_only=True)
class SortPolicy:
    """Radix sort of whole rows by many blocks."""

    blocks_per_multiprocessor: int = 2
    # Workspace that a batch of rows should need; a row that needs more is a batch by itself.
    batch_bytes: int = 256 * MIB
    # With more tiles than these, those of fewer threads with more elements each are faster.
    tiles_per_multiprocessor: int = 3
    # Longer rows have positions and counts of 8 bytes.
    narrow_elements: int = NARROW_COUNTS


@dataclass(frozen=True, kw_only=True)
class ByIndexPolicy:
    """What brings results into ascending order of index: alone, or by another pass over the row."""

    # What is selected is reordered alone by the first of these that holds it, from rows longer than the next.
    reorder_shapes: tuple[TileShape, ...] = (TileShape(256, 4), TileShape(512, 4), TileShape(512, 8))
    # The longest rows that one warp reads again.
    warp_row_elements: int = 1024
    # Few rows are split into parts of at least so many elements, for so many blocks.
    part_elements: int = 1 << 15
    blocks_per_multiprocessor: int = 4


@dataclass(frozen=True, kw_only=True)
class Policy:
    """All that may be tuned.

    Examples
    --------
    >>> policy = Policy.auto((9, 0), 4)
    >>> policy.warp.row_elements, policy.columns.largest_k
    ((256, 1024), 64)
    """

    capability: tuple[int, int]
    element_size: int
    # Shared memory of a block.
    block_bytes: int
    rounds: RoundsPolicy
    warp: WarpPolicy
    tile: TilePolicy
    partition: PartitionPolicy
    block: BlockPolicy
    grid: GridPolicy
    cluster: ClusterPolicy
    sampled: SampledPolicy
    columns: ColumnsPolicy = ColumnsPolicy()
    sort: SortPolicy = SortPolicy()
    by_index: ByIndexPolicy = ByIndexPolicy()
    # Rows that must lie side by side for lanes to read one each: of fewer, most of what is loaded along is
    # wasted.
    transposed_rows: int = 16
    # Rows for each multiprocessor that are many.
    many_rows_per_multiprocessor: int = 7
    # Longer rows have positions of 8 bytes in the workspace.
    narrow_axis_elements: int = 1 << 32
    # Blocks of one launch.
    launch_blocks: int = 1 << 30
    # The whole device reads so much.
    device_bytes_per_microsecond: int = 4_000_000

    def changed(self, values: Mapping[str, Any]) -> "Policy":
        """Return the policy with other values, by name.

        Examples
        --------
        >>> Policy.auto((9, 0), 4).changed({"columns.largest_k": 5, "launch_blocks": 7}).columns.largest_k
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
        ranked, ranked_of_many = {1: (0, 128), 2: (64, 256), 4: (128, 256), 8: (128, 128)}[element_size]
        tiles = [TileShape(*shape) for shape in TILE_SHAPES[element_size]]
        small, medium, large, wide, largest = (
            PartitionShape(*shape) for shape in PARTITION_SHAPES[element_size]
        )
        never = SORTED_PAIRS + 1
        return Policy(
            capability=capability,
            element_size=element_size,
            block_bytes=block_bytes,
            rounds=RoundsPolicy(
                shapes=tuple(RoundsShape(*shape) for shape in ROUNDS_SHAPES[element_size]),
                largest_k={1: (8, 8, 8, 8), 2: (8, 8, 8, 8), 4: (8, 8, 4, 6), 8: (8, 8, 3, 8)}[element_size],
            ),
            warp=WarpPolicy(ranked_elements=ranked, ranked_elements_of_many_rows=ranked_of_many),
            tile=TilePolicy(
                shapes=tuple(tile for tile in tiles if tile.shared_bytes(element_size) <= block_bytes),
                elements_per_selected={1: 16, 2: 9, 4: 4, 8: 4}[element_size],
                sorted_elements={1: 8192, 2: 8192, 4: 8192, 8: 5120}[element_size],
                selected_k={1: 0, 2: 0, 4: 4096, 8: 2560}[element_size],
                short_elements=2048 if element_size <= 2 else 0,
            ),
            partition=PartitionPolicy(
                shapes=(small, medium, large, largest),
                shapes_of_few_rows=(medium, wide, largest),
                shapes_of_few_sorted_rows=(medium, large, largest),
                # A radix sort of wide keys takes too many passes.
                sorted_k={1: 768, 2: 768, 4: 768, 8: never}[element_size],
                sorted_k_of_few_rows={1: 768, 2: 256, 4: 512, 8: never}[element_size],
                sorted_k_of_long_rows=never if element_size == 8 else 2049,
                sorted_row_elements=4096 if element_size == 1 else 2048,
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
            grid=GridPolicy(transposed_row_bytes=(8 if element_size == 1 else 4) * KIB),
            sampled=SampledPolicy(sorted_k=1024 if element_size == 4 else SORTED_PAIRS + 1),
            cluster=ClusterPolicy(
                blocks=cluster_blocks(capability),
                sorted_elements=(16 if element_size <= 2 else 4) * KIB,
            ),
        )


def block_shared_bytes(capability: tuple[int, int]) -> int:
    """Return the shared memory that a block may have; of a device that is not known, what it surely has."""
    return BLOCK_KIB.get(capability, LARGE_BLOCK_KIB if capability >= (8, 0) else 64) * KIB


def cluster_blocks(capability: tuple[int, int]) -> tuple[int, ...]:
    """Return how many blocks clusters may have: on large devices more than all devices can run."""
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
