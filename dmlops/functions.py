"""The operators as functions of arrays, in NumPy's manner.

Each function looks up a call made before on arrays of the same kind, which goes the short way (`express`).
Where there is none, it looks up a call planned before, or plans one: a descriptor is built, checked and
compiled. Everything else is `calls.run`.
"""

from collections.abc import Hashable, Sequence
from math import copysign
from typing import Any, NamedTuple

import numpy as np

from dmlops import arrays, calls, express, planning
from dmlops.errors import InvalidDescriptorError, wording

# Types of arguments that equal nothing but themselves, as 5.0 and True equal 5 and 1.
_PLAIN = (int, type(None))
# What a matrix that is like nothing is like.
_LIKE_NOTHING = np.empty(0)
# What a named tuple's own constructor calls, in a third of the time.
_new: Any = tuple.__new__


class TopKResult(NamedTuple):
    """What `top_k` returns."""

    values: Any
    indices: Any


class NonzeroResult(NamedTuple):
    """What `nonzero_coordinates` returns."""

    coordinates: Any
    count: Any


def top_k(
    x: Any,
    k: int,
    /,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    index_dtype: Any = None,
    out: Any = None,
    stream: Any = None,
) -> TopKResult:
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
        Accepted for NumPy's sake; the result is always sorted.
    index_dtype : data type, optional
        uint32, uint64, int32 or int64; uint32 where left out, int64 for torch.
    out : tuple of two arrays, optional
        Where to write values and indices.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    TopKResult
        ``values`` of `x`'s type and ``indices`` along the axis, both with `k` for the size of the axis.
        Ties stand by ascending index, whichever end is selected. NaN is the largest value and all NaNs
        tie; -0.0 ties with +0.0. Values are those of `x` bit for bit.

    Raises
    ------
    InvalidDescriptorError
        If `axis` or `k` is out of range, or `out` does not fit.
    TypeError
        If `x` is no array or has no supported type.
    DeviceMismatchError
        If `out` or `stream` is on another device.

    Notes
    -----
    Never waits. Reads `x` about once; scratch memory comes from the array's own library.

    References
    ----------
    DML_TOP_K1_OPERATOR_DESC (directml.h); numpy.top_k.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.top_k([1, 3, 2, 3], 2)
    TopKResult(values=array([3, 3]), indices=array([1, 3], dtype=uint32))
    """
    kind = ("top_k", k, axis, bool(largest), index_dtype)
    operands = (x,) if out is None else (x, *out) if type(out) is tuple else (x, out)
    if stream is None and type(k) is int is type(axis):
        results = express.answer(kind, operands)
        if results is not None:
            result: TopKResult = _new(TopKResult, results)
            return result
    library, x = arrays.adopt(x, "top_k.x")
    given = calls.adopt_outputs(out, ("top_k.out[0]", "top_k.out[1]"))
    k, axis = calls.integer(k, "top_k.k"), calls.integer(axis, "top_k.axis")
    key = kind, calls.common_key(library, x, given)
    call = calls.planned(key)
    if call is None:
        call = calls.keep(key, planning.plan_top_k(library, x, given, k, axis, bool(largest), index_dtype))
        express.keep(kind, operands, call, express.launcher)
    names = ("top_k.x", "top_k.out[0]", "top_k.out[1]")
    results = calls.run(call, library, [(library, x)], given, names, stream)
    return TopKResult(*(results if out is None else out))


def nonzero_coordinates(
    x: Any,
    /,
    *,
    size: int | None = None,
    fill_value: int | None = None,
    index_dtype: Any = None,
    out: Any = None,
    stream: Any = None,
) -> NonzeroResult:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    Parameters
    ----------
    x : array
        Of any shape.
    size : int, optional
        Rows of the result. None trims it to the count, which on a GPU waits for it; a number never waits.
    fill_value : int, optional
        What the rows from the count on hold; None leaves them undefined.
    index_dtype : data type, optional
        uint32, uint64, int32 or int64 of both results; uint32 where left out, int64 for torch.
    out : tuple of two arrays, optional
        Where to write coordinates and count; its rows stand for `size`.
    stream : int or stream object, optional
        Where a GPU runs it; None for the current stream of the array's library.

    Returns
    -------
    NonzeroResult
        ``coordinates`` of shape (rows, dimensions of `x`), and ``count`` of shape (1,), which stays on the
        device and is the full count also where there are fewer rows. NaN is non-zero, both zeros are zero.

    Raises
    ------
    InvalidDescriptorError
        If `size` is negative, `out` does not fit, or `size` is left out in a CUDA graph capture.
    TypeError
        If `x` is no array or has no supported type.
    DeviceMismatchError
        If `out` or `stream` is on another device.

    Notes
    -----
    Reads `x` once and writes the rows; scratch memory on a GPU is one bit an element and a little more.

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
           [1, 3]], dtype=uint32), count=array([4], dtype=uint32))
    """
    where = "nonzero_coordinates"
    kind = (where, size, fill_value, index_dtype)
    operands = (x,) if out is None else (x, *out) if type(out) is tuple else (x, out)
    if stream is None and type(size) in _PLAIN and type(fill_value) in _PLAIN:
        results = express.answer(kind, operands)
        if results is not None:
            result: NonzeroResult = _new(NonzeroResult, results)
            return result
    library, x = arrays.adopt(x, "nonzero_coordinates.x")
    given = calls.adopt_outputs(out, ("nonzero_coordinates.out[0]", "nonzero_coordinates.out[1]"))
    size = None if size is None else calls.integer(size, "nonzero_coordinates.size")
    fill = None if fill_value is None else calls.integer(fill_value, "nonzero_coordinates.fill_value")
    key = kind, calls.common_key(library, x, given)
    call = calls.planned(key)
    if call is None:
        planned = planning.plan_nonzero_coordinates(library, x, given, size, fill, index_dtype)
        call = calls.keep(key, planned)
        make = express.trimmed_launcher if size is None and not given else express.launcher
        express.keep(kind, operands, call, make)
    if size is None and not given:
        return NonzeroResult(*calls.run_trimmed(call, library, x, stream))
    names = (f"{where}.x", f"{where}.out[0]", f"{where}.out[1]")
    results = calls.run(call, library, [(library, x)], given, names, stream)
    return NonzeroResult(*(results if out is None else out))


def gather_nd(
    x: Any,
    indices: Any,
    /,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return the elements or blocks of `x` that tuples of indices name.

    Parameters
    ----------
    x : array
        Of shape (batch..., indexed..., block...).
    indices : array of uint32, uint64, int32 or int64
        Of shape (batch..., any..., tuple size). Negative ones count from the end of their dimension.
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
    kind = ("gather_nd", batch_dims, mode)
    arguments = (x, indices) if out is None else (x, indices, out)
    if stream is None and type(batch_dims) is int:
        results = express.answer(kind, arguments)
        if results is not None:
            return results[0]
    library, x = arrays.adopt(x, "gather_nd.x")
    index_library, indices = arrays.adopt(indices, "gather_nd.indices")
    given = calls.adopt_outputs(None if out is None else (out,), ("gather_nd.out",))
    batch = calls.integer(batch_dims, "gather_nd.batch_dims")
    operands = [(library, x), (index_library, indices)]
    picks = index_library, index_library.signature(indices)
    key = kind, calls.common_key(library, x, given), picks
    call = calls.planned(key)
    if call is None:
        call = calls.keep(key, planning.plan_gather_nd(operands, given, batch, mode))
        make = express.checked_launcher if mode == "raise" else express.launcher
        express.keep(kind, arguments, call, make)
    names = ("gather_nd.x", "gather_nd.indices", "gather_nd.out")
    check = calls.check_indices(operands, batch) if mode == "raise" else None
    (result,) = calls.run(call, library, operands, given, names, stream, before=check)
    return result if out is None else out


def _is_plain(value: Any) -> bool:
    """Return whether a number is told from all others of its type by comparing it: not NaN, nor -0.0."""
    if type(value) is float:
        return value == value and (value != 0.0 or copysign(1.0, value) > 0.0)  # noqa: PLR0124
    return type(value) is int


def _plain_sizes(shape: Any) -> tuple[int, ...] | None:
    """Return the sizes that a shape names, if they equal no others."""
    return tuple(shape) if type(shape) in (tuple, list) and {*map(type, shape)} == {int} else None


def diagonal_matrix(
    x: Any = None,
    /,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
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
        Of the result, without `x`. The type is that of `like`, or float64, where left out.
    value : scalar
        What the band is filled with.
    begin, end : int
        The band is ``begin <= column - row < end``. Where begin exceeds end the fill is inverted:
        everything but ``end <= column - row < begin``. Equal bounds fill nothing.
    like : array, optional
        The result, without `x`, is made by this array's library on its device; NumPy where left out.
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
    plain = _is_plain(value) and type(begin) is type(end) is int and stream is None
    kind: tuple[Hashable, ...] = (where, type(value).__name__, value, begin, end, x is None)
    operands: tuple[Any, ...]
    make: express.Maker = express.launcher
    if shape is dtype is like is None:
        operands = (x,) if out is None else (out,) if x is None else (x, out)
    else:
        sizes = _plain_sizes(shape)
        plain = plain and x is out is None and sizes is not None
        kind = (*kind, sizes, dtype)
        operands = (_LIKE_NOTHING if like is None else like,)
        make = express.maker
    if plain:
        results = express.answer(kind, operands)
        if results is not None:
            return results[0]
    given = calls.adopt_outputs(None if out is None else (out,), (f"{where}.out",))
    if x is None:
        library, made = planning.made_from(shape, dtype, like, given)
        operand = None
    else:
        for name, argument in (("shape", shape), ("dtype", dtype), ("like", like)):
            if argument is not None:
                reason, allowed = "x is given", f"{name} describes a result without x"
                raise InvalidDescriptorError(wording(f"{where}.{name}", repr(argument), reason, allowed))
        library, x = arrays.adopt(x, f"{where}.x")
        operand, made = (library, x), None
    value = calls.scalar(value)
    begin, end = calls.integer(begin, f"{where}.begin"), calls.integer(end, f"{where}.end")
    # Zeros of either sign compare equal, and are different values.
    key = (where, calls.common_key(library, x, given), made, value or str(value), begin, end)
    call = calls.planned(key)
    if call is None:
        call = calls.keep(key, planning.plan_diagonal_matrix(library, x, made, given, value, begin, end))
    if plain:
        express.keep(kind, operands, call, make)
    (result,) = calls.run(call, library, [operand], given, (f"{where}.x", f"{where}.out"), stream)
    return result if out is None else out
