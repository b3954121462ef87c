"""Scalars as in DML_SCALAR_UNION: bits, whose meaning is given by a data type.

A descriptor holds a scalar as a plain int, or as the float64 of the same value. Every float type fits into a
float64, including the payloads of NaNs, so the conversion to the type and back loses nothing.
"""

import math
import struct
import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

from dmlops.arguments import as_integer
from dmlops.data_types import numpy_dtype
from dmlops.enums import TensorDataType
from dmlops.errors import error_text, shown
from dmlops.opaque_types import OpaqueType

_FLOAT64 = TensorDataType.FLOAT64
# Formats of the struct module by width: for the float, and for its bits.
_FORMATS = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}


def as_real(value: Any) -> int | float | None:
    """Return a real number of any library as a plain int or float; None for anything else.

    A NaN of NumPy's or ml_dtypes' scalars, or of a 0-d array, keeps its bits.

    Examples
    --------
    >>> import numpy as np
    >>> hex(scalar_bits(as_real(np.uint32(0xFFC12345).view(np.float32)), TensorDataType.FLOAT32))
    '0xffc12345'
    """
    if type(value) is float:
        return value
    number = as_integer(value)
    if number is not None:
        return number
    if getattr(value, "ndim", 0) or isinstance(value, (str, bytes, bytearray)):
        return None
    dtype = getattr(value, "dtype", None)
    try:
        # NumPy would drop the imaginary part of a complex number, or a unit, and read a string.
        real = None if getattr(dtype, "kind", None) in ("c", "m", "M", "S", "U", "O") else float(value)
    except Exception:  # TypeError, and what libraries raise for arrays without an accessible value
        real = None
    if real is not None and math.isnan(real) and hasattr(value, "tobytes"):
        data_type = TensorDataType.__members__.get(str(getattr(dtype, "name", "")).upper())
        if data_type is not None and data_type.is_float:
            return real_of(int.from_bytes(value[()].tobytes(), sys.byteorder), data_type)
    return real


def real_of(bits: int, data_type: TensorDataType) -> float:
    """Return the float64 that holds the value, or the NaN, of the bits of a float type.

    Examples
    --------
    >>> real_of(0xC000, TensorDataType.FLOAT16)
    -2.0
    """
    magnitude = bits & ((1 << (data_type.bits - 1)) - 1)
    if magnitude > data_type.infinity:
        sign = bits >> (data_type.bits - 1) << (_FLOAT64.bits - 1)
        payload = magnitude - data_type.infinity
        widened = payload << (_mantissa_bits(_FLOAT64) - _mantissa_bits(data_type))
        return _unpacked(sign | _FLOAT64.infinity | widened, _FLOAT64.bits)
    if data_type == TensorDataType.BFLOAT16:
        return _unpacked(bits << 16, 32)
    return _unpacked(bits, data_type.bits)


def scalar_bits(value: float, data_type: TensorDataType) -> int:
    """Return the bits of a scalar of the given type.

    Examples
    --------
    >>> hex(scalar_bits(-2.0, TensorDataType.FLOAT16)), scalar_bits(-1, TensorDataType.INT8)
    ('0xc000', 255)
    """
    if not data_type.is_float:
        return int(value) % (1 << data_type.bits)
    sign = int(math.copysign(1.0, value) < 0) << (data_type.bits - 1)
    if math.isnan(value):
        mantissa, mantissa_64 = _mantissa_bits(data_type), _mantissa_bits(_FLOAT64)
        payload = (_packed(value, 64) & ((1 << mantissa_64) - 1)) >> (mantissa_64 - mantissa)
        # If all bits of the payload are too low to be kept, the quiet bit makes it a NaN.
        return sign | data_type.infinity | (payload or 1 << (mantissa - 1))
    if data_type == TensorDataType.BFLOAT16:
        bits = scalar_bits(value, TensorDataType.FLOAT32)
        # Round to nearest, ties to even, on the half that is dropped.
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    try:
        return _packed(value, data_type.bits)
    except OverflowError:
        return sign | data_type.infinity


def scalar_as(number: float, data_type: TensorDataType) -> float:
    """Return a number as rounded by a float type.

    Examples
    --------
    >>> scalar_as(16777217, TensorDataType.FLOAT32), scalar_as(10**400, TensorDataType.FLOAT16)
    (16777216.0, inf)
    """
    try:
        real = float(number)
    except OverflowError:
        real = math.inf if number > 0 else -math.inf
    return real_of(scalar_bits(real, data_type), data_type)


def _mantissa_bits(data_type: TensorDataType) -> int:
    return (data_type.infinity & -data_type.infinity).bit_length() - 1


def _packed(value: float, width: int) -> int:
    form, bits_form = _FORMATS[width]
    return int(struct.unpack(bits_form, struct.pack(form, value))[0])


def _unpacked(bits: int, width: int) -> float:
    form, bits_form = _FORMATS[width]
    return float(struct.unpack(form, struct.pack(bits_form, bits))[0])


def fill_scalar(value: Any, where: str) -> Any:
    """Return a value that can fill a matrix of any type.

    Returns
    -------
    int, float, complex, "NaT" or numpy.generic
        A number of any library as a plain one, a NaN with its bits; scalars of NumPy's dates, durations and
        structured types as they are.

    Raises
    ------
    TypeError
        If it is no such scalar; the text begins with `where`.
    """
    if type(value) in (int, float):
        return value
    if isinstance(value, str) and value == "NaT":
        return value
    dtype = getattr(value, "dtype", None)
    is_numpys = isinstance(dtype, np.dtype) and (dtype.kind in ("M", "m") or dtype.names is not None)
    if is_numpys and value.ndim == 0:
        return value[()]
    number = as_real(value)
    if number is not None:
        return number
    if getattr(value, "ndim", 0) == 0:
        real, imaginary = as_real(getattr(value, "real", None)), as_real(getattr(value, "imag", None))
        if real is not None and imaginary is not None:
            return complex(real, imaginary)
    allowed = "value must be a number, or a scalar of the matrix's type"
    raise TypeError(error_text(where, shown(value), "it fills a matrix", allowed))


def scalar_key(value: Any) -> Hashable:
    """Return a key that distinguishes scalars that compare equal but differ, such as 0 and -0.0."""
    if type(value) is float:
        return struct.pack("d", value)
    if type(value) is complex:
        return struct.pack("dd", value.real, value.imag)
    return (value.dtype, value.tobytes()) if isinstance(value, np.generic) else value


def opaque_bytes(value: Any, opaque: OpaqueType) -> bytes | None:
    """Return the bytes of a scalar of `fill_scalar` in an opaque type; None if the type cannot hold it.

    Examples
    --------
    >>> from dmlops.data_types import data_type_of
    >>> opaque_bytes(1, data_type_of("complex64", "x")).hex()
    '0000803f00000000'
    >>> opaque_bytes(np.datetime64("1970-01-02"), data_type_of("datetime64[h]", "x")).hex()
    '1800000000000000'
    """
    if opaque.family == "structured":
        if isinstance(value, np.void):
            return value.tobytes() if value.dtype == opaque.dtype else None
        return bytes(opaque.bytes) if value == 0 else None
    if opaque.is_time:
        bits = _time_bits(value, opaque)
        return None if bits is None else bits.to_bytes(opaque.bytes, sys.byteorder)
    if not isinstance(value, (int, float, complex)):
        return None
    if opaque.family == "float8":
        return None if isinstance(value, complex) else _float8_bytes(value, opaque)
    part = TensorDataType.FLOAT32 if opaque.bytes == 8 else TensorDataType.FLOAT64
    parts = (value.real, value.imag) if isinstance(value, complex) else (value, 0)
    held = [scalar_bits(scalar_as(number, part), part) for number in parts]
    return b"".join(bits.to_bytes(part.bytes, sys.byteorder) for bits in held)


def _time_bits(value: Any, opaque: OpaqueType) -> int | None:
    """Return the bits of a date or a duration: of a scalar of that kind, or of a number of its units."""
    if isinstance(value, str):  # "NaT"
        return opaque.lowest_bits - 1
    if isinstance(value, (int, float)):
        is_held = not value % 1 and -(2**63) <= value < 2**63
        return int(value) % 2**64 if is_held else None
    if not isinstance(value, np.generic) or opaque.dtype is None or value.dtype.kind != opaque.dtype.kind:
        return None
    try:
        converted = value.astype(opaque.dtype, casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        return None
    # NumPy truncates what a unit does not hold, and wraps around beyond 64 bits.
    is_held = np.isnat(value) or converted.astype(value.dtype) == value
    return int(converted.view(np.uint64)) if is_held else None


def _float8_bytes(value: float, opaque: OpaqueType) -> bytes | None:
    """Return the bits of the nearest number; None if it is beyond a format without infinities."""
    if value == 0 and math.copysign(1, value) > 0:
        return bytes(1)
    real = scalar_as(value, _FLOAT64)
    rounded = np.array(real, numpy_dtype(opaque))
    return None if np.isnan(float(rounded)) and not math.isnan(real) else rounded.tobytes()
