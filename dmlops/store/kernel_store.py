"""Find compiled kernels of both devices: in the wheel, in the cache directory, or by compiling them.

A process compiles only what neither the wheel nor the cache directory has.
"""

import _thread
import atexit
import functools
import gc
import hashlib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dmlops.store import kernel_cache
from dmlops.store.kernel_cache import Key
from dmlops.types.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from dmlops.store.kernel_archive import Archive

T = TypeVar("T")

log = logging.getLogger("dmlops.store.kernel_store")
COMPILING = "compiling %s for %s"

WHEEL = Path(__file__).parents[1] / "kernels"
"""The folder of the archives that a wheel brings (`kernel_archive`); an editable install has none."""

_NATIVE = (".so", ".pyd")

LOCK = threading.RLock()
"""Held by the thread that compiles or links a kernel, or imports what a first call needs (`apart`).

A fork waits until that is done: the child would find locks held, and modules half imported, by a thread that
it does not have.
"""
# Held while the size of new threads' stacks, one for the whole process, is another.
_START_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    for lock in (LOCK, _START_LOCK):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

# Numba and LLVM recurse deeply, and the caller may have little stack left.
_STACK_BYTES = 16 << 20
# Packages with locks of their own, which imports and compilations take.
_LOCKING = {"importlib", "logging", "llvmlite", "numba"}
# A new thread has begun after less.
_PATIENCE_SECONDS = 2
# The threads that `apart` has started.
_at_work: set[int] = set()


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that imports, compiles or links on a thread of its own, which holds `LOCK`.

    Python runs signal handlers on the main thread alone: here none of them can raise in the middle of what
    must not be left half done. An interrupt ends the wait, and the work goes on; a later call waits for it.
    """
    if sys.is_finalizing() or threading.get_ident() in _at_work or _may_hold_locks():
        return _held(function, *arguments)
    work = _Work(function, arguments)
    work.start()
    return work.result()  # type: ignore[no-any-return]


@functools.cache
def imported(name: str) -> Any:
    """Return a module that a first call needs."""
    return apart(importlib.import_module, name)


class _Work:
    """A call for a thread of its own, or for the thread that waits if there can be no other."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._process = os.getpid()
        # The thread that takes the only element makes the call.
        self._to_do = [None]
        self._outcome: list[Callable[[], Any]] = []
        self._has_begun, self._ended = False, threading.Lock()
        self._ended.acquire()

    def start(self) -> None:
        with _START_LOCK:
            before = threading.stack_size(_STACK_BYTES)
            try:
                # If memory is short, `threading.Thread` may wait forever for the thread to begin.
                _thread.start_new_thread(self._run, ())
            except RuntimeError:  # there can be no more threads, or the interpreter is ending
                self._ended.release()
            finally:
                threading.stack_size(before)

    def _run(self) -> None:
        # A finalizer that a garbage collection calls may need a lock of the thread that waits. Besides,
        # a compilation makes millions of small objects, of which collections find next to nothing to free.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._has_begun = True
            _held(self._call)
        finally:
            self._ended.release()
            if was_enabled:
                gc.enable()  # at the very end: no collection comes before another thread's

    def _call(self) -> None:
        _at_work.add(threading.get_ident())
        try:
            if self._take():
                result = self._function(*self._arguments)
                self._outcome.append(lambda: result)
        except BaseException as error:
            self._outcome.append(functools.partial(_raise, error))
        finally:
            _at_work.discard(threading.get_ident())

    def _take(self) -> bool:
        try:
            self._to_do.pop()
        except IndexError:
            return False
        return True

    def result(self) -> Any:
        """Wait, and return or raise what the function did."""
        while not self._ended.acquire(timeout=_PATIENCE_SECONDS):
            # The thread could not begin; or a signal handler has forked, and the child does not have it.
            if self._outcome or not self._has_begun or os.getpid() != self._process:
                break
        if self._take():
            return _held(self._function, *self._arguments)
        if not self._outcome:
            raise MemoryError
        return self._outcome.pop()()


def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # which must not refer to itself, and keep the caller's arrays


@atexit.register
def _wait() -> None:
    """Wait for a thread whose caller was interrupted: a process must not end in the middle of LLVM."""
    with LOCK:
        pass


def _held(function: Callable[..., T], *arguments: Any) -> T:
    with LOCK:
        return function(*arguments)


def _may_hold_locks() -> bool:
    """Return whether this thread is in the middle of something whose locks another would wait for.

    Such as the import of Numba, during which a signal handler calls dmlops.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _LOCKING:
            return True
        frame = frame.f_back
    return False


def cannot_load(what: str, error: OSError) -> UnsupportedFeatureError:
    """Return the error that says what an error of the system, such as too many open files, has prevented."""
    return UnsupportedFeatureError(
        f"dmlops: {what} cannot be loaded: {error}; call again when files can be opened"
    )


@functools.cache
def wheel_targets() -> tuple[str, ...]:
    """Return the targets for which the wheel has kernels."""
    try:
        names = os.listdir(WHEEL)
    except (FileNotFoundError, NotADirectoryError):  # an installation from source, or in a zip file
        return ()
    except PermissionError as error:
        kernel_cache.warn_once(f"{WHEEL} cannot be read ({error.strerror})")
        return ()
    return tuple(sorted(name.removesuffix(".zip") for name in names if name.endswith(".zip")))


def cuda_extra(*, with_compilers: bool = False) -> str:
    """Return the command that installs what CUDA devices need: compilers too, if the wheel has no kernels."""
    with_compilers = with_compilers or not any(name.startswith("sm_") for name in wheel_targets())
    extra = "-jit" if with_compilers else ""
    name = "." if (WHEEL.parents[1] / "pyproject.toml").is_file() else "dmlops"  # of a clone, or installed
    return f'pip install "{name}[cuda{extra}]" (or "{name}[cuda12{extra}]" for a CUDA 12 driver)'


def find_in_wheel(device: str, kernel: str, sources: str, targets: Iterable[str]) -> bytes | None:
    """Return a kernel's code from the first archive that has it; the caller holds `LOCK`.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    kernel : str
        The kernel's label.
    sources : str
        Digest of the sources that are installed: an archive of others is not used.
    targets : iterable of str
        The archives whose code runs here, best first.
    """
    for target in targets:
        archive = _archive(device, target, sources) if target in wheel_targets() else None
        if archive is not None and kernel in archive.labels:
            from dmlops.store.kernel_archive import ArchiveError  # noqa: PLC0415

            try:
                return archive.read(kernel)
            except ArchiveError as error:
                kernel_cache.warn_once(str(error))
    return None


@functools.cache
def _archive(device: str, target: str, sources: str) -> "Archive | None":
    from dmlops.store.kernel_archive import Archive, ArchiveError  # noqa: PLC0415 - a source install has none

    path = WHEEL / f"{target}.zip"
    try:
        archive = Archive(path)
    except (ArchiveError, FileNotFoundError) as error:  # gone, where another version is being installed
        kernel_cache.warn_once(str(error))
        return None
    if (archive.device, archive.target, archive.sources) != (device, target, sources):
        kernel_cache.warn_once(
            f"{path} was made for another target, or from other sources than are installed"
        )
        return None
    return archive


def find_or_compile(key: Key, compile_kernel: Callable[[], bytes]) -> bytes:
    """Return a kernel's code, from the cache directory if it is there; the caller holds `LOCK`."""
    code = kernel_cache.read(key)
    if code is None:
        log.info(COMPILING, key.kernel, key.target_name)
        if threading.get_ident() in _at_work:  # a caller waits
            _tell_once()
        start = time.perf_counter()
        code = compile_kernel()
        log.info("compiled %s for %s in %.1f s", key.kernel, key.target_name, time.perf_counter() - start)
        kernel_cache.keep(key, code)
    return code


@functools.cache
def _tell_once() -> None:
    """Tell users at a terminal or in a notebook why they wait; a program has the log, at the level INFO."""
    with suppress(Exception):  # there may be nowhere to write to
        is_read = sys.stderr.isatty() or "ipykernel" in sys.modules
        if is_read and not log.isEnabledFor(logging.INFO):
            print("dmlops: compiling kernels for this machine; later processes find them", file=sys.stderr)


def source_digest(folder: Path) -> str:
    """Return a digest of the contents of all Python files in a folder: kernels inline functions of others.

    It is "" where the code that runs is not, or not only, in such files: in a zip file, a frozen program, or
    compiled modules. Nothing then tells the kernels of one version from those of another, so that none is
    taken from the wheel or the cache directory.
    """
    try:
        return _source_digest(folder)
    except OSError as error:
        kernel_cache.warn_once(f"the sources in {folder} cannot be read ({error.strerror or error})")
        return ""


@functools.cache
def _source_digest(folder: Path) -> str:
    paths: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths.update(os.path.join(place, name) for name in names)
    sources = {path for path in paths if path.endswith(".py")}
    # An import takes a source rather than its bytecode, but a native module rather than either.
    hidden = {path for path in paths if path.endswith(_NATIVE)}
    hidden |= {path for path in paths if path.endswith(".pyc") and path[:-1] not in sources}
    if hidden or not (folder / "__init__.py").is_file():
        message = f"{min(hidden)} has none" if hidden else "there are none"
        raise OSError(message)
    digest = hashlib.sha256()
    for path in sorted(map(Path, sources)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()
