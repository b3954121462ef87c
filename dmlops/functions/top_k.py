"""The function `top_k`."""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, SupportsIndex, Unpack, overload

import numpy as np
from numpy import ndarray

from dmlops.array_libraries.detect import compiling_framework
from dmlops.calls.binding import Binding, Spec, check_extended, check_is_pair
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, Kind, new_tuple
from dmlops.devices.memory import CPU
from dmlops.operators.problem import Options
from dmlops.operators.top_k import (
    Selection,
    TopK1,
    batch_of_selections,
    broadcast_rows,
    broadcast_sizes,
    check_type_of_numbers,
    infer_top_k,
)
from dmlops.types import arguments
from dmlops.types.array_types import Array, Element, IndexType, Indices, Listed, TopKOptions, Truth, Values
from dmlops.types.data_types import index_data_type, index_range
from dmlops.types.enums import AxisDirection, FeatureLevel
from dmlops.types.errors import error_text, refuse
from dmlops.types.opaque_types import OpaqueType

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    x: "NDArray[Element]", /, k: SupportsIndex, **options: Unpack[TopKOptions]
) -> "TopKResult[NDArray[Element], np.ndarray]": ...
@overload
def top_k(
    x: Listed, /, k: SupportsIndex, **options: Unpack[TopKOptions]
) -> TopKResult[np.ndarray, np.ndarray]: ...
@overload
def top_k(x: Array, /, k: SupportsIndex, **options: Unpack[TopKOptions]) -> TopKResult[Array, Array]: ...
@arguments.also_known_as(dim="axis", descending="largest", dtype="index_dtype", num="k")
def top_k(
    x: object,
    /,
    k: SupportsIndex,
    *,
    axis: SupportsIndex = -1,
    largest: Truth = True,
    sorted: Truth = True,
    starts: object = None,
    lengths: object = None,
    max_length: SupportsIndex | None = None,
    indices: object = None,
    nan_last: Truth = False,
    index_dtype: IndexType = None,
    out: Any = None,
    stream: object = None,
    **unknown: object,
) -> TopKResult[Any, Any]:
    """Return the `k` largest or smallest elements along an axis, and their indices.

    Parameters
    ----------
    x : array
        An array of any shape; a 0-d array is treated as one of shape (1,). Its elements are bools, integers,
        floats or, on the CPU, datetime64 or timedelta64.
    k : int
        The number of elements to select: from 0 to the size of the axis, or more with `starts`, `lengths` or
        `indices`.
    axis : int
        The dimension along which to select.
    largest : bool
        Whether to select the largest elements, or the smallest.
    sorted : bool
        Whether the results are in order of value. False selects the same elements, and returns them in
        ascending order of index.
    starts, lengths : int or array of uint32, uint64, int32 or int64, optional
        The window of each row: the elements take part that exist at positions from ``starts`` (by default 0;
        negative ones are before the row) up to, not including, ``starts + lengths`` (by default the end of
        the row; negative lengths stand for 0). Both broadcast with each other and with the shape of `x`
        without the axis. If that adds dimensions, the axis must be the last one, and the results have the
        broadcast shape: a one-dimensional `x` with the `starts` and `lengths` of segments gives a row for
        each segment.
    max_length : int, optional
        At most that many elements of each window take part, the first ones. A call with windows is planned
        for rows of this length.
    indices : array of uint32, uint64, int32 or int64, optional
        The caller's own numbers of the elements, which broadcast to the shape of `x`; a one-dimensional array
        lies along the axis. They are returned in the place of positions, in their type, and settle ties.
        An element numbered -1 (all bits set) takes no part.
    nan_last : bool
        Whether NaN loses to every other element. It changes the order of the largest elements only.
    index_dtype : data type, optional
        The type of the indices: uint32, uint64, int32 or int64. The default is the type of `indices`, or of
        the second array of `out`. Otherwise it is int64, or JAX's default integer for JAX, or uint32 at a
        level of DirectML.
    out : tuple of two arrays, optional
        The arrays to write values and indices to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    TopKResult
        ``values``, of the type of `x`, and ``indices`` along the axis, which count from the beginning of the
        axis of `x`. Both have the shape of `x`, with size `k` along the axis. Ties are in ascending order of
        index, among the largest as among the smallest; equal numbers of `indices` in order of position. NaN
        is the largest value, all NaNs tie, and -0.0 ties with 0.0; NaT is the largest date or duration.
        Values are those of `x` bit for bit. If fewer than `k` elements of a row take part, its results end
        with index -1 (all bits set in an unsigned type) and minus infinity or the lowest integer; for the
        smallest elements, with infinity or the highest integer.

    Raises
    ------
    InvalidDescriptorError
        If `axis`, `k` or `max_length` is out of range, or `starts`, `lengths`, `indices`, `index_dtype` or
        `out` does not fit.
    TypeError
        If `x`, `starts`, `lengths` or `indices` is not an array, or is of an unsupported type.
    DeviceMismatchError
        If `starts`, `lengths`, `indices`, `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level does not support the call, or the driver or the extra for CUDA arrays is missing.

    Notes
    -----
    The call never waits, except for JAX arrays. A GPU reads `starts`, `lengths` and `indices` from its own
    memory, where they must stay as they are until the call has ended there. `x` is read about once; on a GPU,
    scratch memory comes from its library. The levels of DirectML do not support `starts`, `lengths`,
    `indices` and `nan_last`. They do support ``sorted=False``, which only changes the order of the results.

    References
    ----------
    DML_TOP_K1_OPERATOR_DESC (directml.h); numpy.top_k.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.top_k([1, 3, 2, 3], 2)
    TopKResult(values=array([3, 3]), indices=array([1, 3]))
    """
    if unknown:
        arguments.refuse_unknown("top_k", unknown)
    given: tuple[str, ...] = ()
    inputs: tuple[object, ...] = (x,)
    if not (starts is lengths is indices is max_length is None):
        arrays = given_arrays(lengths, starts, indices)
        given, inputs = tuple(arrays), (x, *arrays.values())
        max_length = plain_max_length(max_length, given)
    if type(x) is not ndarray and (framework := compiling_framework()) is not None:
        selection = Selection(k, axis, largest, sorted, nan_last, max_length, index_dtype, given)  # type: ignore[arg-type]
        return TopKResult(*framework.run(SPEC, inputs, out, stream, selection))
    if not (type(k) is int is type(axis) and type(largest) is bool is type(sorted) is type(nan_last)):
        k, axis = arguments.integer(k, "top_k.k"), arguments.integer(axis, "top_k.axis")
        largest = arguments.boolean(largest, "top_k.largest")
        sorted = arguments.boolean(sorted, "top_k.sorted")
        nan_last = arguments.boolean(nan_last, "top_k.nan_last")
    index_type = None if index_dtype is None else index_data_type(index_dtype, "top_k.index_dtype")
    if out is not None:
        check_is_pair(out, "top_k.out")
        out = tuple(out)
    parameters = "top_k", axis, largest, sorted, nan_last, index_type, given, level_set()
    sizes = k, _ALL if max_length is None else max_length
    results = KINDS.call(parameters, inputs, sizes, out or ()) if stream is None else None
    if results is None:
        selection = Selection(k, axis, largest, sorted, nan_last, max_length, index_type, given)
        results = SPEC.with_arrays(given).run(parameters, sizes, inputs, out, stream, selection)
    return new_tuple(TopKResult, results if out is None else out)  # type: ignore[no-any-return]


def given_arrays(lengths: object, starts: object, indices: object) -> dict[str, object]:
    """Return the arrays beside `x` that a call has, by name; see `Selection`."""
    given = {}
    for name, array in (("lengths", lengths), ("starts", starts), ("indices", indices)):
        if array is not None:
            given[name] = arguments.integers(array)
    return given


def plain_max_length(max_length: object, given: Container[str]) -> int | None:
    """Return the most elements of a row as a plain int; refuse it where rows are no windows."""
    if max_length is None:
        return None
    number = arguments.size(max_length, "top_k.max_length")
    if "lengths" not in given and "starts" not in given:
        reason, remedy = "there are neither starts nor lengths", "slice x"
        refuse("top_k.max_length", number, reason, remedy)
    return number


def _bind(call: Binding, selection: Selection) -> BoundCall:
    data, *others = call.inputs
    tensors = selection.arrays(others)
    numbers = tensors.get("indices")
    rows = broadcast_rows(data, selection.axis, tensors)
    if numbers is None:
        index_type = call.index_type(selection.index_type)
    else:
        check_type_of_numbers(numbers, selection.index_type)
        index_type = numbers.data_type
    inferred = infer_top_k(call.words, rows, selection.k, index_type)
    if isinstance(data.data_type, OpaqueType) and call.device is not CPU:
        reason = "top_k of dates and durations runs only on the CPU"
        remedy = "pass their int64; NaT is the lowest"
        raise TypeError(error_text("top_k.x", data.data_type.name, reason, remedy))
    values, indices = call.check_outputs(*inferred)
    _check_level(selection)
    descriptor = TopK1.of_inferred(
        input_tensor=rows.x,
        axis=rows.axis % rows.x.dimension_count,
        k=selection.k,
        output_value_tensor=values,
        output_index_tensor=indices,
        axis_direction=AxisDirection.DECREASING if selection.largest else AxisDirection.INCREASING,
    )
    options = Options(
        is_sorted=selection.is_sorted,
        lengths=rows.lengths,
        starts=rows.starts,
        numbers=rows.numbers,
        max_length=selection.max_length,
        nan_last=selection.nan_last,
    )
    return call.plan(descriptor, options, form=_form_of(descriptor, selection))


def _check_level(selection: Selection) -> None:
    """Refuse at a level of DirectML what it has no fields for."""
    reasons = {
        "lengths": "DirectML selects among all elements of a row",
        "starts": "DirectML selects among all elements of a row",
        "indices": "DirectML returns positions",
    }
    for name in selection.given:
        check_extended(f"top_k.{name}", "an array", reasons[name])
    if selection.nan_last:
        check_extended("top_k.nan_last", True, "DirectML does not say where NaN comes")
    if selection.k == 0:
        check_extended("top_k.k", 0, "DirectML selects at least 1")


def _form_of(descriptor: TopK1, selection: Selection) -> KindForm:
    """Return how native code makes other calls of the kind."""
    axis, index_type = descriptor.axis, descriptor.output_index_tensor.data_type
    least_k = 0 if level_set() in (None, FeatureLevel.EXTENDED) else 1
    is_plain = not {"lengths", "starts"} & set(selection.given)

    def shapes(inputs: Sequence[Any], sizes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        given = inputs[0].shape or (1,)
        if is_plain:
            shape = (*given[:axis], sizes[0], *given[axis + 1 :])
            return shape, shape
        rows = (*given[:axis], *given[axis + 1 :]) if len(given) > axis else given[:-1]
        for name, array in zip(selection.given, inputs[1:], strict=True):
            if name != "indices":
                # Shapes that do not broadcast do not fit the outputs either.
                rows = broadcast_sizes(rows, array.shape) or ()
        shape = (*rows[:axis], sizes[0], *rows[axis:])
        return shape, shape

    fixed = axis, least_k, index_range(index_type)[0]
    longest = _ALL if selection.max_length is None else selection.max_length
    return KindForm("top_k", Kind, (selection.k, longest), fixed, shapes)


# Elements that no axis has: all of a row take part.
_ALL = (1 << 63) - 1


SPEC = Spec(
    "top_k",
    _bind,
    inputs=("x",),
    results={"values": "x", "indices": "index_dtype"},
    fields={
        "input_tensor": "x",
        "axis_direction": "largest",
        "output_value_tensor.sizes": "x",
        "output_index_tensor.sizes": "x",
    },
    made={"output_value_tensor": "values", "output_index_tensor": "index_dtype"},
    batch=batch_of_selections,
)
