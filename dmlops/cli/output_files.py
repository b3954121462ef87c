"""Files that a command writes: checked before the work, and replaced whole."""

import os
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dmlops.cli.errors import CommandError, users_errors

_TERMINATIONS = ("SIGTERM", "SIGHUP")


def check_output(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Find out before the work whether a file can be written.

    Parameters
    ----------
    option : str
        What names the file, as ``-o``.
    path : Path
        Where it will be.
    inputs : iterable of Path
        The files that are read.

    Raises
    ------
    CommandError
        If the file cannot be written, or is one of `inputs`, by whatever name.
    """
    about = f"{option} {path}"
    with users_errors(about):
        target = _target(path)
        try:
            status = target.stat()
        except FileNotFoundError:
            if not target.parent.is_dir():
                message = f"{about}: there is no folder {target.parent}"
                raise CommandError(message) from None
        else:
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
                message = f"{about}: it is {kind}; name a file"
                raise CommandError(message)
            for other in inputs:
                with suppress(OSError):  # what cannot be read is told when it is read
                    if os.path.samestat(status, other.stat()):
                        message = f"{about}: it is the file that {other} is read from; name another file"
                        raise CommandError(message)
            if any(os.path.samestat(status, printed) for printed in _standard_files()):
                message = f"{about}: standard output or standard error goes to that file; name another file"
                raise CommandError(message)
            if not os.access(target, os.W_OK):
                message = f"{about}: the file may not be written"
                raise CommandError(message)
        partial = _partial(target)
        partial.touch(exist_ok=False)
        partial.unlink()


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when everything is written, and leaves no trace otherwise.

    A file that was there keeps its permissions and its owner. A symbolic link stays one.
    """
    target = _target(path)
    try:
        status = target.stat()
    except FileNotFoundError:
        status = None
    partial = _partial(target)
    with _removed_on_termination(partial):
        try:
            partial.touch(0o666 if status is None else 0o600, exist_ok=False)
            with partial.open("wb") as stream:
                yield stream
            if status is not None:
                if hasattr(os, "chown"):
                    with suppress(OSError):
                        os.chown(partial, status.st_uid, status.st_gid)
                partial.chmod(stat.S_IMODE(status.st_mode))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _standard_files() -> Iterator[os.stat_result]:
    for number in (1, 2):
        with suppress(OSError):
            yield os.fstat(number)


def _target(path: Path) -> Path:
    """Return what a path leads to through symbolic links."""
    return Path(os.path.realpath(path))


def _partial(target: Path) -> Path:
    # Not made from the target's name, which may be as long as names can be.
    return target.with_name(f".dmlops-{uuid4().hex}.partial")


@contextmanager
def _removed_on_termination(partial: Path) -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        partial.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    numbers = [getattr(signal, name) for name in _TERMINATIONS if hasattr(signal, name)]
    caught = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
