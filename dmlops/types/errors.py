"""The exceptions that dmlops raises, and the common form of their texts."""

from collections.abc import Mapping
from typing import NoReturn

# Characters of one part of an error text.
_LONGEST_PART = 200


class DmlError(Exception):
    """Base class of the exceptions of dmlops."""


class InvalidDescriptorError(DmlError, ValueError):
    """A descriptor contradicts itself, or an argument or array does not fit the operator."""


class UnsupportedFeatureError(DmlError, NotImplementedError):
    """The descriptor is valid, but the feature level or the device does not support it."""


class DeviceMismatchError(DmlError, ValueError):
    """Arrays, or an array and a stream, belong to different devices."""


class IndexOutOfRangeError(DmlError, IndexError):
    """An index tuple points outside the input."""


for _error in (DmlError, *DmlError.__subclasses__()):
    _error.__module__ = "dmlops"  # tracebacks call them by the names that users import


class Words:
    """The names by which error texts call an operator and the fields of its descriptor.

    Parameters
    ----------
    operator : str
        The operator, or the function that stands for it.
    names : mapping of str to str, optional
        The function's parameter for a field, or for a member of one such as ``"output_tensor.sizes"``; other
        fields have their own names.

    Examples
    --------
    >>> Words("TopK").where("input_tensor", ".sizes"), Words("TopK")["input_tensor"]
    ('TopK.input_tensor.sizes', 'input_tensor')
    >>> Words("top_k", {"input_tensor": "x"}).where("input_tensor", ".sizes")
    'top_k.x'
    """

    __slots__ = ("_names", "operator")

    def __init__(self, operator: str, names: Mapping[str, str] | None = None) -> None:
        self.operator, self._names = operator, names or {}

    def __getitem__(self, field: str) -> str:
        return self._names.get(field, field)

    def where(self, field: str, member: str = "") -> str:
        """Return the beginning of an error text about a field, or about a member of it."""
        name = self._names.get(field + member) or self._names.get(field) or field + member
        return f"{self.operator}.{name}"


def argument_of(where: str) -> str:
    """Return the name of the argument that error texts about it begin with, for remedies.

    Examples
    --------
    >>> argument_of("top_k.lengths"), argument_of("top_k.out[0]")
    ('lengths', 'out[0]')
    """
    return where.rpartition(".")[2]


def is_output(where: str) -> bool:
    """Return whether error texts are about an output: a remedy that copies it would not help the caller."""
    return argument_of(where).startswith("out")


def refuse(where: str, got: object, reason: str, allowed: str) -> NoReturn:
    """Raise InvalidDescriptorError in the common form; see `error_text`."""
    raise InvalidDescriptorError(error_text(where, got, reason, allowed))


def error_text(where: str, got: object, reason: str, allowed: str) -> str:
    """Return an error text: which field, what it got, why that is wrong, and what is allowed.

    Parameters
    ----------
    where : str
        ``Operator.field`` or ``function.parameter``.
    got : object
        The offending value; a string is taken as the words that describe it.
    reason : str
        What it contradicts.
    allowed : str
        The rule that holds.

    Notes
    -----
    A text stays readable whatever was given: each part is cut at 200 characters.
    """
    described = got if isinstance(got, str) else shown(got)
    return f"{where}: got {cut(described)}, but {cut(reason)}; {cut(allowed)}"


def shown(value: object) -> str:
    """Return a value as error texts show it: its repr, or its type if there is no repr.

    Examples
    --------
    >>> shown("5"), shown(2**70), shown(10**5000)
    ("'5'", '1180591620717411303424', 'an integer of 16610 bits')
    """
    try:
        return cut(repr(value))
    except Exception:  # a repr of somebody else's may raise anything, and this text is about another error
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return f"an object of type {type(value).__name__}"


def instance_of(value: object) -> str:
    """Return the type of a value with its article.

    Examples
    --------
    >>> instance_of(1.5), instance_of(1)
    ('a float', 'an int')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' or name == 'ndarray' else 'a'} {name}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if necessary.

    Examples
    --------
    >>> counted(1, "dimension"), counted(0, "dimension")
    ('1 dimension', '0 dimensions')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut(text: str) -> str:
    """Return a text that is not longer than one part of an error text."""
    return text if len(text) <= _LONGEST_PART else f"{text[:_LONGEST_PART]}..."
