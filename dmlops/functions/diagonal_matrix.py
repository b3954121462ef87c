"""The function `diagonal_matrix`, and its forms with NumPy's names: `tril`, `triu` and `eye`."""
# ruff: noqa: N803 - `eye` has NumPy's parameters

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, SupportsIndex, Unpack, overload

import numpy as np
from numpy import ndarray

import kernels_cpu.diagonal_matrix  # noqa: F401 - at the first call, this would take twice as long
from dmlops.array_libraries.base import ArrayLibrary
from dmlops.array_libraries.detect import as_output, as_pattern, compiling_framework, find_library
from dmlops.array_libraries.numpy import NUMPY
from dmlops.calls.binding import Binding, Spec, check_type_has_level
from dmlops.calls.call import BoundCall, KindForm
from dmlops.calls.dispatch import level_set
from dmlops.calls.kinds import KINDS, Kind, new_tuple
from dmlops.devices.memory import CPU, Device
from dmlops.operators.batching import batch_in_front
from dmlops.operators.diagonal_matrix import (
    DiagonalMatrix1,
    band_bounds,
    infer_diagonal_matrix,
    near_band,
)
from dmlops.operators.fill_values import held_value
from dmlops.types import arguments, scalars
from dmlops.types.array_types import Array, DataType, DiagonalOptions, Listed, MatrixOptions, OutputOptions
from dmlops.types.data_types import data_type_of
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import InvalidDescriptorError, error_text, refuse, shown
from dmlops.types.opaque_types import ElementType, OpaqueType, identity
from kernels_cpu.integers import signed

# No matrix has a diagonal so far out.
_FAR = 2**63 - 1
_NUMBERS = frozenset((int, float))


@overload
def diagonal_matrix(x: Listed, /, **options: Unpack[DiagonalOptions]) -> np.ndarray: ...
@overload
def diagonal_matrix(
    x: None = None, /, *, like: None = None, **options: Unpack[MatrixOptions]
) -> np.ndarray: ...
@overload
def diagonal_matrix(x: None = None, /, *, like: Array, **options: Unpack[MatrixOptions]) -> Array: ...
@overload
def diagonal_matrix(x: Array, /, **options: Unpack[DiagonalOptions]) -> Array: ...
@arguments.also_known_as(k="begin", diagonal="begin", offset="begin", fill_value="value", device="like")
def diagonal_matrix(
    x: object = None,
    /,
    *,
    shape: Iterable[SupportsIndex] | None = None,
    dtype: DataType = None,
    value: object = 1,
    begin: float = 0,
    end: float | None = None,
    like: object = None,
    out: object = None,
    stream: object = None,
    **unknown: object,
) -> object:
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
    begin, end : int, or infinite
        The band is ``begin <= column - row < end``. If `begin` is greater than `end`, everything is filled
        except ``end <= column - row < begin``. If they are equal, nothing is filled. The default `end` is
        ``begin + 1``, for one diagonal; ``math.inf`` and ``-math.inf`` leave an end open.
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

    >>> import math, dmlops
    >>> dmlops.diagonal_matrix([[1, 2], [3, 4]], value=0, begin=1, end=math.inf)
    array([[1, 0],
           [3, 4]])
    >>> dmlops.diagonal_matrix(shape=(2, 3), dtype="uint8")
    array([[1, 0, 0],
           [0, 1, 0]], dtype=uint8)
    """
    if unknown:
        arguments.refuse_unknown("diagonal_matrix", unknown)
    if end is None and type(begin) is int:
        end = begin + 1
    if x is None:
        return _make(MATRIX_WITHOUT_INPUT, shape, dtype, like, out, stream, value, begin, end)
    if not (shape is None and dtype is None and like is None):
        refuse_with_input(shape=shape, dtype=dtype, like=like)
    return _fill(SPEC, (x,), out, stream, value, begin, end)


@overload
def tril(m: Listed, k: SupportsIndex = 0, **options: Unpack[OutputOptions]) -> np.ndarray: ...
@overload
def tril(m: Array, k: SupportsIndex = 0, **options: Unpack[OutputOptions]) -> Array: ...
@arguments.also_known_as(diagonal="k")
def tril(
    m: object, k: SupportsIndex = 0, *, out: object = None, stream: object = None, **unknown: object
) -> object:
    """Return a copy of matrices with zeros above diagonal `k`, any integer: 0 is the main one.

    This is `diagonal_matrix` with ``value=0, begin=k + 1`` and an open end, and takes the same arrays. NumPy
    repeats an array of one dimension to a square matrix. Here it is refused: pass
    ``np.broadcast_to(m, (m.size, m.size))``.

    Parameters
    ----------
    m : array
        Matrices, of shape (batch..., height, width).
    k : int, optional
        The last diagonal that is kept.
    out, stream
        As for `diagonal_matrix`.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.tril([[1, 2, 3], [4, 5, 6]])
    array([[1, 0, 0],
           [4, 5, 0]])
    """
    if unknown:
        arguments.refuse_unknown("tril", unknown)
    begin = arguments.integer(k, "tril.k") + 1
    return _fill(_TRIL, (m,), out, stream, 0, begin, max(begin, _FAR))


@overload
def triu(m: Listed, k: SupportsIndex = 0, **options: Unpack[OutputOptions]) -> np.ndarray: ...
@overload
def triu(m: Array, k: SupportsIndex = 0, **options: Unpack[OutputOptions]) -> Array: ...
@arguments.also_known_as(diagonal="k")
def triu(
    m: object, k: SupportsIndex = 0, *, out: object = None, stream: object = None, **unknown: object
) -> object:
    """Return a copy of matrices with zeros below diagonal `k`; see `tril`.

    Parameters
    ----------
    m : array
        Matrices, of shape (batch..., height, width).
    k : int, optional
        The first diagonal that is kept.
    out, stream
        As for `diagonal_matrix`.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.triu([[1, 2, 3], [4, 5, 6]], k=1)
    array([[0, 2, 3],
           [0, 0, 6]])
    """
    if unknown:
        arguments.refuse_unknown("triu", unknown)
    end = arguments.integer(k, "triu.k")
    return _fill(_TRIU, (m,), out, stream, 0, min(end, -_FAR), end)


@overload
def eye(
    N: SupportsIndex,
    M: SupportsIndex | None = None,
    k: SupportsIndex = 0,
    dtype: DataType = float,
    **options: Unpack[OutputOptions],
) -> np.ndarray: ...
@overload
def eye(
    N: SupportsIndex,
    M: SupportsIndex | None = None,
    k: SupportsIndex = 0,
    dtype: DataType = float,
    *,
    like: Array,
    **options: Unpack[OutputOptions],
) -> Array: ...
def eye(
    N: SupportsIndex,
    M: SupportsIndex | None = None,
    k: SupportsIndex = 0,
    dtype: object = float,
    *,
    like: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return a matrix of `N` rows and `M` columns, by default `N`, with ones on diagonal `k`.

    This is `diagonal_matrix` without an input, whose `dtype` is float64 by default, as in NumPy; None stands
    for the type of `like` or `out`.

    Parameters
    ----------
    N, M : int
        Rows and columns.
    k : int, optional
        The diagonal of the ones.
    dtype, like, out, stream
        As for `diagonal_matrix`.

    Examples
    --------
    >>> import dmlops
    >>> dmlops.eye(2, 3, dtype=bool)
    array([[ True, False, False],
           [False,  True, False]])
    """
    rows = arguments.size(N, "eye.N")
    columns, k = rows if M is None else arguments.size(M, "eye.M"), arguments.integer(k, "eye.k")
    return _make(_EYE, (rows, columns), dtype, like, out, stream, 1, k, k + 1)


def _make(
    function: Spec,
    shape: object,
    dtype: object,
    like: object,
    out: object,
    stream: object,
    *band: *tuple[object, object, object],
) -> object:
    """Return a matrix of zeros with a band: a value, and where the band begins and ends."""
    if shape is None and out is None:
        allowed = "one of x, shape and out must be given"
        raise TypeError(error_text(f"{function.name}.shape", None, "neither x nor shape is given", allowed))
    pattern, given = out if like is None else like, (shape, dtype, like)
    framework = compiling_framework()
    if framework is None and type(pattern) is not ndarray and pattern is not None:
        library = find_library(pattern, f"{function.name}.{'out' if like is None else 'like'}")
        framework = library.takes_over(pattern, False, alone=True)
    if framework is not None:
        return framework.run(function, (), out, stream, given, *band)[0]
    made = new_matrix_of(function.name, shape, dtype, like, out)
    return _fill(function, (), out, stream, *band, made=made, given=given)


def _fill(
    function: Spec,
    inputs: tuple[object, ...],
    out: object,
    stream: object,
    value: object,
    begin: object,
    end: object,
    made: "NewMatrix | None" = None,
    given: Any = None,
) -> object:
    """Return a copy of the input, or the matrix of zeros that `made` describes, with a band of `value`."""
    if inputs and type(inputs[0]) is not ndarray and (framework := compiling_framework()) is not None:
        return framework.run(function, inputs, out, stream, None, value, begin, end)[0]
    if not (type(value) in _NUMBERS and type(begin) is int is type(end)):
        value, begin, end = plain_band(function.name, value, begin, end)
    number = value if type(value) is int else scalars.scalar_key(value)
    sizes = begin, end, number, made
    parameters = function.name, level_set(), None if made is None else made.kind
    outs = () if out is None else (out,)
    results = KINDS.call(parameters, inputs, sizes, outs) if stream is None else None
    if results is None:
        if made is not None:
            framework = made.library.takes_over(out if given[2] is None else given[2], False)
            if framework is not None:
                return framework.run(function, (), out, stream, given, value, begin, end)[0]
        results = function.run(parameters, sizes, inputs, out, stream, made, value, begin, end)
    return results[0] if out is None else out


def plain_band(function: str, value: object, begin: object, end: object) -> tuple[object, int, int]:
    """Return the arguments that describe a band as plain numbers."""
    if type(value) not in _NUMBERS and not arguments.is_symbol(value):
        find_library(value, f"{function}.value").check_scalar(value, f"{function}.value")
        value = scalars.fill_scalar(value, f"{function}.value")
    return value, *band_bounds(function, begin, end)


class NewMatrix(NamedTuple):
    """The form of a diagonal matrix without an input."""

    library: ArrayLibrary
    sizes: tuple[int, ...]
    data_type: ElementType
    device: Device
    identity: Hashable = None
    """A key that distinguishes types which NumPy calls equal (records, metadata)."""

    @property
    def kind(self) -> Hashable:
        """All but the sizes, of which only the number counts."""
        return self.library, len(self.sizes), self.data_type, self.device, self.identity


def new_matrix_of(function: str, shape: object, dtype: object, like: object, out: object) -> NewMatrix:
    """Return the form of a diagonal matrix without an input."""
    library: ArrayLibrary = NUMPY
    device = CPU
    default_type: ElementType = TensorDataType.FLOAT64
    if like is not None:
        library, pattern = as_pattern(like, f"{function}.like")
        device, default_type = library.device(pattern), library.data_type(pattern, f"{function}.like")
    if out is not None:
        out_library, array, *_ = as_output(out, f"{function}.out")
        given = out_library.describe(array, f"{function}.out")
        if like is None:
            library, device, default_type = out_library, out_library.device(array), given.data_type
        shape = given.sizes if shape is None else shape
    data_type = default_type if dtype is None else data_type_of(dtype, f"{function}.dtype")
    check_type_has_level(data_type, f"{function}.dtype")
    dtype = data_type.dtype if isinstance(data_type, OpaqueType) else None
    sizes = arguments.sizes(shape, f"{function}.shape")
    made = (library, sizes, data_type, device, None if dtype is None else identity(dtype))
    return new_tuple(NewMatrix, made)  # type: ignore[no-any-return]


def _bind(call: Binding, made: NewMatrix | None, value: object, begin: int, end: int) -> BoundCall:
    if made is None:
        (data,) = call.inputs
        data_type, sizes = data.data_type, data.sizes
    else:
        data, data_type, sizes = None, made.data_type, made.sizes
        call.make_on(made.library, made.device)
    (output,) = call.check_outputs(infer_diagonal_matrix(call.words, data_type, sizes, value))
    begin, end = near_band(begin, end, max(output.sizes[-2:]))
    descriptor = DiagonalMatrix1.of_inferred(
        input_tensor=data,
        output_tensor=output,
        value_data_type=output.data_type,
        value=held_value(DiagonalMatrix1.words.where("value"), value, output.data_type),
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )
    has_form = level_set() in (None, FeatureLevel.EXTENDED) and isinstance(output.data_type, TensorDataType)
    form = KindForm("diagonal_matrix", Band, sizes=(begin, end, 0), fixed=(0,), shapes=_result_shapes)
    return call.plan(descriptor, form=form if has_form else None)


class Band(Kind):
    """A band of diagonals, in a copy of the input or in a new matrix.

    The sizes of a call are the bounds of the band, the value, and the form of a new matrix.
    """

    def run(self, arrays: tuple[Any, ...], limits: tuple[int, ...], sizes: tuple[Any, ...]) -> bool:
        """Run a call; return whether it is done."""
        begin, end, number, made = sizes
        bits = _bits_of(number, self.call.results[0].data_type)
        if bits is None or (made is not None and tuple(arrays[0].shape) != made.sizes):
            return False
        return super().run(arrays, limits, (begin, end, bits))


def _result_shapes(inputs: Sequence[Any], sizes: tuple[Any, ...]) -> Sequence[tuple[int, ...]]:
    made = sizes[3]
    return (inputs[0].shape if made is None else made.sizes,)


@lru_cache(maxsize=1024)
def _bits_of(number: Hashable, data_type: TensorDataType) -> int | None:
    """Return the bits of a value that a type holds, by `scalars.scalar_key`; None if it does not hold it."""
    value = scalars.scalar_of(number)
    try:
        held: Any = held_value(DiagonalMatrix1.words.where("value"), value, data_type)
        return signed(scalars.scalar_bits(held, data_type))
    except InvalidDescriptorError:
        return None


def refuse_with_input(**given: object) -> None:
    """Refuse parameters that describe a matrix without an input, if there is an input."""
    for name, argument in given.items():
        if argument is not None:
            allowed = f"{name} describes a result without x"
            refuse(f"diagonal_matrix.{name}", shown(argument), "x is given", allowed)


def _form(name: str, fields: Mapping[str, str], x: str = "") -> Spec:
    """Return a form of `diagonal_matrix`, whose input is called `x`, if it has one."""
    if x:
        fields = {"input_tensor": x, "output_tensor.sizes": x, **fields}
    results = {"result": x or "dtype"}
    return Spec(
        name, _bind, (x,) if x else (), results, fields, operator="diagonal_matrix", batch=batch_in_front
    )


_BOUNDS = {"diagonal_fill_begin": "begin", "diagonal_fill_end": "end"}
_DIAGONAL = dict.fromkeys(_BOUNDS, "k")
SPEC = _form("diagonal_matrix", _BOUNDS, "x")
MATRIX_WITHOUT_INPUT = _form("diagonal_matrix", {"output_tensor.sizes": "shape", **_BOUNDS})
_TRIL, _TRIU = _form("tril", _DIAGONAL, "m"), _form("triu", _DIAGONAL, "m")
_EYE = _form("eye", {"output_tensor.sizes": "N", "value": "dtype", **_DIAGONAL})
