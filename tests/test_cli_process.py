"""A command restores the streams, signals and hooks of the process that runs it."""

import io
import signal
import sys

import numpy as np
import pytest

from dmlops.cli import ending

pytestmark = pytest.mark.quick

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int16)
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


def test_an_interrupt_is_exit_code_130(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert ending.run(interrupted) == 130
    assert capsys.readouterr().err == "dmlops: interrupted\n"


def test_a_job_that_ignores_interrupts_goes_on_ignoring_them():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seen = []
    assert ending.run(lambda: seen.append(signal.getsignal(signal.SIGINT))) == 0
    assert seen == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_what_else_cannot_be_raised_reaches_the_hook_that_was_there(monkeypatch):
    class Broken:
        def __del__(self):
            message = "in a destructor"
            raise ValueError(message)

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))

    def work():
        Broken()

    assert ending.run(work) == 0
    assert told == ["in a destructor"]


def test_a_long_error_stays_short_where_its_letters_are_spelled_out(command, monkeypatch):
    errors = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", errors)
    # In ASCII each of these letters is six characters.
    assert command("top-k", 60 * "日" + ".npy", "-k", 1)[0] == 1
    line = errors.buffer.getvalue().decode("ascii")
    assert line.startswith("dmlops: \\u65e5\\u65e5")
    assert line.endswith(".npy: No such file or directory\n")
    assert len(line) == 1 + ending.MAX_LINE
