"""The memory of a process over calls of many different kinds: the cache of calls is bounded.

``DMLOPS_MEMORY_CALLS`` sets the number of calls.
"""

import os
from pathlib import Path

import pytest

from tests.scripts import run_script

CALLS = int(os.environ.get("DMLOPS_MEMORY_CALLS", "12000"))
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nobody says how much memory")


def measured(call, **environment):
    """Return the numbers that a process prints which did not have to compile."""
    script = f"""
        import sys
        from tests import calls_of_many_kinds
        calls_of_many_kinds.{call}
        print('numba' in sys.modules)
    """
    printed = run_script(script, **environment).split()
    if printed.pop() == "True":
        printed = run_script(script, **environment).split()
        assert printed.pop() == "False"
    return list(map(int, printed))


def test_calls_of_many_kinds(capsys):
    before, after = measured(f"many_kinds({CALLS}, 9000)", DMLOPS_NUM_THREADS="2")
    with capsys.disabled():
        print(f" {before / MIB:.1f} MiB before, {after / MIB:.1f} after {CALLS} calls", end="")
    # For any number of calls, the memory that the allocator retains stays within a few MiB.
    assert after - before < 12 * MIB


def test_the_largest_entries(capsys):
    before, after, entries = measured("largest_entries(16)")
    with capsys.disabled():
        print(f" {(after - before) / MIB:.1f} MiB for {entries} entries", end="")
    assert entries <= 2048
    assert after - before <= 32 * MIB
