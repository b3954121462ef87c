"""The problem in plain integers: its size, and where its rows lie; `key_formats` has how elements compare.

Plans read it as words (`kernels_cpu.top_k.problem_words`), and much of it as a `Selection` that they make.
"""

from typing import NamedTuple

from kernels_cpu.plan_words import Words
from kernels_cpu.top_k.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    INDEX_SIZE,
    INDEX_STEP,
    INDEX_STRIDE,
    IS_SORTED,
    LENGTH_SIGNED,
    LENGTH_SIZE,
    LENGTH_STRIDE,
    MAX_LENGTH,
    N_DIMS,
    NUMBER_SIZE,
    PADDING,
    SIZE,
    START_SIGNED,
    START_SIZE,
    START_STRIDE,
    VALUE_STEP,
    VALUE_STRIDE,
    X_STEP,
    X_STRIDE,
    K,
)
from kernels_cuda.top_k.policy import BATCH_BYTES, TRANSPOSED_ROWS

MOST_BYTES = 1 << 56
"""The most bytes of an area that plans count with: no device has as many."""


# Where at most one in so many elements is selected, the workspace is at most one in so many bytes of x.
SMALL_K, SMALL_SHARE = 16, 10


class AxisStrides(NamedTuple):
    """Strides along the axis, in elements."""

    x: int
    values: int
    indices: int


class RowLayout(NamedTuple):
    """Rows in up to two dimensions, as kernels find them: strides in elements, all int64."""

    inner_size: int
    x_outer: int
    value_outer: int
    index_outer: int
    length_outer: int
    start_outer: int
    x_inner: int
    value_inner: int
    index_inner: int
    length_inner: int
    start_inner: int


class TableDimension(NamedTuple):
    """One of more than two dimensions of rows; `rows_below` rows share a coordinate."""

    rows_below: int
    size: int
    x_stride: int
    value_stride: int
    index_stride: int
    length_stride: int
    start_stride: int


class WindowFormat(NamedTuple):
    """How lengths and starts of rows are stored, and what fills up results of fewer than k elements.

    Attributes
    ----------
    length_size, length_signed, start_size, start_signed : int
        Bytes of a length and of a start (4, 8), and whether they are signed.
    bound : int
        Elements have positions below this.
    first, end : int
        Between which offsets from the first element of x all rows lie: only bytes there are read.
    least, most : int
        A launch may leave rows of fewer or of more elements to another one.
    padding : int
        Bits of the value; the index has all bits set.
    """

    length_size: int
    length_signed: int
    start_size: int
    start_signed: int
    bound: int
    first: int
    end: int
    least: int
    most: int
    padding: int


class Selection(NamedTuple):
    """Facts that plans often need of a problem, or of one that they make of it.

    Attributes
    ----------
    element_size, index_size : int
        Bytes of an element and of an index.
    k, axis_size, n_rows : int
        How many elements are selected, of how many at most, in each of how many rows.
    least, most : int
        Of how many elements rows are that the next launches must serve.
    bound : int
        Positions of elements, and their indices, are below this: the length of the axis.
    row_bytes : int
        Bytes of a row of x without gaps, at most `MOST_BYTES`.
    x_step, output_step : int
        Elements from one of a row to the next in x; and in values and indices, or 0 if it is as in the
        problem.
    x_row, output_row : int
        Elements from one row to the next where rows of x, or of values and indices, lie one after the other;
        0 where they lie as in the problem.
    neighbours_at, n_neighbours : int
        The dimension of rows that lie side by side in x, or -1; and how many these are, or 1.
    is_transposed : int
        Whether enough rows lie side by side for lanes to read one each.
    is_sorted, is_by_index : int
        Whether results come by value; and whether ascending position is another order than that.
    x_area, length_area, value_area, index_area : int
        Where x, lengths, values and indices are in the workspace, or -1 if they are operands. Lengths there
        are int64, one row after the other.
    reserved, outputs_at : int
        How many bytes at the beginning of the workspace are in use; and the slot of values, after which come
        indices and the workspace.
    has_lengths, has_starts, has_numbers, padding : int
        Whether rows have lengths and starts of their own, whether elements have numbers, and what fills up
        the values of rows.
    """

    element_size: int
    index_size: int
    k: int
    axis_size: int
    least: int
    most: int
    bound: int
    n_rows: int
    row_bytes: int
    x_step: int
    output_step: int
    x_row: int
    output_row: int
    neighbours_at: int
    n_neighbours: int
    is_transposed: int
    is_sorted: int
    is_by_index: int
    x_area: int
    length_area: int
    value_area: int
    index_area: int
    reserved: int
    outputs_at: int
    has_lengths: int
    has_starts: int
    has_numbers: int
    padding: int


def bounded_product(factor: int, other: int) -> int:
    """Return the product of two numbers from 0 on, or `MOST_BYTES` if it is larger.

    Examples
    --------
    >>> bounded_product(3, 5), bounded_product(1 << 40, 1 << 40) == MOST_BYTES
    (15, True)
    """
    if factor > 0 and other > MOST_BYTES // factor:
        return MOST_BYTES
    return factor * other


def scratch_limit(device: Words, selection: Selection) -> int:
    """Return the most bytes of workspace that algorithms take, besides tables of row offsets."""
    n_bytes: int = bounded_product(selection.n_rows, selection.row_bytes)
    if selection.k <= selection.axis_size // SMALL_K:
        n_bytes = n_bytes // SMALL_SHARE
    return max(device[BATCH_BYTES], n_bytes)


def select(problem: Words, device: Words) -> Selection:
    """Return the selection that a problem asks for."""
    n_rows, neighbours_at, n_neighbours = 1, -1, 1
    for number in range(problem[N_DIMS]):
        at = DIMS + number * DIMENSION
        n_rows = n_rows * problem[at + SIZE]
        if neighbours_at < 0 and abs(problem[X_STEP]) > 1 and abs(problem[at + X_STRIDE]) == 1:
            neighbours_at, n_neighbours = number, problem[at + SIZE]
    axis_size, element_size = problem[MAX_LENGTH], problem[ELEMENT_SIZE]
    is_sorted = problem[IS_SORTED]
    has_lengths, has_starts = int(problem[LENGTH_SIZE] > 0), int(problem[START_SIZE] > 0)
    has_numbers = int(problem[NUMBER_SIZE] > 0)
    return Selection(
        element_size,
        problem[INDEX_SIZE],
        min(problem[K], axis_size),
        axis_size,
        0,
        axis_size,
        problem[AXIS_SIZE],
        n_rows,
        bounded_product(axis_size, element_size),
        problem[X_STEP],
        0,
        0,
        0,
        neighbours_at,
        n_neighbours,
        int(n_neighbours >= device[TRANSPOSED_ROWS]),
        is_sorted,
        int(is_sorted == 0 and problem[K] > 1),
        -1,
        -1,
        -1,
        -1,
        0,
        1 + has_lengths + has_starts + has_numbers,
        has_lengths,
        has_starts,
        has_numbers,
        problem[PADDING],
    )


def are_segments(problem: Words, selection: Selection) -> bool:
    """Tell whether rows are parts of one row of x: many of them are far shorter than the longest one."""
    strides = 0
    for number in range(problem[N_DIMS]):
        strides = strides | problem[DIMS + number * DIMENSION + X_STRIDE]
    return selection.has_starts == 1 and strides == 0 and selection.x_step == 1


def dimension_at(problem: Words, selection: Selection, number: int) -> int:
    """Return the first word of a dimension of rows; rows that are neighbours in x come last."""
    last = selection.neighbours_at
    if last >= 0 and number == problem[N_DIMS] - 1:
        number = last
    elif last >= 0 and number >= last:
        number += 1
    return DIMS + number * DIMENSION


def row_layout(problem: Words, selection: Selection) -> RowLayout:
    """Return where rows lie; of rows in more than two dimensions there is a table (`fill_offsets`)."""
    return layout_of(problem, selection, X_STRIDE)


def layout_of(problem: Words, selection: Selection, stride: int) -> RowLayout:
    """Return where rows lie, with the strides of x or of numbers (`problem_words`) as those of x."""
    n_dims = problem[N_DIMS]
    inner_size, x_outer, value_outer, index_outer, length_outer, start_outer = 1, 0, 0, 0, 0, 0
    x_inner, value_inner, index_inner, length_inner, start_inner = 0, 0, 0, 0, 0
    if n_dims > 2:
        x_outer, value_outer, index_outer, length_outer, start_outer = 1, 1, 1, 1, 1
        x_inner, value_inner, index_inner, length_inner, start_inner = 1, 1, 1, 1, 1
    elif n_dims > 0:
        at = dimension_at(problem, selection, 0)
        x_outer, length_outer, start_outer = (
            problem[at + stride],
            problem[at + LENGTH_STRIDE],
            problem[at + START_STRIDE],
        )
        value_outer, index_outer = problem[at + VALUE_STRIDE], problem[at + INDEX_STRIDE]
    if n_dims == 2:
        at = dimension_at(problem, selection, 1)
        inner_size = problem[at + SIZE]
        x_inner, length_inner, start_inner = (
            problem[at + stride],
            problem[at + LENGTH_STRIDE],
            problem[at + START_STRIDE],
        )
        value_inner, index_inner = problem[at + VALUE_STRIDE], problem[at + INDEX_STRIDE]
    if selection.x_row > 0:
        x_inner = selection.x_row
        x_outer = bounded_product(inner_size, x_inner)
    if selection.length_area >= 0:
        length_inner, length_outer = 1, inner_size
    if selection.output_row > 0:
        value_inner = index_inner = selection.output_row
        value_outer = index_outer = bounded_product(inner_size, value_inner)
    return RowLayout(
        inner_size,
        x_outer,
        value_outer,
        index_outer,
        length_outer,
        start_outer,
        x_inner,
        value_inner,
        index_inner,
        length_inner,
        start_inner,
    )


def axis_strides(problem: Words, selection: Selection) -> AxisStrides:
    """Return the strides along the axis."""
    if selection.output_step > 0:
        return AxisStrides(selection.x_step, selection.output_step, selection.output_step)
    return AxisStrides(selection.x_step, problem[VALUE_STEP], problem[INDEX_STEP])


def window_format(problem: Words, selection: Selection) -> WindowFormat:
    """Return how lengths and starts are stored, if there are any."""
    is_area = selection.length_area >= 0
    first, end = x_extent(problem, selection)
    return WindowFormat(
        8 if is_area else problem[LENGTH_SIZE],
        1 if is_area else problem[LENGTH_SIGNED],
        problem[START_SIZE],
        problem[START_SIGNED],
        selection.bound,
        first,
        end,
        selection.least,
        selection.most,
        selection.padding,
    )


def x_extent(problem: Words, selection: Selection) -> tuple[int, int]:
    """Return between which offsets in elements all rows of x lie, from the first element of x."""
    if selection.x_row > 0:
        return 0, bounded_product(selection.n_rows, selection.x_row)
    first, last = -_span(-selection.x_step, selection.bound), _span(selection.x_step, selection.bound)
    for number in range(problem[N_DIMS]):
        at = DIMS + number * DIMENSION
        first -= _span(-problem[at + X_STRIDE], problem[at + SIZE])
        last += _span(problem[at + X_STRIDE], problem[at + SIZE])
    return first, last + 1


def _span(stride: int, size: int) -> int:
    """Return how far a dimension leads in the direction of its stride, if that is positive."""
    return bounded_product(max(stride, 0), max(size - 1, 0))
