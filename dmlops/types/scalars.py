"""Scalars as in DML_SCALAR_UNION: bits, whose meaning is given by a data type.

A descriptor holds a scalar as a plain int, or as the float64 of the same value. Every float type fits into a
float64, including the payloads of NaNs, so the conversion to the type and back loses nothing.

All arithmetic is on integers: a processor that is set to flush subnormal numbers makes zeros of them in the
conversions of NumPy and ml_dtypes, in ``struct.pack("f", x)`` and in ``float.hex``.
"""

import re
import struct
import sys
from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dmlops.types.arguments import NO_VALUE, as_integer
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import argument_of, error_text, shown
from dmlops.types.opaque_types import ElementType, OpaqueType

_FLOAT8 = re.compile(r"float8_e(\d)m(\d)(?:b(\d+))?(fn)?(uz)?")
# Decimal numbers beyond this power of ten, or its inverse, are beyond all types.
_FAR = 400


class FloatFormat(NamedTuple):
    """A binary format of floating-point numbers."""

    mantissa: int
    bias: int
    """Bits of the fraction, and the exponent field of 1.0."""
    sign: int
    """The sign bit."""
    end: int
    """The first magnitude that is no finite number."""
    infinity: int | None
    """The magnitude of infinity; None if there is none."""
    nan: int
    """The usual NaN. In formats without -0.0 it is the sign bit alone."""


@cache
def float_format(element_type: ElementType) -> FloatFormat:
    """Return the format of a float type, or of the parts of a complex one."""
    if isinstance(element_type, OpaqueType) and element_type.family == "complex":
        element_type = TensorDataType.FLOAT32 if element_type.bytes == 8 else TensorDataType.FLOAT64
    if isinstance(element_type, TensorDataType):
        infinity = element_type.infinity
        mantissa = (infinity & -infinity).bit_length() - 1
        bias = infinity >> (mantissa + 1)
    else:
        found = _FLOAT8.fullmatch(element_type.name)
        assert found is not None
        mantissa, infinity = int(found[2]), 0x80 - (1 << int(found[2]))
        bias = int(found[3]) if found[3] else (infinity >> (mantissa + 1)) + (found[5] is not None)
        if found[5]:
            return FloatFormat(mantissa, bias, 0x80, 0x80, None, 0x80)
        if found[4]:
            return FloatFormat(mantissa, bias, 0x80, 0x7F, None, 0x7F)
    sign = 1 << (element_type.bits - 1)
    return FloatFormat(mantissa, bias, sign, infinity, infinity, infinity | 1 << (mantissa - 1))


_FLOAT64 = float_format(TensorDataType.FLOAT64)


def as_real(value: object) -> int | float | None:
    """Return a real number of any library as a plain int or float; None for anything else.

    A scalar or a 0-d array of a float type keeps its bits. A number of another class, such as Decimal or
    longdouble, is rounded to a float64; beyond all float64 numbers it is an integer.

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
    dtype = getattr(value, "dtype", None)
    # NumPy would drop the imaginary part of a complex number, or a unit, and read a string.
    has_more = getattr(value, "ndim", 0) or getattr(dtype, "kind", None) in ("c", "m", "M", "S", "U", "O")
    if has_more or isinstance(value, (str, bytes, bytearray)):
        return None
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    data_type = TensorDataType.__members__.get(str(name).upper())
    try:
        if data_type is not None and data_type.is_float:
            return real_of(_bits_of_scalar(value, data_type), data_type)
        return _rounded(value)
    except NO_VALUE:
        return None


def _bits_of_scalar(value: Any, data_type: TensorDataType) -> int:
    """Return the bits of a scalar, or of a 0-d array, of any library."""
    if hasattr(value, "resolve_neg"):  # imaginary parts may be negated when they are read
        value = value.resolve_neg()
    name = f"int{data_type.bits}"
    library = sys.modules.get(type(value).__module__.partition(".")[0])
    native = value[()]  # an array of NumPy may be in foreign byte order, and a scalar is not
    return int(native.view(getattr(library, name, name))) % (1 << data_type.bits)


def _rounded(value: Any) -> int | float:
    """Return a number of another class, such as Decimal, Fraction or longdouble, as a plain one."""
    if not hasattr(value, "as_integer_ratio") or not value:
        return float(value)
    power = value.adjusted() if hasattr(value, "adjusted") else 0  # of a Decimal
    if abs(power) > _FAR:
        return float(value) if power < 0 else (-1 if value < 0 else 1) * 10**_FAR
    try:
        numerator, denominator = value.as_integer_ratio()
    except (ValueError, OverflowError):  # NaN and infinities
        return float(value)
    magnitude = _nearest(abs(numerator), denominator, _FLOAT64)
    if magnitude is None:
        return int(numerator // denominator)
    return _float_of(magnitude | (_FLOAT64.sign if numerator < 0 else 0))


def real_of(bits: int, data_type: TensorDataType) -> float:
    """Return the float64 that holds the value, or the NaN, of the bits of a float type.

    Examples
    --------
    >>> real_of(0xC000, TensorDataType.FLOAT16)
    -2.0
    """
    return _widened(bits, float_format(data_type))


def _widened(bits: int, form: FloatFormat) -> float:
    magnitude = bits & (form.sign - 1)
    if magnitude < form.end:
        widened = _nearest(*_ratio(magnitude, form), _FLOAT64) or 0
    else:
        widened = _FLOAT64.end + ((magnitude - form.end) << (_FLOAT64.mantissa - form.mantissa))
    return _float_of(widened | (_FLOAT64.sign if bits & form.sign else 0))


def scalar_bits(value: float, data_type: TensorDataType) -> int:
    """Return the bits of a scalar that the type holds.

    Examples
    --------
    >>> hex(scalar_bits(-2.0, TensorDataType.FLOAT16)), scalar_bits(-1, TensorDataType.INT8)
    ('0xc000', 255)
    """
    if not data_type.is_float:
        return int(value) % (1 << data_type.bits)
    bits = float_bits(value, float_format(data_type))
    assert bits is not None
    return bits


def float_bits(value: float, form: FloatFormat) -> int | None:
    """Return the bits of the number that is nearest, of two the even one; None if that is beyond the format.

    Examples
    --------
    >>> half = float_format(TensorDataType.FLOAT16)
    >>> hex(float_bits(65519.99, half)), float_bits(65520, half)
    ('0x7bff', None)
    """
    ratio = ratio_of(value)
    bits = 0 if isinstance(value, int) else _bits_of(value)
    if ratio is not None:
        found = _nearest(abs(ratio[0]), ratio[1], form)
    elif bits & (_FLOAT64.sign - 1) == _FLOAT64.end:
        found = form.infinity
    else:
        payload = (bits & (_FLOAT64.end ^ (_FLOAT64.sign - 1))) >> (_FLOAT64.mantissa - form.mantissa)
        # If all bits of the payload are too low to be kept, the quiet bit makes it a NaN.
        found = form.end + payload if payload and form.infinity is not None else form.nan
    if found is None or (form.nan == form.sign and found in (0, form.nan)):
        return found
    is_negative = ratio[0] < 0 if isinstance(value, int) and ratio else bits & _FLOAT64.sign
    return found | form.sign if is_negative else found


def numbers_of(element_type: ElementType) -> str:
    """Return what error texts call the numbers of a float type, or of a complex one.

    Examples
    --------
    >>> numbers_of(TensorDataType.FLOAT16)
    'a real number in [-65504.0, 65504.0] once rounded, infinity or NaN'
    """
    form = float_format(element_type)
    largest = _widened(form.end - 1, form)
    is_complex = isinstance(element_type, OpaqueType) and element_type.family == "complex"
    number = "number, each part" if is_complex else "real number"
    others = "or NaN" if form.infinity is None else "infinity or NaN"
    return f"a {number} in [{-largest}, {largest}] once rounded, {others}"


def ratio_of(value: float) -> tuple[int, int] | None:
    """Return the numerator and the denominator of a number; None for infinities and NaN.

    Examples
    --------
    >>> ratio_of(-0.5), ratio_of(3), ratio_of(float("inf"))
    ((-4503599627370496, 9007199254740992), (3, 1), None)
    """
    if isinstance(value, int):
        return value, 1
    bits = _bits_of(value)
    magnitude = bits & (_FLOAT64.sign - 1)
    if magnitude >= _FLOAT64.end:
        return None
    numerator, denominator = _ratio(magnitude, _FLOAT64)
    return (numerator if bits == magnitude else -numerator), denominator


def as_whole(value: float) -> int | None:
    """Return a real number as an integer; None if it is none."""
    ratio = ratio_of(value)
    return None if ratio is None or ratio[0] % ratio[1] else ratio[0] // ratio[1]


def _ratio(magnitude: int, form: FloatFormat) -> tuple[int, int]:
    field, fraction = magnitude >> form.mantissa, magnitude & ((1 << form.mantissa) - 1)
    if field:
        fraction |= 1 << form.mantissa
    last_bit = max(field, 1) - form.bias - form.mantissa
    return fraction << max(last_bit, 0), 1 << max(-last_bit, 0)


def _nearest(numerator: int, denominator: int, form: FloatFormat) -> int | None:
    """Return the magnitude that is nearest to a ratio, of two the even one; None beyond the last number."""
    if not numerator:
        return 0
    exponent = numerator.bit_length() - denominator.bit_length()
    exponent -= numerator << max(-exponent, 0) < denominator << max(exponent, 0)
    # One less than the exponent field of a normal number, to which the leading bit adds one.
    field = max(exponent + form.bias - 1, 0)
    last_bit = field + 1 - form.bias - form.mantissa
    divisor = denominator << max(last_bit, 0)
    whole, rest = divmod(numerator << max(-last_bit, 0), divisor)
    whole += 2 * rest > divisor or (2 * rest == divisor and whole & 1)
    magnitude = (field << form.mantissa) + whole
    return magnitude if magnitude < form.end else None


def _bits_of(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def _float_of(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


def fill_scalar(value: Any, where: str) -> object:
    """Return a value that can fill an array of any type; raise a TypeError for others.

    A number of any library becomes a plain one, and a NaN keeps its bits. "NaT" and scalars of NumPy's dates,
    durations and structured types stay as they are.
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
    allowed = f"{argument_of(where)} must be a number, or a scalar of the array's type"
    raise TypeError(error_text(where, shown(value), "it fills an array", allowed))


def scalar_key(value: object) -> Hashable:
    """Return a key that distinguishes scalars that compare equal but differ, such as 0 and -0.0."""
    if type(value) is float:
        return struct.pack("d", value)
    if type(value) is complex:
        return struct.pack("dd", value.real, value.imag)
    return (value.dtype, value.tobytes()) if isinstance(value, np.generic) else value


def scalar_of(key: object) -> Any:
    """Return the scalar of a `scalar_key`."""
    if type(key) is bytes:
        numbers = struct.unpack(f"{len(key) // 8}d", key)
        return numbers[0] if len(numbers) == 1 else complex(*numbers)
    return np.frombuffer(key[1], key[0])[0] if type(key) is tuple else key


def opaque_bytes(value: Any, opaque: OpaqueType) -> bytes | None:
    """Return the bytes of a scalar of `fill_scalar` in an opaque type; None if the type cannot hold it.

    Examples
    --------
    >>> from dmlops.types.data_types import data_type_of
    >>> opaque_bytes(1, data_type_of("complex64", "x")).hex()
    '0000803f00000000'
    >>> opaque_bytes(np.datetime64("1970-01-02"), data_type_of("datetime64[h]", "x")).hex()
    '1800000000000000'
    """
    if opaque.family == "structured":
        if isinstance(value, np.void):
            return value.tobytes() if value.dtype == opaque.dtype else None
        is_number = isinstance(value, (int, float, complex))
        is_zero = is_number and as_whole(value.real) == as_whole(value.imag) == 0
        return bytes(opaque.bytes) if is_zero else None
    if opaque.is_time:
        bits = _time_bits(value, opaque)
        return None if bits is None else bits.to_bytes(opaque.bytes, sys.byteorder)
    is_complex = opaque.family == "complex"
    if not isinstance(value, (int, float)) and not (is_complex and isinstance(value, complex)):
        return None
    parts = [value.real, value.imag] if isinstance(value, complex) else [value, *[0] * is_complex]
    held = b""
    for part in parts:
        bits = float_bits(part, float_format(opaque))
        if bits is None:
            return None
        held += bits.to_bytes(opaque.bytes // len(parts), sys.byteorder)
    return held


def _time_bits(value: object, opaque: OpaqueType) -> int | None:
    """Return the bits of a date or a duration, given as a scalar of NumPy or as a number of units."""
    if isinstance(value, str):  # "NaT"
        return opaque.lowest_bits - 1
    if isinstance(value, (int, float)):
        units = as_whole(value)
        return units % 2**64 if units is not None and -(2**63) <= units < 2**63 else None
    if not isinstance(value, np.generic) or opaque.dtype is None or value.dtype.kind != opaque.dtype.kind:
        return None
    try:
        converted = value.astype(opaque.dtype, casting="same_kind")
    except (TypeError, ValueError, OverflowError):
        return None
    # NumPy truncates what a unit does not hold, and wraps around beyond 64 bits.
    is_held = np.isnat(value) or converted.astype(value.dtype) == value
    return int(converted.view(np.uint64)) if is_held else None
