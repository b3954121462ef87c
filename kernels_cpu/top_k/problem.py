"""One top-k problem as the kernels see it: an array of integers, and the workspace that they describe."""

from typing import Any, NamedTuple

from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

from kernels_cpu.jit import inlined, kernel
from kernels_cpu.top_k.scan import Limits, Scratch

Array = NDArray[Any]

RANK_LIMIT = 160
"""Up to so many records are ranked by comparing each with each; more are sorted digit by digit."""


class Problem(NamedTuple):
    """The integers of a problem; places in the workspace are in bytes from the start of a task's part."""

    axis_size: int
    k: int
    x_offset: int
    value_offset: int
    index_offset: int
    x_step: int
    value_step: int
    index_step: int
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
    """Rows that are copied to the stage side by side; 0 where rows are read in place."""
    column_step: int
    pitch: int
    """Elements from one row on the stage to the next."""
    task_size: int
    """Bytes of workspace a task has."""
    records: int
    positions: int
    spare_records: int
    spare_positions: int
    ranks: int
    counters: int
    groups: int
    minima: int
    stage: int
    searches: int
    n_dims: int
    """Dimensions of rows; size, x, value and index stride of each follow, the slowest first."""


X_OFFSET = Problem._fields.index("x_offset")
HEADER = len(Problem._fields)


class Output(NamedTuple):
    """What writing a row's result needs of its problem."""

    k: int
    wide: bool
    x_step: int
    value_step: int
    index_step: int


class Sorting(NamedTuple):
    """Arrays that ordering a list of records needs."""

    spare_records: Any
    spare_positions: Any
    ranks: Any
    order: Any
    taken: Any
    counters: Any


@kernel
def unpack(n: Array) -> Problem:
    """Return the integers of a problem as scalars, which loops keep in registers."""
    return Problem(
        n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13],
        n[14], n[15], n[16], n[17], n[18], n[19], n[20], n[21], n[22], n[23], n[24], n[25], n[26], n[27],
        n[28], n[29], n[30],
    )  # fmt: skip


@kernel
def limits_of(problem: Problem) -> Limits:
    """Return what bounds a search."""
    return Limits(problem.k, problem.capacity, problem.fold, problem.lowest, problem.wide != 0)


@kernel
def output_of(problem: Problem) -> Output:
    """Return what writing a row's result needs."""
    return Output(problem.k, problem.wide != 0, problem.x_step, problem.value_step, problem.index_step)


@kernel
def offsets_of(numbers: Array, n_dims: int, row: int) -> tuple[int, int, int]:
    """Return where a row starts in the input, the values and the indices."""
    x, value, index = numbers[X_OFFSET], numbers[X_OFFSET + 1], numbers[X_OFFSET + 2]
    for d in range(n_dims - 1, -1, -1):
        at = HEADER + 4 * d
        coordinate = row
        if d > 0:
            row = row // numbers[at]
            coordinate -= row * numbers[at]
        x += coordinate * numbers[at + 1]
        value += coordinate * numbers[at + 2]
        index += coordinate * numbers[at + 3]
    return x, value, index


@intrinsic
def array_at(typing_context, buffer, start, end, like):  # type: ignore[no-untyped-def]
    """Return bytes `start` to `end` of `buffer` as an array of the data type of `like`.

    Numba's own slices and views count references, and take most of a small kernel's time to compile.
    """
    view = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = arrayobj.make_array(buffer)(context, builder, arguments[0]).data
        array = arrayobj.make_array(view)(context, builder)
        itemsize = context.get_constant(types.intp, like.dtype.bitwidth // 8)
        arrayobj.populate_array(
            array,
            data=builder.bitcast(builder.gep(data, [arguments[1]]), array.data.type),
            shape=[builder.sdiv(builder.sub(arguments[2], arguments[1]), itemsize)],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return view(buffer, types.int64, types.int64, like), generate


@inlined
def scratch_of(
    workspace: Array, keys: Array, words: Array, positions: Array, problem: Problem, task: int
) -> Scratch:
    """Return a task's arrays for its search; `keys`, `words` and `positions` have their data types."""
    start = task * problem.task_size
    return Scratch(
        array_at(workspace, start + problem.records, start + problem.positions, words),
        array_at(workspace, start + problem.positions, start + problem.spare_records, positions),
        array_at(workspace, start + problem.groups, start + problem.minima, keys),
        array_at(workspace, start + problem.minima, start + problem.stage, keys),
    )


@inlined
def scratch_of_column(
    workspace: Array,
    shared: Scratch,
    words: Array,
    positions: Array,
    problem: Problem,
    task: int,
    column: int,
) -> Scratch:
    """Return a task's arrays for its search of one of several columns."""
    start = task * problem.task_size
    first, last = column * problem.list_length, (column + 1) * problem.list_length
    records, places = start + problem.records, start + problem.positions
    size = positions.itemsize
    return Scratch(
        array_at(workspace, records + 8 * first, records + 8 * last, words),
        array_at(workspace, places + size * first, places + size * last, positions),
        shared.groups,
        shared.minima,
    )


@inlined
def sorting_of(workspace: Array, words: Array, positions: Array, problem: Problem, task: int) -> Sorting:
    """Return a task's arrays for ordering records."""
    start = task * problem.task_size
    ranks = start + problem.ranks
    size = (problem.counters - problem.ranks) // 3
    return Sorting(
        array_at(workspace, start + problem.spare_records, start + problem.spare_positions, words),
        array_at(workspace, start + problem.spare_positions, ranks, positions),
        array_at(workspace, ranks, ranks + size, words),
        array_at(workspace, ranks + size, ranks + 2 * size, words),
        array_at(workspace, ranks + 2 * size, ranks + 3 * size, words),
        array_at(workspace, start + problem.counters, start + problem.groups, words),
    )
