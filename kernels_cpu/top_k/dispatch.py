"""The choice of an algorithm for a top-k, from the shape of the problem alone.

If few elements of a row are selected, the row is *searched*: the minima of groups of elements give a
threshold that the k-th key does not exceed, and the elements up to it are listed. Memory is read once; only
the tiles that hold candidates are read again. All other rows are *sorted*. If less than three quarters of a
row is selected, the elements beyond a threshold are dropped first.

============ ======== ==========================================================================
algorithm             rows
============ ======== ==========================================================================
short_rows   searched contiguous, and short enough for the first-level cache
rows         searched contiguous; in segments where there are fewer rows than threads
side_by_side searched adjacent, like the columns of a matrix: one lane for each
columns      searched any other layout, after copying a part of the rows
sort         sorted   each by one thread
============ ======== ==========================================================================
"""

from kernels_cpu import processor
from kernels_cpu.processor import LINE_BYTES
from kernels_cpu.top_k.problem import GROUP, RANK_LIMIT, SIDE_BY_SIDE_COLUMNS, WORD, Choice, Shape

TASK_TIME = 150_000  # ns; a shorter task is not worth waking a thread

SHORT_ROW_BYTES = 1 << 14  # shorter rows are still in the first-level cache when they are read again
SHORT_ROWS_MAX_K = 96  # the list of a random row then stays below `RANK_LIMIT`
SHORT_ROWS_MAX_ROWS = 16  # rows that go through each step together
SHORT_ROWS_KEY_BYTES = 1 << 13  # keys that are written before they are read again

RUN_BYTES = 1 << 22  # part of a row that is searched at a time; each run lists about k elements
MIN_CAPACITY = 512

SIDE_BY_SIDE_MAX_K = 60  # the list of a random row then stays well below `RANK_LIMIT`
SIDE_BY_SIDE_MIN_ROWS = SIDE_BY_SIDE_COLUMNS // 2
STAGE_BYTES = 1 << 18  # size of the copy of a part of some rows
COLUMN_LINES = 2  # lines read from each row of columns: a single one would wait for its page every time


def choose(shape: Shape) -> Choice:
    """Choose the algorithm."""
    row_bytes = shape.axis_size * shape.element_size
    is_search = shape.k * (32 if row_bytes >= SHORT_ROW_BYTES else 8) <= shape.axis_size
    worth = shape.n_rows * row_time(shape, is_search) // TASK_TIME
    n_tasks = min(shape.threads, max(worth, 1))
    if not is_search:
        return _sort(shape, n_tasks)
    if shape.are_contiguous:
        if shape.k <= SHORT_ROWS_MAX_K and row_bytes < SHORT_ROW_BYTES:
            n_rows = max(min(SHORT_ROWS_KEY_BYTES // row_bytes, SHORT_ROWS_MAX_ROWS, shape.n_rows), 1)
            return Choice("short_rows", True, n_tasks, RANK_LIMIT + WORD, shape.axis_size, n_rows)
        return _rows(shape, n_tasks)
    if shape.k <= SIDE_BY_SIDE_MAX_K and shape.n_columns >= SIDE_BY_SIDE_MIN_ROWS and shape.are_whole:
        return _side_by_side(shape, n_tasks)
    return _columns(shape, n_tasks)


def row_time(shape: Shape, is_search: bool) -> int:
    """Return about how many nanoseconds a row takes, from what was measured."""
    row_bytes = shape.axis_size * shape.element_size
    return 100 + 20 * shape.k + row_bytes // 30 if is_search else 200 + 2 * row_bytes


def _rows(shape: Shape, n_tasks: int) -> Choice:
    k, axis_size = shape.k, shape.axis_size
    segment = axis_size
    if shape.n_rows < n_tasks:
        segment = max(-(-axis_size // (n_tasks // shape.n_rows)), 8 * k)
        segment = -(-segment // shape.line) * shape.line
    return Choice(
        "rows",
        True,
        n_tasks,
        _search_capacity(shape),
        _whole_tiles(shape, max(RUN_BYTES, 32 * k * shape.element_size)),
        segment=segment,
        segments=-(-axis_size // segment),
    )


def _side_by_side(shape: Shape, n_tasks: int) -> Choice:
    lanes = processor.lanes(shape.element_size)
    share = -(-shape.n_columns // n_tasks)
    columns = min(-(-share // lanes) * lanes, SIDE_BY_SIDE_COLUMNS)
    run = min(STAGE_BYTES // (SIDE_BY_SIDE_COLUMNS * shape.element_size), shape.axis_size)
    return Choice("side_by_side", True, n_tasks, RANK_LIMIT, run, columns)


def _columns(shape: Shape, n_tasks: int) -> Choice:
    columns = 1
    if shape.n_columns:
        columns = min(COLUMN_LINES * shape.line, -(-shape.n_columns // n_tasks))
    run = _whole_tiles(shape, max(STAGE_BYTES // columns, 16 * shape.k * shape.element_size))
    return Choice("columns", True, n_tasks, _search_capacity(shape), run, columns)


def _search_capacity(shape: Shape) -> int:
    return min(max(4 * shape.k, MIN_CAPACITY), shape.axis_size) + WORD


def _whole_tiles(shape: Shape, n_bytes: int) -> int:
    return min(-(-n_bytes // (GROUP * LINE_BYTES)) * GROUP * shape.line, shape.axis_size)


def _sort(shape: Shape, n_tasks: int) -> Choice:
    k, axis_size = shape.k, shape.axis_size
    capacity = k + (k >> 3) + 2 * WORD
    if 4 * k >= 3 * axis_size or capacity > axis_size:
        capacity = axis_size
    columns = 0 if shape.are_contiguous else 1
    return Choice("sort", False, n_tasks, capacity, axis_size, columns)
