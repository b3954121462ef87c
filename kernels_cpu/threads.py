"""A small persistent pool of worker threads, and how many of them the kernels may use.

Kernels release the GIL, so plain Python threads run them side by side. Handing work to a thread that waits
on a `queue.SimpleQueue` costs some 13 us, a quarter of what an executor with futures does.
"""

import functools
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

MAX_THREADS = 1024
ENVIRONMENT_VARIABLE = "DMLOPS_NUM_THREADS"

_chosen_num_threads: int | None = None


def set_num_threads(n: int | None) -> None:
    """Set how many threads an operator may use.

    Parameters
    ----------
    n : int or None
        At least 1. None returns to the default: ``DMLOPS_NUM_THREADS``, else the number of CPUs that this
        process may run on; both are read anew.

    Raises
    ------
    ValueError
        If `n` is no whole number in that range.
    """
    global _chosen_num_threads  # noqa: PLW0603 - the one process-wide setting
    if n is None:
        _default_num_threads.cache_clear()
    _chosen_num_threads = None if n is None else _checked("set_num_threads: n", n)


def get_num_threads() -> int:
    """Return how many threads an operator may use.

    Raises
    ------
    ValueError
        If ``DMLOPS_NUM_THREADS`` is what counts, and is no whole number from 1 to 1024.
    """
    return _chosen_num_threads or _default_num_threads()


@functools.cache
def _default_num_threads() -> int:
    if text := os.environ.get(ENVIRONMENT_VARIABLE):
        return _checked(ENVIRONMENT_VARIABLE, int(text) if text.strip().isdecimal() else text)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
    return min(count() or 1, MAX_THREADS)


def _checked(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MAX_THREADS:
        message = f"{name}: got {value!r}, but it must be a whole number in [1, {MAX_THREADS}]"
        raise ValueError(message)
    return number


class _Call:
    """One `run`: the parts that nobody has started yet, and how those ended that workers took.

    The caller takes part until nothing is pending, and waits only for parts that are already running. So
    nested calls, more callers than workers, and no workers at all (at interpreter shutdown) cannot deadlock.
    """

    __slots__ = ("finished", "function", "n_others", "pending")

    def __init__(self, function: Callable[..., Any], parts: Sequence[tuple[Any, ...]]) -> None:
        self.function = function
        self.pending = deque(parts)
        self.n_others = len(parts)
        self.finished: SimpleQueue[BaseException | None] = SimpleQueue()

    def help(self) -> None:
        """Run pending parts on a worker thread."""
        while self.pending:
            try:
                part = self.pending.popleft()
            except IndexError:  # another thread was faster
                return
            self.finished.put(self.attempt(part))

    def attempt(self, part: tuple[Any, ...]) -> BaseException | None:
        """Run one part and return its error."""
        try:
            self.function(*part)
        except BaseException as error:  # raised on the calling thread when all parts have ended
            return error
        return None

    def complete(self, first: tuple[Any, ...]) -> None:
        """Run `first` and pending parts on the calling thread, wait for the others, raise the first error."""
        n_running = self.n_others
        errors = [self.attempt(first)]
        while self.pending:
            try:
                part = self.pending.pop()
            except IndexError:  # a worker was faster
                break
            n_running -= 1
            errors.append(self.attempt(part))
        while n_running:
            try:
                errors.append(self.finished.get())
                n_running -= 1
            except BaseException as interrupt:  # interrupted, but parts still use the caller's arrays
                errors.append(interrupt)
        for error in errors:
            if error is not None:
                raise error


class _Pool:
    """Daemon threads that wait for calls to take part in; they start when first needed."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._n_workers = 0

    def ask(self, call: _Call, n_helpers: int) -> None:
        """Wake `n_helpers` workers for `call`."""
        if self._n_workers < n_helpers:
            self._start(n_helpers)
        for _ in range(n_helpers):
            self._calls.put(call)

    def _start(self, n_workers: int) -> None:
        with self._lock:
            while self._n_workers < n_workers:
                name = f"dmlops-{self._n_workers + 1}"
                try:
                    threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()
                except RuntimeError:  # no more threads: the callers do the work themselves
                    return
                self._n_workers += 1


def _work(calls: "SimpleQueue[_Call]") -> None:
    while True:
        call = calls.get()
        call.help()
        del call  # while this thread waits, it must not keep the caller's arrays alive


_pool = _Pool()


def _reset_pool() -> None:
    # A forked child inherits the pool's numbers but none of its threads, and perhaps a lock nobody frees.
    global _pool  # noqa: PLW0603
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)


def run(
    function: Callable[..., Any], argument_tuples: Sequence[tuple[Any, ...]], threads: int | None = None
) -> None:
    """Call `function` with every tuple of arguments, side by side, and return when all calls have ended.

    Parameters
    ----------
    function : callable
        Releases the GIL if it is to gain anything; its result is dropped.
    argument_tuples : sequence of tuple
        The first runs on the calling thread, each other one on whichever thread is free first. May be empty.
    threads : int, optional
        How many may run at a time, where that is less than the number of tuples.

    Raises
    ------
    BaseException
        The first error of any call, after all of them have ended.
    """
    n_parts = len(argument_tuples)
    if n_parts == 1:
        function(*argument_tuples[0])
    elif n_parts:
        call = _Call(function, argument_tuples[1:])
        _pool.ask(call, min(threads or n_parts, n_parts) - 1)
        call.complete(argument_tuples[0])


def launcher(
    function: Callable[..., Any], parts: Sequence[tuple[Any, ...]], threads: int | None = None
) -> Callable[..., Any]:
    """Return a function of further arguments that runs each part, followed by them; see `run`.

    It returns what the only part does; None where there are several, or none.
    """
    if len(parts) == 1:
        return functools.partial(function, *parts[0])

    def launch(*further: Any) -> None:
        run(function, [(*part, *further) for part in parts], threads)

    return launch


def split(n: int, n_parts: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Cut ``range(n)`` into at most `n_parts` even ranges that start at multiples of `multiple`."""
    step = -(-n // max(n_parts, 1))
    step = max(-(-step // multiple) * multiple, 1)
    return [(first, min(first + step, n)) for first in range(0, n, step)]
