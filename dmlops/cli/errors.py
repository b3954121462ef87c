"""What a command may fail with, and how that is put into words."""

from collections.abc import Iterator
from contextlib import contextmanager

from dmlops.errors import DmlError

# ModuleNotFoundError: bfloat16 needs the ml_dtypes package.
_USERS_ERRORS = (
    *(DmlError, OSError, TypeError, ValueError, IndexError, OverflowError, MemoryError),
    ModuleNotFoundError,
)


class CommandError(Exception):
    """Ends a command with exit code 1; its text is the line that the user sees."""


class OutputLostError(Exception):
    """Standard output takes no more text.

    It is no OSError, so that neither typer nor rich ends the process on its own account.
    """


def reason_of(error: BaseException) -> str:
    """Return an error's own words, or its name where it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


@contextmanager
def users_errors(about: str) -> Iterator[None]:
    """Turn the errors that a user's files and options cause into a `CommandError` about them."""
    try:
        yield
    except _USERS_ERRORS as error:
        message = f"{about}: {reason_of(error)}"
        raise CommandError(message) from error
