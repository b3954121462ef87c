"""The words of a device that only plans of top-k read: limits, which tests change."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kernels_cpu.plan_words import MAX_WORDS
from kernels_cuda.device_words import OWN_WORDS, device_words
from kernels_cuda.runtime.variant import Target

# The number of the one algorithm that may be taken, or `choice.NO_ALGORITHM`.
FORCED = OWN_WORDS
# The words of `Policy`, in its order.
(
    TRANSPOSED_ROWS,
    NARROW_AXIS_ELEMENTS,
    LAUNCH_BLOCKS,
    PARTITIONS,
    PARTITIONS_OF_FEW_ROWS,
    PARTITIONS_OF_SINGLE_ROWS,
    PARTITIONS_OF_SINGLE_SORTED_ROWS,
    SORTED_SHARE,
    ONE_PASS_SMALL_THREADS,
    ONLY_BLOCK_THREADS,
    FINE_BYTES,
    UNIT_GROUPS_PER_THREAD,
    PART_ELEMENTS,
    CLUSTER_BLOCKS,
    BATCH_BYTES,
    NARROW_ELEMENTS,
    FILTERED_BYTES,
    FILTERED_ROWS,
    KEPT_SHARE,
) = range(OWN_WORDS + 1, OWN_WORDS + 20)


def numbers(*given: int) -> int:
    """Return a set of small numbers as the bits of one.

    Examples
    --------
    >>> numbers(0, 1, 5)
    35
    """
    return sum(1 << number for number in given)


class Policy(NamedTuple):
    """Limits that tests change, so that small problems meet them.

    Attributes
    ----------
    transposed_rows : int
        If at least this many rows lie side by side, lanes read one each; with fewer, most of what is loaded
        is wasted.
    narrow_axis_elements : int
        Longer rows have positions of 8 bytes in the workspace.
    launch_blocks : int
        A launch has at most this many blocks.
    partitions, partitions_of_few_rows, partitions_of_single_rows, partitions_of_single_sorted_rows : int
        Which shapes of blocks `partition` tries, as bits, the first one first. Few rows, up to two per
        multiprocessor, are faster with more threads each. If there is at most one, short rows are too where
        results are sorted, and long ones where they are not; few rows that are sorted whole take the last.
    sorted_share : int
        `partition` sorts few short rows whole if at least one element in so many is selected, and other rows
        if three are.
    one_pass_small_threads : int
        Threads of a block of `one_pass` where several share a multiprocessor, or rows are short.
    only_block_threads : int
        If not 0, all blocks of `block` and `grid` have so many threads.
    fine_bytes : int
        Up to this size, a block reads all fine maxima as fast as the coarse ones and the fine ones that they
        lead to.
    unit_groups_per_thread : int
        Up to this many maxima per thread are groups by themselves.
    part_elements : int
        A part of a row that `grid` reads has at most this many elements, because positions in it are counted
        in 31 bits.
    cluster_blocks : int
        A cluster has one of these numbers of blocks, powers of two.
    batch_bytes : int
        `sort` takes rows in batches that need at most this much workspace. A row that needs more is a batch
        by itself; if that is more than x takes, elements are selected first, or results hold the pairs.
    narrow_elements : int
        `sort` has positions and counts of 8 bytes for rows from this length on, because counts have two bits
        of state; from twice this length on where it selects first.
    filtered_bytes, filtered_rows, kept_share : int
        Most elements are dropped before the others are sorted if at most one in `kept_share` is selected, of
        so many bytes in all. Not more rows count than `filtered_rows`: that of many short ones takes longer
        than it saves.
    """

    transposed_rows: int = 16
    narrow_axis_elements: int = 1 << 32
    launch_blocks: int = 1 << 30
    partitions: int = numbers(0, 1, 2, 3, 5, 7)
    partitions_of_few_rows: int = numbers(0, 1, 4, 5, 7)
    partitions_of_single_rows: int = numbers(0, 1, 4, 6, 7)
    partitions_of_single_sorted_rows: int = numbers(4, 5, 7)
    sorted_share: int = 4
    one_pass_small_threads: int = 512
    only_block_threads: int = 0
    fine_bytes: int = 256 << 10
    unit_groups_per_thread: int = 16
    part_elements: int = 1 << 31
    cluster_blocks: int = 4 | 8 | 16
    batch_bytes: int = 1 << 28
    narrow_elements: int = 1 << 30
    filtered_bytes: int = 1 << 22
    filtered_rows: int = 16
    kept_share: int = 4


NO_CHANGES: Mapping[str, int] = MappingProxyType({})


def plan_device(
    target: Target, forced: int, changes: Mapping[str, int] = NO_CHANGES, room: int = MAX_WORDS
) -> list[int]:
    """Return the words of a device.

    Parameters
    ----------
    target : Target
        The device.
    forced : int
        The number of the one algorithm that may be taken, or `choice.NO_ALGORITHM`.
    changes : mapping
        Other values of the policy, by name.
    room : int
        How many words a plan has room for.
    """
    return [*device_words(target, room), forced, *Policy(**changes)]
