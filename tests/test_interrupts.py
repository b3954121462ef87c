"""Interrupts at random moments of calls on many threads: no part of a call runs afterwards.

``DMLOPS_INTERRUPTS`` sets the number of interrupts.
"""

import os
import signal

import pytest

from tests.scripts import run_script

INTERRUPTS = int(os.environ.get("DMLOPS_INTERRUPTS", "100"))
SEED = int(os.environ.get("DMLOPS_STRESS_SEED", "0"))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers that send signals")
def test_interrupts_of_calls_on_many_threads(capsys):
    script = f"from tests.interrupted_calls import main; main({SEED}, {INTERRUPTS})"
    printed, log = run_script(script, errors=True, DMLOPS_NUM_THREADS="4")
    assert log == "", "where nobody can raise it, Python prints an exception"
    with capsys.disabled():
        print(f" {printed.strip()}", end="")
    assert int(printed.split()[0]) == INTERRUPTS
