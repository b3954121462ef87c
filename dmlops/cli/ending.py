"""How a command ends: its exit code, and one line about its error."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from dmlops.types.errors import DmlError

INTERRUPTED = 130
# Characters of a line about an error.
_LONGEST = 1000
# ModuleNotFoundError: bfloat16 needs the ml_dtypes package.
_USERS_ERRORS = (
    *(DmlError, OSError, TypeError, ValueError, IndexError, OverflowError, MemoryError),
    ModuleNotFoundError,
)


class CommandError(Exception):
    """An error that ends a command with exit code 1; its text is the line that the user sees."""


def fail(text: str) -> NoReturn:
    """End the command with a `CommandError`."""
    raise CommandError(text)


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
    return _shortened(str(error)) or type(error).__name__


def _shortened(text: str) -> str:
    """Return a line without its middle, if it is long: the reason may come last."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


@contextmanager
def users_errors(about: str) -> Iterator[None]:
    """Turn errors that the user's files and options cause into a `CommandError` that names them."""
    try:
        yield
    except BrokenPipeError:  # the reader needs no more: typer ends the process
        raise
    except _USERS_ERRORS as error:
        fail(f"{about}: {reason_of(error)}")


def run(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code, or 0 for None.

    The code is 1 or 2 after an error, which is reported in one line on standard error, and 130 after an
    interrupt.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code, message = 0, ""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        code = command() or 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as end:
        if end.code != 1:  # so typer and rich end a command whose reader, such as `head`, needs no more
            raise
    except Exception as error:  # the command tells any error in one line
        code, message = _failure(error)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would flush it again at its end, and report the failure once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            code, message = 1, f"standard output: {reason_of(error)}"
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's end would restore what kills the process
        message = "interrupted"
    if message:
        with suppress(OSError, AttributeError):  # standard error is full, or closed
            sys.stderr.write(f"dmlops: {printable(' '.join(message.split()))}\n")
            sys.stderr.flush()
    return code


def _interrupt(number: int, _frame: object) -> None:
    """Interrupt the command once: while it ends its processes, it must not be interrupted again."""
    # A function, because Python reports a signal that arrives while its handler becomes SIG_IGN.
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message for an error; raise one that is a bug."""
    if isinstance(error, (CommandError, OSError, MemoryError)):
        return 1, reason_of(error)
    # An error of typer itself, whose base class has no public name in all versions.
    if hasattr(error, "format_message"):
        return getattr(error, "exit_code", 2), _shortened(error.format_message())
    raise error
