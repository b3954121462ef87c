"""Calls at bad moments: when the interpreter ends, from a zip file, and in a fork during a first call."""

import os
import shutil

import pytest

from tests import inside
from tests.scripts import ROOT, run_script

pytestmark = pytest.mark.exhaustive

CALL = """
    import numpy as np
    import dmlops

    def check(x=np.arange(12, dtype="float32").reshape(3, 4)):
        assert dmlops.top_k(x, 2).indices.tolist() == 3 * [[3, 2]]
        assert dmlops.diagonal_matrix(x, value=7).tolist()[1] == [4, 7, 6, 7]
"""


@pytest.mark.parametrize("first", ["", "check()"])
def test_a_call_when_the_interpreter_ends(first):
    at_end = "import atexit; atexit.register(lambda: print(check()))\n"
    assert run_script(CALL, at_end, first) == "None\n"


@pytest.mark.nightly
def test_an_import_from_a_zip_file(tmp_path):
    for package in ("dmlops", "kernels_cpu"):
        shutil.copytree(ROOT / package, tmp_path / "content" / package)
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "content")
    begin = f"import sys; sys.path.insert(0, {archive!r})\n"
    cache = tmp_path / "cache"
    printed, log = run_script(
        begin, CALL, "check(); print(dmlops.__file__)", errors=True, DMLOPS_CACHE_DIR=str(cache)
    )
    assert archive in printed
    # An archive does not tell which version of a kernel it has: none is kept.
    assert "cannot be read" in log
    assert not cache.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(
    "module", ["llvmlite", inside.cpu_kernels("top_k").__name__, inside.PLACES["linking"]]
)
def test_a_fork_during_the_imports_of_a_first_call(module):
    fork = f"""
    import os, sys, threading, time, warnings

    caller = threading.Thread(target=check)
    caller.start()
    while {module!r} not in sys.modules:
        time.sleep(0.0001)
    warnings.simplefilter("ignore")  # of a fork where there are several threads
    child = os.fork()
    check()
    if child == 0:
        os._exit(0)
    caller.join()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_script(CALL, fork) == "0\n"
