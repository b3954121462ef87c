"""A command restores the streams, signals and hooks of the process that runs it."""

import errno
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from dmlops.cli import ending
from tests.command_line import assert_refused

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


@pytest.mark.skipif(not hasattr(os, "chown"), reason="files have no owners there")
@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_replaced_file_keeps_its_owner_where_that_is_allowed(command, monkeypatch, is_allowed):
    np.save("x.npy", X)
    Path("best.npz").touch()
    owner, given = os.stat("best.npz"), []

    def chown(path, user, group):
        given.append((user, group))
        if not is_allowed:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    code, _, error = command("top-k", "x.npy", "-k", 1, "-o", "best.npz")
    assert (code, error) == (0, "")
    assert given == [(owner.st_uid, owner.st_gid)]
    assert os.path.getsize("best.npz")


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_that_takes_what_is_printed_is_no_target(command, monkeypatch, number):
    np.save("x.npy", X)
    Path("best.npz").touch()
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat("best.npz") if file == number else fstat(file))
    outcome = command("top-k", "x.npy", "-k", 1, "-o", "best.npz")
    assert_refused(outcome, "-o best.npz: standard output or standard error goes to that file")
