"""Arguments that are no arrays, as the plain values that calls are known by: never two types for one value."""

import struct
from collections.abc import Hashable
from operator import index
from typing import Any

import numpy as np

from dmlops.data_types import SUPPORTED as _NAMED
from dmlops.data_types import data_type_of, index_data_type
from dmlops.enums import TensorDataType
from dmlops.errors import InvalidDescriptorError, shown, wording


_INT = {int}


def integer(value: Any, where: str) -> int:
    """Return an argument as a plain int.

    Raises
    ------
    TypeError
        If it is no integer; the text begins with `where`.
    """
    if type(value) is int:
        return value
    try:
        return index(value)
    except TypeError:
        field = where.rpartition(".")[2]
        raise TypeError(wording(where, shown(value), "it is no integer", f"{field} must be an integer")) from None


def boolean(value: Any, where: str) -> bool:
    """Return an argument as a plain bool.

    Raises
    ------
    TypeError
        If it is no single truth value; the text begins with `where`.
    """
    if type(value) is bool:
        return value
    if isinstance(value, (int, np.generic)) or getattr(value, "ndim", None) == 0:
        return bool(value)
    field = where.rpartition(".")[2]
    raise TypeError(wording(where, shown(value), "it is no truth value", f"{field} must be True or False"))


def data_type(dtype: Any, where: str) -> TensorDataType:
    """Return the data type that a ``dtype`` argument of any library names.

    Raises
    ------
    TypeError
        If it names none that operators take; the text begins with `where`.
    """
    known = _NAMED.get(dtype) if type(dtype) is str else None
    return data_type_of(dtype, where) if known is None else known


def index_type(dtype: Any, where: str) -> TensorDataType | None:
    """Return the data type that an ``index_dtype`` argument names, or None where it is left out."""
    return None if dtype is None else index_data_type(dtype, where)


def sizes(shape: Any, where: str) -> tuple[int, ...]:
    """Return a shape as plain integers.

    Raises
    ------
    TypeError
        If it is no sequence of integers; the text begins with `where`.
    InvalidDescriptorError
        If a size is negative.
    """
    if type(shape) is tuple and {*map(type, shape)} == _INT and min(shape) >= 0:
        return shape
    if not hasattr(shape, "__iter__") or isinstance(shape, (str, bytes)):
        allowed = "shape must be a sequence of sizes"
        raise TypeError(wording(where, shown(shape), "it is no sequence", allowed))
    plain = tuple(integer(size, where) for size in shape)
    if any(size < 0 for size in plain):
        raise InvalidDescriptorError(wording(where, plain, "a size is negative", "sizes must be >= 0"))
    return plain


def real_number(value: Any, where: str) -> Any:
    """Return a scalar of any library as a plain bool, int or float, or as a NumPy scalar that is NaN.

    Raises
    ------
    TypeError
        If it is no real number; the text begins with `where`.
    """
    if type(value) in (int, float, bool):
        return value
    is_scalar = getattr(value, "ndim", 0) == 0
    plain = value.item() if is_scalar and hasattr(value, "item") else value
    if not isinstance(plain, (int, float)):
        allowed = "value must be a real number"
        raise TypeError(wording(where, shown(value), "it fills a matrix", allowed))
    # A NumPy scalar tells which NaN it is; a Python float has 64 bits for it, and converting may change them.
    return value if plain != plain and isinstance(value, np.generic) else plain  # noqa: PLR0124


def number_key(value: Any) -> Hashable:
    """Return what distinguishes a real number from all that compare equal to it and are others."""
    if isinstance(value, np.generic):
        return value.dtype.name, value.tobytes()
    # -0.0 equals 0.0 and 0, True equals 1, and no NaN equals itself.
    return type(value), struct.pack("d", value) if type(value) is float else value

