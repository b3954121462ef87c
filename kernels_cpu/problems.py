"""The problems of all operators as plain integers. `dmlops` makes them, and packages of kernels plan them.

These are the only classes that both sides of the seam know.
"""

from typing import NamedTuple

Dims = tuple[tuple[int, ...], ...]
"""Dimensions, the slowest first: for each its size, and the strides of all arrays along it, in elements."""


class KeyMasks(NamedTuple):
    """The integers by which kernels turn the bits of an element into a key with the same order."""

    sign: int
    flip: int
    infinity: int
    """The sign bit, the bits that a set sign bit inverts, and the bits of infinity: 0, 0 and all ones for
    unsigned integers."""


class TopKProblem(NamedTuple):
    """A selection as kernels see it."""

    element_size: int
    index_size: int
    """Bytes of an element (1, 2, 4, 8) and of an index (4, 8)."""
    masks: KeyMasks
    """How elements compare."""
    largest: bool
    """Whether the largest elements come first; NaN is the largest."""
    k: int
    axis_size: int
    """How many results each row has, and the end of its positions. If rows have neither lengths nor starts
    nor numbers, ``0 <= k <= axis_size``."""
    rows: Dims
    """(size, x_stride, value_stride, index_stride) of the other dimensions, slowest first; in elements."""
    axis_strides: tuple[int, ...]
    """Strides of x, values and indices along the axis."""
    is_sorted: bool = True
    """Whether results are in order of key, equal ones by ascending position; else all are in that order."""
    length_size: int = 0
    length_signed: bool = True
    """Bytes of a row's length (4, 8), or 0 if all rows have `axis_size` elements; whether it is signed."""
    length_strides: tuple[int, ...] = ()
    """Strides of the lengths along the dimensions of `rows`."""
    padding: int = 0
    """Bits of the values behind a row with fewer than `k` elements; their indices have all bits set."""
    start_size: int = 0
    start_signed: bool = True
    start_strides: tuple[int, ...] = ()
    """As those of lengths, of the position at which a row begins."""
    max_length: int | None = None
    """The most elements of a row that take part, the first ones that exist; by default `axis_size`."""
    nan_last: bool = False
    """Whether NaN comes last; only where the largest floats come first, and it would come first."""
    number_size: int = 0
    number_signed: bool = True
    number_strides: tuple[int, ...] = ()
    """As those of lengths, of the caller's numbers of the elements, which stand in the place of positions in
    results and among equal elements; those of which all bits are set take no part."""
    number_step: int = 0
    """Stride of the numbers along the axis."""


class NonzeroProblem(NamedTuple):
    """A listing of non-zero elements as kernels see it."""

    element_size: int
    """Bytes of an element: 1, 2, 4 or 8."""
    magnitude: int
    """An element is non-zero if ``bits & magnitude`` is."""
    sizes: tuple[int, ...]
    """The dimensions whose coordinates are columns of the output, slowest first."""
    dims: Dims
    """(size, stride) of the merged layout of the input, in the same order of elements."""
    x_offset: int
    """How many elements the input has below its first one in memory."""
    capacity: int
    """Rows that may be written."""
    coordinate_strides: tuple[int, ...]
    """Elements from row to row, and from column to column."""
    coordinate_size: int
    count_size: int
    """Bytes of a coordinate and of the count: 4 or 8."""
    fill: tuple[int, ...]
    """Bits for the rows from the count on: for all columns, or for each; none leave the rows as they are."""
    fills_columns: bool = False
    """Whether there are bits for each column, even if that is the only one."""


class GatherProblem(NamedTuple):
    """A gather as kernels see it; strides are in elements, and dimensions the slowest first."""

    element_size: int
    index_size: int
    """Bytes of an element (1, 2, 4, 8) and of an index (4, 8)."""
    index_signed: bool
    """Whether indices may be negative."""
    batch: Dims
    """(size, x_stride, index_stride, output_stride) of the dimensions that all three share."""
    tuples: Dims
    """(size, index_stride, output_stride) of dimensions that indices and output share."""
    coordinate_stride: int
    """From coordinate to coordinate of an index tuple."""
    bounds: Dims
    """(size, x_stride) of the dimension that each coordinate indexes; a tuple without any takes all."""
    slices: Dims
    """(size, x_stride, output_stride) of dimensions that input and output share."""
    mode: str
    """``"clip"``: an index out of range becomes the nearest one in it; ``"fill"``: its slice is filled."""
    fill: int
    """Bits of the element that fills slices."""
    wraps: bool
    """Whether negative indices count from the end; they are out of range otherwise."""
    x_offset: int
    """How many elements the input has below its first one in memory."""


class DiagonalProblem(NamedTuple):
    """Matrices and their band as kernels see them; strides are in elements."""

    element_size: int
    """Bytes of an element: 1, 2, 4 or 8."""
    has_input: bool
    """Whether the other elements are copied; else they are zero."""
    value: int
    """The bits of the band."""
    batch: Dims
    """(size, x_stride, output_stride) of all dimensions but rows and columns, slowest first."""
    height: int
    width: int
    """Rows and columns of a matrix."""
    x_strides: tuple[int, ...]
    output_strides: tuple[int, ...]
    """From row to row, and from column to column."""
    begin: int
    end: int
    """The band is ``begin <= column - row < end``, with ``-height <= begin <= end <= width``."""
    inverted: bool
    """Whether everything else is filled instead."""


WHOLE_ROWS, SHARD_SUMS, SHARD_TARGETS, SHARD_TOKENS = range(4)
"""What a call of `sample` computes: tokens, or a stage of a draw from shards (`sample.problem_words`)."""


class SampleProblem(NamedTuple):
    """The tokens of all rows as kernels see them."""

    element_size: int
    mantissa: int
    """Bytes of a logit (2, 4, 8), and the bits of its fraction."""
    index_size: int
    """Bytes of a token (4, 8)."""
    axis_size: int
    x_step: int
    """Elements of a row, and the stride along it."""
    formats: tuple[int, ...]
    values: tuple[int, ...]
    """The parameters, as `kernels_cpu.sample.problem_words` describes them."""
    rows: Dims
    """(size, x_stride, output_stride, strides of parameters) of the other dimensions, slowest first."""
    stage: int = WHOLE_ROWS


Problem = TopKProblem | NonzeroProblem | GatherProblem | DiagonalProblem | SampleProblem
