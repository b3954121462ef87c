"""The cache directory: kernels that were compiled on this machine, kept for later processes.

    <cache directory>/<device>/<generation>/<target>/<kernel>-<digest>

Each file is an archive of one kernel (`kernel_archive`).
A generation is everything that was compiled from the same sources by the same compilers. When a new one
begins, the least recently used ones are removed. A problem with a file or with the directory costs a
compilation and one warning, but no call fails because of it.
"""

import functools
import hashlib
import itertools
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dmlops.store.kernel_archive import FORMAT, Archive, ArchiveError, Origin, packed
from dmlops.store.once import tell

_log = logging.getLogger("dmlops")
# Anybody else who may write to a file could put other code there.
_WRITABLE_BY_OTHERS = 0o022
# Root compiles for a container image, and every user in it reads the files.
_MODE = 0o644
_KEPT_GENERATIONS = 4
_RETRIES = 4
# Clocks of one file system differ by less; a time that lies further ahead was set by a wrong clock.
_AHEAD_SECONDS = 86_400

DEVICES = ("cpu", "cuda")
_GENERATION = re.compile(r"[0-9a-f]{16}")
_KERNEL = re.compile(r"\w{1,80}-[0-9a-f]{32}")
_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".", ".tmp"
_TEMPORARY = re.compile(r"\.\w+\.tmp")


class Key(NamedTuple):
    """Everything that compiled code depends on."""

    device: str
    """``"cpu"`` or ``"cuda"``."""
    kernel: str
    """Name and parameters of the kernel: letters, digits and underscores."""
    target: str
    """The GPU's architecture; or the processor's name, and after a space its features and the width of its
    vectors."""
    sources: str
    """Digest of the contents of all files that the kernel may be made from; "" if it is unknown, and nothing
    is kept."""
    compilers: str
    """Names and versions of what compiles it."""

    @property
    def target_name(self) -> str:
        """The architecture, or the processor's name."""
        return self.target.partition(" ")[0]

    @property
    def origin(self) -> Origin:
        """All but the kernel."""
        return Origin(self.device, self.target, self.sources, self.compilers)

    @property
    def generation(self) -> str:
        """The name of the folder for everything from the same sources and compilers."""
        return _digest(FORMAT.decode(), self.device, self.sources, self.compilers)[:16]

    @property
    def path(self) -> Path:
        """The path of the code below the cache directory."""
        name = f"{self.kernel[:80]}-{_digest(*self)[:32]}"
        return Path(self.device, self.generation, self.target_name, name)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def directory() -> Path | None:
    """Return the cache directory, or None if nothing is kept.

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
            named = Path(os.environ.get("XDG_CACHE_HOME", ""))
            base = named if named.is_absolute() else Path.home() / ".cache"  # as its specification says
    except RuntimeError:  # the user has no home
        warn_once("the user has no home directory")
        return None
    return base / "dmlops"


def read(key: Key) -> bytes | None:
    """Return the code that is kept under a key, if it is valid."""
    root = directory()
    if root is None or not key.sources:
        return None
    path = root / key.path
    _mark_as_used(str(path.parents[1]))
    try:
        archive = Archive(path, _distrust)
        if archive.origin == key.origin and key.kernel in archive.labels:
            return archive.read(key.kernel)
        warn_once(f"{path} is damaged (it has another kernel)")
    except FileNotFoundError:
        pass
    except (ArchiveError, OSError) as error:
        warn_once(str(error))
    return None


@functools.cache
def _mark_as_used(generation: str) -> None:
    """Update the time of a folder, from which `_remove_old` sees which generations are in use."""
    with suppress(OSError):
        os.utime(generation)


def _distrust(status: os.stat_result) -> str:
    """Return why a file is not read, if it is not."""
    is_safe = not hasattr(os, "geteuid") or (
        status.st_uid in {os.geteuid(), 0} and not status.st_mode & _WRITABLE_BY_OTHERS
    )
    return "" if is_safe else "it belongs to another user, or others may write to it"


def keep(key: Key, code: bytes) -> None:
    """Keep code under a key; remove old generations if this is the first kernel of a new one."""
    root = directory()
    if root is None or not key.sources:
        return
    path, content = root / key.path, packed(key.origin, {key.kernel: code})
    try:
        is_new_generation = not path.parent.parent.exists()
        for _ in range(_RETRIES):
            with suppress(FileNotFoundError, FileExistsError):  # another process is removing the folder
                _write_atomically(path, content)
                break
        else:
            _write_atomically(path, content)
    except OSError as error:
        warn_once(f"{path.parent} cannot be written to ({error.strerror or error})")
        return
    if is_new_generation:
        _remove_old(path.parent.parent)


def _write_atomically(path: Path, content: bytes) -> None:
    # Many processes may write at once; a reader sees either no file or a complete one.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY_PREFIX, suffix=_TEMPORARY_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(_MODE)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def contents(root: Path) -> dict[tuple[str, str, str], list[int]]:
    """Return the bytes of each file in a cache directory, by device, generation and target."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for file in _files(_generations(root)):
        with suppress(OSError):  # another process may remove it in the meantime
            device, generation, target, _ = file.relative_to(root).parts
            found.setdefault((device, generation, target), []).append(file.stat().st_size)
    return dict(sorted(found.items()))


def clear(root: Path) -> tuple[list[int], list[str]]:
    """Remove all kernels from a cache directory, and nothing else.

    Return the bytes of each file that was removed, and what kept others from being removed.
    """
    removed = _remove(_generations(root))
    for device in DEVICES:
        with suppress(OSError):
            (root / device).rmdir()
    return removed


def _remove(generations: list[Path]) -> tuple[list[int], list[str]]:
    """Remove the kernels of generations, and their folders unless they hold other files; see `clear`."""
    sizes, problems = [], []
    for file in _files(generations):
        try:
            size = file.stat().st_size
            file.unlink()
            sizes.append(size)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
    for generation in generations:
        for folder in (*_folders(generation), generation):
            with suppress(OSError):
                folder.rmdir()
    return sizes, problems


def _remove_old(current: Path) -> None:
    """Remove generations that were not used lately, beside the current one.

    Other processes may be doing the same. A time in the future tells nothing: the clock has been wrong.
    """
    folder, latest = current.parent, time.time() + _AHEAD_SECONDS
    with suppress(OSError):
        times = {each: each.stat().st_mtime for each in _folders(folder, _GENERATION) if each != current}
        used = sorted(times, key=lambda each: (times[each] <= latest, times[each]), reverse=True)
        _remove(used[_KEPT_GENERATIONS - 1 :])


def _generations(root: Path) -> list[Path]:
    return [folder for device in DEVICES for folder in _folders(root / device, _GENERATION)]


def _files(generations: list[Path]) -> Iterator[Path]:
    """Yield the files of generations that hold a kernel, or were meant to."""
    for target in itertools.chain.from_iterable(map(_folders, generations)):
        yield from (Path(entry) for entry in _entries(target) if _is_own(entry))


def _folders(folder: Path, name: "re.Pattern[str] | None" = None) -> list[Path]:
    return [
        Path(entry)
        for entry in _entries(folder)
        if entry.is_dir(follow_symlinks=False) and (name is None or name.fullmatch(entry.name))
    ]


def _is_own(entry: "os.DirEntry[str]") -> bool:
    """Return whether dmlops has written a file for this user."""
    if not entry.is_file(follow_symlinks=False):
        return False
    if not (_KERNEL.fullmatch(entry.name) or _TEMPORARY.fullmatch(entry.name)):
        return False
    return not hasattr(os, "geteuid") or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    """Return what is in a folder; nothing if it is a link, as that leads to files of others."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


_has_warned = threading.Event()


def warn_once(reason: str) -> None:
    """Log why compiled kernels cannot be used; only the first time in a process."""
    # Through the log: a warning that the user has turned into an error would end the call.
    if _has_warned.is_set():
        return
    _has_warned.set()
    # Names of files may hold anything, also what controls a terminal.
    reason = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in reason)
    tell(_warn, reason)


def _warn(reason: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # there may be nowhere to write to
        _log.warning("dmlops compiles kernels again that it could have found: %s", reason)
