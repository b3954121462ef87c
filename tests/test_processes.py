"""Processes that share a cache directory, first calls from many threads, forks and kills.

Every answer is right, and no process hangs: a time limit ends each of them.
"""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, random
from tests.inside import precompile
from tests.marks import exhaustive, nightly
from tests.scripts import ROOT, run_script


def check(found, expected):
    """Compare the results of a call with the right ones."""
    for array, right in zip(found, expected, strict=True):
        assert_same(array, right)


def gather(dtype, n_elements, step=1):
    x = random("gather").integers(0, 99, (9, step * n_elements)).astype(dtype)[:, ::step]
    picks = random("picks").integers(-9, 9, (30, 1))
    check([dmlops.gather_nd(x, picks)], [reference.gather_nd(x, picks)])


def nonzero(dtype, shape):
    x = random("nonzero").integers(0, 2, shape).astype(dtype)
    check(dmlops.nonzero_coordinates(x), reference.nonzero_coordinates(x))


def diagonal(dtype, *, has_input=True, order="C"):
    x = random("diagonal").integers(0, 99, (5, 7)).astype(dtype) if has_input else np.zeros((5, 7), dtype)
    out, band = np.empty((5, 7), dtype, order), {"value": 3, "begin": -1, "end": 2}
    dmlops.diagonal_matrix(*([x] if has_input else []), **band, out=out)
    check([out], [reference.diagonal_matrix(x, **band)])


def top_k(dtype, shape, k):
    x = random("top_k").integers(-99, 99, shape).astype(dtype)
    check(dmlops.top_k(x, k), reference.top_k(x, k))


# Calls whose different kernels have the same types, and were once mistaken for each other.
CALLS = {
    "one_element": lambda: gather("uint8", 1),
    "many_elements": lambda: gather("uint8", 200),
    "strided_elements": lambda: gather("uint8", 50, step=2),
    "rank_1": lambda: nonzero("uint8", (40,)),
    "rank_3": lambda: nonzero("uint8", (3, 4, 5)),
    "rows_with_input": lambda: diagonal("uint8"),
    "rows_without_input": lambda: diagonal("uint8", has_input=False),
    "columns": lambda: diagonal("uint8", order="F"),
    "best_of_bytes": lambda: top_k("int8", (3, 9), 2),
    "best_of_words": lambda: top_k("int16", (3, 9), 2),
}
CHEAP = ("rows_with_input", "rows_without_input", "columns")

PREAMBLE = """
import os, random, signal, sys, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor
import numpy.random  # as an import of ours is what a fork may meet
from tests.test_processes import CALLS, CHEAP
warnings.simplefilter("ignore", DeprecationWarning)  # the tests fork with threads
signal.alarm(120)  # a process that hangs ends, with an exit status that fails the test
"""


def at_once(scripts, directory):
    """Run scripts side by side, a process each, with one cache directory."""
    with ThreadPoolExecutor(len(scripts)) as pool:
        return list(
            pool.map(lambda code: run_script(PREAMBLE, code, DMLOPS_CACHE_DIR=str(directory)), scripts)
        )


def files(directory):
    return sorted(path for path in Path(directory).rglob("*") if path.is_file())


def check_directory(directory, names, *, leftovers=False):
    """Check that all kernels of calls are there and whole: others would be compiled again, with a log."""
    script = f"""
for name in {tuple(names)}:
    CALLS[name]()
print("numba" in sys.modules)
"""
    output, log = run_script(PREAMBLE, script, errors=True, DMLOPS_CACHE_DIR=str(directory))
    assert (output.strip(), log) == ("False", "")
    if not leftovers:
        assert [path for path in files(directory) if path.name.startswith(".")] == []


# One call of each pair whose kernels were once mistaken for each other.
FEW = ("strided_elements", "rank_1", "columns", "best_of_bytes")


@pytest.mark.parametrize("names", [exhaustive(FEW), nightly(tuple(CALLS))], ids=len)
def test_kernels_that_different_processes_compiled(names, tmp_path):
    at_once([f"CALLS[{name!r}]()" for name in names], tmp_path)
    # The second call may take the fast path, which has a separate kernel.
    check_directory(tmp_path, (*reversed(names), *names, *names))


THREADS = """
sys.setswitchinterval(1e-4)
names = {names}
barrier = threading.Barrier(8)

def work(seed):
    rng = random.Random(seed)
    barrier.wait(60)
    for name in rng.sample(names, len(names)) * 2:
        CALLS[name]()
    return True

with ThreadPoolExecutor(8) as pool:
    assert all(pool.map(work, range({seed}, {seed} + 8)))
for name in names:
    CALLS[name]()
print("done")
"""


@pytest.mark.exhaustive
def test_first_calls_from_many_threads(tmp_path):
    for seed in range(2):  # the first on a cold cache
        script = THREADS.format(names=CHEAP, seed=100 * seed)
        assert run_script(PREAMBLE, script, DMLOPS_CACHE_DIR=str(tmp_path)).strip() == "done"
    check_directory(tmp_path, CHEAP)


FORK = """
def forked(delay, names):
    time.sleep(delay)
    child = os.fork()
    if not child:
        signal.alarm(100)
        try:
            for name in names:
                CALLS[name]()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child

def check(children):
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
class TestForks:
    @pytest.mark.exhaustive
    def test_while_other_threads_make_calls_of_new_kinds(self, tmp_path):
        # Values for planning are computed once, without a lock that a forked child could find taken.
        script = """
import numpy as np, dmlops
ended = threading.Event()

def work(rows):
    columns = 2
    while not ended.is_set():
        columns += 1
        dmlops.nonzero_coordinates(np.ones((rows, columns)))
        dmlops.gather_nd(np.ones((rows, columns)), [[0]])

dmlops.nonzero_coordinates(np.ones((2, 3)))
dmlops.gather_nd(np.ones((2, 3)), [[0]])
threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3, 4)]
for thread in threads:
    thread.start()
for _ in range(40):
    child = os.fork()
    if not child:
        signal.alarm(10)
        x = np.ones((7, 7))
        alike = [dmlops.nonzero_coordinates(x).count == 49, dmlops.gather_nd(x, [[0]]).sum() == 7]
        os._exit(0 if all(alike) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ended.set()
"""
        run_script(PREAMBLE, script, DMLOPS_CACHE_DIR=str(tmp_path))

    @pytest.mark.exhaustive
    def test_while_another_thread_makes_its_first_call(self, tmp_path):
        # The child compiles a kernel that the parent has, and one that it has not.
        script = """
failures = []

def first():
    try:
        CALLS["rows_with_input"]()
    except BaseException as error:
        failures.append(error)

thread = threading.Thread(target=first)
thread.start()
children = [forked(0.01, ["rows_with_input", "rows_without_input"])]
thread.join()
children.append(forked(0, ["columns"]))
check(children)
CALLS["rows_with_input"]()
print(failures)
"""
        output = run_script(PREAMBLE, FORK, script, DMLOPS_CACHE_DIR=str(tmp_path))
        assert output.strip() == "[]"
        check_directory(tmp_path, CHEAP)

    def test_while_a_call_runs_on_many_threads(self):
        script = """
import numpy as np, dmlops
x = np.random.default_rng(0).standard_normal((64, 20000)).astype("float32")
expected = np.argsort(-x, axis=1, kind="stable")[:, :40]
failures, ends = [], threading.Event()

def run():
    assert (dmlops.top_k(x, 40).indices == expected).all()
    assert len(dmlops.nonzero_coordinates(x).coordinates) == x.size

CALLS["large"] = run

def work():
    try:
        while not ends.is_set():
            run()
    except BaseException as error:
        failures.append(error)

run()
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
rng = random.Random(0)
for _ in range(8):
    check([forked(rng.uniform(0, 0.02), ["large", *CHEAP, "large"])])
ends.set()
[thread.join() for thread in threads]
run()
print(failures)
"""
        assert run_script(PREAMBLE, FORK, script, DMLOPS_NUM_THREADS="4").strip() == "[]"


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="signals are others there")
def test_a_process_that_dies_while_it_writes(tmp_path):
    size = 3000
    # A limit on the size of files, and the signal that ends a process beyond it by default.
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
CALLS["rows_with_input"]()
"""
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DMLOPS_CACHE_DIR": str(tmp_path)},
        check=False,
        capture_output=True,
        timeout=300,
    )
    assert result.returncode == -signal.SIGXFSZ, result.stderr
    (left,) = files(tmp_path)
    assert left.name.startswith(".")
    assert left.stat().st_size == size
    run_script(PREAMBLE, "CALLS['rows_with_input']()", DMLOPS_CACHE_DIR=str(tmp_path))
    check_directory(tmp_path, ["rows_with_input"], leftovers=True)


class OddError(Exception):
    def __init__(self, name, state):
        super().__init__(f"{name} is {state}")


def fail():
    raise OddError("memory", "full")


@pytest.mark.exhaustive
def test_a_kernel_that_cannot_be_compiled_is_told_with_the_reason():
    """Some errors of Numba, too, are made of more than their text, and cannot be sent to another process."""
    with (
        pytest.raises(precompile.PrecompileError, match=r"^a kernel: OddError: memory is full$"),
        precompile.compiled([precompile.Task("a kernel", fail, ())], 1) as kernels,
    ):
        list(kernels)
