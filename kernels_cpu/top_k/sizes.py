"""What the plan of a top-k and its kernels agree on: sizes, limits, and the integers of a problem."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

RANK_LIMIT = 160
"""Up to so many records are ranked by comparing each with each; more are sorted digit by digit."""
PADDED_TO = 16  # elements to which lists are padded: two vectors of the widest kind
DIGIT_BITS = 8  # 256 places to write to: fewer passes over more places lose to misses of the page tables
COUNTERS = 2 << DIGIT_BITS  # of this pass and of the next

GROUP = 16  # vectors a tile; a group is a lane of them
PLACES = 4  # of a long run that are read at a time: memory is faster so
LEAST_REFINED, MOST_REFINED = 8, 512  # tiles whose elements may be looked at in pairs
WORD = 64  # elements whose comparisons make one mask
SEARCH = 5  # integers that are kept for each of some rows that go through each step together

# Short rows that are searched some at a time.
SHORT_MOST_WANTED = 96  # of a row; the list of a random one then stays below `RANK_LIMIT`
_SHORT_MOST_ROWS = 16
_SHORT_KEYS_BYTES = 1 << 13  # of keys that are written before they are read again

# Rows that lie side by side, searched a lane each.
SIDE_BY_SIDE_COLUMNS = WORD  # at most, and apart in the list of keys: a word has a bit for each
SIDE_BY_SIDE_LEAST = SIDE_BY_SIDE_COLUMNS // 2
SIDE_BY_SIDE_MOST_WANTED = 60  # of a row: its list then stays well below `RANK_LIMIT`
_SIDE_BY_SIDE_LEAST_GROUPS = 64

# In front of the counts of a sort that several threads share: the least record's key, the digit's bits, and
# room to be a line of their own.
LEAST, BITS, STATE = 0, 1, 8
BINS = 1 << DIGIT_BITS

MASKS_SIZE = 64
"""Bytes that the constants of keys have in front of a problem's integers."""


def short_rows_at_a_time(n: int, element_size: int) -> int:
    """Return how many rows of `n` elements go through each step together."""
    return max(min(_SHORT_KEYS_BYTES // (n * element_size), _SHORT_MOST_ROWS), 1)


def columns_at_a_time(n: int, n_tasks: int, lanes: int) -> int:
    """Return how many of `n` rows side by side are searched together, so that all tasks have work."""
    share = -(-n // n_tasks)
    return min(-(-share // lanes) * lanes, SIDE_BY_SIDE_COLUMNS)


def groups_of_column(k: int) -> int:
    """Return how many groups of a row that lies beside others are kept apart."""
    return max(_SIDE_BY_SIDE_LEAST_GROUPS, 2 * k)


def shared_state_size(n_parts: int) -> int:
    """Return how many integers of 8 bytes the parts of one sort share: state, extents and counts."""
    return STATE + (2 + BINS) * n_parts


class Problem(NamedTuple):
    """The integers of a problem; places in the workspace are in bytes from the start of a task's part."""

    axis_size: int
    k: int
    x_step: int
    value_step: int
    index_step: int
    index_size: int
    is_sorted: int
    """Whether the selected elements are written in the order of their keys, and not of their positions."""
    length_size: int
    """Bytes of the length of a row, where rows have lengths of their own."""
    length_is_signed: int
    padding: int
    """The bits of the values behind a row that has less than `k` elements."""
    lowest: int
    wide: int
    capacity: int
    list_length: int
    """`capacity` and room for padding."""
    fold: int
    segment: int
    """Elements of a row that one task searches."""
    segments: int
    run: int
    """Elements of a row that are searched at a time."""
    columns: int
    """Rows that go through each step together, with parts of them on the stage; 0 where there is no stage."""
    column_step: int
    pitch: int
    """Elements from one row on the stage to the next, where they do not lie side by side there."""
    task_size: int
    """Bytes of workspace a task has."""
    records: int
    positions: int
    spare_records: int
    spare_positions: int
    ranks: int
    order: int
    taken: int
    counters: int
    groups: int
    minima: int
    stage: int
    searches: int
    n_dims: int
    """Dimensions of rows; size, x, value, index and length stride of each follow, the slowest first."""


HEADER = len(Problem._fields)
DIMENSION = 5  # integers that describe a dimension of rows


def packed(masks: bytes, numbers: Sequence[int]) -> list[int]:
    """Return the constants of keys and the integers of a problem as the words of one table."""
    words = masks.ljust(MASKS_SIZE, b"\0")
    return [*(int.from_bytes(words[i : i + 8], sys.byteorder) for i in range(0, MASKS_SIZE, 8)), *numbers]
