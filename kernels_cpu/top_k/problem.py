"""A top-k problem as a table of integers, which tells the kernels everything that they need.

The plan and the kernels agree here on sizes and limits, on the fields of the table, and on the areas of the
workspace.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kernels_cpu import processor
from kernels_cpu.key_constants import KEY_WORDS
from kernels_cpu.plan import lay_out
from kernels_cpu.processor import LINE_BYTES

RANK_LIMIT = 160
"""The most records that are ranked by comparing each with each; longer lists are sorted digit by digit."""
PADDED_TO = 16  # elements to which lists are padded: two vectors of the widest kind
DIGIT_BITS = 8  # 256 targets to write to: fewer passes over more targets lose to misses of the page tables
BINS = 1 << DIGIT_BITS
GAP = 8  # records between two bins of a list of `GAPS_FROM` or more
GAPS_FROM = 1 << 16

GROUP = 16  # vectors of a tile; a group is a lane of them
STREAMS = 4  # parts of a long run that are read at a time: memory is faster so
MIN_REFINED, MAX_REFINED = 8, 512  # tiles whose elements may be compared in pairs
WORD = 64  # elements whose comparisons make one mask

# All selected elements may lie in one of the streams, as in ascending rows. The groups of that stream must
# then suffice for a threshold, with some to spare, because thresholds are approximate.
_GROUPS_PER_CANDIDATE = STREAMS + 1
_MIN_GROUPS = 256

# Rows that lie side by side: rows per block of keys (one bit of a word each), and the least number of groups
# per row.
SIDE_BY_SIDE_COLUMNS = WORD
_SIDE_BY_SIDE_MIN_GROUPS = 64

ROW_STATE = 5
"""Integers that a kernel keeps for each of some rows that go through each step together."""


class Shape(NamedTuple):
    """The shape of a problem, from which an algorithm is chosen."""

    element_size: int
    k: int
    axis_size: int
    n_rows: int
    n_columns: int
    """Rows that lie side by side, with the same element of each next to each other; 0 where they do not."""
    are_contiguous: bool
    """Whether the elements of a row follow each other."""
    are_whole: bool
    """Whether all rows have `axis_size` elements, and no lengths of their own."""
    is_sorted: bool
    threads: int

    @property
    def line(self) -> int:
        """Elements of a line of the cache."""
        return LINE_BYTES // self.element_size


class Choice(NamedTuple):
    """An algorithm, and the sizes that it works with."""

    algorithm: str
    is_search: bool
    """Whether candidates are searched for; else rows are sorted."""
    n_tasks: int
    """Tasks that may work side by side, as threads and work allow."""
    capacity: int
    """Records that a list has room for, padding aside."""
    run: int
    """Elements of a row that are searched at a time."""
    columns: int = 0
    """Rows that go through each step together, by a copy of a part of each; 0 where nothing is copied."""
    segment: int = 0
    """Elements of a row that one task searches; 0 for all."""
    segments: int = 1


class Problem(NamedTuple):
    """The integers of a problem; offsets in the workspace are in bytes from the start of a task's part."""

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
    """The least key that the element type has."""
    wide: int
    """Whether positions are kept beside the records."""
    capacity: int
    list_length: int
    """`capacity` and room for padding, or for the gaps between bins."""
    fold: int
    segment: int
    segments: int
    run: int
    columns: int
    column_step: int
    pitch: int
    """Elements from one row on the stage to the next, where they do not lie side by side there."""
    task_size: int
    """Bytes of workspace that a task has."""
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
    row_states: int
    n_dims: int
    """Dimensions of rows; size, x, value, index and length stride of each follow, the slowest first."""


HEADER = len(Problem._fields)
DIMENSION = 5
"""Integers that describe a dimension of rows."""
KEY_BYTES = 8 * KEY_WORDS
"""Bytes that the constants of keys have in front of a problem's integers."""


def groups_of_column(k: int) -> int:
    """Return how many groups of a row that lies beside others are kept apart."""
    return max(_SIDE_BY_SIDE_MIN_GROUPS, 2 * k)


def describe(
    shape: Shape,
    choice: Choice,
    *,
    steps: tuple[int, int, int],
    index_size: int,
    lengths: tuple[int, int, int],
    dims: Sequence[Sequence[int]],
) -> Problem:
    """Return the integers of a problem, with a task's areas laid out in its part of the workspace.

    Parameters
    ----------
    shape, choice
        The problem, and how it is answered.
    steps : tuple of int
        The strides of x, values and indices along the axis.
    index_size : int
        Bytes of an index.
    lengths : tuple of int
        Bytes of a length, whether it is signed, and the bits of the padding.
    dims : sequence of sequence of int
        The dimensions of rows.
    """
    element_size, k, axis_size = shape.element_size, shape.k, shape.axis_size
    algorithm, capacity, run, columns = choice.algorithm, choice.capacity, choice.run, choice.columns
    lanes = processor.lanes(element_size)
    n_together = max(columns, 1)
    wide = element_size == 8 or axis_size > 1 << 32
    tiles = run // (GROUP * lanes)
    refined = min(max(MIN_REFINED, min((k + (k >> 1)) // lanes, MAX_REFINED)), tiles)
    n_groups = -(-max(_GROUPS_PER_CANDIDATE * k, _MIN_GROUPS) // (STREAMS * lanes)) * STREAMS
    fold = min(n_groups, max(tiles, 1))
    pitch, n_staged, group_elements = run + shape.line, columns, lanes * fold
    if algorithm == "short_rows":
        pitch = -(-axis_size // WORD) * WORD
        group_elements = max(group_elements, (4 * k + lanes) * columns)
    elif algorithm == "side_by_side":
        n_staged, fold = SIDE_BY_SIDE_COLUMNS, groups_of_column(k)
        group_elements = n_staged * fold
    elif algorithm == "sort" and capacity < axis_size:
        n_staged = 1  # its keys
    n_counters = 3 * BINS  # those of the last pass, of this one and of the next
    list_length = capacity + PADDED_TO + (BINS * GAP if capacity >= GAPS_FROM else 0)
    list_bytes = 8 * list_length
    lists_bytes = list_bytes * (n_together if choice.is_search else 1)
    sorts = shape.is_sorted and capacity > RANK_LIMIT and (k > RANK_LIMIT or not choice.is_search)
    rank_bytes = 8 * (min(RANK_LIMIT, capacity) + 2 * PADDED_TO)
    areas = {
        "records": lists_bytes,
        "positions": lists_bytes if wide else 0,
        "spare_records": list_bytes if sorts else 0,
        "spare_positions": list_bytes if sorts and wide else 0,
        "ranks": rank_bytes,
        "order": rank_bytes,
        "taken": rank_bytes,
        "counters": 8 * n_counters if sorts else 0,
        "groups": element_size * max(group_elements, lanes * refined * GROUP // 2),
        "minima": element_size * (tiles + 2 * WORD),
        "stage": element_size * (pitch * n_staged + WORD),
        "row_states": 8 * ROW_STATE * n_together,
    }
    offsets, task_size = lay_out(areas)
    return Problem(
        axis_size,
        k,
        *steps,
        index_size,
        shape.is_sorted,
        *lengths,
        lowest=-(1 << (8 * element_size - 1)),
        wide=wide,
        capacity=capacity,
        list_length=list_length,
        fold=fold,
        segment=choice.segment or axis_size,
        segments=choice.segments,
        run=run,
        columns=columns,
        column_step=dims[-1][1] if dims else 0,
        pitch=pitch,
        task_size=task_size,
        n_dims=len(dims),
        **offsets,
    )
