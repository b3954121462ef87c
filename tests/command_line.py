"""What tests of the command line have in common: processes of its own, and what an error looks like."""

import os
import re
import subprocess
import sys

from hypothesis import HealthCheck, settings

from tests.scripts import ROOT

# `command` gives each test a folder, which all examples of a test may share.
fuzz = settings(
    max_examples=int(os.environ.get("DMLOPS_FUZZ_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_one_line(code, error):
    """Check that a command ended with an error that its user can act upon."""
    assert code in {1, 2}
    assert re.fullmatch(r"dmlops: .+\n", error)
    assert len(error) <= 301
    assert "internal error" not in error


def assert_refused(outcome, *parts):
    """Check that a command printed nothing but one line with these parts, and ended with exit code 1."""
    code, printed, error = outcome
    assert (code, printed) == (1, "")
    assert_one_line(code, error)
    for part in parts:
        assert part in error


def start_command(*arguments, folder, **environment):
    """Start `dmlops ARGUMENTS` in a folder, as the leader of a process group; return the process.

    Its standard output and standard error are pipes. Modules in the folder come before all others.
    """
    return start_python("-m", "dmlops.cli", *arguments, folder=folder, **environment)


def start_python(*arguments, folder, **environment):
    """Start an interpreter in the same way."""
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
