"""Interrupts at any moment of a call: no part of it runs afterwards, and the next call is right.

``DMLOPS_INTERRUPTS`` sets the number of interrupts.
"""

import os
import signal
import sys

import pytest

from tests.inside import PLACES
from tests.scripts import run_script

INTERRUPTS = int(os.environ.get("DMLOPS_INTERRUPTS", "100"))
SEED = int(os.environ.get("DMLOPS_STRESS_SEED", "0"))


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers that send signals")
def test_interrupts_of_calls_on_many_threads(capsys):
    script = f"from tests.interrupted_calls import main; main({SEED}, {INTERRUPTS})"
    printed, log = run_script(script, errors=True, DMLOPS_NUM_THREADS="4")
    assert log == "", "where nobody can raise it, Python prints an exception"
    with capsys.disabled():
        print(f" {printed.strip()}", end="")
    assert int(printed.split()[0]) == INTERRUPTS


BEGIN = """
    import os, signal, sys, threading, time
    import numpy as np
    import dmlops

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    def signal_when(module):
        # As soon as a module is being imported, the main thread gets a signal.
        def wait():
            while module not in sys.modules:
                time.sleep(0.0005)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        threading.Thread(target=wait, daemon=True).start()

    def check(x=np.arange(12, dtype="float32").reshape(3, 4)):
        assert dmlops.diagonal_matrix(x, value=7).tolist() == [[7, 1, 2, 3], [4, 7, 6, 7], [8, 9, 7, 11]]
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals")
def test_a_first_call_that_compiles(tmp_path):
    """An interrupt ends it; the next one, during which a handler makes the same call, is right."""
    script = f"""
        calls = []

        def call(*_):
            calls.append(None)
            check()

        signal.signal(signal.SIGUSR1, interrupt)
        signal_when("numba")
        try:
            check()
        except Interrupted:
            print("interrupted")
        signal.signal(signal.SIGUSR1, call)
        signal_when({PLACES["jit"]!r})
        for _ in range(3):
            check()
        print(len(calls))
    """
    assert run_script(BEGIN, script, DMLOPS_CACHE_DIR=str(tmp_path)).split() == ["interrupted", "1"]


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are others there")
def test_a_kernel_for_which_there_is_no_memory():
    """A library that was linked in part keeps no name that a later one would take."""
    script = """
        import resource

        check()  # imports everything
        x = np.arange(6, dtype="uint8").reshape(2, 3)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, hard))
        try:
            dmlops.gather_nd(x, [[1]])
        except MemoryError:
            print("no memory")
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        print(dmlops.gather_nd(x, [[1]]).tolist(), len(dmlops.nonzero_coordinates(x).coordinates))
    """
    prepare = "import numpy as np, dmlops; x = np.arange(6, dtype='uint8').reshape(2, 3)\n"
    run_script(prepare, "dmlops.gather_nd(x, [[1]]), dmlops.nonzero_coordinates(x)")
    printed, _ = run_script(BEGIN, script, errors=True)
    assert printed == "no memory\n[[3, 4, 5]] 5\n"
