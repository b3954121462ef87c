"""The errors that end a command, and their texts."""

from collections.abc import Iterator
from contextlib import contextmanager

from dmlops.types.errors import DmlError

# ModuleNotFoundError: bfloat16 needs the ml_dtypes package.
_USERS_ERRORS = (
    *(DmlError, OSError, TypeError, ValueError, IndexError, OverflowError, MemoryError),
    ModuleNotFoundError,
)


class CommandError(Exception):
    """An error that ends a command with exit code 1; its text is the line that the user sees."""


class OutputLostError(Exception):
    """Standard output accepts no more text. It has no message if the reader of a pipe has stopped reading.

    This is not an OSError, because typer and rich would end the process on one.
    """


def printable(text: str) -> str:
    r"""Return a text in which characters that a terminal would obey, or could not show, are escaped.

    All that commands print goes through this: names in files may be commands to the terminal.

    Examples
    --------
    >>> printable("a\x1b[31m b")
    'a\\x1b[31m b'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def reason_of(error: BaseException) -> str:
    """Return the text of an error, or its name if it has no text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


@contextmanager
def users_errors(about: str) -> Iterator[None]:
    """Turn errors that the user's files and options cause into a `CommandError` that names them."""
    try:
        yield
    except _USERS_ERRORS as error:
        message = f"{about}: {reason_of(error)}"
        raise CommandError(message) from error
