"""A small persistent pool of worker threads, and the number of threads that kernels may use.

Kernels release the GIL, so plain Python threads run them in parallel. Handing work to a thread that waits on
a `queue.SimpleQueue` costs some 13 us, a quarter of the cost of an executor with futures.
"""

import ctypes
import functools
import operator
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from queue import SimpleQueue
from typing import Any, TypeVar

from kernels_cpu.host_words import THREADS, WORDS

MAX_THREADS = 1024
Block = TypeVar("Block")
ENVIRONMENT_VARIABLE = "DMLOPS_NUM_THREADS"

_chosen_num_threads: int | None = None


def set_num_threads(n: int | None) -> None:
    """Set the number of threads that an operator may use.

    Parameters
    ----------
    n : int or None
        From 1 to 1024. None returns to the default: ``DMLOPS_NUM_THREADS``, else the number of CPUs that this
        process may run on; both are read anew.

    Raises
    ------
    ValueError
        If `n` is no whole number in that range.
    """
    global _chosen_num_threads  # noqa: PLW0603 - the one process-wide setting
    if n is None:
        _default_num_threads.cache_clear()
    _chosen_num_threads = None if n is None else _checked("set_num_threads.n", n)
    # A default that is no number is an error of the next call, which asks for it; none is native before that.
    WORDS[THREADS] = _chosen_num_threads or 0


def get_num_threads() -> int:
    """Return the number of threads that an operator may use.

    Raises
    ------
    ValueError
        If ``DMLOPS_NUM_THREADS`` decides, and is no whole number from 1 to 1024.
    """
    number = _chosen_num_threads or _default_num_threads()
    if not WORDS[THREADS]:  # native calls wait for a default that is read anew
        WORDS[THREADS] = number
        if _chosen_num_threads:  # by another thread, meanwhile
            WORDS[THREADS] = number = _chosen_num_threads
    return number


@functools.cache
def _default_num_threads() -> int:
    if text := os.environ.get(ENVIRONMENT_VARIABLE):
        return _checked(ENVIRONMENT_VARIABLE, int(text) if re.fullmatch(r"\s*\d{1,99}\s*", text) else text)
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
        # Python refuses to print integers of thousands of digits.
        got = repr(value) if abs(number) < 1 << 99 else f"an integer of {number.bit_length()} bits"
        message = f"{name}: got {got[:99]}, but it must be a whole number in [1, {MAX_THREADS}]"
        raise ValueError(message)
    return number


# The pool waits for locks through Python's C API: `threading.Lock.acquire` runs signal handlers while it
# waits, and an exception of theirs would end the wait while kernels still run.
_allocate_lock = ctypes.pythonapi.PyThread_allocate_lock
_allocate_lock.restype = ctypes.POINTER(ctypes.c_char)
_release_lock = ctypes.pythonapi.PyThread_release_lock
_release_lock.restype = None
# `ctypes.pythonapi` would keep the GIL while it waits. Arguments are passed as they are (`_Ticket`): their
# conversion could fail, and with it the wait.
_acquire_lock = ctypes.CFUNCTYPE(ctypes.c_int)(
    ctypes.cast(ctypes.pythonapi.PyThread_acquire_lock, ctypes.c_void_p).value or 0
)
_WAIT, _DO_NOT_WAIT = 1, 0
# Locks are used again and never freed: a `__del__` that frees one would swallow an interrupt that meets it.
_idle_locks: list[Any] = []


class _Job:
    """One `run`: the argument blocks that nobody has started yet, and the first error of those that ended."""

    __slots__ = ("error", "function", "pending")

    def __init__(self, function: Callable[[Any], object], blocks: Sequence[object]) -> None:
        self.function = function
        self.pending = deque(blocks)
        self.error: BaseException | None = None

    def work(self) -> None:
        """Run pending blocks until none is left."""
        while self.pending:
            try:
                block = self.pending.popleft()
            except IndexError:  # another thread was faster
                return
            self.function(block)


class _Ticket:
    """A worker's right to take part in a job.

    A worker holds the lock while it works. After the caller has acquired it and no block is pending, no
    worker starts another block. A ticket that is used later finds nothing to do and releases the lock at
    once, which may already belong to another ticket.
    """

    __slots__ = ("job", "lock")

    def __init__(self, job: _Job) -> None:
        self.job = job
        try:
            self.lock = _idle_locks.pop()
        except IndexError:
            self.lock = ctypes.byref(_allocate_lock().contents)

    def use(self) -> None:
        """Work for the job on a worker thread, if its caller has not closed it."""
        if not _acquire_lock(self.lock, _DO_NOT_WAIT):
            return
        try:
            self.job.work()
        except BaseException as error:  # raised on the calling thread when the job has ended
            if self.job.error is None:  # no list, whose growth may fail
                self.job.error = error
        finally:
            _release_lock(self.lock)


class _Pool:
    """Daemon threads that wait for jobs to take part in; they start when first needed."""

    def __init__(self) -> None:
        self._tickets: SimpleQueue[_Ticket] = SimpleQueue()
        self._lock = threading.Lock()
        self._n_workers = 0

    def hand_out(self, tickets: Sequence[_Ticket]) -> None:
        """Wake a worker for each ticket."""
        if self._n_workers < len(tickets):
            self._start(len(tickets))
        for ticket in tickets:
            self._tickets.put(ticket)

    def _start(self, n_workers: int) -> None:
        with self._lock:
            while self._n_workers < n_workers:
                name = f"dmlops-{self._n_workers + 1}"
                try:
                    threading.Thread(target=self._work, name=name, daemon=True).start()
                except RuntimeError:  # no more threads: the callers do the work themselves
                    return
                self._n_workers += 1

    def _work(self) -> None:
        try:
            while True:
                ticket = self._tickets.get()
                ticket.use()
                del ticket  # while this thread waits, it must not keep the caller's job alive
        finally:  # out of memory: the next call starts another
            with self._lock:
                self._n_workers -= 1


_pool = _Pool()


def _reset_pool() -> None:
    # A forked child inherits the pool's numbers but none of its threads, and perhaps a lock nobody frees.
    global _pool  # noqa: PLW0603
    _pool = _Pool()
    _idle_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)


def run(function: Callable[[Block], object], blocks: Sequence[Block], threads: int | None = None) -> None:
    """Call `function` with every block of arguments, side by side, and return when all calls have ended.

    Parameters
    ----------
    function : callable
        Releases the GIL if it is to gain anything; its result is dropped.
    blocks : sequence
        Each goes to whichever thread is free first, the calling one included.
    threads : int, optional
        How many may run at a time, where that is less than the number of blocks.

    Raises
    ------
    BaseException
        The first error of any call. Whatever is raised, an interrupt included, no call is running any more.
    RuntimeError
        In a child that a signal handler has forked in the middle: it lacks the threads that were at work.
    """
    if len(blocks) == 1:
        function(blocks[0])
        return
    if sys.is_finalizing():  # the workers have stopped where they were
        for block in blocks:
            function(block)
        return
    pool = _pool
    job = _Job(function, blocks)
    tickets = [_Ticket(job) for _ in range(min(threads or len(blocks), len(blocks)) - 1)]
    locks = [ticket.lock for ticket in tickets]
    closing = map(_acquire_lock, locks, repeat(_WAIT))
    closing_in_child = map(_acquire_lock, locks, repeat(_DO_NOT_WAIT))
    try:
        pool.hand_out(tickets)
        job.work()
    finally:
        # Python runs signal handlers after a call of C code, never before: an interrupt between these two
        # lines still gets to the second, and nothing interrupts the wait itself, which is one call.
        try:
            job.pending.clear()
        finally:
            # In a child of a fork by a signal handler, no worker is left to release its lock.
            are_closed = all(closing if pool is _pool else closing_in_child)
    if not are_closed:
        message = "dmlops: a signal handler forked during the call; the child must call again"
        raise RuntimeError(message)
    for lock in locks:
        _release_lock(lock)
    _idle_locks.extend(locks)
    if job.error is not None:
        raise job.error


def split(n: int, n_parts: int) -> list[tuple[int, int]]:
    """Cut ``range(n)`` into at most `n_parts` even ranges."""
    step = max(-(-n // max(n_parts, 1)), 1)
    return [(first, min(first + step, n)) for first in range(0, n, step)]
