"""How a command ends: its exit code, and one line about its error."""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from dmlops.types.errors import DmlError

MAX_LINE = 300
PREFIX = "dmlops: "
INTERRUPTED = 130
# Long enough for a callback that swallowed an interrupt to have returned.
_REDELIVERY_SECONDS = 0.02
# ModuleNotFoundError: bfloat16 needs the ml_dtypes package.
_USERS_ERRORS = (
    *(DmlError, OSError, TypeError, ValueError, IndexError, OverflowError, MemoryError),
    ModuleNotFoundError,
)


class CommandError(Exception):
    """An error that ends a command with exit code 1; its text is the line that the user sees."""


class OutputLostError(Exception):
    """Standard output accepts no more text.

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


def run(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    command : callable
        Returns an exit code, or None for 0.

    Returns
    -------
    int
        The command's own code; 1 or 2 after an error, which is reported in one line on standard error.

    Notes
    -----
    After an interrupt, the process ends here with exit code 130. Otherwise Python would first wait for
    threads, and would end itself with the signal if the exception has passed through `exec`.
    """
    with _standard_streams(), _interrupts() as interrupts:
        code, message = 0, ""
        try:
            code = command() or 0
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            code, message = _failure(error)
        if interrupts:
            # A second interrupt has nothing left to interrupt.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with suppress(OutputLostError):
                sys.stdout.flush()
        if interrupts or code == INTERRUPTED:
            # The user does not want to know what else the interrupt caused.
            code, message = INTERRUPTED, "interrupted"
        if message:
            print_error(message)
        if interrupts:
            os._exit(code)
        return code


def print_error(message: str) -> None:
    """Print a message as one line of at most `MAX_LINE` characters on the standard error of `run`."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    line = printable(" ".join(message.split())).encode(encoding, "backslashreplace").decode(encoding)
    room = MAX_LINE - len(PREFIX)
    if len(line) > room:
        # The reason is at the end, after names that may be long.
        line = f"{line[: room // 2 - 5]} ... {line[len(line) - room // 2 :]}"
    sys.stderr.write(f"{PREFIX}{line}\n")
    sys.stderr.flush()


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message for an error."""
    if isinstance(error, (CommandError, OutputLostError)):
        return 1, str(error)
    if isinstance(error, (OSError, MemoryError)):
        return 1, reason_of(error)
    # An error of typer itself, whose base class has no public name in all versions.
    if hasattr(error, "format_message"):
        return getattr(error, "exit_code", 2), error.format_message()
    if os.environ.get("DMLOPS_TRACEBACK"):
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    told = f"{type(error).__name__}: {error}"
    return 1, f"internal error: {told}; please report it, with what DMLOPS_TRACEBACK=1 shows"


class StandardStream:
    """A wrapper of a standard stream, or of None for a closed one.

    Characters that the encoding lacks are printed as escapes. If the stream is essential, the first failure
    raises an `OutputLostError`; otherwise it is ignored, and so is a reader, such as `head`, that needs no
    more. Text that is printed afterwards is dropped.
    """

    def __init__(self, stream: TextIO | None, is_essential: bool) -> None:
        self._stream: Any = _Nowhere(errno.EBADF) if stream is None else stream
        self._is_essential = is_essential
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def write_bytes(self, content: bytes) -> int:
        """Write to the stream below its text."""
        self._attempt(lambda: getattr(self._stream, "buffer", self._stream).write(content))
        return len(content)

    def flush(self) -> None:
        """Pass on what is buffered."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            # Otherwise Python would fail at its end, when it flushes the rest of the stream.
            with suppress(AttributeError, OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            self._stream = _Nowhere()
            if self._is_essential and not isinstance(error, BrokenPipeError):
                message = f"standard output: {reason_of(error)}"
                raise OutputLostError(message) from error


class _Nowhere(io.StringIO):
    """Stand-in for a standard stream that is lost, or that the process was started without."""

    def __init__(self, error: int = 0) -> None:
        super().__init__()
        self._error = error

    def write(self, text: Any) -> int:
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        return len(text)


@contextmanager
def _standard_streams() -> Iterator[None]:
    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = StandardStream(streams[0], True), StandardStream(streams[1], False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Record interrupts, and raise those later that Python would swallow."""
    seen: list[int] = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen  # another handler is installed, or interrupts are ignored as in a background job
        return
    hook = sys.unraisablehook

    def raise_interrupt(number: int, frame: Any) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def raise_later(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            if has_timer:
                signal.setitimer(signal.ITIMER_REAL, _REDELIVERY_SECONDS)
        elif not seen:  # after an interrupt, objects that are half made may fail when they are freed
            hook(unraisable)

    has_timer = hasattr(signal, "SIGALRM")
    signal.signal(signal.SIGINT, raise_interrupt)
    if has_timer:
        signal.signal(signal.SIGALRM, raise_interrupt)
    sys.unraisablehook = raise_later
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if has_timer:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        sys.unraisablehook = hook
