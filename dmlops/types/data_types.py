"""The names that array libraries give to data types.

A type that no operator takes is a TypeError, whose text begins with `where`.
"""

import functools
from contextlib import suppress
from typing import Any

import numpy as np

from dmlops.store import once
from dmlops.types.arguments import member_of
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import error_text, shown
from dmlops.types.opaque_types import OPAQUE, ElementType, OpaqueType, opaque_of_numpy, type_name

SUPPORTED = {data_type.name.lower(): data_type for data_type in TensorDataType if data_type.bytes}
"""The data types that operators take, by the name that all array libraries use."""

# NumPy raises any of these for an object that is no type; the program may have turned warnings into errors.
_NO_TYPE = (
    TypeError,
    ValueError,
    SyntaxError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    Warning,
)
_INDEX_TYPES = ("uint32", "uint64", "int32", "int64")
_OF_NUMPY: "dict[np.dtype, ElementType]" = {}


def numpy_dtype(data_type: ElementType) -> np.dtype:
    """Return the NumPy type of a data type; bfloat16 and float8 need the ml_dtypes package."""
    if isinstance(data_type, OpaqueType) and data_type.dtype is not None:
        return data_type.dtype
    return _make_dtype(data_type)


@functools.cache
def _make_dtype(data_type: ElementType) -> np.dtype:
    name = type_name(data_type)
    is_extension = name.startswith(("bfloat", "float8"))
    dtype: np.dtype = np.dtype(getattr(once.imported("ml_dtypes"), name) if is_extension else name)
    return dtype


def index_data_type(dtype: object, where: str) -> TensorDataType:
    """Return the data type that an ``index_dtype`` argument of any library names."""
    name = dtype_name(dtype)
    if name not in _INDEX_TYPES:
        allowed = f"it must be one of {', '.join(_INDEX_TYPES)}"
        raise TypeError(error_text(where, shown(dtype), "it is not an index type", allowed))
    return SUPPORTED[name]


def member_named(given: object) -> TensorDataType | None:
    """Return the data type for a member, its number or its name, or for a type of any library; None if none.

    Examples
    --------
    >>> member_named("FLOAT32") is member_named("float32") is member_named(np.float32) is member_named(1)
    True
    >>> member_named(None), member_named("datetime64[s]")
    (None, None)
    """
    member = member_of(TensorDataType, given)
    if member is None and given is not None:  # which is float64 to NumPy
        member = SUPPORTED.get(dtype_name(given))
    return member


def data_type_of(dtype: Any, where: str) -> ElementType:
    """Return the data type that a ``dtype`` argument of any library names."""
    if type(dtype) is str and dtype in SUPPORTED:
        return SUPPORTED[dtype]
    if type(dtype) is type and (member := _of_class(dtype)):
        return member
    name = dtype_name(dtype)
    if name not in SUPPORTED and name not in OPAQUE and name != shown(dtype):
        with suppress(*_NO_TYPE):
            described = np.dtype(dtype)
            if described.isnative and (opaque := opaque_of_numpy(described)):
                return opaque
    return named_data_type(name, where)


@functools.lru_cache(maxsize=256)
def _of_class(dtype: type) -> TensorDataType | None:
    """Return the data type that a class names, such as ``float``; NumPy takes microseconds to say."""
    return SUPPORTED.get(dtype_name(dtype))


def index_range(data_type: Any) -> tuple[int, int]:
    """Return the highest and the lowest integer of an index type, as far as 64 bits with a sign hold them."""
    low, high = data_type.integer_range
    return min(high, 2**63 - 1), low


def data_type_of_numpy(dtype: np.dtype, where: str) -> ElementType:
    """Return the data type of a NumPy type in native byte order."""
    # An opaque type keeps the caller's own NumPy type: NumPy calls others equal to it (`identity`).
    found = _OF_NUMPY.get(dtype) or opaque_of_numpy(dtype)
    if found is None:
        name = dtype.name if dtype.names is None else str(dtype)
        found = _OF_NUMPY[dtype] = named_data_type(name, where)
    return found


def dtype_name(dtype: Any) -> str:
    """Return the name of a type that all libraries have in common."""
    if isinstance(dtype, (TensorDataType, OpaqueType)):
        return type_name(dtype)
    if type(dtype).__name__ == "dtype":  # of a library that says its own name too, as in "library.float32"
        return str(dtype).rpartition(".")[2]
    if isinstance(dtype, str) and (dtype == "bfloat16" or dtype in OPAQUE):
        return dtype
    try:
        described = np.dtype(dtype)
        return str(described.name if described.isnative else described)
    except _NO_TYPE:
        return shown(dtype)


def named_data_type(name: str, where: str) -> ElementType:
    """Return the data type that a name stands for."""
    found = SUPPORTED.get(name) or OPAQUE.get(name)
    if found is None:
        others = "some operators take others: see https://github.com/dmlops/dmlops/tree/main/docs"
        allowed = f"it must be one of {', '.join(SUPPORTED)}; {others}"
        if where.endswith((".indices", ".lengths", ".starts")):
            allowed = f"it must be one of {', '.join(_INDEX_TYPES)}"
        elif "float8" in name or name.startswith(("[", "{", "(")):
            allowed = "float8 must have a zero, and structured elements have bytes and no objects"
        raise TypeError(error_text(where, name, "no operator takes that type", allowed))
    return found
