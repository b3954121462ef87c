"""Helpers for tests of the command line: running it in a process, and checking its errors."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace

from hypothesis import HealthCheck, settings
from rich.console import Console
from rich.progress import Progress

from tests.scripts import ROOT

# An interrupted command ends within this time, which is much shorter than compiling all kernels.
LIMIT_S = 20
# A command starts its work in much less time, and so does a call that compiles.
START_S = 120
# `command` gives each test a folder, which all examples of a test may share.
fuzz = settings(
    max_examples=int(os.environ.get("DMLOPS_FUZZ_EXAMPLES", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_one_line(code, error):
    """Check that a command ended with an error that its user can act upon."""
    assert code in {1, 2}
    assert re.fullmatch(r"dmlops: .+\n", error)


def assert_refused(outcome, *parts):
    """Check that a command printed nothing but one line with these parts, and ended with exit code 1."""
    code, printed, error = outcome
    assert (code, printed) == (1, "")
    assert_one_line(code, error)
    for part in parts:
        assert part in error


def replace_gpus(monkeypatch, get_all_devices):
    """Have the package that knows this machine's GPUs answer with those of a function, or with its error."""
    core = SimpleNamespace(Device=SimpleNamespace(get_all_devices=get_all_devices))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    if find_spec("cuda") is None:
        monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(core=core))


def cells_of(printed):
    """Return the lines of a table with bars between the cells."""
    return [re.sub("  +", " | ", line.strip(" \u2500")) for line in printed.splitlines()]


def seen_on_a_terminal(monkeypatch, command, *arguments):
    """Return what a command prints to a terminal in red and in green, and where its progress bar ends."""
    bars, stop = [], Progress.stop
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "stop", lambda bar: bars.extend(bar.tasks) or stop(bar))
        patch.setattr(Console, "is_terminal", True)  # older consoles would remember FORCE_COLOR
        patch.setattr(Console, "is_dumb_terminal", False)
        patch.delenv("NO_COLOR", raising=False)
        _, printed, _ = command(*arguments)
    found = {
        name: [text.strip() for text in re.findall(rf"\x1b\[{code}m(.*?)\x1b", printed)]
        for name, code in (("red", 31), ("green", 32))
    }
    return found | {"progress": [(bar.completed, bar.total, bar.description) for bar in bars]}


def start_command(*arguments, folder, **environment):
    """Start `dmlops ARGUMENTS` in a folder, as the leader of a process group; return the process.

    Its standard output and standard error are pipes. Modules in the folder come before all others.
    """
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    # Otherwise it would inherit ignored signals if the tests run in the background or under `nohup`.
    ours = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if hasattr(signal, "SIGHUP"):
        ours[signal.SIGHUP] = signal.SIG_DFL
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "dmlops", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path, **environment},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(is_so):
    """Wait until something is so; fail the test where it never is."""
    deadline = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end_of(process):
    """Return the exit code and the text on standard error."""
    try:
        _, error = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise
    return process.returncode, error


def kill_group(process):
    """Kill a process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
