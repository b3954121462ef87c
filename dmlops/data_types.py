"""The names that array libraries give to data types."""

from typing import Any

import numpy as np

from dmlops import kernel_store
from dmlops.enums import TensorDataType
from dmlops.errors import error_text, shown

SUPPORTED = {data_type.name.lower(): data_type for data_type in TensorDataType if data_type.bytes}
"""The data types that operators take, by the name that NumPy, torch and JAX all use."""

_INDEX_TYPES = ("uint32", "uint64", "int32", "int64")
_OF_NUMPY: "dict[np.dtype[Any], TensorDataType]" = {}
_NUMPY_DTYPES: "dict[TensorDataType, np.dtype[Any]]" = {}


def numpy_dtype(data_type: TensorDataType) -> "np.dtype[Any]":
    """Return the NumPy type of a data type; bfloat16 needs the ml_dtypes package."""
    found = _NUMPY_DTYPES.get(data_type)
    return _NUMPY_DTYPES.setdefault(data_type, _make_dtype(data_type)) if found is None else found


def _make_dtype(data_type: TensorDataType) -> "np.dtype[Any]":
    if data_type == TensorDataType.BFLOAT16:
        with kernel_store.LOCK:
            import ml_dtypes  # noqa: PLC0415

        name: Any = ml_dtypes.bfloat16
    else:
        name = data_type.name.lower()
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def index_data_type(dtype: Any, where: str) -> TensorDataType:
    """Return the data type that an ``index_dtype`` argument of any library names."""
    name = dtype_name(dtype)
    if name not in _INDEX_TYPES:
        allowed = f"it must be one of {', '.join(_INDEX_TYPES)}"
        raise TypeError(error_text(where, shown(dtype), "it is no index type", allowed))
    return SUPPORTED[name]


def data_type_of(dtype: Any, where: str) -> TensorDataType:
    """Return the data type that a ``dtype`` argument of any library names."""
    return named_data_type(dtype_name(dtype), where)


def data_type_of_numpy(dtype: "np.dtype[Any]", where: str) -> TensorDataType:
    """Return the data type that a type of NumPy in the machine's own byte order is.

    Raises
    ------
    TypeError
        If no operator takes it; the text begins with `where`.
    """
    found = _OF_NUMPY.get(dtype)
    if found is None:
        found = _OF_NUMPY[dtype] = named_data_type(dtype.name, where)
    return found


def dtype_name(dtype: Any) -> str:
    """Return the common name of a type, as NumPy and torch both spell it."""
    if isinstance(dtype, TensorDataType):
        return dtype.name.lower()
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, str) and dtype == "bfloat16":
        return dtype
    try:
        described = np.dtype(dtype)
        return str(described.name if described.isnative else described)
    except Exception:  # NumPy raises errors of many kinds for what names no type
        return shown(dtype)


def named_data_type(name: str, where: str) -> TensorDataType:
    """Return the data type of that name.

    Raises
    ------
    TypeError
        If no operator takes it; the text begins with `where`.
    """
    found = SUPPORTED.get(name)
    if found is None:
        allowed = f"it must be one of {', '.join(SUPPORTED)}"
        raise TypeError(error_text(where, name, "no operator takes that type", allowed))
    return found
