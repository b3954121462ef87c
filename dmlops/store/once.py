"""Work that a process does once, whichever thread asks first: imports, kernels, registrations elsewhere.

No lock of ours is held where code of others runs that may wait for one. First calls do their work on threads
of their own, one after the other, which begin without any lock. A thread that may hold locks of others, such
as Numba's compiler lock or that of a handler of the log, works by itself instead and waits for nobody: if two
threads have made the same object, the first one is kept.
"""

import _thread
import atexit
import functools
import gc
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, Generic, NoReturn, TypeVar

from dmlops.types.errors import DmlError

T = TypeVar("T")

LOCK = threading.RLock()
"""Held by the thread that does the work of a first call (`apart`).

A fork waits until that is done: the child would find locks held, and modules half imported, by a thread that
it does not have.
"""
# Held while `threading.stack_size`, which the whole process shares, is changed.
_START_LOCK = threading.RLock()
# Held while dmlops registers something with another library.
_REGISTER_LOCK = threading.RLock()
# Maps each thread that is forking to whether it has acquired `LOCK`.
_forking: dict[int, bool] = {}

# Numba and LLVM recurse deeply, and the caller may have little stack left.
_STACK_BYTES = 16 << 20
# Packages with locks of their own, which imports and compilations take.
_LOCKING = {"importlib", "logging", "llvmlite", "numba"}
# A thread that has not begun after so long is not coming: the process may have been forked.
_PATIENCE_SECONDS = 2

_made: dict[Hashable, Any] = {}
# The work that each thread is doing now.
_at_work: "dict[int, _Work[Any]]" = {}
VERSION: str = vars(sys.modules[__name__.partition(".")[0]])["__version__"]
"""The version of this copy of dmlops; another copy may take its place in `sys.modules`."""
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` returns, the same for all threads.

    A thread that may hold locks of others does not wait, and may make a second object, which is dropped. Use
    `registered` for what must not happen twice.
    """
    return _made[key] if key in _made else apart(_make, key, make)  # type: ignore[no-any-return]


def is_made(key: Hashable) -> bool:
    """Return whether `once` has made the object of a key."""
    return key in _made


# Another thread may be faster in between.
def _make(key: Hashable, make: Callable[[], T]) -> T:
    return _made[key] if key in _made else _made.setdefault(key, make())  # type: ignore[no-any-return]


def imported(name: str) -> ModuleType:
    """Return a module that a first call needs."""
    return once(("module", name), functools.partial(importlib.import_module, name))


def registered(library: str, name: Hashable, register: Callable[[], T]) -> T:
    """Return what `register` returned when dmlops registered something with another library.

    It is called once per process, even if dmlops is imported a second time: by a notebook that reloads
    modules, by a test runner, or from another folder.

    `library` is the name of the library's module, which has been imported. If another version of dmlops was
    there first, this raises DmlError.
    """
    kept = kept_by(library)
    with _REGISTER_LOCK:
        version, folder = kept.setdefault("version", (VERSION, _FOLDER))
        if version != VERSION:
            message = (
                f"dmlops {VERSION} in {_FOLDER}: {library} already has the operators of dmlops {version} in "
                f"{folder}, and a process can have one version of them; start a new process"
            )
            raise DmlError(message)
        if name not in kept:
            kept[name] = register()
        return kept[name]  # type: ignore[no-any-return]


def kept_by(library: str) -> dict[Hashable, Any]:
    """Return a dict that lives as long as another library's module, even if dmlops is imported anew."""
    kept: dict[Hashable, Any] = vars(sys.modules[library]).setdefault("_kept_by_dmlops", {})
    return kept


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that imports, compiles or links on a thread of its own, which holds `LOCK`.

    Python runs signal handlers on the main thread alone: here none of them can raise in the middle of what
    must not be left half done. An interrupt ends the wait, and the work goes on; a later call waits for it.
    """
    if threading.get_ident() in _at_work or _may_hold_locks():
        return function(*arguments)
    work = _Work(function, arguments)
    work.start()
    return work.result()


def is_first_call_thread() -> bool:
    """Return whether this thread does the work of a first call."""
    return threading.get_ident() in _at_work


def tell(report: Callable[..., object], *arguments: object) -> None:
    """Call a function that runs code of users, such as a log handler, while no lock of ours is held.

    That is the thread that waits for the work: a handler may wait for a lock which that thread has.
    """
    work = _at_work.get(threading.get_ident())
    if work is None:
        report(*arguments)
    else:
        work.tell(functools.partial(report, *arguments))


class _Work(Generic[T]):
    """A call for a thread of its own, or for the thread that waits if there can be no other."""

    def __init__(self, function: Callable[..., T], arguments: tuple[object, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._process = os.getpid()
        # Whichever thread pops the only element makes the call.
        self._to_do = [None]
        self._outcome: list[Callable[[], T]] = []
        self._reports: deque[Callable[[], object]] = deque()
        self._has_begun = self._has_ended = False
        # Released when there are reports, or when the work has ended.
        self._news = threading.Lock()
        self._news.acquire()

    def start(self) -> None:
        if sys.is_finalizing():  # new threads would not run
            self._end()
            return
        with _START_LOCK:
            before = threading.stack_size(_STACK_BYTES)
            try:
                # If memory is short, `threading.Thread` may wait forever for the thread to begin.
                _thread.start_new_thread(self._run, ())
            except RuntimeError:  # there can be no more threads, or the interpreter is ending
                self._end()
            finally:
                threading.stack_size(before)

    def _end(self) -> None:
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake, and will look again
            self._news.release()

    def tell(self, report: Callable[[], object]) -> None:
        """Have the thread that waits make a report."""
        self._reports.append(report)
        self._wake()

    def _run(self) -> None:
        # A finalizer that a garbage collection calls may need a lock of the thread that waits. Besides,
        # a compilation makes millions of small objects, of which collections find next to nothing to free.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._has_begun = True
            self._call()
        finally:
            self._end()
            if was_enabled:
                gc.enable()  # at the very end: no collection comes before another thread's

    def _call(self) -> None:
        if not self._to_do:
            return
        with LOCK:
            _at_work[threading.get_ident()] = self
            try:
                if self._take():
                    result = self._function(*self._arguments)
                    self._outcome.append(lambda: result)
            except BaseException as error:
                self._outcome.append(functools.partial(_raise, error))
            finally:
                del _at_work[threading.get_ident()]

    def _take(self) -> bool:
        try:
            self._to_do.pop()
        except IndexError:
            return False
        return True

    def result(self) -> T:
        """Wait, and return or raise what the function did."""
        while not self._has_ended:
            if self._news.acquire(timeout=_PATIENCE_SECONDS):
                self._report()
            elif os.getpid() != self._process:  # a signal handler has forked: the child lacks the thread
                self._to_do = [] if self._outcome else [None]
                break
            elif self._outcome or not self._has_begun:  # the thread could not begin
                break
        self._call()  # unless the other thread has
        self._report()
        if not self._outcome:
            raise MemoryError
        return self._outcome.pop()()

    def _report(self) -> None:
        while self._reports:
            self._reports.popleft()()


def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # which must not refer to itself, and keep the caller's arrays


def _before_fork() -> None:
    # The work may be waiting for a lock that this thread holds: do not wait for it forever.
    patience = _PATIENCE_SECONDS if _may_hold_locks() else -1
    _forking[threading.get_ident()] = LOCK.acquire(timeout=patience)


def _after_fork_in_parent() -> None:
    if _forking.pop(threading.get_ident()):
        LOCK.release()


def _after_fork_in_child() -> None:
    global LOCK  # noqa: PLW0603
    if _forking.pop(threading.get_ident()):
        LOCK.release()
    else:
        LOCK = threading.RLock()
        _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
    for lock in (_START_LOCK, _REGISTER_LOCK):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


@atexit.register
def _wait() -> None:
    """Wait for a thread whose caller was interrupted: a process must not end in the middle of LLVM."""
    with LOCK:
        pass


def _may_hold_locks() -> bool:
    """Return whether this thread may have locks for which another thread of ours would wait.

    It may be in the middle of the import of Numba, during which a signal handler calls dmlops.
    """
    # numba-cuda takes this lock, too.
    lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    if lock is not None and lock.is_locked():  # by this thread
        return True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _LOCKING:
            return True
        frame = frame.f_back
    return False
