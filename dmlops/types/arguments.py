"""Convert arguments that are not arrays to plain Python values, whichever library they come from.

An argument of a wrong type is a TypeError, and one out of range an InvalidDescriptorError; their texts begin
with `where`.
"""

import contextlib
import enum
import inspect
from collections.abc import Callable, Mapping
from itertools import islice
from operator import index
from typing import Any, NoReturn, TypeVar

from numpy import asarray

from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import argument_of, counted, error_text, refuse, shown

# Raised by objects that have no such value, or none that can be read, as a traced array.
NO_VALUE = (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
MOST_DIMENSIONS = 64
"""The most dimensions that an array has, as in NumPy."""

Member = TypeVar("Member", bound=enum.IntEnum)
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])
_OTHER_NAMES: dict[str, dict[str, str]] = {}


def also_known_as(**names: str) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator of functions whose last parameter is ``**unknown``, for `refuse_unknown`.

    `names` are parameters of other libraries, with the parameters of this function that mean the same.
    """

    def keep(function: AnyFunction) -> AnyFunction:
        _OTHER_NAMES[function.__name__] = names
        signature = inspect.signature(function)
        parameters = [*signature.parameters.values()][:-1]
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        return function

    return keep


def refuse_unknown(function: str, unknown: Mapping[str, object]) -> NoReturn:
    """Raise Python's error of keyword arguments that a function does not have, with the right name."""
    name = next(iter(unknown))
    message = f"{function}() got an unexpected keyword argument '{name}'"
    if name in _OTHER_NAMES[function]:
        message = f"{message}; did you mean {_OTHER_NAMES[function][name]}?"
    raise TypeError(message)


def as_integer(value: Any) -> int | None:
    """Return an integer, or a 0-d array of one, as a plain int; None for anything else.

    Examples
    --------
    >>> import numpy as np
    >>> as_integer(np.array(1)), as_integer(np.array([1])), as_integer(1.0)
    (1, None, None)
    """
    if type(value) is int:
        return value
    if getattr(value, "ndim", 0):  # some libraries accept any array of one element as an index
        return None
    try:
        # Python's bools are indices, and NumPy's are not.
        return int(index(bool(value) if "bool" in type(value).__name__ else value))
    except NO_VALUE:
        return None


def is_symbol(value: object) -> bool:
    """Return whether a number is a symbol of torch, whose value a tracer does not know."""
    return type(value).__name__ in ("SymInt", "SymFloat")


def member_of(enumeration: type[Member], value: Any) -> Member | None:
    """Return the member for a member, its number or its name; None if there is none.

    Examples
    --------
    >>> member_of(FeatureLevel, "DML_6_4").name, member_of(FeatureLevel, 0x3050)
    ('DML_6_4', None)
    """
    if type(value) is enumeration:
        return value
    # To Python, booleans and members of other enumerations are integers too, but they are not meant here.
    if not isinstance(value, str):
        value = None if isinstance(value, (bool, enum.Enum)) else as_integer(value)
    try:
        return enumeration(value)
    except ValueError:
        return None


def level_of(level: object, where: str) -> FeatureLevel:
    """Return the feature level for a member, its number or its name; refuse others."""
    found = member_of(FeatureLevel, level)
    if found is None:
        got = f"{level:#x}" if type(level) is int else shown(level)
        names = ", ".join(FeatureLevel.__members__)
        refuse(where, got, "there is no such feature level", f"it must be one of {names}")
    return found


def integer(value: Any, where: str, kinds: str = "an integer") -> int:
    """Return an argument as a plain int; `kinds` is what texts say that it may be."""
    if type(value) is int:
        return value
    number: int | None = value if is_symbol(value) and hasattr(value, "__index__") else as_integer(value)
    if number is None:
        allowed = f"{argument_of(where)} must be {kinds}"
        raise TypeError(error_text(where, shown(value), "it is not an integer", allowed))
    return number


def integers(value: object) -> Any:
    """Return an argument that is an array of integers; NumPy would make floats of lists without numbers."""
    if isinstance(value, (list, tuple)) and not _has_elements(value):
        with contextlib.suppress(ValueError):  # a conversion refuses lists that differ in length
            return asarray(value, "int64")
    return value


def _has_elements(value: object, depth: int = 0) -> bool:
    if depth > MOST_DIMENSIONS or not isinstance(value, (list, tuple)):
        return True
    return any(_has_elements(part, depth + 1) for part in value)


def size(value: object, where: str) -> int:
    """Return an argument that is a number of elements as a plain int; refuse others as `integer`."""
    number = integer(value, where)
    if number < 0:
        refuse(where, number, "a size is negative", f"{argument_of(where)} must be >= 0")
    return number


def boolean(value: object, where: str) -> bool:
    """Return an argument that must be one truth value as a plain bool."""
    if type(value) is bool:
        return value
    if getattr(value, "ndim", 0) == 0 and (isinstance(value, int) or hasattr(value, "dtype")):
        with contextlib.suppress(*NO_VALUE):
            return bool(value)
    allowed = f"{argument_of(where)} must be True or False"
    raise TypeError(error_text(where, shown(value), "it is not a truth value", allowed))


def check_dimensions(where: str, number: int) -> None:
    """Refuse more dimensions than an array has, before their sizes are read."""
    if number > MOST_DIMENSIONS:
        reason, allowed = "no array of NumPy has as many", f"there must be at most {MOST_DIMENSIONS}"
        refuse(where, counted(number, "dimension"), reason, allowed)


def as_tuple(values: Any, where: str) -> tuple[Any, ...]:
    """Return an iterable of a number for each dimension as a tuple; it is not read to the end if too long."""
    if hasattr(values, "__len__"):
        check_dimensions(where, len(values))
    found = tuple(islice(values, MOST_DIMENSIONS + 1))
    check_dimensions(where, len(found))
    return found


def sizes(shape: Any, where: str) -> tuple[int, ...]:
    """Return a shape, which must be a sequence of integers that are not negative, as plain ones."""
    if type(shape) is tuple:
        check_dimensions(where, len(shape))
    if type(shape) is not tuple or {*map(type, shape)} != {int}:
        is_number = getattr(shape, "ndim", 1) == 0 or isinstance(shape, (str, bytes))
        if is_number or not hasattr(shape, "__iter__"):
            allowed = "shape must be a sequence of sizes"
            raise TypeError(error_text(where, shown(shape), "it is not a sequence", allowed))
        shape = tuple([integer(size, where) for size in as_tuple(shape, where)])
    if shape and min(shape) < 0:
        refuse(where, shape, "a size is negative", "sizes must be >= 0")
    return shape  # type: ignore[no-any-return]
