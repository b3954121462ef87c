"""Fixtures for all tests, and settings of the test run."""

import gc
import os
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

import dmlops
from tests.gpu.devices import n_devices
from tests.inside import kernel_cache, kernel_store
from tests.libraries import NUMPY, Torch
from tests.scripts import run_main

HOST_LIBRARIES = ("numpy", "torch") if find_spec("torch") else ("numpy",)
HAS_GPU = n_devices() > 0
NEEDS_GPU = pytest.mark.skipif(not HAS_GPU, reason="no GPU")

PASSED = os.environ.get("DMLOPS_TESTS_PASSED")
"""A file that lists tests which passed, one per line: they do not run again, unless marked `libraries`."""

collect_ignore = [] if HAS_GPU else ["gpu"]

# Otherwise JAX reserves most of a GPU's memory when it is imported.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Tests compile few graphs to C++; to compile the headers in advance would take longer than it saves.
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

# Compilers make millions of objects and few cycles, so frequent garbage collections would waste time.
gc.set_threshold(50_000, 20, 100)

settings.register_profile("dmlops", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("dmlops")


def pytest_report_header():
    """Say which tests this machine leaves out."""
    return f"array libraries in host memory: {', '.join(HOST_LIBRARIES)}; GPU tests: {HAS_GPU}"


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that passed before."""
    if PASSED and Path(PASSED).exists():
        passed = set(Path(PASSED).read_text(encoding="utf-8").splitlines())
        again, left_out = [], []
        for item in items:
            is_new = item.nodeid not in passed or item.get_closest_marker("libraries")
            (again if is_new else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = again


def pytest_runtest_logreport(report):
    """List a test that passed."""
    if PASSED and report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(PASSED).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(params=HOST_LIBRARIES, scope="session")
def library(request):
    """Serve each array library of this machine's host memory in turn."""
    return NUMPY if request.param == "numpy" else Torch("cpu")


@pytest.fixture
def torch():
    """Return torch, if it is installed."""
    return pytest.importorskip("torch")


@pytest.fixture
def restore_num_threads():
    """Return to the default number of threads after a test."""
    yield
    dmlops.set_num_threads(None)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return the folder of archives of an installed wheel, with none in it."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(kernel_store, "WHEEL", folder)
    forget_warnings(monkeypatch)
    forget_archives()
    yield folder
    forget_archives()


def forget_warnings(monkeypatch):
    """Have the next problem with files of kernels be told, as the first one of a process is."""
    monkeypatch.setattr(kernel_cache, "_has_warned", threading.Event())


def forget_archives():
    """Have the next lookup read the archives anew, as another process would."""
    kernel_store.wheel_targets.cache_clear()
    kernel_store._archive.cache_clear()


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `dmlops ARGUMENTS` in an empty folder; return exit code, standard output, standard error."""
    yield from command_of("dmlops", monkeypatch, capsys, tmp_path)


@pytest.fixture
def bench_command(monkeypatch, capsys, tmp_path):
    """Run `python -m bench ARGUMENTS` in the same way."""
    # The number of bytes that the benchmark copies to measure the bandwidth.
    monkeypatch.setattr("bench.timing.COPY_BYTES", 1 << 16)
    yield from command_of("bench", monkeypatch, capsys, tmp_path)


def command_of(module, monkeypatch, capsys, folder):
    """Yield a function that runs a module on arguments, as a program."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    before = dmlops.get_num_threads()

    def run(*arguments):
        code = run_main(module, *arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    dmlops.set_num_threads(before)
