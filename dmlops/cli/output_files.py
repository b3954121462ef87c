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


def check_output(option: str, path: Path, inputs: Iterable[Path] = (), *, is_folder: bool = False) -> None:
    """Check before the work starts whether a file or a new folder can be written.

    Parameters
    ----------
    option : str
        The option that names it, such as ``-o``.
    path : Path
        Its path.
    inputs : iterable of Path
        The files that are read.
    is_folder : bool
        Whether a folder is written, which never replaces another.

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
            if is_folder:
                message = f"{about}: it exists already, and may hold other arrays; name a new one"
                raise CommandError(message)
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
def unfinished_beside(path: Path) -> Iterator[Path]:
    """Make a hidden folder beside `path` for files that are not finished, and remove it in the end.

    SIGTERM and SIGHUP remove it too. SIGKILL leaves it behind, and `path` as it was.
    """
    folder = _partial(_target(path))
    with _removed_on_termination(folder):
        try:
            folder.mkdir(0o700)  # what replaces a private file is private before it does
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when everything is written, and is removed otherwise."""
    with unfinished_beside(path) as folder:
        partial = folder / "file"
        with partial.open("xb") as stream:
            yield stream
        replace(path, partial)


def replace(path: Path, finished: Path) -> None:
    """Give a finished file or folder its final name.

    A replaced file keeps its permissions and its owner. A symbolic link stays a link.
    """
    target = _target(path)
    with suppress(FileNotFoundError):
        status = target.stat()
        if hasattr(os, "chown"):
            with suppress(OSError):
                os.chown(finished, status.st_uid, status.st_gid)
        finished.chmod(stat.S_IMODE(status.st_mode))
    finished.replace(target)


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
