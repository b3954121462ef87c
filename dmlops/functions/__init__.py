"""The operators as functions of arrays, in NumPy's manner.

Each function normalises its arguments, looks for a call that was bound for arguments of these kinds, binds
one if there is none, runs it and returns the result.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from sys import modules
from typing import Any, Generic, NamedTuple, Unpack, overload

from numpy import ndarray
from numpy.typing import NDArray

from dmlops.array_libraries import SIGNATURES, as_input, as_output, as_plain, find_library
from dmlops.calls import binding
from dmlops.calls.call import BoundCall
from dmlops.calls.call_cache import CALLS
from dmlops.calls.dispatch import level_set
from dmlops.devices import cuda_driver
from dmlops.operators.gather_nd import check_is_one_array, check_mode
from dmlops.store import kernel_store
from dmlops.types import arguments, scalars
from dmlops.types.array_types import (
    Array,
    DataType,
    DiagonalOptions,
    Element,
    GatherOptions,
    IndexType,
    Indices,
    Listed,
    MatrixOptions,
    Mode,
    NonzeroOptions,
    TopKOptions,
    Values,
)
from dmlops.types.data_types import index_data_type
from dmlops.types.errors import counted, error_text, refuse, shown
from kernels_cpu.threads import get_num_threads

# The constructor of a named tuple calls this as well, and takes three times as long.
_new: Any = tuple.__new__


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
def top_k(
    x: NDArray[Element], /, k: int, **options: Unpack[TopKOptions]
) -> TopKResult[NDArray[Element], NDArray[Any]]: ...
@overload
def top_k(x: Listed, /, k: int, **options: Unpack[TopKOptions]) -> TopKResult[NDArray[Any], NDArray[Any]]: ...
@overload
def top_k(x: Array, /, k: int, **options: Unpack[TopKOptions]) -> TopKResult[Array, Array]: ...
def top_k(
    x: Any,
    /,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    lengths: Any = None,
    index_dtype: IndexType | None = None,
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
    if type(x) is not ndarray and is_compiling():
        others = k, axis, largest, sorted, index_dtype
        return TopKResult(*_torch_functions().top_k(inputs, out, stream, *others))
    if not (type(k) is int is type(axis) and type(largest) is bool is type(sorted)):
        k, axis = arguments.integer(k, "top_k.k"), arguments.integer(axis, "top_k.axis")
        largest = arguments.boolean(largest, "top_k.largest")
        sorted = arguments.boolean(sorted, "top_k.sorted")
    index_type = None if index_dtype is None else index_data_type(index_dtype, "top_k.index_dtype")
    if out is not None:
        check_is_pair(out, "top_k.out")
        out = tuple(out)
    parameters = ("top_k", k, axis, largest, sorted, index_type, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, inputs, out or ()) if stream is None else None
    if results is None:
        function = _TOP_K if lengths is None else _TOP_K_OF_LENGTHS
        results = _run(function, parameters, inputs, out, stream, k, axis, largest, sorted, index_type)
    return _new(TopKResult, results if out is None else out)  # type: ignore[no-any-return]


@overload
def nonzero_coordinates(
    x: NDArray[Any] | Listed, /, **options: Unpack[NonzeroOptions]
) -> NonzeroResult[NDArray[Any]]: ...
@overload
def nonzero_coordinates(x: Array, /, **options: Unpack[NonzeroOptions]) -> NonzeroResult[Array]: ...
def nonzero_coordinates(
    x: Any,
    /,
    *,
    size: int | None = None,
    fill_value: int | None = None,
    index_dtype: IndexType | None = None,
    out: Any = None,
    stream: Any = None,
) -> NonzeroResult[Any]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    Parameters
    ----------
    x : array
        An array of any shape, of bools, numbers (complex and float8 included), datetime64, timedelta64 or
        structured elements.
    size : int, optional
        The number of rows of the result. By default, the result is trimmed to the count, for which a call on
        a GPU waits. With a size, it never waits.
    fill_value : int, optional
        The value of the rows from the count on, if `size` or `out` is given. By default, they are undefined.
    index_dtype : data type, optional
        The type of both results: uint32, uint64, int32 or int64. The default is the type of the second array
        of `out`. Without `out` it is int64, or JAX's default integer for JAX, or uint32 at a level of
        DirectML.
    out : tuple of two arrays, optional
        The arrays to write coordinates and count to. The first has as many rows as `size` would say, and the
        second has shape () or (1,).
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    NonzeroResult
        ``coordinates``, of shape (rows, dimensions of `x`), and ``count``, a 0-d array that stays on the
        device. It is the full count even if there are fewer rows. NaN and NaT are non-zero; 0.0 and -0.0 are
        zero. A complex number is zero if both its parts are, and a structured element if all its fields are.

    Raises
    ------
    InvalidDescriptorError
        If `size` is negative, there are no rows for `fill_value`, `out` does not fit, or `size` is left out
        in a CUDA graph capture.
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
    where = "nonzero_coordinates"
    if type(x) is not ndarray and is_compiling():
        others = size, fill_value, index_dtype
        return NonzeroResult(*_torch_functions().nonzero_coordinates((x,), out, stream, *others))
    size = None if size is None else arguments.integer(size, f"{where}.size")
    fill = None if fill_value is None else arguments.integer(fill_value, f"{where}.fill_value")
    index_type = None if index_dtype is None else index_data_type(index_dtype, f"{where}.index_dtype")
    if out is not None:
        check_is_pair(out, "nonzero_coordinates.out")
        out = tuple(out)
    parameters = (where, size, fill, index_type, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, (x,), out or ()) if stream is None else None
    if results is None:
        results = _run(_NONZERO_COORDINATES, parameters, (x,), out, stream, size, fill, index_type)
    return _new(NonzeroResult, results if out is None else out)  # type: ignore[no-any-return]


@overload
def gather_nd(
    x: NDArray[Element], indices: NDArray[Any] | Listed, /, **options: Unpack[GatherOptions]
) -> NDArray[Element]: ...
@overload
def gather_nd(
    x: Listed, indices: NDArray[Any] | Listed, /, **options: Unpack[GatherOptions]
) -> NDArray[Any]: ...
@overload
def gather_nd(x: Array, indices: Any, /, **options: Unpack[GatherOptions]) -> Array: ...
def gather_nd(
    x: Any,
    indices: Any,
    /,
    *,
    batch_dims: int = 0,
    mode: Mode = "raise",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return the elements or slices of `x` that index tuples point at.

    Parameters
    ----------
    x : array
        An array of shape (batch..., indexed..., slice...), of bools, numbers (complex and float8 included),
        datetime64, timedelta64 or structured elements.
    indices : array of uint32, uint64, int32 or int64
        An array of shape (batch..., any..., tuple size), or nested lists of numbers. Negative indices count
        from the end of their dimension. A tuple of length 0 selects all of `x`, or all of its batch. Arrays
        in a tuple, as from `numpy.nonzero`, are refused: pass ``np.stack(arrays, -1)``.
    batch_dims : int
        The number of leading dimensions that `x` and `indices` have in common.
    mode : {"raise", "clip", "fill"}
        What happens to an index out of range. ``"raise"`` raises IndexOutOfRangeError; a call on a GPU waits
        for this check. ``"clip"`` takes the nearest valid index, as DirectML does. ``"fill"`` gives zeros.
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
        If the shapes, `mode` or `out` do not fit, or in a CUDA graph capture with ``mode="raise"``.
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
    """
    inputs = x, indices
    if type(mode) is not str:
        check_mode(mode)
    if type(x) is not ndarray and is_compiling():
        check_is_one_array(indices)
        return _torch_functions().gather_nd(inputs, out, stream, batch_dims, mode)[0]
    if type(batch_dims) is not int:
        batch_dims = arguments.integer(batch_dims, "gather_nd.batch_dims")
    outs = () if out is None else (out,)
    parameters = ("gather_nd", batch_dims, mode, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, inputs, outs) if stream is None else None
    if results is None:
        check_is_one_array(indices, as_plain)
        results = _run(_GATHER_ND, parameters, inputs, out, stream, batch_dims, mode)
    return results[0] if out is None else out


@overload
def diagonal_matrix(x: NDArray[Element], /, **options: Unpack[DiagonalOptions]) -> NDArray[Element]: ...
@overload
def diagonal_matrix(x: Listed, /, **options: Unpack[DiagonalOptions]) -> NDArray[Any]: ...
@overload
def diagonal_matrix(
    x: None = None, /, *, like: None = None, **options: Unpack[MatrixOptions]
) -> NDArray[Any]: ...
@overload
def diagonal_matrix(x: None = None, /, *, like: Array, **options: Unpack[MatrixOptions]) -> Array: ...
@overload
def diagonal_matrix(x: Array, /, **options: Unpack[DiagonalOptions]) -> Array: ...
def diagonal_matrix(
    x: Any = None,
    /,
    *,
    shape: Sequence[int] | None = None,
    dtype: DataType | None = None,
    value: Any = 1,
    begin: int = 0,
    end: int = 1,
    like: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return a copy of `x`, or a matrix of zeros, in which a band of diagonals is filled with `value`.

    Parameters
    ----------
    x : array, optional
        An array of shape (batch..., height, width), of the same types as for `gather_nd`. Without it, the
        elements outside the band are zero.
    shape, dtype : sequence of int, data type, optional
        The shape and the type of the result, without `x`. The default shape is that of `out`. The default
        type is that of `like` or `out`, or else float64.
    value : scalar
        The value of the band: a number; for dates and durations also a scalar of NumPy or ``"NaT"``; for
        structured elements 0 or a scalar of their type.
    begin, end : int
        The band is ``begin <= column - row < end``. If `begin` is greater than `end`, everything is filled
        except ``end <= column - row < begin``. If they are equal, nothing is filled.
    like : array, optional
        Without `x`, the result belongs to the library of this array and is on its device. The default is
        `out`, or else NumPy.
    out : array, optional
        The array to write to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        An array of the type and shape of `x`, or of `dtype` and `shape`.

    Raises
    ------
    InvalidDescriptorError
        If there are fewer than two dimensions, `value` does not fit the type, or `out` does not fit.
    TypeError
        If `x` is not an array, or is of an unsupported type, or if neither `x` nor `shape` is given.
    DeviceMismatchError
        If `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level does not support the call, or the driver or the extra for CUDA arrays is missing.

    Notes
    -----
    The call never waits, except for JAX arrays, and needs no scratch memory. Of `x`, it reads only what it
    keeps.

    References
    ----------
    DML_DIAGONAL_MATRIX1_OPERATOR_DESC (directml.h).

    Examples
    --------
    The lower triangle, as numpy.tril has it, and a matrix with ones on the diagonal:

    >>> import dmlops
    >>> dmlops.diagonal_matrix([[1, 2], [3, 4]], value=0, begin=1, end=2)
    array([[1, 0],
           [3, 4]])
    >>> dmlops.diagonal_matrix(shape=(2, 3), dtype="uint8")
    array([[1, 0, 0],
           [0, 1, 0]], dtype=uint8)
    """
    where = "diagonal_matrix"
    if x is not None and not (shape is None and dtype is None and like is None):
        refuse_with_input(shape=shape, dtype=dtype, like=like)
    inputs = () if x is None else (x,)
    if type(x) is not ndarray and is_compiling():
        return _traced_matrix(inputs, out, stream, shape, dtype, like, value, begin, end)
    if type(value) not in (int, float):
        if find_library(value, f"{where}.value").is_dispatched(value, True):
            _torch_functions().refuse_tensor_as_value()
        if type(value).__name__ in ("SymInt", "SymFloat"):  # a number that torch does not know yet
            return _traced_matrix(inputs, out, stream, shape, dtype, like, value, begin, end)
        value = scalars.fill_scalar(value, f"{where}.value")
    begin, end = arguments.integer(begin, f"{where}.begin"), arguments.integer(end, f"{where}.end")
    made = None
    if x is None:
        if like is not None and _is_stand_in(like):
            return _traced_matrix(inputs, out, stream, shape, dtype, like, value, begin, end)
        made = binding.made_from(shape, dtype, like, out)
    number = scalars.scalar_key(value)
    outs = () if out is None else (out,)
    parameters = (where, number, begin, end, made, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, inputs, outs) if stream is None else None
    if results is None:
        if made is not None and made.library.is_transforming():
            return _traced_matrix(inputs, out, stream, shape, dtype, like, value, begin, end)
        function = _DIAGONAL_MATRIX if x is not None else _MATRIX_WITHOUT_INPUT
        results = _run(function, parameters, inputs, out, stream, made, value, begin, end)
    return results[0] if out is None else out


class _Function(NamedTuple):
    """The differences between the functions, once their arguments are plain.

    Attributes
    ----------
    name : str
        As users call it.
    inputs : tuple of (str, bool)
        What error texts call each input, and whether the result has a derivative by it.
    outputs : tuple of str
        What they call the arrays of ``out``.
    bind : callable
        Makes a bound call of the inputs, the outputs and the other arguments.
    """

    name: str
    inputs: tuple[tuple[str, bool], ...]
    outputs: tuple[str, ...]
    bind: Callable[..., BoundCall]


_TOP_K = _Function("top_k", (("top_k.x", True),), ("top_k.out[0]", "top_k.out[1]"), binding.bind_top_k)
_TOP_K_OF_LENGTHS = _Function(
    "top_k",
    (("top_k.x", True), ("top_k.lengths", False)),
    ("top_k.out[0]", "top_k.out[1]"),
    binding.bind_top_k_of_lengths,
)
_NONZERO_COORDINATES = _Function(
    "nonzero_coordinates",
    (("nonzero_coordinates.x", False),),
    ("nonzero_coordinates.out[0]", "nonzero_coordinates.out[1]"),
    binding.bind_nonzero_coordinates,
)
_GATHER_ND = _Function(
    "gather_nd",
    (("gather_nd.x", True), ("gather_nd.indices", False)),
    ("gather_nd.out",),
    binding.bind_gather_nd,
)
_DIAGONAL_MATRIX = _Function(
    "diagonal_matrix", (("diagonal_matrix.x", True),), ("diagonal_matrix.out",), binding.bind_diagonal_matrix
)
_MATRIX_WITHOUT_INPUT = _Function(
    "diagonal_matrix", (), ("diagonal_matrix.out",), binding.bind_matrix_without_input
)


def _run(
    function: _Function,
    parameters: Hashable,
    inputs: tuple[Any, ...],
    out: Any,
    stream: Any,
    *others: Any,
) -> Sequence[Any]:
    """Run the call that is bound for such arguments, on arrays that their libraries vouch for.

    `parameters` holds all that the call depends on but its arrays, and `others` what binding needs of that.
    """
    if any(_is_dispatched(array, *named) for array, named in zip(inputs, function.inputs)):  # noqa: B905
        run = getattr(_torch_functions(), function.name)
        return run(inputs, out, stream, *others)  # type: ignore[no-any-return]
    outs = () if out is None else out if len(function.outputs) > 1 else (out,)
    if stream is None and any(type(array) not in SIGNATURES for array in inputs):
        inputs = tuple([as_plain(array, name) for array, (name, _) in zip(inputs, function.inputs)])  # noqa: B905
        results = CALLS.replay(parameters, inputs, outs)
        if results is not None:
            return results
    handle = None if stream is None else cuda_driver.stream_handle(stream, f"{function.name}.stream")
    operands = [
        as_input(array, name, handle)
        for array, (name, _) in zip(inputs, function.inputs)  # noqa: B905
    ]
    if function is _NONZERO_COORDINATES:
        operands = [binding.as_testable(operands[0], function.inputs[0][0], handle)]
    outputs = [as_output(array, name) for array, name in zip(outs, function.outputs)]  # noqa: B905
    bind = partial(function.bind, *operands, outputs, *others)
    return CALLS.run(parameters, operands, outputs, bind, stream)


def is_compiling() -> bool:
    """Return whether torch's compiler is tracing this code, so that it must see operators instead."""
    # Another thread may be importing torch at the moment.
    ask = getattr(modules.get("torch.compiler"), "is_dynamo_compiling", None)
    return ask is not None and ask()


def _is_stand_in(like: Any) -> bool:
    """Return whether `like` stands for other arrays, in a graph or a transformation."""
    return find_library(like, "diagonal_matrix.like").is_dispatched(like, False)


def _traced_matrix(
    inputs: tuple[Any, ...], out: Any, stream: Any, shape: Any, dtype: Any, like: Any, *others: Any
) -> Any:
    made = shape, dtype, like
    return _torch_functions().diagonal_matrix(inputs, out, stream, made, *others)[0]


def _is_dispatched(array: Any, name: str, differentiable: bool) -> bool:
    """Return whether an input has a derivative, or takes part in a transformation."""
    library = find_library(array, name)
    return library.is_dispatched(array, differentiable) or library.is_transforming()


def _torch_functions() -> Any:
    """Return the module that makes calls those of torch's operators."""
    if is_compiling():
        from dmlops.integrations.torch import compiler, functions  # noqa: F401, PLC0415

        return functions
    return kernel_store.imported("dmlops.integrations.torch.functions")


def check_is_pair(out: Any, where: str) -> None:
    """Refuse an ``out`` argument that is not one array for each of two results."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        got = counted(len(out), "array") if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(error_text(where, got, "there are 2 results", "out must be 2 arrays"))


def refuse_with_input(**given: Any) -> None:
    """Refuse parameters that describe a matrix without an input, if there is an input."""
    for name, argument in given.items():
        if argument is not None:
            allowed = f"{name} describes a result without x"
            refuse(f"diagonal_matrix.{name}", shown(argument), "x is given", allowed)
