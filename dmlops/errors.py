"""The exceptions that dmlops raises, and the one wording of their texts."""

from typing import NoReturn


class DmlError(Exception):
    """Base class of all errors that dmlops raises on its own account."""


class InvalidDescriptorError(DmlError, ValueError):
    """A descriptor contradicts itself, or an argument or array does not fit the operator."""


class UnsupportedFeatureError(DmlError, NotImplementedError):
    """The descriptor is sound, but the feature level or the back-end does not serve it."""


class DeviceMismatchError(DmlError, ValueError):
    """Arrays, or an array and a stream, live on different devices."""


class IndexOutOfRangeError(DmlError, IndexError):
    """An index tuple points outside the input."""


def refuse(where: str, got: object, reason: str, allowed: str) -> NoReturn:
    """Raise InvalidDescriptorError in the one wording; see `wording`."""
    raise InvalidDescriptorError(wording(where, got, reason, allowed))


def wording(where: str, got: object, reason: str, allowed: str) -> str:
    """Return an error text: which field, what it got, why that is wrong, and what is allowed.

    Parameters
    ----------
    where : str
        ``Operator.field`` or ``function.parameter``.
    got : object
        The offending value.
    reason : str
        What it contradicts.
    allowed : str
        The rule that holds.
    """
    return f"{where}: got {got}, but {reason}; {allowed}"
