"""The function `top_k`."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, Unpack, overload

from numpy import ndarray
from numpy.typing import NDArray

from dmlops.array_libraries.detect import compiling_framework
from dmlops.calls.binding import Binding, Function, check_extended, check_is_pair
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, Kind, new_tuple
from dmlops.devices.memory import CPU
from dmlops.operators.problem import Options
from dmlops.operators.top_k import TopK1, infer_top_k
from dmlops.types import arguments
from dmlops.types.array_types import Array, Element, IndexType, Indices, Listed, TopKOptions, Truth, Values
from dmlops.types.data_types import index_data_type, index_range
from dmlops.types.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.types.errors import error_text
from dmlops.types.opaque_types import OpaqueType


class TopKResult(NamedTuple, Generic[Values, Indices]):
    """The result of `top_k`.

    Attributes
    ----------
    values : array
        The selected elements.
    indices : array
        Their positions along the axis.
    """

    values: Values
    indices: Indices


@overload
def top_k(
    x: NDArray[Element], /, k: SupportsIndex, **options: Unpack[TopKOptions]
) -> TopKResult[NDArray[Element], NDArray[Any]]: ...
@overload
def top_k(
    x: Listed, /, k: SupportsIndex, **options: Unpack[TopKOptions]
) -> TopKResult[NDArray[Any], NDArray[Any]]: ...
@overload
def top_k(x: Array, /, k: SupportsIndex, **options: Unpack[TopKOptions]) -> TopKResult[Array, Array]: ...
def top_k(
    x: Any,
    /,
    k: SupportsIndex,
    *,
    axis: SupportsIndex = -1,
    largest: Truth = True,
    sorted: Truth = True,
    lengths: Any = None,
    index_dtype: IndexType = None,
    out: Any = None,
    stream: Any = None,
) -> TopKResult[Any, Any]:
    """Return the `k` largest or smallest elements along an axis, and their indices.

    Parameters
    ----------
    x : array
        An array of any shape; a 0-d array is treated as one of shape (1,). Its elements are bools, integers,
        floats or, on the CPU, datetime64 or timedelta64.
    k : int
        The number of elements to select, from 0 to the size of the axis.
    axis : int
        The dimension along which to select.
    largest : bool
        Whether to select the largest elements, or the smallest.
    sorted : bool
        Whether the results are in order of value. False selects the same elements, and returns them in
        ascending order of index.
    lengths : array of uint32, uint64, int32 or int64, optional
        The number of leading elements of each row that take part, in the shape of `x` without the axis.
        Numbers above the size of the axis stand for all elements, and negative ones for none.
    index_dtype : data type, optional
        The type of the indices: uint32, uint64, int32 or int64. The default is the type of the second array
        of `out`. Without `out` it is int64, or JAX's default integer for JAX, or uint32 at a level of
        DirectML.
    out : tuple of two arrays, optional
        The arrays to write values and indices to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    TopKResult
        ``values``, of the type of `x`, and ``indices`` along the axis. Both have the shape of `x`, with size
        `k` along the axis. Ties are in ascending order of index, among the largest as among the
        smallest. NaN is the largest value, all NaNs tie, and -0.0 ties with 0.0; NaT is the largest date or
        duration. Values are those of `x` bit for bit. If a row has fewer than `k` elements because of
        `lengths`, its results end with index -1 (all bits set in an unsigned type) and minus infinity or the
        lowest integer; for the smallest elements, with infinity or the highest integer.

    Raises
    ------
    InvalidDescriptorError
        If `axis` or `k` is out of range, or `lengths` or `out` does not fit.
    TypeError
        If `x` or `lengths` is not an array, or is of an unsupported type.
    DeviceMismatchError
        If `lengths`, `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level does not support the call, or the driver or the extra for CUDA arrays is missing.

    Notes
    -----
    The call never waits, except for JAX arrays. A GPU reads `lengths` from its own memory, where they must
    stay as they are until the call has ended there. `x` is read about once; on a GPU, scratch memory comes
    from its library. The levels of DirectML do not support `lengths`.
    They do support ``sorted=False``, which only changes the order of the results.

    References
    ----------
    DML_TOP_K1_OPERATOR_DESC (directml.h); numpy.top_k.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.top_k([1, 3, 2, 3], 2)
    TopKResult(values=array([3, 3]), indices=array([1, 3]))
    """
    inputs = (x,) if lengths is None else (x, lengths)
    if type(x) is not ndarray and (framework := compiling_framework()) is not None:
        others = k, axis, largest, sorted, index_dtype
        return TopKResult(*framework.top_k(TOP_K.words, inputs, out, stream, *others))
    if not (type(k) is int is type(axis) and type(largest) is bool is type(sorted)):
        k, axis = arguments.integer(k, "top_k.k"), arguments.integer(axis, "top_k.axis")
        largest = arguments.boolean(largest, "top_k.largest")
        sorted = arguments.boolean(sorted, "top_k.sorted")
    index_type = None if index_dtype is None else index_data_type(index_dtype, "top_k.index_dtype")
    if out is not None:
        check_is_pair(out, "top_k.out")
        out = tuple(out)
    parameters = "top_k", axis, largest, sorted, index_type, level_set()
    results = KINDS.call(parameters, inputs, (k,), out or ()) if stream is None else None
    if results is None:
        results = TOP_K.run(parameters, (k,), inputs, out, stream, k, axis, largest, sorted, index_type)
    return new_tuple(TopKResult, results if out is None else out)  # type: ignore[no-any-return]


def _bind(
    call: Binding, k: int, axis: int, largest: bool, is_sorted: bool, index_type: TensorDataType | None
) -> BoundCall:
    data, lengths = call.inputs[0], call.inputs[1] if len(call.inputs) > 1 else None
    inferred = infer_top_k(call.words, data, k, axis, call.index_type(index_type), lengths)
    if isinstance(data.data_type, OpaqueType) and call.device is not CPU:
        reason = "top_k of dates and durations runs only on the CPU"
        remedy = "pass their int64; NaT is the lowest"
        raise TypeError(error_text("top_k.x", data.data_type.name, reason, remedy))
    values, indices = call.check_outputs(*inferred)
    if lengths is not None:
        check_extended("top_k.lengths", "an array", "DirectML selects among all elements of a row")
    if k == 0:
        check_extended("top_k.k", 0, "DirectML selects at least 1")
    data = data if data.sizes else data.with_leading_ones(1)
    descriptor = TopK1.of_inferred(
        input_tensor=data,
        axis=axis % data.dimension_count,
        k=k,
        output_value_tensor=values,
        output_index_tensor=indices,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
    )
    options = Options(is_sorted=is_sorted, lengths=lengths)
    return call.plan(descriptor, options, form=_form_of(descriptor, k))


def _form_of(descriptor: TopK1, k: int) -> KindForm:
    """Return how native code makes other calls of the kind."""
    axis, index_type = descriptor.axis, descriptor.output_index_tensor.data_type
    least_k = 0 if level_set() in (None, FeatureLevel.EXTENDED) else 1

    def shapes(inputs: Sequence[Any], sizes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        given = inputs[0].shape or (1,)
        shape = (*given[:axis], *sizes, *given[axis + 1 :])
        return shape, shape

    fixed = axis, least_k, index_range(index_type)[0]
    return KindForm("top_k", Kind, (k,), fixed, shapes)


TOP_K = Function(
    "top_k",
    _bind,
    inputs=("x", "lengths"),
    results={"values": "x", "indices": "index_dtype"},
    fields={
        "input_tensor": "x",
        "axis_direction": "largest",
        "output_value_tensor.sizes": "x",
        "output_index_tensor.sizes": "x",
    },
    made={"output_value_tensor": "values", "output_index_tensor": "index_dtype"},
)
