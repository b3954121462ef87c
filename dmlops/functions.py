"""The operators as functions of arrays, in NumPy's manner.

Each function normalises its arguments, looks for a call that was bound for arguments of these kinds, binds
one where there is none, and returns what it gives.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Unpack, overload

from numpy.typing import NDArray

from dmlops import arguments, binding, cuda, scalars
from dmlops.array_libraries import SIGNATURES, Operand, as_input, as_output, as_plain
from dmlops.array_types import (
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
from dmlops.call import BoundCall
from dmlops.call_cache import CALLS
from dmlops.data_types import index_data_type
from dmlops.dispatch import level_set
from dmlops.errors import counted, error_text, refuse, shown
from kernels_cpu.threads import get_num_threads

# A named tuple's own constructor calls this too, and takes three times as long.
_new: Any = tuple.__new__


class TopKResult(NamedTuple, Generic[Values, Indices]):
    """What `top_k` returns."""

    values: Values
    indices: Indices


class NonzeroResult(NamedTuple, Generic[Indices]):
    """What `nonzero_coordinates` returns."""

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
    """Return the `k` largest or smallest elements along an axis, and where they are.

    Parameters
    ----------
    x : array
        Of any shape; a 0-d array counts as one of shape (1,).
    k : int
        How many, from 0 to the size of the axis.
    axis : int
        Along which dimension.
    largest : bool
        Largest first; False for smallest first.
    sorted : bool
        Whether the results are in order of value. False selects the same elements, and returns them in
        ascending order of index.
    lengths : array of uint32, uint64, int32 or int64, optional
        How many elements of each row count, from the first on; clamped to the size of the axis. Of the shape
        of `x` without the axis.
    index_dtype : data type, optional
        uint32, uint64, int32 or int64. Where left out, the type of the second array of `out`; without that
        int64, for JAX its default integer, and at DirectML's levels uint32.
    out : tuple of two arrays, optional
        Where to write values and indices.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    TopKResult
        ``values`` of `x`'s type and ``indices`` along the axis, both with `k` for the size of the axis.
        Ties stand by ascending index, whichever end is selected. NaN is the largest value and all NaNs
        tie; -0.0 ties with +0.0. Values are those of `x` bit for bit. Where a row has fewer than `k` elements
        by `lengths`, the rest of its results hold index -1 (all bits set where the type is unsigned) and the
        value that no element loses to: minus infinity or the lowest integer, with ``largest=False`` plus
        infinity or the highest.

    Raises
    ------
    InvalidDescriptorError
        If `axis` or `k` is out of range, or `lengths` or `out` does not fit.
    TypeError
        If `x` or `lengths` is no array or has no supported type.
    DeviceMismatchError
        If `lengths`, `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level that is set does not take it, or CUDA arrays meet no driver or no cuda extra.

    Notes
    -----
    Never waits: `lengths` are read where they are. Reads `x` about once; scratch memory comes from its
    library. At DirectML's levels there are no `lengths`; ``sorted=False`` is taken, as it changes the
    order of the results alone.

    References
    ----------
    DML_TOP_K1_OPERATOR_DESC (directml.h); numpy.top_k.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.top_k([1, 3, 2, 3], 2)
    TopKResult(values=array([3, 3]), indices=array([1, 3]))
    """
    if not (type(k) is int is type(axis) and type(largest) is bool is type(sorted)):
        k, axis = arguments.integer(k, "top_k.k"), arguments.integer(axis, "top_k.axis")
        largest = arguments.boolean(largest, "top_k.largest")
        sorted = arguments.boolean(sorted, "top_k.sorted")
    index_type = None if index_dtype is None else index_data_type(index_dtype, "top_k.index_dtype")
    inputs = (x,) if lengths is None else (x, lengths)
    parameters = ("top_k", k, axis, largest, sorted, index_type, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, inputs, () if out is None else _given(out)) if stream is None else None
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
        Of any shape.
    size : int, optional
        Rows of the result. None trims it to the count, which on a GPU waits for it; a number never waits.
    fill_value : int, optional
        What the rows from the count on hold, where `size` or `out` is given; None leaves them undefined.
    index_dtype : data type, optional
        uint32, uint64, int32 or int64 of both results. Where left out, the type of the second array of
        `out`; without that int64, for JAX its default integer, and at DirectML's levels uint32.
    out : tuple of two arrays, optional
        Where to write coordinates and count, which has shape () or (1,); its rows stand for `size`.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    NonzeroResult
        ``coordinates`` of shape (rows, dimensions of `x`), and ``count``, a 0-d array that stays on the
        device and is the full count also where there are fewer rows. NaN is non-zero, both zeros are zero.

    Raises
    ------
    InvalidDescriptorError
        If `size` is negative, `fill_value` comes without rows to fill, `out` does not fit, or `size` is left
        out in a CUDA graph capture.
    TypeError
        If `x` is no array or has no supported type.
    DeviceMismatchError
        If `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level that is set does not take it, or CUDA arrays meet no driver or no cuda extra.

    Notes
    -----
    Reads `x` once and writes the rows; scratch memory on a GPU is one bit per element and a little more.

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
    size = None if size is None else arguments.integer(size, f"{where}.size")
    fill = None if fill_value is None else arguments.integer(fill_value, f"{where}.fill_value")
    index_type = None if index_dtype is None else index_data_type(index_dtype, f"{where}.index_dtype")
    parameters = (where, size, fill, index_type, level_set(), get_num_threads(), out is None)
    results = CALLS.replay(parameters, (x,), () if out is None else _given(out)) if stream is None else None
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
    """Return the elements or blocks of `x` that tuples of indices name.

    Parameters
    ----------
    x : array
        Of shape (batch..., indexed..., block...).
    indices : array of uint32, uint64, int32 or int64
        Of shape (batch..., any..., tuple size). Negative ones count from the end of their dimension; a tuple
        of length 0 takes all of `x`.
    batch_dims : int
        How many leading dimensions `x` and `indices` share.
    mode : {"raise", "clip", "fill"}
        What to do about an index out of range: raise IndexOutOfRangeError, which on a GPU waits for the
        check; take the nearest valid one, as DirectML does; or give zeros.
    out : array, optional
        Where to write.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    array
        Of `x`'s type and shape (batch..., any..., block...).

    Raises
    ------
    IndexOutOfRangeError
        With ``mode="raise"``: names the first tuple, in element order, that is out of range.
    InvalidDescriptorError
        If the shapes, `mode` or `out` do not fit, or ``mode="raise"`` meets a CUDA graph capture.
    TypeError
        If an argument is no array or has no supported type.
    DeviceMismatchError
        If the arrays or `stream` are on different devices.
    UnsupportedFeatureError
        If the feature level that is set does not take it, or CUDA arrays meet no driver or no cuda extra.

    Notes
    -----
    Reads the indices and the blocks, writes the result; needs no scratch memory.

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
    batch = arguments.integer(batch_dims, "gather_nd.batch_dims")
    if type(mode) is not str:
        refuse("gather_nd.mode", shown(mode), "it is no mode", 'mode must be "raise", "clip" or "fill"')
    parameters = ("gather_nd", batch, mode, level_set(), get_num_threads(), out is None)
    given = () if out is None else _given(out)
    results = CALLS.replay(parameters, (x, indices), given) if stream is None else None
    if results is None:
        results = _run(_GATHER_ND, parameters, (x, indices), out, stream, batch, mode)
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
    """Return matrices that hold `value` along a band of diagonals, and `x` or zeros elsewhere.

    Parameters
    ----------
    x : array, optional
        Of shape (batch..., height, width); zeros where left out.
    shape, dtype : sequence of int, data type, optional
        Of the result, without `x`. Where left out, the shape is that of `out`, and the type that of `like`,
        of `out`, or float64.
    value : scalar
        What the band is filled with.
    begin, end : int
        The band is ``begin <= column - row < end``. Where begin exceeds end the fill is inverted:
        everything but ``end <= column - row < begin``. Equal bounds fill nothing.
    like : array, optional
        The result, without `x`, is made by this array's library on its device; where left out, by that of
        `out`, or NumPy.
    out : array, optional
        Where to write.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    array
        Of `x`'s type and shape.

    Raises
    ------
    InvalidDescriptorError
        If there are fewer than two dimensions, `value` does not fit the type, or `out` does not fit.
    TypeError
        If `x` is no array or has no supported type, or neither `x` nor `shape` is given.
    DeviceMismatchError
        If `out` or `stream` is on another device.
    UnsupportedFeatureError
        If the feature level that is set does not take it, or CUDA arrays meet no driver or no cuda extra.

    Notes
    -----
    Never waits. Writes the result; reads of `x` only what is kept. Needs no scratch memory.

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
    value = scalars.real_number(value, f"{where}.value")
    begin, end = arguments.integer(begin, f"{where}.begin"), arguments.integer(end, f"{where}.end")
    if x is not None and not (shape is None and dtype is None and like is None):
        refuse_with_input(shape=shape, dtype=dtype, like=like)
    made = None
    if x is None:
        made = binding.made_from(shape, dtype, like, out)
    number = scalars.scalar_key(value)
    parameters = (where, number, begin, end, made, level_set(), get_num_threads(), out is None)
    inputs, given = () if x is None else (x,), () if out is None else _given(out)
    results = CALLS.replay(parameters, inputs, given) if stream is None else None
    if results is None:
        function = _DIAGONAL_MATRIX if x is not None else _MATRIX_WITHOUT_INPUT
        results = _run(function, parameters, inputs, out, stream, made, value, begin, end)
    return results[0] if out is None else out


class _Function(NamedTuple):
    """What the functions differ in, once their arguments are plain.

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
    if stream is None and any(type(array) not in SIGNATURES for array in inputs):
        inputs = tuple([as_plain(array, name) for array, (name, _) in zip(inputs, function.inputs)])  # noqa: B905
        results = CALLS.replay(parameters, inputs, () if out is None else _given(out))
        if results is not None:
            return results
    handle = None if stream is None else cuda.stream_handle(stream, f"{function.name}.stream")
    operands = [
        as_input(array, name, handle, differentiable)
        for array, (name, differentiable) in zip(inputs, function.inputs)  # noqa: B905
    ]
    outputs = () if out is None else _outputs(out, function.outputs)
    bind = partial(function.bind, *operands, outputs, *others)
    return CALLS.run(parameters, operands, outputs, bind, stream)


def _given(out: Any) -> tuple[Any, ...]:
    """Return the arrays of an ``out`` argument, for the fast path to look at."""
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _outputs(out: Any, names: Sequence[str]) -> Sequence[Operand]:
    """Return the arrays of an ``out`` argument, for which their libraries vouch."""
    if len(names) == 1:
        return (as_output(out, names[0]),)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        reason = f"there are {len(names)} results"
        got = counted(len(out), "array") if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(
            error_text(names[0].partition("[")[0], got, reason, f"out must be {len(names)} arrays")
        )
    return [as_output(array, name) for array, name in zip(out, names, strict=True)]


def refuse_with_input(**given: Any) -> None:
    """Refuse what describes a matrix without an input where there is one."""
    for name, argument in given.items():
        if argument is not None:
            allowed = f"{name} describes a result without x"
            refuse(f"diagonal_matrix.{name}", shown(argument), "x is given", allowed)
