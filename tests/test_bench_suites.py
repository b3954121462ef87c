"""The pytest-benchmark suites in bench/: one benchmark per workload and contender, from the same tables."""

import os
import subprocess
import sys

import pytest

from bench.peers import contenders
from bench.workload_table import workloads
from bench.workloads import CPU, CUDA
from tests.scripts import ROOT

pytest.importorskip("pytest_benchmark")


def run_suites(*options, **environment):
    """Run pytest on suites in bench/; return its exit status and what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options],
        cwd=ROOT,
        # Under pytest-xdist, nothing is timed.
        env={name: text for name, text in os.environ.items() if "XDIST" not in name} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def test_the_suites_have_all_workloads():
    for device, options in ((CPU, ()), (CUDA, ("--quick",))):
        code, printed = run_suites("bench", "--collect-only", "--device", device, *options)
        assert code == 0, printed
        found = [line.partition("::")[2] for line in printed.splitlines() if "::" in line]
        assert sorted(found) == sorted(
            f"bench_workload[{workload.operator}-{workload.name}-{who.name}]"
            for workload in workloads(device)
            if workload.quick or not options
            for who in contenders(workload.operator, device)
        )


def test_a_wrong_answer_of_dmlops_is_not_timed(tmp_path):
    (tmp_path / "play.py").write_text(
        "from bench import answers, timing\n"
        "timing.COPY_BYTES = 1 << 16\n"
        "answers.fault = lambda task, answer: 'not sorted'\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH")]))
    options = (
        "-p",
        "play",
        "--threads",
        "1",
        "--benchmark-max-time",
        "0.01",
        "-k",
        "diagonal and small and (dmlops or numpy.tril)",
    )
    code, printed = run_suites("bench", *options, PYTHONPATH=path)
    assert code == 1
    assert "1 failed, 1 passed" in printed
    assert "FAILED bench/suites.py::bench_workload[diagonal_matrix-diagonal small 64 x 64-dmlops]" in printed
