"""The function `gather_nd`."""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, Unpack, overload

import numpy as np
from numpy import ndarray

from dmlops.array_libraries.detect import as_plain, compiling_framework, find_library
from dmlops.calls.binding import Binding, Spec
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, NO_ARRAY_ERRORS, Kind
from dmlops.functions.checked_gather import BoundCheckedGather, CheckedGather
from dmlops.operators.fill_values import held_bytes
from dmlops.operators.gather_nd import (
    GatherND1,
    batch_of_gathers,
    check_can_be_in_range,
    check_is_one_array,
    check_mode,
    element_fill,
    infer_gather_nd,
)
from dmlops.operators.problem import Options
from dmlops.types import arguments
from dmlops.types.array_types import Array, Element, GatherOptions, Listed, Mode, Truth
from dmlops.types.scalars import scalar_key, scalar_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@overload
def gather_nd(
    x: "NDArray[Element]", indices: np.ndarray | Listed, /, **options: Unpack[GatherOptions]
) -> "NDArray[Element]": ...
@overload
def gather_nd(x: Listed, indices: np.ndarray | Listed, /, **options: Unpack[GatherOptions]) -> np.ndarray: ...
@overload
def gather_nd(x: Array, indices: object, /, **options: Unpack[GatherOptions]) -> Array: ...
@arguments.also_known_as(batch_dimensions="batch_dims")
def gather_nd(
    x: object,
    indices: object,
    /,
    *,
    batch_dims: SupportsIndex = 0,
    mode: Mode = "raise",
    fill_value: object = 0,
    wrap_negative: Truth = True,
    out: object = None,
    stream: object = None,
    **unknown: object,
) -> object:
    """Return the elements or slices of `x` that index tuples point at.

    Parameters
    ----------
    x : array
        An array of shape (batch..., indexed..., slice...), of bools, numbers (complex and float8 included),
        datetime64, timedelta64 or structured elements.
    indices : array of uint32, uint64, int32 or int64
        An array of shape (batch..., any..., tuple size), or nested lists of numbers. A tuple of length 0
        selects all of `x`, or all of its batch. Arrays in a tuple, as from `numpy.nonzero`, are refused: pass
        ``np.stack(arrays, -1)``.
    batch_dims : int
        The number of leading dimensions that `x` and `indices` have in common.
    mode : {"raise", "clip", "fill"}
        What happens to an index out of range. ``"raise"`` raises IndexOutOfRangeError; a call on a GPU waits
        for this check. ``"clip"`` takes the nearest valid index, as DirectML does. ``"fill"`` gives
        `fill_value`.
    fill_value : scalar
        The value that ``mode="fill"`` gives: one that the type of `x` holds, as `diagonal_matrix` takes it.
        Other modes take 0 only, since they would not use it.
    wrap_negative : bool
        Whether negative indices count from the end of their dimension. Otherwise they are out of range, such
        as the -1 of padded results, and ``"clip"`` takes index 0 for them.
    out : array, optional
        The array to write to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        An array of the type of `x` and of shape (batch..., any..., slice...).

    Raises
    ------
    IndexOutOfRangeError
        With ``mode="raise"``, if an index is out of range. Names the first such tuple in element order.
    InvalidDescriptorError
        If the shapes, `mode`, `fill_value` or `out` do not fit, or in a CUDA graph capture with
        ``mode="raise"``.
    TypeError
        If an argument is not an array, or is of an unsupported type.
    DeviceMismatchError
        If the arrays or `stream` are on different devices.
    UnsupportedFeatureError
        If the feature level does not support the call, or the driver or the extra for CUDA arrays is missing.

    Notes
    -----
    The call reads the indices and the slices, and writes the result. It needs no scratch memory.

    References
    ----------
    DML_GATHER_ND1_OPERATOR_DESC (directml.h); ONNX GatherND.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.gather_nd([[0, 1], [2, 3]], [[1], [0]])
    array([[2, 3],
           [0, 1]])
    >>> dmlops.gather_nd([5, 6, 7], [[2], [-1]], mode="fill", fill_value=9, wrap_negative=False)
    array([7, 9])
    """
    if unknown:
        arguments.refuse_unknown("gather_nd", unknown)
    inputs = plain = x, indices
    if type(mode) is not str:
        check_mode(mode)
    if type(x) is not ndarray and (framework := compiling_framework()) is not None:
        check_is_one_array(indices)
        others = batch_dims, mode, fill_value, wrap_negative
        return framework.run(SPEC, inputs, out, stream, *others)[0]
    if type(batch_dims) is not int:
        batch_dims = arguments.integer(batch_dims, "gather_nd.batch_dims")
    if type(wrap_negative) is not bool:
        wrap_negative = arguments.boolean(wrap_negative, "gather_nd.wrap_negative")
    fill: Hashable = 0
    if type(fill_value) is not int or fill_value != 0:
        find_library(fill_value, "gather_nd.fill_value").check_scalar(fill_value, "gather_nd.fill_value")
        fill = scalar_key(element_fill(fill_value, mode))
    outs = () if out is None else (out,)
    if isinstance(indices, (list, tuple)):
        check_is_one_array(indices, as_plain)
        inputs = x, arguments.integers(indices)
        plain = x, as_plain(inputs[1], "gather_nd.indices")
    tuples: Any = plain[1]
    try:  # results of a kind have as many dimensions, which the length of a tuple decides
        tuple_length = tuples.shape[-1]
    except NO_ARRAY_ERRORS:
        tuple_length = None
    parameters = "gather_nd", tuple_length, batch_dims, mode, fill, wrap_negative, level_set()
    results = KINDS.call(parameters, plain, (), outs) if stream is None else None
    if results is None:
        others = batch_dims, mode, scalar_of(fill), wrap_negative
        results = SPEC.run(parameters, (), inputs, out, stream, *others)
    return results[0] if out is None else out


def _bind(call: Binding, batch_dims: int, mode: str, fill: object, wraps: bool) -> BoundCall:
    data, tuples = call.inputs
    check_mode(mode)
    (output,) = call.check_outputs(infer_gather_nd(call.words, data, tuples, batch_dims))
    check_can_be_in_range(data, tuples, batch_dims, mode)
    # After the check, every tuple is in range. Clamping is the cheapest mode that stays inside the input.
    options = Options(mode="clip", wraps=wraps)
    if mode == "fill":
        element = held_bytes("gather_nd.fill_value", fill, output.data_type)
        options = Options(mode="fill", element=element, wraps=wraps)
    checks = mode == "raise" and tuples.sizes[-1] > 0
    # Ones in front make all ranks equal.
    rank = max(data.dimension_count, tuples.dimension_count, output.dimension_count)
    descriptor = GatherND1.of_inferred(
        input_tensor=data.with_leading_ones(rank),
        indices_tensor=tuples.with_leading_ones(rank),
        output_tensor=output.with_leading_ones(rank),
        input_dimension_count=data.dimension_count,
        indices_dimension_count=tuples.dimension_count,
        batch_dimension_count=batch_dims,
    )
    form = KindForm(
        "gather_nd",
        CheckedGather if checks else Kind,
        sizes=(),
        fixed=(batch_dims, int(mode == "fill")),
        shapes=partial(_result_shapes, batch_dims),
        gathered=0,
    )
    checked = partial(BoundCheckedGather, batch_dims=batch_dims, wraps=wraps)
    make = checked if checks else BoundCall
    return call.plan(descriptor, options, make, even_if_empty=checks, form=form)


def _result_shapes(
    batch_dims: int, inputs: Sequence[Any], sizes: tuple[int, ...]
) -> Sequence[tuple[int, ...]]:
    x, indices = inputs[0].shape, inputs[1].shape
    return ((*indices[:-1], *x[batch_dims + indices[-1] :]),)


SPEC = Spec(
    "gather_nd",
    _bind,
    inputs=("x", "indices"),
    results={"result": "x"},
    fields={
        "input_tensor": "x",
        "input_dimension_count": "x",
        "indices_tensor": "indices",
        "indices_dimension_count": "indices",
        "batch_dimension_count": "batch_dims",
        "output_tensor.sizes": "indices",
    },
    batch=batch_of_gathers,
)
