"""The one place that decides how a command ends: its exit code, and one line about what went wrong."""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from dmlops.cli.errors import CommandError, OutputLostError, reason_of

MAX_LINE = 300
PREFIX = "dmlops: "
INTERRUPTED = 130
# Long enough for a callback that swallowed an interrupt to have returned.
_REDELIVERY_SECONDS = 0.02


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
    After an interrupt the process ends here, with exit code 130: at the end of Python there are threads to
    wait for, and it would end itself by the signal where the exception has passed through `exec`.
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
            # Another one has nothing left to interrupt.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with suppress(OutputLostError):
                sys.stdout.flush()
        if interrupts or code == INTERRUPTED:
            # Whatever else it caused on its way is not what the user wants to know.
            code, message = INTERRUPTED, "interrupted"
        if message:
            print_error(message)
        if interrupts:
            os._exit(code)
        return code


def print_error(message: str) -> None:
    """Print a message as one line of at most `MAX_LINE` characters on the standard error of `run`."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    line = _one_line(message).encode(encoding, "backslashreplace").decode(encoding)
    room = MAX_LINE - len(PREFIX)
    if len(line) > room:
        # The reason stands at the end, after names that may be long.
        line = f"{line[: room // 2 - 5]} ... {line[len(line) - room // 2 :]}"
    sys.stderr.write(f"{PREFIX}{line}\n")
    sys.stderr.flush()


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an error."""
    if isinstance(error, (CommandError, OutputLostError)):
        return 1, str(error)
    if isinstance(error, (OSError, MemoryError)):
        return 1, reason_of(error)
    # Typer itself objects. The base class of its errors has no public name that all its versions share.
    if hasattr(error, "format_message"):
        return getattr(error, "exit_code", 2), error.format_message()
    if os.environ.get("DMLOPS_TRACEBACK"):
        traceback.print_exception(error)
    told = f"{type(error).__name__}: {error}"
    return 1, f"internal error: {told}; please report it, with what DMLOPS_TRACEBACK=1 shows"


class _Stream:
    """A standard stream, or None for a closed one.

    Characters that its encoding lacks are printed as escapes. The first failure raises an `OutputLostError`
    if the stream is essential, and nothing otherwise; what is printed after it is dropped.
    """

    def __init__(self, stream: TextIO | None, is_essential: bool) -> None:
        self._stream: Any = _Closed() if stream is None else stream
        self._is_essential = is_essential
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        # Python would fail at its end on what the stream still holds.
        with suppress(AttributeError, OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        self._stream = io.StringIO()
        if self._is_essential:
            message = f"standard output: {reason_of(error)}"
            raise OutputLostError(message) from error


class _Closed(io.StringIO):
    """Stands for the stream that a process was started without."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextmanager
def _standard_streams() -> Iterator[None]:
    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(streams[0], True), _Stream(streams[1], False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Note interrupts, and raise those again that were swallowed, as in a callback that LLVM calls."""
    seen: list[int] = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen  # somebody else's business, or ignored as in a background job
        return
    hook = sys.unraisablehook

    def raise_interrupt(number: int, frame: Any) -> None:
        seen.append(number)
        while frame is not None:
            if frame.f_code is raise_later.__code__:  # where Python would swallow it, and say so
                redeliver()
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    def raise_later(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            redeliver()
        elif not seen:  # objects that an interrupt left half made may fail where they are freed
            hook(unraisable)

    def redeliver() -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _REDELIVERY_SECONDS)

    signal.signal(signal.SIGINT, raise_interrupt)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, raise_interrupt)
    sys.unraisablehook = raise_later
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        sys.unraisablehook = hook
