"""The plan of a top-k: an algorithm, its workspace and its tasks.

If few elements of a row are selected, the row is *searched*: the maxima of groups of elements give a
threshold that the k-th key reaches, and the elements that reach it are listed. Memory is read once; only
the tiles that hold candidates are read again. All other rows are *sorted*. If less than three quarters of a
row is selected, the elements below a threshold are dropped first.

============ ======== ==========================================================================
algorithm             rows
============ ======== ==========================================================================
short_rows   searched contiguous, and short enough for the first-level cache
rows         searched contiguous, or copied in parts; in segments if there are fewer rows than threads
side_by_side searched adjacent, like the columns of a matrix: one lane for each
columns      searched adjacent, after copying a part of the rows
sort         sorted   each by one thread; fewer rows than threads in segments, if nearly all is selected
============ ======== ==========================================================================

Rows whose elements have numbers are another algorithm, `numbered`.

The addresses of a run are those of x, the lengths, the starts and the numbers (if there are some), the
values, the indices and the workspace. Its units are rows, segments of rows, or groups of columns; it has no
result. Segments keep their lists until a second launch merges them; that of sorted segments has a task
for each part of the result.
"""

from typing import NamedTuple

from kernels_cpu import processor
from kernels_cpu.host_words import THREADS
from kernels_cpu.integers import MAX_INTEGER, ceil_div, product
from kernels_cpu.key_constants import put_key_constants
from kernels_cpu.plan_words import (
    END,
    GRID,
    LAUNCHES,
    NULL_SLOT,
    WORKSPACE,
    Words,
    begin_plan,
    begin_tasks,
    put_pointer,
    put_values,
    put_values_of,
    take_workspace,
)
from kernels_cpu.processor import LINE_BYTES
from kernels_cpu.top_k import (
    COLUMNS,
    MERGE,
    MERGE_SORTED,
    NOTHING,
    NUMBERED,
    OF_TWO_KERNELS,
    ROWS,
    SHORT_ROWS,
    SIDE_BY_SIDE,
    SORT,
    SORT_SEGMENTS,
    kernel_key,
)
from kernels_cpu.top_k.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    FLIP,
    INDEX_SIZE,
    INDEX_STEP,
    INFINITY,
    IS_SORTED,
    LARGEST,
    LENGTH_SIGNED,
    LENGTH_SIZE,
    MAX_LENGTH,
    N_DIMS,
    NAN_LAST,
    NUMBER_SIGNED,
    NUMBER_SIZE,
    NUMBER_STEP,
    PADDING,
    SIGN,
    START_SIGNED,
    START_SIZE,
    VALUE_STEP,
    X_STEP,
    X_STRIDE,
    K,
)
from kernels_cpu.top_k.table import (
    BINS,
    COLUMN_LINES,
    GAP,
    GAPS_FROM,
    GROUP,
    MAX_REFINED,
    MAX_SORTED_SEGMENTS,
    MIN_REFINED,
    PADDED_TO,
    RANK_LIMIT,
    SAMPLE_OF,
    SHORT_ROW_BYTES,
    SHORT_ROWS_MAX_K,
    SHORT_ROWS_MAX_ROWS,
    SIDE_BY_SIDE_COLUMNS,
    STREAMS,
    WORD,
)

MAX_K = 1 << 46
"""The workspace of a larger one would be beyond every address space, and beyond 64 bits with many columns."""
TASK_TIME = 150_000  # ns; a shorter task is not worth waking a thread

SHORT_ROWS_KEY_BYTES = 1 << 13  # keys that are written before they are read again

RUN_BYTES = 1 << 22  # part of a row that is searched at a time; each run lists about k elements
MIN_CAPACITY = 512

MIN_SORTED_SEGMENT = 1 << 14

SIDE_BY_SIDE_MAX_K = 60  # the list of a random row then stays well below `RANK_LIMIT`
SIDE_BY_SIDE_MIN_ROWS = SIDE_BY_SIDE_COLUMNS // 2
SIDE_BY_SIDE_MIN_GROUPS = 64  # per row
STAGE_BYTES = 1 << 18  # size of the copy of a part of some rows

# All selected elements may lie in one of the streams, as in ascending rows. The groups of that stream must
# then suffice for a threshold, with some to spare, because thresholds are approximate.
GROUPS_PER_CANDIDATE = STREAMS + 1
MIN_GROUPS = 256


def _kernel(name: int, element_size: int, k: int) -> int:
    """Return the number of a kernel; that of some depends on how lists are ordered."""
    return kernel_key(name, element_size, 1 if k > RANK_LIMIT and name in OF_TWO_KERNELS else 0)


class Shape(NamedTuple):
    """The shape of a problem, from which an algorithm is chosen."""

    element_size: int
    k: int
    """The most elements that are selected."""
    longest: int
    """The most elements of a row that take part."""
    n_rows: int
    n_dims: int
    """Dimensions of rows that have more than one position."""
    last_size: int
    """Rows along the dimension whose elements lie nearest to each other; 1 where there is none."""
    last_step: int
    """The stride of x along that dimension; 0 where there is none."""
    are_contiguous: bool
    """Whether the elements of a row follow each other."""
    step_bytes: int
    """How far it is from an element to the next, at most a line of the cache."""
    line: int
    """Elements of a line of the cache."""
    lanes: int
    """Elements of a vector."""


class Choice(NamedTuple):
    """An algorithm, and the sizes that it works with."""

    algorithm: int
    capacity: int
    """Records that a list has room for, padding aside."""
    run: int
    """Elements of a row that are searched at a time."""
    columns: int
    """Rows that go through each step together, by a copy of a part of each; 0 where nothing is copied.

    For `ROWS`, 1 if parts of rows are copied, or windows may be short.
    """
    segment: int
    """Elements of a row that one task searches."""
    segments: int
    n_tasks: int
    """Tasks that may work side by side, as threads and work allow."""


def _shape(problem: Words) -> Shape:
    element_size = problem[ELEMENT_SIZE]
    n_rows, n_dims, last_size, last_step = 1, 0, 1, 0
    for d in range(problem[N_DIMS]):
        at = DIMS + DIMENSION * d
        size, x_stride = problem[at], problem[at + X_STRIDE]
        n_rows = product(n_rows, size)
        if size != 1:
            if n_dims == 0 or abs(x_stride) <= abs(last_step):
                last_size, last_step = size, x_stride
            n_dims += 1
    return Shape(
        element_size,
        min(problem[K], problem[MAX_LENGTH]),
        problem[MAX_LENGTH],
        n_rows,
        n_dims,
        last_size,
        last_step,
        problem[X_STEP] == 1,
        min(product(abs(problem[X_STEP]), element_size), LINE_BYTES),
        LINE_BYTES // element_size,
        max(processor.WIDTH // (8 * element_size), 1),
    )


def _whole_tiles(shape: Shape, n_bytes: int) -> int:
    return min(ceil_div(n_bytes, GROUP * LINE_BYTES) * GROUP * shape.line, shape.longest)


def _choose(shape: Shape, are_whole: bool, is_sorted: bool, threads: int) -> Choice:
    """Choose the algorithm; `are_whole` tells whether no row has a window of its own."""
    element_size, k, n = shape.element_size, shape.k, shape.longest
    row_bytes = product(n, element_size)
    is_search = k > 0 and k * (32 if row_bytes >= SHORT_ROW_BYTES else 8) <= n
    # Of elements with gaps, whole lines are read, which rows side by side share.
    read_bytes = product(n, shape.step_bytes) if shape.last_step != 1 else row_bytes
    # About how many nanoseconds a row takes, from what was measured.
    row_time = 100 + 20 * k + read_bytes // 30 if is_search else 200 + 2 * row_bytes
    n_tasks = min(threads, max(product(shape.n_rows, row_time) // TASK_TIME, 1))
    if not is_search:
        capacity = k + (k >> 3) + 2 * WORD
        if 4 * k >= 3 * n or capacity > n:
            capacity = n
            segments = min(n_tasks // shape.n_rows, n // MIN_SORTED_SEGMENT, MAX_SORTED_SEGMENTS)
            if segments > 1 and are_whole and is_sorted:
                segment = ceil_div(n, segments)
                return Choice(SORT, segment, segment, 0, segment, ceil_div(n, segment), n_tasks)
        return Choice(SORT, capacity, n, 0 if shape.are_contiguous else 1, n, 1, n_tasks)
    capacity = min(max(4 * k, MIN_CAPACITY), n) + WORD
    if shape.are_contiguous:
        if k <= SHORT_ROWS_MAX_K and row_bytes < SHORT_ROW_BYTES:
            columns = min(max(SHORT_ROWS_KEY_BYTES // row_bytes, 1), SHORT_ROWS_MAX_ROWS)
            columns = min(columns, shape.n_rows)
            return Choice(SHORT_ROWS, RANK_LIMIT + WORD, n, columns, n, 1, n_tasks)
        may_be_short = not are_whole and k <= SHORT_ROWS_MAX_K
        return _choose_rows(
            shape, capacity, max(RUN_BYTES, 32 * k * element_size), 1 if may_be_short else 0, n_tasks
        )
    n_columns = shape.last_size if shape.last_step == 1 else 0
    if n_columns == 0:
        return _choose_rows(shape, capacity, max(STAGE_BYTES, 16 * k * element_size), 1, n_tasks)
    share = ceil_div(n_columns, n_tasks)
    if k <= SIDE_BY_SIDE_MAX_K and n_columns >= SIDE_BY_SIDE_MIN_ROWS and are_whole:
        columns = min(ceil_div(share, shape.lanes) * shape.lanes, SIDE_BY_SIDE_COLUMNS)
        run = min(STAGE_BYTES // (SIDE_BY_SIDE_COLUMNS * element_size), n)
        return Choice(SIDE_BY_SIDE, RANK_LIMIT, run, columns, n, 1, n_tasks)
    columns = min(COLUMN_LINES * shape.line, share)
    run = _whole_tiles(shape, max(STAGE_BYTES // columns, 16 * k * element_size))
    return Choice(COLUMNS, capacity, run, columns, n, 1, n_tasks)


def _choose_rows(shape: Shape, capacity: int, run_bytes: int, columns: int, n_tasks: int) -> Choice:
    """Choose sizes for rows that are searched one after the other, in segments if they are few."""
    segment = shape.longest
    if 2 * shape.n_rows <= n_tasks:
        segment = max(ceil_div(segment, n_tasks // shape.n_rows), 8 * shape.k)
        segment = ceil_div(segment, shape.line) * shape.line
    run = _whole_tiles(shape, run_bytes)
    return Choice(ROWS, capacity, run, columns, segment, ceil_div(shape.longest, segment), n_tasks)


def _choose_numbered(shape: Shape, threads: int) -> Choice:
    """Choose sizes for rows whose elements have numbers."""
    k, n = shape.k, shape.longest
    # Ties with the k-th key are listed behind all others, and shrunk when there is no more room.
    capacity = min(k + max(k, MIN_CAPACITY), n) + 2 * WORD
    n_tasks = min(threads, max(product(shape.n_rows, 500 + 40 * k + 2 * n) // TASK_TIME, 1))
    return Choice(NUMBERED, capacity, n, 0 if shape.are_contiguous else 1, n, 1, n_tasks)


def plan(problem: Words, host: Words, out: Words) -> int:
    """Plan a top-k; of equal elements those at the lowest positions are selected.

    The workspace takes some 200 KB per thread, and 64 bytes for each of k elements; where more than 1/32 of a
    row is selected, up to 36 bytes per element.
    """
    begin_plan(out, NOTHING)
    shape = _shape(problem)
    if problem[K] == 0 or shape.n_rows == 0:
        return 0
    if shape.k > MAX_K or (problem[NUMBER_SIZE] > 0 and shape.longest > MAX_K):
        out[WORKSPACE] = MAX_INTEGER
        return 0
    if problem[NUMBER_SIZE] > 0:
        choice = _choose_numbered(shape, host[THREADS])
    else:
        are_whole = problem[LENGTH_SIZE] + problem[START_SIZE] == 0
        choice = _choose(shape, are_whole, problem[IS_SORTED] != 0, host[THREADS])
    begin_plan(out, choice.algorithm)
    n_units = shape.n_rows * choice.segments
    if choice.algorithm in (COLUMNS, SIDE_BY_SIDE):
        n_units = shape.n_rows // shape.last_size * ceil_div(shape.last_size, choice.columns)
    n_tasks = choice.n_tasks if choice.segments == 1 else n_units
    kernel = choice.algorithm
    if choice.algorithm == SORT and choice.segments > 1:
        kernel = SORT_SEGMENTS
    begin_tasks(out, _kernel(kernel, shape.element_size, shape.k), n_units, n_tasks, 3)
    _put_operands(problem, out)
    _put_table(problem, out, shape, choice)
    out[WORKSPACE] = product(out[WORKSPACE], out[LAUNCHES + GRID])
    if choice.segments > 1:
        if choice.algorithm == SORT:
            begin_tasks(out, _kernel(MERGE_SORTED, shape.element_size, 1), n_units, n_units, 3)
        else:
            begin_tasks(out, _kernel(MERGE, shape.element_size, shape.k), 1, 1, 0)
        _put_operands(problem, out)
        put_values_of(out, LAUNCHES)
    return 0


def _put_operands(problem: Words, out: Words) -> None:
    """Put the addresses of lengths, starts and numbers, and then of the others."""
    slot = 1
    put_pointer(out, slot if problem[LENGTH_SIZE] > 0 else NULL_SLOT, 0)
    slot += 1 if problem[LENGTH_SIZE] > 0 else 0
    put_pointer(out, slot if problem[START_SIZE] > 0 else NULL_SLOT, 0)
    slot += 1 if problem[START_SIZE] > 0 else 0
    if problem[NUMBER_SIZE] > 0:
        put_pointer(out, slot, 0)
        slot += 1
    put_pointer(out, 0, 0)
    for other in range(3):
        put_pointer(out, slot + other, 0)


class Areas(NamedTuple):
    """The offsets of a task's areas in its part of the workspace, in the order of the table."""

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


class Layout(NamedTuple):
    """Sizes and areas of a task's part of the workspace; `table.Problem` explains them."""

    wide: int
    list_length: int
    fold: int
    pitch: int
    areas: Areas


def _lay_out(out: Words, shape: Shape, choice: Choice, is_sorted: bool) -> Layout:
    """Lay out the areas of a task."""
    element_size, k, n = shape.element_size, shape.k, shape.longest
    algorithm, capacity, run, columns = choice.algorithm, choice.capacity, choice.run, choice.columns
    n_together = max(columns, 1)
    wide = 1 if element_size == 8 or n > 1 << 32 or algorithm == NUMBERED else 0
    tiles = run // (GROUP * shape.lanes)
    refined = min(max(MIN_REFINED, min((k + (k >> 1)) // shape.lanes, MAX_REFINED)), tiles)
    n_groups = ceil_div(max(GROUPS_PER_CANDIDATE * k, MIN_GROUPS), STREAMS * shape.lanes) * STREAMS
    fold = min(n_groups, max(tiles, 1))
    pitch, n_staged, group_elements = run + shape.line, columns, shape.lanes * fold
    if algorithm == ROWS:
        pitch = max(run, 2 * SHORT_ROW_BYTES // element_size + WORD)
        group_elements = max(group_elements, 4 * k + shape.lanes)
    elif algorithm == SHORT_ROWS:
        pitch = ceil_div(n, WORD) * WORD
        group_elements = max(group_elements, (4 * k + shape.lanes) * columns)
    elif algorithm == SIDE_BY_SIDE:
        n_staged, fold = SIDE_BY_SIDE_COLUMNS, max(SIDE_BY_SIDE_MIN_GROUPS, 2 * k)
        group_elements = n_staged * fold
    elif algorithm == NUMBERED or (algorithm == SORT and capacity < n):
        n_staged = 1  # its keys
    if algorithm == NUMBERED:
        group_elements = max(n // SAMPLE_OF, 4 * k) + shape.lanes
    list_length = capacity + PADDED_TO + (BINS * GAP if capacity >= GAPS_FROM else 0)
    list_bytes = 8 * list_length
    lists_bytes = list_bytes if algorithm in (SORT, NUMBERED) else list_bytes * n_together
    sorts = is_sorted and capacity > RANK_LIMIT and (k > RANK_LIMIT or algorithm == SORT)
    sorts = sorts or algorithm == NUMBERED
    spare_bytes = list_bytes if sorts else 0
    rank_bytes = 8 * (min(RANK_LIMIT, capacity) + 2 * PADDED_TO)
    group_elements = max(group_elements, shape.lanes * refined * GROUP // 2)
    areas = Areas(
        records=take_workspace(out, lists_bytes, LINE_BYTES),
        positions=take_workspace(out, wide * lists_bytes, LINE_BYTES),
        spare_records=take_workspace(out, spare_bytes, LINE_BYTES),
        spare_positions=take_workspace(out, wide * spare_bytes, LINE_BYTES),
        ranks=take_workspace(out, rank_bytes, LINE_BYTES),
        order=take_workspace(out, rank_bytes, LINE_BYTES),
        taken=take_workspace(out, rank_bytes, LINE_BYTES),
        groups=take_workspace(out, element_size * group_elements, LINE_BYTES),
        maxima=take_workspace(out, element_size * (tiles + 2 * WORD), LINE_BYTES),
        stage=take_workspace(out, element_size * (pitch * n_staged + WORD), LINE_BYTES),
        listed=take_workspace(out, 8, LINE_BYTES),
    )
    return Layout(wide, list_length, fold, pitch, areas)


def _put_table(problem: Words, out: Words, shape: Shape, choice: Choice) -> None:
    """Put the constants of keys and the fields of `table.Problem`, and lay out the workspace."""
    sign, flip, infinity = problem[SIGN], problem[FLIP], problem[INFINITY]
    put_key_constants(out, shape.element_size, sign, flip, infinity, problem[LARGEST], problem[NAN_LAST])
    is_sorted = problem[IS_SORTED]
    layout = _lay_out(out, shape, choice, is_sorted != 0)
    put_values(out, (problem[AXIS_SIZE], shape.longest, shape.k, problem[K]))
    put_values(out, (problem[X_STEP], problem[VALUE_STEP]))
    put_values(out, (problem[INDEX_STEP], problem[INDEX_SIZE], is_sorted))
    put_values(out, (problem[LENGTH_SIZE], problem[LENGTH_SIGNED]))
    put_values(out, (problem[START_SIZE], problem[START_SIGNED]))
    put_values(out, (problem[NUMBER_SIZE], problem[NUMBER_SIGNED], problem[NUMBER_STEP], problem[PADDING]))
    highest = (1 << (8 * shape.element_size - 1)) - 1
    put_values(out, (highest, layout.wide, choice.capacity, layout.list_length, layout.fold))
    put_values(out, (choice.segment, choice.segments, choice.run, choice.columns, shape.last_step))
    put_values(out, (layout.pitch, out[WORKSPACE], layout.areas, shape.n_dims))
    _put_dims(problem, out)


def _put_dims(problem: Words, out: Words) -> None:
    """Put the dimensions of rows that have more than one position, by falling strides of x."""
    first = out[END]
    for d in range(problem[N_DIMS]):
        at = DIMS + DIMENSION * d
        if problem[at] != 1:
            stride = abs(problem[at + X_STRIDE])
            to = out[END]
            put_values(out, (0, 0, 0, 0, 0, 0, 0))
            while to > first and abs(out[to - DIMENSION + X_STRIDE]) < stride:
                to -= DIMENSION
                for field in range(DIMENSION):
                    out[to + DIMENSION + field] = out[to + field]
            for field in range(DIMENSION):
                out[to + field] = problem[at + field]
