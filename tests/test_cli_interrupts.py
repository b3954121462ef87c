"""Ctrl-C and other signals: one word, exit code 130, and nothing left running.

Every wait has a limit, so that a command that does not obey fails its test.
"""

import os
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.command_line import end_of, kill_group, start_command, wait_for
from tests.marks import exhaustive
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are others there")

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)


def processes():
    """Return group, number, parent and state of all processes."""
    listing = subprocess.run(
        ["ps", "-e", "-o", "pgid=,pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        group, number, parent, state = line.split()
        yield int(group), int(number), int(parent), state


def running(process):
    """Return the processes of a group that are not dead yet."""
    return [number for group, number, _, state in processes() if group == process.pid and "Z" not in state]


@pytest.fixture
def warmup(tmp_path):
    """Start a `dmlops warmup` that would take minutes, and return it when it compiles."""
    process = start_command(
        "warmup", "--device", "cpu", "--jobs", 2, folder=tmp_path, DMLOPS_CACHE_DIR=str(tmp_path / "cache")
    )
    try:
        wait_for(lambda: process.poll() is not None or any(each.is_file() for each in tmp_path.rglob("*")))
        assert process.poll() is None
        yield process
    finally:
        kill_group(process)


def test_what_ends_a_command_is_not_interrupted():
    printed = run_script(
        """
        import importlib.metadata, runpy, signal, sys

        def version(package):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                print("ended in order", flush=True)

        signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
        importlib.metadata.version = version  # asked by `dmlops info`
        sys.argv = ["dmlops", "info"]
        try:
            runpy.run_module("dmlops", run_name="__main__")
        except SystemExit as end:
            print(end.code)
        signal.raise_signal(signal.SIGINT)
        """,
        errors=True,
    )
    assert printed == ("ended in order\n130\n", "dmlops: interrupted\n")


def last_line(error):
    """Return the last line on standard error; those before it say how far `warmup` is."""
    *others, last = error.splitlines()
    assert all(line.startswith("CPU: ") for line in others)
    return last


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n_interrupts", "pause"), [(1, 0), (4, 0), (4, 0.0001), (4, 0.001), (4, 0.01)])
def test_warmup_ends_at_interrupts(warmup, n_interrupts, pause):
    for _ in range(n_interrupts):
        os.killpg(warmup.pid, signal.SIGINT)  # as a terminal does it
        time.sleep(pause)
        if warmup.poll() is not None:
            break
    code, error = end_of(warmup)
    assert code == 130
    assert last_line(error) == "dmlops: interrupted"
    wait_for(lambda: not running(warmup))


@pytest.mark.parametrize("number", [exhaustive(signal.SIGTERM), signal.SIGKILL])
def test_no_process_of_warmup_outlives_it(warmup, number):
    warmup.send_signal(number)
    code, _ = end_of(warmup)
    assert code == -number
    wait_for(lambda: not running(warmup))


@pytest.mark.exhaustive
def test_a_process_of_warmup_that_is_lost_is_told(warmup):
    # The first child is the resource tracker of multiprocessing; the others compile.
    _, worker, *_ = sorted(number for _, number, parent, _ in processes() if parent == warmup.pid)
    os.kill(worker, signal.SIGKILL)
    code, error = end_of(warmup)
    assert code == 1
    assert last_line(error) == (
        "dmlops: warmup: a process that compiles has ended, such as for lack of memory"
    )
