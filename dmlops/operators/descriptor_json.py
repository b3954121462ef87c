"""Descriptors as JSON text."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import NoReturn

from dmlops.types.enums import TensorDataType
from dmlops.types.errors import InvalidDescriptorError, error_text, refuse, shown
from dmlops.types.scalars import as_real, real_of, scalar_bits
from dmlops.types.tensor import TensorDesc, tensor_for

# JSON has no such numbers. Other NaNs are written as the bits of a float64, and so are subnormal numbers,
# whose decimal digits Python gets wrong while the processor flushes them to zero.
_NOT_FINITE = {"inf": 0x7FF << 52, "-inf": 0xFFF << 52, "nan": 0x7FF8 << 48}
_BITS = re.compile("0x[0-9a-f]{16}")


def written(operator: str, fields: Mapping[str, object]) -> str:
    """Return the JSON text of a descriptor."""
    return json.dumps({"operator": operator, **{name: to_plain(value) for name, value in fields.items()}})


def read(text: str) -> dict[str, object]:
    """Return the JSON object that a text holds; refuse other texts, and by a TypeError other objects."""
    where = "Descriptor.from_json"
    if not isinstance(text, str):
        raise TypeError(error_text(where, shown(text), "it is not text", "text must be a str"))
    try:
        data = json.loads(text, parse_float=parsed, parse_constant=refuse_constant, object_pairs_hook=unique)
    except InvalidDescriptorError:
        raise
    except (ValueError, ArithmeticError, RecursionError) as error:
        refuse(where, shown(text), f"it cannot be read as JSON ({error})", "to_json writes what can be read")
    if not isinstance(data, dict):
        refuse(where, shown(data), "it is not an object", "an object with operator and fields is needed")
    return data


def to_plain(value: object) -> object:
    """Return the value of a field as JSON can hold it."""
    if isinstance(value, TensorDesc):
        return value.to_dict()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, float):
        bits = scalar_bits(value, TensorDataType.FLOAT64)
        if bits >> 52 & 0x7FF in (0, 0x7FF) and bits % (1 << 63):
            names = (name for name, number in _NOT_FINITE.items() if number == bits)
            return next(names, f"{bits:#018x}")
    return value


def from_plain(where: str, value: object) -> object:
    """Return the value of a field that JSON held."""
    if where.endswith("_tensor"):
        return None if value is None else tensor_for(where, "TensorDesc", TensorDesc.from_dict, value)
    if where.endswith(".value"):
        if not isinstance(value, str):
            return value
        bits = int(value, 16) if _BITS.fullmatch(value) else _NOT_FINITE.get(value)
        return value if bits is None else real_of(bits, TensorDataType.FLOAT64)
    if isinstance(value, bool):
        refuse(where, shown(value), "true and false are no integers", "it must be an integer")
    return value


def parsed(text: str) -> object:
    """Return a number with a fraction or an exponent as a float, or as a Decimal beyond its range."""
    from decimal import Decimal  # noqa: PLC0415 - `import dmlops` does not need it

    written = Decimal(text)
    number = as_real(written)
    return number if isinstance(number, float) else written


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, of which JSON knows nothing."""
    allowed = 'write a string, "nan", "inf" or "-inf"'
    refuse("Descriptor.from_json", name, "JSON has no such number", allowed)


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dictionary; refuse one that has two members of one name."""
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in counts if counts[name] > 1)
        reason = "only one of them could count"
        refuse("Descriptor.from_json", f"{shown(twice)} {counts[twice]} times", reason, "names must differ")
    return members
