"""Triangles and identity matrices with NumPy's names: one-line forms of `diagonal_matrix`."""

import re
from typing import Any, Unpack, overload

from numpy.typing import NDArray

from dmlops.calls.dispatch import level_or
from dmlops.functions import diagonal_matrix, is_compiling
from dmlops.operators.diagonal_matrix import INT32_MAX
from dmlops.types import arguments
from dmlops.types.array_types import Array, DataType, Element, Listed, OutputOptions
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import DmlError, error_text, refuse
from dmlops.types.opaque_types import OpaqueType

# More rows or columns than any matrix has.
_INT64_MAX = 2**63 - 1
_PARAMETERS = {"x": "m", "begin": "k", "end": "k"}
_FIELD = re.compile(r"\bdiagonal_matrix\.(\w+)")


@overload
def tril(m: NDArray[Element], k: int = 0, **options: Unpack[OutputOptions]) -> NDArray[Element]: ...
@overload
def tril(m: Listed, k: int = 0, **options: Unpack[OutputOptions]) -> NDArray[Any]: ...
@overload
def tril(m: Array, k: int = 0, **options: Unpack[OutputOptions]) -> Array: ...
def tril(m: Any, k: int = 0, *, out: Any = None, stream: Any = None) -> Any:
    """Return a copy of matrices with zeros above a diagonal.

    Parameters
    ----------
    m : array
        An array of shape (batch..., height, width).
    k : int
        The diagonal, any integer: 0 is the main one, and positive ones are above it.
    out : array, optional
        The array to write to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        An array of the type and shape of `m`.

    Raises
    ------
    InvalidDescriptorError
        If there are fewer than two dimensions, or `out` does not fit.
    TypeError
        If `m` is not an array or is of an unsupported type, or `k` is not an integer.

    Notes
    -----
    This is `diagonal_matrix` with ``value=0, begin=k + 1`` and an open end. NumPy repeats an array of one
    dimension to a square matrix. Here it is refused: pass ``np.broadcast_to(m, (m.size, m.size))``.

    References
    ----------
    numpy.tril; ONNX Trilu; DML_DIAGONAL_MATRIX1_OPERATOR_DESC (directml.h).

    Examples
    --------
    >>> import dmlops
    >>> dmlops.tril([[1, 2, 3], [4, 5, 6]])
    array([[1, 0, 0],
           [4, 5, 0]])
    """
    k = arguments.integer(k, "tril.k")
    try:
        end = _beyond_all(m, "tril")
        begin = min(max(k + 1, -end), end)
        return diagonal_matrix(m, value=0, begin=begin, end=end, out=out, stream=stream)
    except (DmlError, TypeError) as error:
        raise _in_words_of(error, "tril") from None


@overload
def triu(m: NDArray[Element], k: int = 0, **options: Unpack[OutputOptions]) -> NDArray[Element]: ...
@overload
def triu(m: Listed, k: int = 0, **options: Unpack[OutputOptions]) -> NDArray[Any]: ...
@overload
def triu(m: Array, k: int = 0, **options: Unpack[OutputOptions]) -> Array: ...
def triu(m: Any, k: int = 0, *, out: Any = None, stream: Any = None) -> Any:
    """Return a copy of matrices with zeros below a diagonal.

    Parameters
    ----------
    m : array
        An array of shape (batch..., height, width).
    k : int
        The diagonal, any integer: 0 is the main one, and positive ones are above it.
    out : array, optional
        The array to write to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        An array of the type and shape of `m`.

    References
    ----------
    numpy.triu; ONNX Trilu; DML_DIAGONAL_MATRIX1_OPERATOR_DESC (directml.h).

    Examples
    --------
    >>> import dmlops
    >>> dmlops.triu([[1, 2, 3], [4, 5, 6]], k=1)
    array([[0, 2, 3],
           [0, 0, 6]])
    """
    k = arguments.integer(k, "triu.k")
    try:
        begin = -_beyond_all(m, "triu")
        end = min(max(k, begin), -begin)
        return diagonal_matrix(m, value=0, begin=begin, end=end, out=out, stream=stream)
    except (DmlError, TypeError) as error:
        raise _in_words_of(error, "triu") from None


@overload
def eye(
    N: int,  # noqa: N803
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DataType | None = float,
    *,
    like: None = None,
    **options: Unpack[OutputOptions],
) -> NDArray[Any]: ...
@overload
def eye(
    N: int,  # noqa: N803
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DataType | None = float,
    *,
    like: Array,
    **options: Unpack[OutputOptions],
) -> Array: ...
def eye(  # with NumPy's parameters
    N: int,  # noqa: N803
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DataType | None = float,
    *,
    like: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return a matrix with ones on a diagonal, and zeros elsewhere.

    Parameters
    ----------
    N : int
        The number of rows.
    M : int, optional
        The number of columns; by default `N`.
    k : int
        The diagonal, any integer: 0 is the main one, and positive ones are above it.
    dtype : data type, optional
        The type of the result; by default float64, as in NumPy. None stands for the type of `like` or `out`.
    like : array, optional
        The result belongs to the library of this array and is on its device. The default is `out`, or else
        NumPy.
    out : array, optional
        The array to write to.
    stream : int or stream object, optional
        The stream on which a GPU runs the call; by default the current stream of the array's library.

    Returns
    -------
    array
        An array of shape (N, M).

    Raises
    ------
    InvalidDescriptorError
        If a size is negative, or `out` does not fit.
    TypeError
        If `N`, `M` or `k` is not an integer, or no matrix of `dtype` has ones.

    References
    ----------
    numpy.eye; ONNX EyeLike; DML_DIAGONAL_MATRIX_OPERATOR_DESC (directml.h).

    Examples
    --------
    >>> import dmlops
    >>> dmlops.eye(2, 3, dtype=bool)
    array([[ True, False, False],
           [False,  True, False]])
    """
    rows = arguments.integer(N, "eye.N")
    columns = rows if M is None else arguments.integer(M, "eye.M")
    for name, size in (("N", rows), ("M", columns)):
        if size < 0:
            refuse(f"eye.{name}", size, "a size is negative", f"{name} must be >= 0")
    k = arguments.integer(k, "eye.k")
    data_type = None if dtype is None else arguments.data_type(dtype, "eye.dtype")
    if isinstance(data_type, OpaqueType) and data_type.family == "structured":
        reason, remedy = "no structured element is a one", "use diagonal_matrix, with value= such an element"
        raise TypeError(error_text("eye.dtype", data_type.name, reason, remedy))
    try:
        shape = rows, columns
        return diagonal_matrix(
            shape=shape, dtype=data_type, begin=k, end=k + 1, like=like, out=out, stream=stream
        )
    except (DmlError, TypeError) as error:
        raise _in_words_of(error, "eye", shape="M" if columns > rows else "N") from None


def _beyond_all(m: Any, function: str) -> int:
    """Return a bound beyond all diagonals; at DirectML's levels one that fits into INT32, if possible."""
    if m is None:  # for which `diagonal_matrix` would make a matrix
        raise TypeError(error_text(f"{function}.m", None, "it is copied", "it must be an array"))
    # torch's compiler cannot trace the look-up of the level.
    is_extended = is_compiling() or level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED
    sizes = () if is_extended else getattr(m, "shape", ())
    return _INT64_MAX if is_extended or max(sizes[-2:], default=0) > INT32_MAX else INT32_MAX


def _in_words_of(error: Exception, function: str, **others: str) -> Exception:
    """Return an error of `diagonal_matrix` with the names of a shortcut and its parameters."""
    names = _PARAMETERS | others
    return type(error)(_FIELD.sub(lambda field: f"{function}.{names.get(field[1], field[1])}", str(error)))
