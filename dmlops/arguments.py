"""Arguments as plain Python values, whichever library the caller took them from."""

import enum
from operator import index
from typing import Any, TypeVar

from dmlops.enums import FeatureLevel
from dmlops.errors import refuse, shown

Member = TypeVar("Member", bound=enum.IntEnum)


def as_integer(value: Any) -> int | None:
    """Return an integer, or a 0-d array of one, as a plain int; None where it is not an integer.

    Examples
    --------
    >>> import numpy as np
    >>> as_integer(np.array(1)), as_integer(np.array([1])), as_integer(1.0)
    (1, None, None)
    """
    if type(value) is int:
        return value
    if getattr(value, "ndim", 0):  # torch and JAX have an index for any array of one element
        return None
    try:
        return int(index(value))
    except Exception:  # TypeError, and what libraries raise for arrays whose value cannot be had
        return None


def member_of(enumeration: type[Member], value: Any) -> Member | None:
    """Return the member that a member, its number or its name says; None where there is none.

    Examples
    --------
    >>> member_of(FeatureLevel, "DML_6_4").name, member_of(FeatureLevel, 0x3050)
    ('DML_6_4', None)
    """
    if type(value) is enumeration:
        return value
    if isinstance(value, str):
        return enumeration.__members__.get(value)
    # Members of other enumerations and booleans are integers to Python, and never meant as these.
    number = None if isinstance(value, (bool, enum.Enum)) else as_integer(value)
    if number is None:
        return None
    try:
        return enumeration(number)
    except ValueError:
        return None


def level_of(level: Any, where: str) -> FeatureLevel:
    """Return the feature level that a member, its number or its name says.

    Raises
    ------
    InvalidDescriptorError
        If there is no such level; the text begins with `where`.
    """
    found = member_of(FeatureLevel, level)
    if found is None:
        got = f"{level:#x}" if type(level) is int else shown(level)
        names = ", ".join(FeatureLevel.__members__)
        refuse(where, got, "there is no such feature level", f"it must be one of {names}")
    return found
