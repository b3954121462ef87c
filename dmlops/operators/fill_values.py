"""Fill values of functions, as the type of the result holds them."""

import sys

from dmlops.types.errors import refuse, shown
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name
from dmlops.types.scalars import (
    as_real,
    as_whole,
    float_bits,
    float_format,
    numbers_of,
    opaque_bytes,
    real_of,
    scalar_bits,
)

# The values of other types than numbers.
_VALUES = {
    "datetime64": 'a date that the unit holds, a number of units, or "NaT"',
    "timedelta64": 'a duration that the unit holds, a number of units, or "NaT"',
    "structured": "0, for all bytes, or a scalar of that type",
}


def held_value(where: str, value: object, data_type: ElementType) -> int | float | bytes:
    """Return a value as a plain number that the type holds, or as bytes of an opaque type; refuse others."""
    reason = f"it fills {type_name(data_type)}"
    name = "fill_value" if where.endswith("fill_value") else "value"
    if isinstance(data_type, OpaqueType):
        held = opaque_bytes(value, data_type)
        if held is None:
            allowed = _VALUES.get(data_type.family) or numbers_of(data_type)
            refuse(where, shown(value), reason, f"{name} must be {allowed}")
        return held
    number = as_real(value)
    if data_type.is_float:
        bits = None if number is None else float_bits(number, float_format(data_type))
        if bits is None:
            refuse(where, shown(value), reason, f"{name} must be {numbers_of(data_type)}")
        return real_of(bits, data_type)
    low, high = data_type.integer_range
    whole = None if number is None else as_whole(number)
    if whole is None or not low <= whole <= high:
        refuse(where, shown(value), reason, f"{name} must be an integer in [{low}, {high}]")
    return whole


def held_bytes(where: str, value: object, data_type: ElementType) -> bytes:
    """Return an element of a type, as it lies in memory; refuse what the type does not hold."""
    held = held_value(where, value, data_type)
    if isinstance(held, bytes):
        return held
    assert not isinstance(data_type, OpaqueType)  # of these, all values are bytes
    return scalar_bits(held, data_type).to_bytes(data_type.bytes, sys.byteorder)
