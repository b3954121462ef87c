"""The problems of all operators as plain integers. `dmlops` makes them, and packages of kernels plan them.

These are the only classes that both sides of the seam know.
"""

from typing import NamedTuple

Dims = tuple[tuple[int, ...], ...]
"""Dimensions, the slowest first: for each its size, and the strides of all arrays along it, in elements."""


class KeyMasks(NamedTuple):
    """The integers by which kernels turn the bits of an element into a key with the same order.

    Attributes
    ----------
    sign, flip, infinity : int
        The sign bit, the bits that a set sign bit inverts, and the bits of infinity: 0, 0 and all ones for
        unsigned integers.
    """

    sign: int
    flip: int
    infinity: int


class TopKProblem(NamedTuple):
    """A selection as kernels see it.

    Attributes
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    masks : KeyMasks
        How elements compare.
    largest : bool
        Whether the largest elements come first; NaN is the largest.
    k, axis_size : int
        How many results each row has, and the end of its positions. If rows have neither lengths nor starts
        nor numbers, ``0 <= k <= axis_size``.
    rows : tuple of (size, x_stride, value_stride, index_stride)
        The other dimensions, slowest first; strides in elements.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    is_sorted : bool
        Whether results are in order of key, equal ones by ascending position; else all by ascending position.
    length_size, length_signed : int, bool
        Bytes of a row's length (4, 8), or 0 if all rows have `axis_size` elements; whether it is signed.
    length_strides : tuple of int
        Strides of the lengths along the dimensions of `rows`.
    padding : int
        Bits of the values behind a row with fewer than `k` elements; their indices have all bits set.
    start_size, start_signed, start_strides
        As those of lengths, of the position at which a row begins.
    max_length : int, optional
        The most elements of a row that take part, the first ones of those that exist; by default `axis_size`.
    nan_last : bool
        Whether NaN comes last; only where the largest floats come first, and it would come first.
    number_size, number_signed, number_strides
        As those of lengths, of the caller's numbers of the elements, which stand in the place of positions in
        results and among equal elements; those of which all bits are set take no part.
    number_step : int
        Stride of the numbers along the axis.
    """

    element_size: int
    index_size: int
    masks: KeyMasks
    largest: bool
    k: int
    axis_size: int
    rows: Dims
    axis_strides: tuple[int, ...]
    is_sorted: bool = True
    length_size: int = 0
    length_signed: bool = True
    length_strides: tuple[int, ...] = ()
    padding: int = 0
    start_size: int = 0
    start_signed: bool = True
    start_strides: tuple[int, ...] = ()
    max_length: int | None = None
    nan_last: bool = False
    number_size: int = 0
    number_signed: bool = True
    number_strides: tuple[int, ...] = ()
    number_step: int = 0


class NonzeroProblem(NamedTuple):
    """A listing of non-zero elements as kernels see it.

    Attributes
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    magnitude : int
        An element is non-zero if ``bits & magnitude`` is.
    sizes : tuple of int
        The dimensions whose coordinates are columns of the output, slowest first.
    dims : tuple of (size, stride)
        The merged layout of the input, in the same order of elements.
    x_offset : int
        How many elements the input has below its first one in memory.
    capacity : int
        Rows that may be written.
    coordinate_strides : tuple of two ints
        Elements from row to row, and from column to column.
    coordinate_size, count_size : int
        Bytes of a coordinate and of the count: 4 or 8.
    fill : tuple of int
        Bits for the rows from the count on: for all columns, or for each; none leave the rows as they are.
    fills_columns : bool
        Whether there are bits for each column, even if that is the only one.
    """

    element_size: int
    magnitude: int
    sizes: tuple[int, ...]
    dims: Dims
    x_offset: int
    capacity: int
    coordinate_strides: tuple[int, ...]
    coordinate_size: int
    count_size: int
    fill: tuple[int, ...]
    fills_columns: bool = False


class GatherProblem(NamedTuple):
    """A gather as kernels see it; strides are in elements, and dimensions the slowest first.

    Attributes
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    index_signed : bool
        Whether indices may be negative.
    batch : tuple of (size, x_stride, index_stride, output_stride)
        Dimensions that input, indices and output share.
    tuples : tuple of (size, index_stride, output_stride)
        Dimensions that indices and output share.
    coordinate_stride : int
        From coordinate to coordinate of an index tuple.
    bounds : tuple of (size, x_stride)
        The dimension that each coordinate of a tuple indexes; a tuple without coordinates takes all.
    slices : tuple of (size, x_stride, output_stride)
        Dimensions that input and output share.
    mode : {"clip", "fill"}
        Whether an index out of range becomes the nearest one in it, or its slice is filled.
    fill : int
        Bits of the element that fills slices.
    wraps : bool
        Whether negative indices count from the end; they are out of range otherwise.
    x_offset : int
        How many elements the input has below its first one in memory.
    """

    element_size: int
    index_size: int
    index_signed: bool
    batch: Dims
    tuples: Dims
    coordinate_stride: int
    bounds: Dims
    slices: Dims
    mode: str
    fill: int
    wraps: bool
    x_offset: int


class DiagonalProblem(NamedTuple):
    """Matrices and their band as kernels see them; strides are in elements.

    Attributes
    ----------
    element_size : int
        Bytes of an element: 1, 2, 4 or 8.
    has_input : bool
        Whether the other elements are copied; else they are zero.
    value : int
        The bits of the band.
    batch : tuple of (size, x_stride, output_stride)
        All dimensions but rows and columns, slowest first.
    height, width : int
        Rows and columns of a matrix.
    x_strides, output_strides : tuple of two ints
        From row to row, and from column to column.
    begin, end : int
        The band is ``begin <= column - row < end``, with ``-height <= begin <= end <= width``.
    inverted : bool
        Whether everything else is filled instead.
    """

    element_size: int
    has_input: bool
    value: int
    batch: Dims
    height: int
    width: int
    x_strides: tuple[int, ...]
    output_strides: tuple[int, ...]
    begin: int
    end: int
    inverted: bool


class SampleProblem(NamedTuple):
    """The tokens of all rows as kernels see them.

    Attributes
    ----------
    element_size, mantissa : int
        Bytes of a logit (2, 4, 8), and the bits of its fraction.
    index_size : int
        Bytes of a token (4, 8).
    axis_size, x_step : int
        Elements of a row, and the stride along it.
    formats, values : tuple of int
        The parameters, as `kernels_cpu.sample.problem_words` describes them.
    rows : tuple of (size, x_stride, output_stride, parameter strides)
        The other dimensions, slowest first; strides in elements.
    """

    element_size: int
    mantissa: int
    index_size: int
    axis_size: int
    x_step: int
    formats: tuple[int, ...]
    values: tuple[int, ...]
    rows: Dims


Problem = TopKProblem | NonzeroProblem | GatherProblem | DiagonalProblem | SampleProblem
