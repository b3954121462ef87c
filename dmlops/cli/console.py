"""Where the commands print, and how they fail: one line, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dmlops.errors import DmlError

USERS_ERRORS = (DmlError, OSError, TypeError, ValueError, IndexError, OverflowError, MemoryError)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class CommandError(Exception):
    """What a command tells the user before it ends with exit code 1."""


@contextmanager
def users_errors(about: str) -> Iterator[None]:
    """Turn the errors that a user's files and options cause into a `CommandError` about them."""
    try:
        yield
    except USERS_ERRORS as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        message = f"{about}: {' '.join(reason.split())}"
        raise CommandError(message) from error


def duration(seconds: float) -> str:
    """Return a duration with three significant digits and the unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def progress_bar() -> Progress:
    """Return a bar on standard error, which only a terminal shows."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
