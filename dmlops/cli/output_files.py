"""Output files: they are checked before the work starts, and appear as a whole when it is done."""

import os
import shutil
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dmlops.cli.errors import CommandError, users_errors

_TERMINATIONS = ("SIGTERM", "SIGHUP")
# Hidden folders with unfinished files of this process.
_unfinished: list[Path] = []


def check_output(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Check before the work starts whether a file can be written.

    Parameters
    ----------
    option : str
        The option that names it, such as ``-o``.
    path : Path
        Its path.
    inputs : iterable of Path
        The files that are read.

    Raises
    ------
    CommandError
        If it cannot be written, or is one of `inputs`, even under another name.
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
                with suppress(OSError):  # a file that cannot be read is reported when it is read
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
    """Open a file that replaces `path` when everything is written, and is removed otherwise.

    SIGTERM and SIGHUP remove it too; SIGKILL leaves a hidden folder behind, and `path` as it was. A replaced
    file keeps its permissions and its owner, and a symbolic link stays a link.
    """
    target = _target(path)
    folder = _partial(target)
    with _removed_on_termination(folder):
        try:
            folder.mkdir(0o700)  # what replaces a private file is private before it does
            unfinished = folder / "file"
            with unfinished.open("xb") as stream:
                yield stream
            with suppress(FileNotFoundError):
                status = target.stat()
                if hasattr(os, "chown"):
                    with suppress(OSError):
                        os.chown(unfinished, status.st_uid, status.st_gid)
                unfinished.chmod(stat.S_IMODE(status.st_mode))
            unfinished.replace(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _standard_files() -> Iterator[os.stat_result]:
    for number in (1, 2):
        with suppress(OSError):
            yield os.fstat(number)


def _target(path: Path) -> Path:
    """Return the path with all symbolic links resolved."""
    return Path(os.path.realpath(path))


def _partial(target: Path) -> Path:
    # The name of the target may already have the largest length, so it is not part of this name.
    return target.with_name(f".dmlops-{uuid4().hex}.partial")


@contextmanager
def _removed_on_termination(folder: Path) -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        for each in _unfinished:
            shutil.rmtree(each, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    numbers = [getattr(signal, name) for name in _TERMINATIONS if hasattr(signal, name)]
    caught = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    _unfinished.append(folder)
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)
        _unfinished.remove(folder)
