"""TOP_K1: the choice of an algorithm, its workspace and its tasks.

Rows of which few elements are selected are *searched* (`scan`; `short_rows` where they stay in the
first-level cache, `side_by_side` where they are columns): a bound on the k-th key from the minima of groups
of elements, then a list of the elements within it. Others are sorted, by several threads where there are few.
Memory is read once; of what was read, only the tiles that hold candidates are read again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from kernels_cpu import processor
from kernels_cpu import threads as pool
from kernels_cpu.kernel import BYTES, ELEMENT_SIZES, INTEGER, Kernel, Table, pointer
from kernels_cpu.key_constants import key_constants
from kernels_cpu.processor import LINE_BYTES
from kernels_cpu.target import Target
from kernels_cpu.top_k import sizes
from kernels_cpu.top_k.plan_shared_sort import shared_sort_kernels, shared_sort_launcher
from kernels_cpu.top_k.sizes import COUNTERS, GROUP, PADDED_TO, PLACES, RANK_LIMIT, WORD, Problem
from kernels_cpu.workspace import lay_out

LONG_ROW = 1 << 14  # bytes; shorter ones are in the first-level cache when they are read again
RUN_SIZE = 1 << 22  # bytes of a row searched at a time; each run lists about k elements
STAGE_SIZE = 1 << 18
COLUMN_LINES = 2  # of 64 bytes, read from each row of columns: a single one waits for its page every time
LEAST_CAPACITY = 512
LEAST_GROUPS = 256
# One of the places may hold all that is selected, as in ascending rows. Its groups alone must be enough for a
# bound then, and some more, for bounds are found roughly.
GROUPS_OF_A_CANDIDATE = PLACES + 1
SMALLEST_SHARED = 1 << 16  # elements of a row that several threads sort together
SMALLEST_SHARED_PART = 1 << 14
TASK_TIME = 150_000  # ns; a shorter task is not worth waking a thread


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer one top-k problem.

    Attributes
    ----------
    variant : str
        The kernel, and why it was chosen.
    workspace_size : int
        Bytes of scratch that a launch needs.
    """

    variant: str
    workspace_size: int
    launch: Callable[..., int | None]
    """Writes the values and positions of the best k of each row.

    Called as ``launch(x, values, indices, workspace)``, or ``launch(x, lengths, values, indices, workspace)``
    where rows have lengths, all by address; the workspace is aligned to 64 bytes.
    """


class _Rows(NamedTuple):
    """The rows of a problem, and how many tasks they are worth."""

    element_size: int
    k: int
    axis_size: int
    n_rows: int
    dims: Sequence[tuple[int, ...]]
    """Size, x, value, index and length stride of each dimension of rows, the slowest first."""
    are_contiguous: bool
    are_whole: bool
    """Whether all rows have `axis_size` elements, and no lengths of their own."""
    is_sorted: bool
    n_tasks: int
    """How many tasks may work side by side, as threads and work allow."""

    @property
    def column_step(self) -> int:
        """Elements from one row to the next."""
        return self.dims[-1][1] if self.dims else 0

    @property
    def line(self) -> int:
        """Elements of a line of the cache."""
        return LINE_BYTES // self.element_size


class _Choice(NamedTuple):
    """An algorithm, and the sizes that it works with; `sizes.Problem` says what they are."""

    algorithm: str
    capacity: int
    run: int
    columns: int = 0
    stage_columns: int = 0
    segment: int = 0
    """0 for whole rows."""
    segments: int = 1


def row_time(element_size: int, k: int, axis_size: int, searched: bool) -> int:
    """Return about how many nanoseconds a row takes, from what was measured."""
    if searched:
        return 100 + 20 * k + axis_size * element_size // 30
    return 200 + 2 * element_size * axis_size


def _choose(rows: _Rows, searched: bool) -> _Choice:
    """Choose the algorithm."""
    if not searched:
        return _sorted(rows)
    k, row_bytes = rows.k, rows.axis_size * rows.element_size
    if rows.are_contiguous:
        if k <= sizes.SHORT_MOST_WANTED and row_bytes < LONG_ROW:
            n_rows = sizes.short_rows_at_a_time(rows.axis_size, rows.element_size)
            return _Choice("short_rows", RANK_LIMIT + WORD, rows.axis_size, n_rows, n_rows)
        return _contiguous(rows)
    if (
        rows.column_step == 1
        and rows.are_whole
        and k <= sizes.SIDE_BY_SIDE_MOST_WANTED
        and rows.dims[-1][0] >= sizes.SIDE_BY_SIDE_LEAST
    ):
        lanes, n_columns = processor.lanes(rows.element_size), sizes.SIDE_BY_SIDE_COLUMNS
        columns = sizes.columns_at_a_time(rows.dims[-1][0], rows.n_tasks, lanes)
        run = min(STAGE_SIZE // (n_columns * rows.element_size), rows.axis_size)
        return _Choice("side_by_side", RANK_LIMIT, run, columns, n_columns)
    columns = 1
    if rows.column_step == 1:
        columns = min(COLUMN_LINES * rows.line, -(-rows.dims[-1][0] // rows.n_tasks))
    run = _whole_tiles(rows, max(STAGE_SIZE // columns, 16 * k * rows.element_size))
    return _Choice("columns", _searched_capacity(rows), run, columns, columns)


def _contiguous(rows: _Rows) -> _Choice:
    """Search contiguous rows, in segments where there are fewer rows than tasks."""
    k, axis_size = rows.k, rows.axis_size
    segment = axis_size
    if rows.n_rows < rows.n_tasks:
        segment = max(-(-axis_size // (rows.n_tasks // rows.n_rows)), 8 * k)
        segment = -(-segment // rows.line) * rows.line
    return _Choice(
        "rows",
        _searched_capacity(rows),
        _whole_tiles(rows, max(RUN_SIZE, 32 * k * rows.element_size)),
        segment=segment,
        segments=-(-axis_size // segment),
    )


def _searched_capacity(rows: _Rows) -> int:
    return min(max(4 * rows.k, LEAST_CAPACITY), rows.axis_size) + WORD


def _whole_tiles(rows: _Rows, n_bytes: int) -> int:
    return min(-(-n_bytes // (GROUP * LINE_BYTES)) * GROUP * rows.line, rows.axis_size)


def _sorted(rows: _Rows) -> _Choice:
    """Sort rows, each by several threads where they are long and few."""
    k, axis_size = rows.k, rows.axis_size
    capacity = k + (k >> 3) + 2 * WORD
    if 2 * k >= axis_size or capacity > axis_size:
        capacity = axis_size
    columns = 0 if rows.are_contiguous else 1
    is_shared = rows.is_sorted and rows.are_whole and rows.n_rows < rows.n_tasks
    if is_shared and capacity == axis_size >= SMALLEST_SHARED:
        n_parts = min(rows.n_tasks, axis_size // SMALLEST_SHARED_PART)
        return _Choice("shared_sort", capacity, axis_size, columns, segments=n_parts)
    return _Choice("sort", capacity, axis_size, columns, columns)


_SOURCES = {
    "rows": "kernels_cpu.top_k.kernels:rows_kernel",
    "columns": "kernels_cpu.top_k.kernels:columns_kernel",
    "sort": "kernels_cpu.top_k.kernels:sort_rows",
    "short_rows": "kernels_cpu.top_k.short_rows:select_short_rows",
    "side_by_side": "kernels_cpu.top_k.side_by_side:select_side_by_side",
}
# The kernels that are made for lists to be ranked, and again for lists to be sorted.
_RANK_OR_SORT = ("rows", "columns")
_OPERANDS = (INTEGER, BYTES, BYTES, BYTES, INTEGER)


def _search_kernel(algorithm: str, element_size: int, many_selected: bool) -> Kernel:
    keys = pointer("i", element_size)
    parameters = (many_selected,) if algorithm in _RANK_OR_SORT else ()
    signature = (keys, INTEGER, INTEGER, INTEGER, *_OPERANDS)
    return Kernel(f"top_k_{algorithm}", _SOURCES[algorithm], signature, parameters)


def _merge_kernel(element_size: int, many_selected: bool) -> Kernel:
    signature = (pointer("i", element_size), *_OPERANDS)
    return Kernel("top_k_merge", "kernels_cpu.top_k.kernels:merge_kernel", signature, (many_selected,))


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    for element_size in ELEMENT_SIZES:
        for algorithm, many_selected in product(_SOURCES, (False, True)):
            if algorithm in _RANK_OR_SORT or not many_selected:
                yield _search_kernel(algorithm, element_size, many_selected)
        for many_selected in (False, True):
            yield _merge_kernel(element_size, many_selected)
        yield from shared_sort_kernels(element_size).values()


def plan(
    *,
    element_size: int,
    index_size: int,
    sign: int,
    flip: int,
    infinity: int,
    largest: bool,
    k: int,
    axis_size: int,
    rows: Sequence[tuple[int, int, int, int]],
    axis_strides: tuple[int, int, int],
    x_offset: int,
    value_offset: int,
    index_offset: int,
    is_sorted: bool = True,
    length_size: int = 0,
    length_signed: bool = True,
    length_strides: Sequence[int] = (),
    padding: int = 0,
    target: Target,
) -> Plan:
    """Plan a top-k; of equal elements those at the lowest positions are selected.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element and of an index.
    sign, flip, infinity : int
        What makes bits comparable: see `kernels_cpu.key_constants.key_constants`.
    largest : bool
        Whether the greatest elements come first; NaN is the greatest.
    k, axis_size : int
        Elements selected of each row, and how many it has.
    rows : sequence of tuple of int
        Size, x, value and index stride of every other dimension, the slowest first.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    x_offset, value_offset, index_offset : int
        Ignored: `launch` takes the addresses of first elements.
    is_sorted : bool
        Whether the selected elements are written in the order of their keys, equal ones by ascending
        position; else all are written by ascending position.
    length_size : int
        Bytes of the length of a row (4 or 8): only so many of its elements count, from 0 to `axis_size`.
        0 where all rows are whole.
    length_signed : bool
        Whether lengths are signed integers.
    length_strides : sequence of int
        The stride of the lengths in each dimension of `rows`.
    padding : int
        The bits of the values behind a row that has less than `k` elements; the indices there are -1.
    target : Target
        How many threads may take part, and where kernels come from.

    Returns
    -------
    Plan
        Immutable; may be launched from any thread.

    Notes
    -----
    Workspace: some 200 KB a thread, and 64 bytes for each of k elements; where more than 1/32 of a row is
    selected, up to 32 bytes an element.
    """
    del x_offset, value_offset, index_offset
    strides = length_strides if length_size else (0,) * len(rows)
    dims = [(*dim, stride) for dim, stride in zip(rows, strides, strict=True) if dim[0] != 1]
    dims.sort(key=lambda dim: -abs(dim[1]))
    n_rows = prod(size for size, *_ in rows)
    if k == 0 or n_rows == 0:
        return Plan("nothing to do", 0, lambda *addresses: None)
    searched = k * (32 if axis_size * element_size >= LONG_ROW else 8) <= axis_size
    worth = max(n_rows * row_time(element_size, k, axis_size, searched) // TASK_TIME, 1)
    n_tasks = min(target.threads, worth)
    of_problem = _Rows(
        element_size, k, axis_size, n_rows, dims, axis_strides[0] == 1, not length_size, is_sorted, n_tasks
    )
    choice = _choose(of_problem, searched)
    lengths = length_size, int(length_signed), padding
    problem = _problem(of_problem, choice, searched, axis_strides, index_size, lengths)
    constants = key_constants(element_size, sign, flip, infinity, largest)
    table = Table(sizes.packed(constants, [*problem, *(number for dim in dims for number in dim)]))
    fraction = axis_size // k
    why = (
        f"searched: k is at most 1/{fraction} of the axis"
        if searched
        else f"sorted: k is 1/{fraction} of the axis"
    )
    why = f"{8 * element_size} bits, {why}"
    launch: Callable[..., int | None]
    if choice.algorithm == "shared_sort":
        launch = shared_sort_launcher(table, element_size, n_rows, axis_size, k, choice.segments, target)
        return Plan(f"shared sort, {why}; parts: {choice.segments}", problem.task_size, launch)
    units = n_rows * choice.segments
    if searched and not of_problem.are_contiguous and dims:
        units = n_rows // dims[-1][0] * -(-dims[-1][0] // choice.columns)
    # Each segment keeps its list until they are merged.
    ranges = pool.split(units, n_tasks if choice.segments == 1 else units)
    # Kernels take the address of the lengths before the others, 0 where all rows are whole.
    whole, n_operands = ((), 5) if length_size else ((0,), 4)
    tasks = [(table, first, last, task, *whole) for task, (first, last) in enumerate(ranges)]
    many_selected = k > RANK_LIMIT
    search = target.load(_search_kernel(choice.algorithm, element_size, many_selected))
    launch = pool.launcher(search, tasks, n_operands)
    if choice.segments > 1:
        merge = target.load(_merge_kernel(element_size, many_selected)).bind((table, *whole), n_operands)
        launch = _then(launch, merge)
    if length_size:
        launch = _lengths_first(launch)
    kind = "in place" if of_problem.are_contiguous else f"{choice.columns} columns at a time"
    variant = f"{choice.algorithm}, {kind}, {why}; tasks: {len(tasks)}"
    return Plan(variant, len(tasks) * problem.task_size, launch)


def _then(search: Callable[..., int | None], merge: Callable[..., int]) -> Callable[..., int | None]:
    def launch(*addresses: int) -> None:
        search(*addresses)
        merge(*addresses)

    return launch


def _lengths_first(launch: Callable[..., int | None]) -> Callable[..., int | None]:
    def launch_rows(x: int, lengths: int, *others: int) -> int | None:
        return launch(lengths, x, *others)

    return launch_rows


def _problem(
    rows: _Rows,
    choice: _Choice,
    searched: bool,
    axis_strides: tuple[int, int, int],
    index_size: int,
    lengths: tuple[int, int, int],
) -> Problem:
    """Return the integers of a problem, and the places of its lists in a task's part of the workspace."""
    element_size, k, axis_size = rows.element_size, rows.k, rows.axis_size
    is_short, is_side_by_side = choice.algorithm == "short_rows", choice.algorithm == "side_by_side"
    capacity, run = choice.capacity, choice.run
    lanes = processor.lanes(element_size)
    wide = element_size == 8 or axis_size > 1 << 32
    tiles = run // (GROUP * lanes)
    fold = min(-(-max(GROUPS_OF_A_CANDIDATE * k, LEAST_GROUPS) // (PLACES * lanes)) * PLACES, max(tiles, 1))
    if is_side_by_side:
        fold = sizes.groups_of_column(k)
    refined = min(max(sizes.LEAST_REFINED, min((k + (k >> 1)) // lanes, sizes.MOST_REFINED)), tiles)
    list_length = capacity + PADDED_TO
    lists = max(choice.columns, 1) if searched else 1
    sorts = rows.is_sorted and capacity > RANK_LIMIT and (k > RANK_LIMIT or not searched)
    pitch = -(-axis_size // WORD) * WORD if is_short else run + rows.line
    counters = sizes.shared_state_size(choice.segments) if choice.algorithm == "shared_sort" else COUNTERS
    padded_ranks = 8 * (min(RANK_LIMIT, capacity) + 2 * PADDED_TO)
    areas = {
        "records": 8 * list_length * lists,
        "positions": 8 * list_length * lists if wide else 0,
        "spare_records": 8 * list_length if sorts else 0,
        "spare_positions": 8 * list_length if sorts and wide else 0,
        "ranks": padded_ranks,
        "order": padded_ranks,
        "taken": padded_ranks,
        "counters": 8 * counters if sorts else 0,
        "groups": element_size
        * max(
            (choice.stage_columns if is_side_by_side else lanes) * fold,
            lanes * refined * GROUP // 2,
            (4 * k + lanes) * is_short * choice.columns,
        ),
        "minima": element_size * (tiles + 2 * WORD),
        "stage": element_size * (pitch * choice.stage_columns + WORD),
        "searches": 8 * sizes.SEARCH * max(choice.columns, 1),
    }
    places, task_size = lay_out(areas)
    return Problem(
        axis_size=axis_size,
        k=k,
        x_step=axis_strides[0],
        value_step=axis_strides[1],
        index_step=axis_strides[2],
        index_size=index_size,
        is_sorted=int(rows.is_sorted),
        length_size=lengths[0],
        length_is_signed=lengths[1],
        padding=lengths[2],
        lowest=-(1 << (8 * element_size - 1)),
        wide=int(wide),
        capacity=capacity,
        list_length=list_length,
        fold=fold,
        segment=choice.segment or axis_size,
        segments=choice.segments,
        run=run,
        columns=choice.columns,
        column_step=rows.column_step,
        pitch=pitch,
        task_size=task_size,
        n_dims=len(rows.dims),
        **places,
    )
