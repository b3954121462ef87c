"""The words of launches, which all algorithms put in the same way.

Each algorithm has a function of words (`kernels_cpu.plan_words`) that puts its launches into `out`, and
returns `PLANNED`; or, before anything is put, `UNSERVED` where it cannot serve the problem. Its kernels also
read row lengths if the problem has them.
"""

from typing import Any, NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import (
    ALGORITHM,
    CLUSTER,
    CONTENT,
    CURRENT,
    END,
    GRID,
    LAUNCHES,
    N_LAUNCHES,
    N_POINTERS,
    NULL_SLOT,
    Words,
    begin_launch,
    put_pointer,
    put_values,
    take_workspace,
)
from kernels_cpu.top_k.problem_words import (
    INDEX_STRIDE,
    LENGTH_STRIDE,
    N_DIMS,
    SIZE,
    START_STRIDE,
    VALUE_STRIDE,
    X_STRIDE,
)
from kernels_cuda.device_words import PLANNED, ROOM, WORKSPACE_ALIGNMENT
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.key_formats import KeyFormat, UnfoldedFormat, key_format_of, unfolded_format_of
from kernels_cuda.top_k.policy import LAUNCH_BLOCKS
from kernels_cuda.top_k.problem import (
    AxisStrides,
    RowLayout,
    Selection,
    TableDimension,
    WindowFormat,
    axis_strides,
    bounded_product,
    dimension_at,
    row_layout,
    window_format,
)
from kernels_cuda.top_k.shared import kernel_keys

UNSERVED = 2
"""The status of an algorithm that cannot serve the problem: it has put nothing yet."""

FULL = -2
"""The number of the algorithm in a plan that has no room for its launches."""

MOST_LAUNCH_WORDS = 112
"""The most words of a launch: a header, 14 pointers, and 72 values."""

# The table of row offsets has five int64 for each row.
OFFSETS_BYTES = 40
OFFSETS_THREADS = 256
# Stands for no area of the workspace: then a null pointer, or an operand, is passed.
NO_AREA = -1
# The value of a launch that is the number of its first row, block or cluster (`RowParameters`).
_FIRST = 1


class Sizes(NamedTuple):
    """Blocks, threads per block, dynamic shared memory, and blocks per cluster."""

    grid: int
    block: int
    shared_bytes: int
    cluster: int


class Windows(NamedTuple):
    """The addresses of the lengths and the starts of all rows; 0 where there are none."""

    lengths: int
    starts: int


class RowParameters(NamedTuple):
    """First parameters of kernels that select from whole rows, the first of which has number `first`."""

    index_size: int
    first: int
    n_rows: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    window_format: WindowFormat


class OffsetsParameters(NamedTuple):
    """Parameters of `rows.add_dimension`."""

    n_rows: int
    is_first: int
    dimension: TableDimension


def variant(name: str, factory: str, *parameters: int, **needs: Any) -> Variant:
    """Return a kernel of top-k, made by ``"module:function"`` of this package."""
    return Variant(f"top_k_{name}", f"kernels_cuda.top_k.{factory}", parameters, **needs)


def offsets_variant() -> Variant:
    """Return the kernel that fills the table of row offsets."""
    return variant("offsets", "shared.rows:offsets_kernel")


def take(out: Words, n_bytes: int) -> int:
    """Return where an area of the workspace begins, and make room for it."""
    return take_workspace(out, n_bytes, WORKSPACE_ALIGNMENT)


def begin(out: Words, device: Words, kernel: int, sizes: Sizes) -> None:
    """Begin a launch; where there is no room for it, the plan begins anew, and is `FULL`."""
    if out[END] + MOST_LAUNCH_WORDS > device[ROOM]:
        out[END] = LAUNCHES
        out[ALGORITHM] = FULL
    begin_launch(out, kernel, sizes.grid, sizes.block, sizes.shared_bytes, sizes.cluster)


def put_x(out: Words, selection: Selection) -> None:
    """Put a pointer at x of all rows."""
    if selection.x_area < 0:
        put_pointer(out, 0, 0)
    else:
        put_area(out, selection, selection.x_area)


def put_windows(out: Words, selection: Selection) -> None:
    """Put pointers at the lengths and the starts of all rows, which come after x, as far as there are any."""
    if selection.length_area < 0:
        put_pointer(out, 1 if selection.has_lengths else NULL_SLOT, 0)
    else:
        put_area(out, selection, selection.length_area)
    put_pointer(out, 1 + selection.has_lengths if selection.has_starts else NULL_SLOT, 0)


def put_numbers(out: Words, selection: Selection) -> None:
    """Put a pointer at the numbers of all elements, which come after the windows."""
    put_pointer(out, selection.outputs_at - 1, 0)


def put_outputs(out: Words, selection: Selection) -> None:
    """Put pointers at values and indices of all rows."""
    if selection.value_area < 0:
        put_pointer(out, selection.outputs_at, 0)
    else:
        put_area(out, selection, selection.value_area)
    put_indices(out, selection)


def put_indices(out: Words, selection: Selection) -> None:
    """Put a pointer at indices of all rows."""
    if selection.index_area < 0:
        put_pointer(out, selection.outputs_at + 1, 0)
    else:
        put_area(out, selection, selection.index_area)


def put_area(out: Words, selection: Selection, area: int) -> None:
    """Put a pointer at an area of the workspace, or a null pointer for `NO_AREA`."""
    if area < 0:
        put_pointer(out, NULL_SLOT, 0)
    else:
        put_pointer(out, selection.outputs_at + 2, area)


def put_area_of_rows(out: Words, selection: Selection, area: int, n_bytes: int) -> None:
    """Put a pointer as many bytes ahead of an area as the rows before the first one there would take."""
    put_pointer(out, selection.outputs_at + 2, area - n_bytes)


def put_rows(out: Words, problem: Words, selection: Selection) -> None:
    """Put the first parameters of a kernel; the first launch begins with row, block or unit number 0."""
    parameters = RowParameters(
        selection.index_size,
        0,
        selection.n_rows,
        selection.axis_size,
        selection.k,
        axis_strides(problem, selection),
        row_layout(problem, selection),
        unfolded_format_of(problem),
        key_format_of(problem),
        window_format(problem, selection),
    )
    put_values(out, parameters)


def put_first(out: Words, first: int) -> None:
    """Have the last launch, whose first parameters have been put, begin with another row, block or unit."""
    launch = out[CURRENT]
    out[launch + CONTENT + 2 * out[launch + N_POINTERS] + _FIRST] = first


def begin_rows(
    problem: Words, device: Words, selection: Selection, out: Words, kernel: int, sizes: Sizes
) -> None:
    """Begin a launch for all rows: it takes x, windows, values, indices and the table of row offsets.

    Further parameters may be put after the first ones, and then it is to be split (`split`).
    """
    offsets = fill_offsets(problem, device, selection, out)
    begin(out, device, kernel, sizes)
    put_x(out, selection)
    put_windows(out, selection)
    put_outputs(out, selection)
    put_area(out, selection, offsets)
    put_rows(out, problem, selection)


def sharing_blocks(multiprocessors: int, n_threads: int) -> int:
    """Return how many blocks run at a time whose threads have 64 registers each (`long_rows`)."""
    return multiprocessors * (1024 // n_threads)


def split(device: Words, out: Words) -> int:
    """Split the last launch into as many as its blocks need, each of which is told the first of its clusters.

    Returns
    -------
    int
        `PLANNED`, with which the plan of an algorithm ends.
    """
    launch, end = out[CURRENT], out[END]
    cluster, n_words = out[launch + CLUSTER], end - launch
    if out[launch + GRID] <= device[LAUNCH_BLOCKS]:
        return PLANNED
    n_clusters, at_once = out[launch + GRID] // cluster, max(1, device[LAUNCH_BLOCKS] // cluster)
    n_more = ceil_div(n_clusters, at_once) - 1
    if n_more > (device[ROOM] - end) // n_words:
        out[ALGORITHM] = FULL
        return PLANNED
    out[launch + GRID] = at_once * cluster
    for number in range(1, n_more + 1):
        for word in range(n_words):
            out[launch + number * n_words + word] = out[launch + word]
        first = number * at_once
        out[CURRENT] = launch + number * n_words
        out[out[CURRENT] + GRID] = min(at_once, n_clusters - first) * cluster
        put_first(out, first)
    out[END] = end + n_more * n_words
    out[N_LAUNCHES] += n_more
    return PLANNED


def fill_offsets(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Return where the table of row offsets is, if the rows need one, and put what fills it."""
    return fill_offsets_of(problem, device, selection, out, X_STRIDE)


def fill_offsets_of(problem: Words, device: Words, selection: Selection, out: Words, stride: int) -> int:
    """Do the same with the strides of x or of numbers (`problem_words`) as those of x."""
    n_dims = problem[N_DIMS]
    if n_dims <= 2:
        return NO_AREA
    offsets = take(out, bounded_product(selection.n_rows, OFFSETS_BYTES))
    sizes = Sizes(ceil_div(selection.n_rows, OFFSETS_THREADS), OFFSETS_THREADS, 0, 1)
    rows_below = selection.n_rows
    for number in range(n_dims):
        at = dimension_at(problem, selection, number)
        rows_below = rows_below // problem[at + SIZE]
        x_stride, value_stride, index_stride = (
            problem[at + stride],
            problem[at + VALUE_STRIDE],
            problem[at + INDEX_STRIDE],
        )
        if selection.x_row > 0:
            x_stride = bounded_product(rows_below, selection.x_row)
        length_stride = problem[at + LENGTH_STRIDE]
        if selection.length_area >= 0:
            length_stride = rows_below
        if selection.output_row > 0:
            value_stride = index_stride = bounded_product(rows_below, selection.output_row)
        begin(out, device, kernel_keys.kernel_key(kernel_keys.OFFSETS, 0, 0, 0), sizes)
        put_area(out, selection, offsets)
        dimension = TableDimension(
            rows_below,
            problem[at + SIZE],
            x_stride,
            value_stride,
            index_stride,
            length_stride,
            problem[at + START_STRIDE],
        )
        put_values(out, OffsetsParameters(selection.n_rows, int(number == 0), dimension))
    return offsets
