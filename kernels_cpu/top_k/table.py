"""A top-k problem as a table of integers, the only description of it that kernels get.

The plan and the kernels agree here on sizes and limits, and on the fields of the table. In front of these are
the constants of keys.
"""

from typing import NamedTuple

from kernels_cpu.key_constants import KEY_WORDS

RANK_LIMIT = 160
"""The most records that are ranked by comparing each with each; longer lists are sorted digit by digit."""
PADDED_TO = 16  # elements to which lists are padded: two vectors of the widest kind
DIGIT_BITS = 8  # 256 targets to write to: fewer passes over more targets lose to misses of the page tables
BINS = 1 << DIGIT_BITS
GAP = 8  # records between two bins of a list of `GAPS_FROM` or more
GAPS_FROM = 1 << 16

MAX_SORTED_SEGMENTS = 16  # a merge compares the next element of each for every result

GROUP = 16  # vectors of a tile; a group is a lane of them
STREAMS = 4  # parts of a long run that are read at a time: memory is faster so
MIN_REFINED, MAX_REFINED = 8, 512  # up to so many tiles, a threshold is refined by pairs of elements
SAMPLE_OF = 32  # one of so many vectors of an array is in its sample
WORD = 64  # elements that one mask stands for

SHORT_ROWS_MAX_ROWS = 16  # short rows that go through each step together
COLUMN_LINES = 2  # lines of the cache that are read together: each alone would wait for its page
SIDE_BY_SIDE_COLUMNS = WORD
"""Rows that lie side by side, per block of keys: one bit of a word each."""

SHORT_ROW_BYTES = 1 << 14  # shorter rows are still in the first-level cache when they are read again
SHORT_ROWS_MAX_K = 96  # the list of a random row then stays below `RANK_LIMIT`
SHORT_WORDS = 256
"""Words of bits for the elements of a short row."""
ROW_STATE = 6
"""Integers that a kernel keeps for each of some rows that go through each step together."""


class Problem(NamedTuple):
    """The integers of a problem; offsets in the workspace are in bytes from the start of a task's part."""

    axis_size: int
    longest: int
    """The most elements of a row that take part."""
    k: int
    """The most elements that are selected."""
    n_results: int
    """Elements of a row of the results: the selected ones, and padding."""
    x_step: int
    value_step: int
    index_step: int
    index_size: int
    is_sorted: int
    """Whether the selected elements are written in the order of their keys, and not of their positions."""
    length_size: int
    """Bytes of the length of a row, where rows have lengths of their own."""
    length_is_signed: int
    start_size: int
    start_is_signed: int
    number_size: int
    """Bytes of the caller's number of an element, where elements have some."""
    number_is_signed: int
    number_step: int
    padding: int
    """The bits of the values behind a row that has less than `n_results` elements."""
    highest: int
    """The greatest key that the element type has; the complement is the least."""
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
    groups: int
    maxima: int
    stage: int
    listed: int
    """The length of a segment's list."""
    n_dims: int
    """Dimensions of rows; their words follow as in problems, the slowest first."""


HEADER = len(Problem._fields)
DIMENSION = 7
"""Integers that describe a dimension of rows."""
KEY_BYTES = 8 * KEY_WORDS
"""Bytes that the constants of keys have in front of a problem's integers."""
COLUMNS_WORD = KEY_WORDS + Problem._fields.index("columns")
"""Which word of the table is the number of columns."""
