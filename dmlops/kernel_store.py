"""Compiled kernels on disk, for both devices: a process compiles only what none before it has compiled.

An artifact (a cubin, or object code) lies in a file of the user's cache directory, whose name comes from
everything that the artifact depends on. Whatever is wrong with a file or with the directory costs a
compilation and one warning, never a call.
"""

import functools
import gc
import hashlib
import importlib.metadata
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger("dmlops")
_MAGIC = b"dmlops kernel 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
# Whoever else may write to a file may put other code there.
_WRITABLE_BY_OTHERS = 0o022

LOCK = threading.RLock()
"""Held by the thread that compiles or links a kernel, or imports what a first call needs.

A fork waits until that is done: the child would find locks held, and modules half imported, by a thread that
it does not have.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Key(NamedTuple):
    """Everything that an artifact depends on.

    Attributes
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    kernel : str
        Name and parameters of the kernel: letters, digits and underscores.
    target : str
        The processor, its features and the width of its vectors; or the GPU's architecture.
    sources : str
        Digest of the contents of all files that the kernel may be made from.
    compilers : str
        Names and versions of what compiles it.
    """

    device: str
    kernel: str
    target: str
    sources: str
    compilers: str

    @property
    def path(self) -> Path:
        """Where the artifact lies below the cache directory."""
        digest = hashlib.sha256("\0".join(self).encode()).hexdigest()
        return Path(self.device) / f"{self.kernel[:80]}-{digest[:32]}"


def cache_directory() -> Path | None:
    """Return where kernels are kept, or None where they are not.

    ``DMLOPS_CACHE_DIR`` names another directory than the user's own, and ``DMLOPS_CACHE=0`` keeps nothing.
    """
    if os.environ.get("DMLOPS_CACHE", "1") == "0":
        return None
    if override := os.environ.get("DMLOPS_CACHE_DIR"):
        return Path(override)
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home
        _warn_once("the user has no home directory")
        return None
    return base / "dmlops"


def find_or_compile(key: Key, compile_kernel: Callable[[], bytes]) -> bytes:
    """Return an artifact, from the cache directory if a sound one is there; the caller holds `LOCK`."""
    directory = cache_directory()
    path = None if directory is None else directory / key.path
    code = None if path is None else _read(path, key)
    if code is None:
        _log.info("compiling %s for %s", key.kernel, key.device)
        with _without_garbage_collection():
            code = compile_kernel()
        if path is not None:
            _keep(path, key, code)
    return code


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    # A compilation makes millions of small objects, and collections in between find next to nothing to free.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def source_digest(folder: Path) -> str:
    """Return a digest of the contents of all Python files in a folder: kernels inline functions of others."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


@functools.cache
def versions(*distributions: str) -> str:
    """Return names and versions of installed distributions; nothing is imported."""
    found = []
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)


def _read(path: Path, key: Key) -> bytes | None:
    try:
        with path.open("rb") as file:
            if not _is_trusted(os.fstat(file.fileno())):
                _warn_once(f"{path} belongs to another user, or others may write to it")
                return None
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(f"{path} cannot be read ({error.strerror})")
        return None
    code = content[len(_MAGIC) + _DIGEST_BYTES :]
    if content != _content(key, code):
        _warn_once(f"{path} is damaged")
        return None
    return code


def _is_trusted(status: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in {os.geteuid(), 0} and not status.st_mode & _WRITABLE_BY_OTHERS


def _content(key: Key, code: bytes) -> bytes:
    """Return the content of a file: the digest binds the code to its key."""
    return b"".join((_MAGIC, hashlib.sha256("\0".join(key).encode() + b"\0" + code).digest(), code))


def _keep(path: Path, key: Key, code: bytes) -> None:
    try:
        _write_atomically(path, _content(key, code))
    except OSError as error:
        _warn_once(f"{path.parent} cannot be written to ({error.strerror or error})")


def _write_atomically(path: Path, content: bytes) -> None:
    # Many processes may start at once; a reader sees no file or a whole one.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


_has_warned = threading.Event()


def _warn_once(reason: str) -> None:
    # Through the log: a warning that the user has turned into an error would end the call.
    if _has_warned.is_set():
        return
    _has_warned.set()
    with suppress(Exception):  # there may be nowhere to write to
        _log.warning("dmlops compiles kernels again that it could have found: %s", reason)
