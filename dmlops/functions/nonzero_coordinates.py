"""The function `nonzero_coordinates`."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, Unpack, overload

import numpy as np
from numpy import ndarray

from dmlops.array_libraries.base import Operand
from dmlops.array_libraries.detect import compiling_framework
from dmlops.calls.binding import Binding, Spec, check_extended, check_is_pair, check_type_has_level
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, Kind, new_tuple
from dmlops.functions.trimmed_list import BoundTrimmedList, TrimmedList
from dmlops.operators.nonzero_coordinates import (
    Fill,
    NonzeroCoordinates,
    check_fill,
    infer_nonzero_coordinates,
    row_fill,
)
from dmlops.operators.problem import Options
from dmlops.types import arguments
from dmlops.types.array_types import Array, IndexType, Indices, Listed, NonzeroOptions
from dmlops.types.data_types import index_data_type, index_range
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import error_text, refuse
from dmlops.types.opaque_types import OpaqueType
from dmlops.types.tensor import TensorDesc
from kernels_cpu.nonzero_coordinates.fit import ROWS_ASKED_FOR, ROWS_FOR_ALL
from kernels_cpu.nonzero_coordinates.problem_words import WHOLE

# Kernels count bytes in signed integers of 64 bits.
_MOST_BYTES = 2**63 - 1


class NonzeroResult(NamedTuple, Generic[Indices]):
    """The result of `nonzero_coordinates`.

    Attributes
    ----------
    coordinates : array
        One row per non-zero element, one column per dimension.
    count : array
        The number of non-zero elements, without dimensions.
    """

    coordinates: Indices
    count: Indices  # type: ignore[assignment]  # tuples have a method of that name


@overload
def nonzero_coordinates(
    x: np.ndarray | Listed, /, **options: Unpack[NonzeroOptions]
) -> NonzeroResult[np.ndarray]: ...
@overload
def nonzero_coordinates(x: Array, /, **options: Unpack[NonzeroOptions]) -> NonzeroResult[Array]: ...
@arguments.also_known_as(dtype="index_dtype", output_type="index_dtype")
def nonzero_coordinates(
    x: object,
    /,
    *,
    size: SupportsIndex | None = None,
    fill_value: SupportsIndex | Sequence[SupportsIndex] | None = None,
    index_dtype: IndexType = None,
    out: Any = None,
    stream: object = None,
    **unknown: object,
) -> NonzeroResult[Any]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    Parameters
    ----------
    x : array
        An array of any shape, of bools, numbers (complex and float8 included), datetime64 or timedelta64.
    size : int, optional
        The number of rows of the result. By default, the result is trimmed to the count, for which a call on
        a GPU waits. With a size, it never waits.
    fill_value : int or tuple of int, optional
        The value of the rows from the count on, or one for each dimension of `x`, if `size` or `out` is
        given. By default, the rows are undefined.
    index_dtype : data type, optional
        The type of both results: uint32, uint64, int32 or int64. The default is the type of each array of
        `out`. Without `out` it is int64, or JAX's default integer for JAX, or uint32 at a level of DirectML.
    out : tuple of two arrays, optional
        The arrays to write coordinates and count to. The first has as many rows as `size` would say, and the
        second has shape () or (1,). Their types may differ: coordinates fit into int32 more often than a
        count does.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    NonzeroResult
        ``coordinates``, of shape (rows, dimensions of `x`), and ``count``, a 0-d array that stays on the
        device. It is the full count even if there are fewer rows. NaN and NaT are non-zero; 0.0 and -0.0 are
        zero. A complex number is zero if both its parts are.

    Raises
    ------
    InvalidDescriptorError
        If `size` is negative, there are no rows for `fill_value` or it has not a value for each dimension,
        `out` does not fit, or `size` is left out in a CUDA graph capture.
    TypeError
        If `x` is not an array, or is of an unsupported type.
    DeviceMismatchError
        If `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level does not support the call, or the driver or the extra for CUDA arrays is missing.

    Notes
    -----
    `x` is read once. On a GPU, scratch memory is a little more than one bit per element.

    References
    ----------
    DML_NONZERO_COORDINATES_OPERATOR_DESC (directml.h); numpy.argwhere; jax.numpy.nonzero for `size`.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.nonzero_coordinates([[1, 0, 0, 2], [0, 3, 0, -5]])
    NonzeroResult(coordinates=array([[0, 0],
           [0, 3],
           [1, 1],
           [1, 3]]), count=array(4))
    """
    if unknown:
        arguments.refuse_unknown("nonzero_coordinates", unknown)
    where = "nonzero_coordinates"
    if type(x) is not ndarray and (framework := compiling_framework()) is not None:
        return NonzeroResult(*framework.run(SPEC, (x,), out, stream, size, fill_value, index_dtype))
    size = None if size is None else arguments.integer(size, f"{where}.size")
    is_plain = fill_value is None or type(fill_value) is int
    fill: object = fill_value if is_plain else row_fill(fill_value)
    index_type = None if index_dtype is None else index_data_type(index_dtype, f"{where}.index_dtype")
    if out is not None:
        check_is_pair(out, "nonzero_coordinates.out")
        out = tuple(out)
    # One value for all columns is a size of the call.
    value, fills = (fill, True) if type(fill) is int else (0, fill)
    parameters = where, size is None, fills, index_type, level_set()
    sizes = WHOLE, value, size or 0
    results = KINDS.call(parameters, (x,), sizes, out or ()) if stream is None else None
    if results is None:
        results = SPEC.run(parameters, sizes, (x,), out, stream, size, fill, index_type)
    return new_tuple(NonzeroResult, results if out is None else out)  # type: ignore[no-any-return]


def _bind(call: Binding, size: int | None, fill: Fill, index_type: TensorDataType | None) -> BoundCall:
    where = "nonzero_coordinates"
    (data,), out = call.inputs, call.out
    asked = size
    if out and size is None:
        given = out[0].library.describe(out[0].array, f"{where}.out[0]")
        size = given.sizes[0] if given.sizes else 0
    rows, is_trimmed = data.element_count, size is None
    capacity = rows if size is None else size
    count_type = call.index_type(index_type)
    if index_type is None:
        index_type = call.index_type(None, 0)
    check_fill(fill, index_type, data.dimension_count, is_trimmed=is_trimmed)
    # The descriptor has a row for every element; the kernels write as many as there is room for.
    most_rows = _MOST_BYTES // max(data.dimension_count * index_type.bytes, 1)
    if rows > most_rows:
        reason = "a row for each element would make coordinates of more than 2**63 - 1 bytes"
        refuse(f"{where}.x", f"shape {data.sizes}", reason, "pass parts of x")
    coordinates, count = infer_nonzero_coordinates(call.words, data, capacity, index_type, count_type)
    if isinstance(data.data_type, OpaqueType) and data.data_type.magnitude is None:
        reason = f"{call.library.name} is not asked which elements are zero"
        raise TypeError(error_text(f"{where}.x", data.data_type.name, reason, "pass bools: x != 0"))
    if out and out[1].library.describe(out[1].array, f"{where}.out[1]").sizes == (1,):
        count = count.with_leading_ones(1)
    coordinates, count = call.check_outputs(coordinates, count)
    if capacity != rows:
        check_extended(f"{where}.size", capacity, f"DirectML writes one row per element, which are {rows}")
    rows_of_all = TensorDesc(coordinates.data_type, (rows, data.dimension_count))
    descriptor = NonzeroCoordinates.of_inferred(
        input_tensor=data,
        output_count_tensor=count,
        output_coordinates_tensor=coordinates if capacity == rows else rows_of_all,
    )
    options = Options(coordinates=coordinates, fill=fill)
    rows_asked = 0 if asked is None else ROWS_ASKED_FOR
    if level_set() not in (None, FeatureLevel.EXTENDED):
        rows_asked |= ROWS_FOR_ALL
    form = KindForm(
        where,
        TrimmedList if is_trimmed and not out else Kind,
        sizes=(WHOLE, fill if isinstance(fill, int) else 0, asked or 0),
        fixed=(*index_range(index_type), min(index_range(count_type)[0], most_rows), rows_asked),
        shapes=_result_shapes,
    )
    make = BoundTrimmedList if is_trimmed else BoundCall
    return call.plan(descriptor, options, make, even_if_empty=True, form=form)


def _result_shapes(inputs: Sequence[Any], sizes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return (sizes[2], len(inputs[0].shape)), ()


def _as_bools_if_complex(x: Operand, where: str, stream: int | None) -> Operand:
    """Return an array whose elements kernels can test for zero: bools in the place of complex128."""
    dtype = x.array.dtype
    if dtype.itemsize != 16 or not str(dtype).endswith("complex128"):
        return x
    check_type_has_level(x.library.describe(x.array, where).data_type, where)
    return x.library.as_bools(x, stream) or x


SPEC = Spec(
    "nonzero_coordinates",
    _bind,
    inputs=("x",),
    results={"coordinates": "index_dtype", "count": "index_dtype"},
    fields={"input_tensor": "x", "output_coordinates_tensor.sizes": "size"},
    made={"output_coordinates_tensor": "index_dtype", "output_count_tensor": "index_dtype"},
    has_derivative=False,
    convert=_as_bools_if_complex,
)
