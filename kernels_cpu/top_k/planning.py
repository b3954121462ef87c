"""The choice of a kernel, its workspace and its tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu import threads as pool
from kernels_cpu.addresses import Address
from kernels_cpu.jit import compiled
from kernels_cpu.keys import key_masks
from kernels_cpu.memory import BYTES, INTEGER, operand_of
from kernels_cpu.top_k import kernels, shared_sort, short_rows, side_by_side
from kernels_cpu.top_k.problem import RANK_LIMIT, Problem, packed
from kernels_cpu.top_k.records import COUNTERS, PADDED_TO
from kernels_cpu.top_k.scan import GROUP, LEAST_REFINED, MOST_REFINED, PLACES, WORD

Array = NDArray[Any]
Kernel = Callable[..., None]

LINE = 64
LONG_ROW = 1 << 14  # bytes; shorter ones are in the first-level cache when they are read again
RUN_SIZE = 1 << 22  # bytes of a row searched at a time; each run lists about k elements
STAGE_SIZE = 1 << 18
COLUMN_LINES = 2  # of 64 bytes, read from each row of columns: a single one waits for its page every time
LEAST_CAPACITY = 512
LEAST_GROUPS = 256
# One of the places may hold all that is wanted, as in ascending rows. Its groups alone must be enough for a
# bound then, and some more, for bounds are found roughly.
GROUPS_A_WINNER = PLACES + 1
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
    launch: Callable[[Address, Address, Address, int], None]
    """Writes the values and positions of the best k of each row.

    Called as ``launch(x, values, indices, workspace)``; the workspace is aligned to 64 bytes.
    """


def _launcher(
    function: Kernel, merge: Kernel | None, constants: Array, tasks: Sequence[tuple[int, int, int]]
) -> Kernel:
    keys = operand_of(constants)
    operands = BYTES, BYTES, BYTES, INTEGER
    search = compiled(function, keys, INTEGER, INTEGER, INTEGER, *operands)
    launch = pool.launcher(search, [(constants, *task) for task in tasks])
    if merge is None:
        return launch
    finish = partial(compiled(merge, keys, *operands), constants)

    def launch_and_merge(*addresses: Address) -> None:
        launch(*addresses)
        finish(*addresses)

    return launch_and_merge


def _nothing(*_addresses: Address) -> None:
    pass


def row_time(element_size: int, k: int, axis_size: int, searched: bool) -> int:
    """Return about how many nanoseconds a row takes, from what was measured."""
    if searched:
        return 100 + 20 * k + axis_size * element_size // 30
    return 200 + 2 * element_size * axis_size


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
    threads: int,
) -> Plan:
    """Plan a sorted top-k; ties are in the order of ascending positions.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element and of an index.
    sign, flip, infinity : int
        What makes bits comparable: see `kernels_cpu.keys.key_masks`.
    largest : bool
        Whether the greatest elements come first; NaN is the greatest.
    k, axis_size : int
        Elements wanted of each row, and how many it has.
    rows : sequence of tuple of int
        Size, x, value and index stride of every other dimension, the slowest first.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    x_offset, value_offset, index_offset : int
        Ignored: `launch` takes the addresses of first elements.
    threads : int
        How many threads may take part.

    Returns
    -------
    Plan
        Immutable; may be launched from any thread.

    Notes
    -----
    Workspace: some 200 KB a thread, and 64 bytes for each of k elements; where more than 1/32 of a row is
    wanted, up to 32 bytes an element.
    """
    del x_offset, value_offset, index_offset
    constants = key_masks(element_size, sign, flip, infinity, largest)
    dims = sorted((dim for dim in rows if dim[0] != 1), key=lambda dim: -abs(dim[1]))
    n_rows = prod(size for size, *_ in rows)
    if k == 0 or n_rows == 0:
        return Plan("nothing to do", 0, _nothing)
    in_place = axis_strides[0] == 1
    wide = element_size == 8 or axis_size > 1 << 32
    line = LINE // element_size
    searched = k * (32 if axis_size * element_size >= LONG_ROW else 8) <= axis_size
    columns = 0 if in_place else 1
    column_step = dims[-1][1] if dims else 0
    worth = max(n_rows * row_time(element_size, k, axis_size, searched) // TASK_TIME, 1)
    segment = axis_size
    if searched:
        choose = kernels.rows_kernel if in_place else kernels.columns_kernel
        function: Kernel = choose(k > RANK_LIMIT)
        capacity = min(max(4 * k, LEAST_CAPACITY), axis_size) + WORD
        run_size = max(RUN_SIZE, 32 * k * element_size)
        if not in_place:
            if column_step == 1:
                columns = min(COLUMN_LINES * line, -(-dims[-1][0] // min(threads, worth)))
            run_size = max(STAGE_SIZE // columns, 16 * k * element_size)
        run = min(-(-run_size // (GROUP * LINE)) * GROUP * line, axis_size)
        if in_place and n_rows < min(threads, worth):
            segment = max(-(-axis_size // (min(threads, worth) // n_rows)), 8 * k)
            segment = -(-segment // line) * line
        stage_columns = columns
        why = f"searched: k is at most 1/{axis_size // k} of the axis"
    else:
        function = kernels.sort_rows
        capacity = k + (k >> 3) + 2 * WORD
        if 2 * k >= axis_size or capacity > axis_size:
            capacity = axis_size
        run = axis_size
        stage_columns = columns
        why = f"sorted: k is 1/{axis_size // k} of the axis"
    is_short = searched and in_place and k <= short_rows.MOST_WANTED and axis_size * element_size < LONG_ROW
    if is_short:
        function = short_rows.select_short_rows
        capacity = RANK_LIMIT + WORD
        stage_columns = columns = short_rows.rows_at_a_time(axis_size, element_size)
    is_side_by_side = (
        searched
        and not in_place
        and column_step == 1
        and k <= side_by_side.MOST_WANTED
        and dims[-1][0] >= side_by_side.LEAST_COLUMNS
    )
    if is_side_by_side:
        function = side_by_side.select_side_by_side
        capacity = RANK_LIMIT
        stage_columns = side_by_side.COLUMNS
        n_tasks = min(threads, worth)
        columns = side_by_side.columns_at_a_time(dims[-1][0], n_tasks, simd.lanes(element_size))
        run = min(STAGE_SIZE // (stage_columns * element_size), axis_size)
    segments = 1 if is_short else -(-axis_size // segment)
    shares_rows = (
        function is kernels.sort_rows
        and capacity == axis_size
        and n_rows < min(threads, worth)
        and axis_size >= SMALLEST_SHARED
    )
    if shares_rows:
        segments = min(threads, worth, axis_size // SMALLEST_SHARED_PART)
        stage_columns = 0
    lanes = simd.lanes(element_size)
    tiles = run // (GROUP * lanes)
    fold = min(-(-max(GROUPS_A_WINNER * k, LEAST_GROUPS) // (PLACES * lanes)) * PLACES, max(tiles, 1))
    if is_side_by_side:
        fold = side_by_side.groups_wanted(k)
    refined = min(max(LEAST_REFINED, min((k + (k >> 1)) // lanes, MOST_REFINED)), tiles)
    list_length = capacity + PADDED_TO
    lists = max(columns, 1) if searched else 1
    sorts = capacity > RANK_LIMIT and (k > RANK_LIMIT or not searched)
    pitch = -(-axis_size // WORD) * WORD if is_short else run + line
    sizes = {
        "records": 8 * list_length * lists,
        "positions": 8 * list_length * lists if wide else 0,
        "spare_records": 8 * list_length if sorts else 0,
        "spare_positions": 8 * list_length if sorts and wide else 0,
        "ranks": 3 * 8 * (min(RANK_LIMIT, capacity) + 2 * PADDED_TO),
        "counters": 8 * (shared_sort.state_size(segments) if shares_rows else COUNTERS) if sorts else 0,
        "groups": element_size
        * max(
            (stage_columns if is_side_by_side else lanes) * fold,
            lanes * refined * GROUP // 2,
            (4 * k + lanes) * is_short * columns,
        ),
        "minima": element_size * (tiles + 2 * WORD),
        "stage": element_size * (pitch * stage_columns + WORD),
        "searches": 32 * max(columns, 1),
    }
    aligned = [-(-size // (3 * LINE)) * 3 * LINE for size in sizes.values()]
    ends = list(accumulate(aligned))
    places = dict(zip(sizes, [0, *ends[:-1]], strict=True))
    problem = Problem(
        axis_size=axis_size,
        k=k,
        x_step=axis_strides[0],
        value_step=axis_strides[1],
        index_step=axis_strides[2],
        index_size=index_size,
        lowest=-(1 << (8 * element_size - 1)),
        wide=int(wide),
        capacity=capacity,
        list_length=list_length,
        fold=fold,
        segment=segment,
        segments=segments,
        run=run,
        columns=columns,
        column_step=column_step,
        pitch=pitch,
        task_size=ends[-1],
        n_dims=len(dims),
        **places,
    )
    packed_problem = packed(constants, [*problem, *(number for dim in dims for number in dim)])
    why = f"{8 * element_size} bits, {why}"
    if shares_rows:
        launch = shared_sort.launcher(packed_problem, n_rows, axis_size, k, segments)
        return Plan(f"shared sort, {why}; {segments} parts", problem.task_size, launch)
    units = n_rows * segments
    if searched and not in_place and dims:
        units = n_rows // dims[-1][0] * -(-dims[-1][0] // columns)
    n_tasks = min(threads, worth) if segments == 1 else units  # each segment keeps its list until they merge
    ranges = pool.split(units, n_tasks)
    tasks = tuple((first, last, task) for task, (first, last) in enumerate(ranges))
    kind = "in place" if in_place else f"{columns} columns at a time"
    variant = f"{function.__name__}, {kind}, {why}; {len(tasks)} tasks"
    merge = kernels.merge_kernel(k > RANK_LIMIT) if segments > 1 else None
    launch = _launcher(function, merge, packed_problem, tasks)
    return Plan(variant, len(tasks) * problem.task_size, launch)
