"""A command leaves the streams, signals and hooks of the process that runs it as they are."""

import signal
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.quick

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)
]


def state():
    """Return what a command may not change."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, []) if hasattr(signal, "pthread_sigmask") else set()
    return handlers, blocked, sys.stdout, sys.stderr, sys.unraisablehook


@pytest.fixture(autouse=True)
def interruptible():
    """Let interrupts arrive, which a job in the background would ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("line", ["top-k x.npy -k 1 -o best.npz", "top-k x.npy -k 9", "bogus", "--version"])
def test_all_is_as_it_was(command, line):
    np.save("x.npy", X)
    before = state()
    command(*line.split())
    assert state() == before
