"""Runs the GPU tests on the compiled kernels in `dmlops/kernels`, and on no others.

    python -m pytest -p tests.gpu.on_archive tests/gpu

The compilers are hidden from the tests and from the processes that they start, and the cache begins empty: a
kernel that the archive lacks, or that the driver refuses, fails its tests. At the end, this prints the line
for the table in docs/reliability.md.
"""

import datetime
import importlib
import os
import sys
import tempfile

import pytest

from tests import inside
from tests.scripts import ROOT

HIDDEN = ("numba_cuda", "numba.cuda")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Hide the compilers before anything looks for them."""
    if not any(ROOT.glob("dmlops/kernels/sm_*.kernels")):
        message = "build_kernels.py has to fill dmlops/kernels first"
        raise pytest.UsageError(message)
    folder = tempfile.TemporaryDirectory(prefix="dmlops-cache-")
    early_config.add_cleanup(folder.cleanup)
    paths = [str(ROOT / "tests" / "without"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(
        DMLOPS_CACHE_DIR=folder.name, DMLOPS_WITHOUT=" ".join(HIDDEN), PYTHONPATH=os.pathsep.join(paths)
    )
    sys.modules.update(dict.fromkeys(HIDDEN))


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Print the line for the table, unless the run was cut short."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    core = importlib.import_module("cuda.core")
    kernel_store = inside.kernel_store
    archives = inside.kernel_archive
    major, minor = core.Device(0).compute_capability
    target = f"sm_{major}{minor}"
    archive = archives.Archive(kernel_store.WHEEL / f"{target}.kernels")
    counts = {
        name: len(terminalreporter.getreports(name)) for name in ("passed", "skipped", "failed", "error")
    }
    command = " ".join(["pytest", *config.invocation_params.args])
    terminalreporter.section("the line for docs/reliability.md")
    terminalreporter.line(line_of(archive, core.Device(0).name, command, counts))


def line_of(archive, gpu, command, counts):
    """Return the line of the table for a run of the tests."""
    n_failed = counts["failed"] + counts["error"]
    result = f"{counts['passed']} passed, {counts['skipped']} skipped, {n_failed} failed"
    today = datetime.date.today().isoformat()
    target, compilers = archive.origin.target, archive.origin.compilers
    cells = (target, f"`{archive.digest}`", compilers, f"`{command}`", gpu, today, result)
    return f"| {' | '.join(cells)} |"
