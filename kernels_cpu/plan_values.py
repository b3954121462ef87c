"""The values of a plan while it is compiled (`plan_compiler`)."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kernels_cpu.integers import signed

INTEGER, BOOL, POINTER, VOID = "i64", "i1", "ptr", "void"


class Scalar(NamedTuple):
    """An integer, a bool or a pointer: its type, and its name in LLVM, which is a number for a constant."""

    kind: str
    name: str


class Group(NamedTuple):
    """A tuple of values, and its class if that is a named tuple."""

    values: "tuple[Value, ...]"
    tuple_class: Any = None


class Constant(NamedTuple):
    """The value of a global name that is no integer: a tuple, a function, a class or a module."""

    content: Any


Value = Scalar | Group | Constant
Shape = str | tuple[Any, "tuple[Shape, ...]"]
"""The type of a value: the kind of a scalar, or the class of a tuple and the types of its values."""


def integer(number: int) -> Scalar:
    """Return a constant."""
    return Scalar(INTEGER, str(int(number)))


def shape_of(value: Value) -> Shape:
    """Return the type of a value."""
    if isinstance(value, Group):
        return (value.tuple_class, tuple(map(shape_of, value.values)))
    assert isinstance(value, Scalar)
    return value.kind


def scalars_of(value: Value) -> Iterator[Scalar]:
    """Yield the scalars that a value consists of."""
    if isinstance(value, Group):
        for each in value.values:
            yield from scalars_of(each)
    else:
        assert isinstance(value, Scalar)
        yield value


def kinds_of(shape: Shape) -> list[str]:
    """Return the types of the scalars of a type."""
    return [shape] if isinstance(shape, str) else [kind for part in shape[1] for kind in kinds_of(part)]


def built(shape: Shape, names: Iterator[str]) -> Value:
    """Return a value of a type; its scalars have the names."""
    if isinstance(shape, str):
        return Scalar(shape, next(names))
    return Group(tuple([built(part, names) for part in shape[1]]), shape[0])


def is_known(value: Scalar) -> bool:
    """Tell whether an integer is a constant."""
    return value.name.lstrip("-").isdigit()


def constant(content: object) -> Value:
    """Return the value that a Python object has in compiled code."""
    if isinstance(content, bool):
        return Scalar(BOOL, str(content).lower())
    return integer(signed(content)) if isinstance(content, int) else Constant(content)


def bind(function: Callable[..., object], given: Sequence[Value], named: Mapping[str, Value]) -> list[Value]:
    """Return the arguments of a call in the order of the parameters, defaults included."""
    parameters = _signature(function)
    bound = parameters.bind(*given, **named)
    for name, parameter in parameters.parameters.items():
        if name not in bound.arguments:
            bound.arguments[name] = constant(parameter.default)
    return [bound.arguments[name] for name in parameters.parameters]


_signature = functools.cache(inspect.signature)
