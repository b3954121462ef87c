"""Work done once per process: by first calls from many threads, for a second import, under others' locks.

Each script runs in a process of its own, which a time limit ends if threads wait for each other for ever.
"""

import os
import shutil

import pytest

import dmlops
from tests.marks import exhaustive, nightly
from tests.scripts import ROOT, run_script

BEGIN = """
import gc, importlib, logging, os, signal, sys, threading, time, warnings
import numpy as np
import dmlops

signal.alarm(120)  # a process that hangs ends, with an exit status that fails the test
warnings.simplefilter("ignore", DeprecationWarning)  # the tests fork with threads

PACKAGES = "dmlops", "kernels_cpu", "kernels_cuda"

def top_k(make=np.asarray):
    result = dmlops.top_k(make(np.array([[1.0, 3.0, 2.0]])), 2)
    assert np.asarray(result.indices).tolist() == [[1, 2]]
"""
LIBRARIES = {
    "numpy": "make = np.asarray",
    "torch": "import torch\nmake = torch.from_numpy",
    "jax": "import jax\nmake = jax.numpy.asarray",
}


def serve(*names):
    """Return names of libraries as parameters; those that are not installed are skipped."""
    return [pytest.param(name, marks=pytest.mark.libraries) for name in names]


def needs(library):
    pytest.importorskip(library, exc_type=ImportError)


class TestFirstCallsFromThreads:
    SCRIPT = """
failures, start = [], threading.Barrier(8)

def work():
    start.wait()
    try:
        top_k(make)
    except BaseException as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failures)
"""

    @pytest.mark.parametrize("library", serve(*LIBRARIES))
    def test_of_one_library(self, library):
        needs(library)
        run_script(BEGIN, LIBRARIES[library], "\ntop_k(make)")  # finds or compiles the kernels
        assert run_script(BEGIN, LIBRARIES[library], self.SCRIPT).strip() == "[]"

    def test_make_one_object_and_register_once(self):
        script = """
from tests.inside import once
made = []

def make():
    time.sleep(0.1)
    made.append(None)
    return object()

found, start = set(), threading.Barrier(8)

def work():
    start.wait()
    found.add(once.once("key", make))
    found.add(once.registered("numpy", "name", make))

threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(made))
"""
        assert run_script(BEGIN, script).split() == ["2", "2"]


CALLS = {
    "numpy": "def calls():\n    top_k()\n",
    "torch": """
import torch

def calls():
    x = torch.tensor([[1.0, 3.0, 2.0]], requires_grad=True)
    dmlops.top_k(x, 2).values.sum().backward()
    assert x.grad.tolist() == [[0, 1, 1]]
    assert torch.func.vmap(lambda row: dmlops.top_k(row, 2).indices)(x.detach()).tolist() == [[1, 2]]
    importlib.import_module("dmlops.integrations.torch")
    assert torch.ops.dmlops.top_k(x.detach(), 2, -1, True, True, None)[1].tolist() == [[1, 2]]
    with torch.device("meta"):
        assert dmlops.top_k(torch.ones(3, 4), 2).indices.shape == (3, 2)
    compiled = torch.compile(lambda x: dmlops.top_k(x, 2).indices, backend="eager", fullgraph=True)
    assert compiled(x.detach()).tolist() == [[1, 2]]
""",
    "jax": """
import jax
kept = []

def calls():
    top_k(jax.numpy.asarray)
    functions = importlib.import_module("dmlops.integrations.jax")
    kept.append(jax.jit(lambda x: functions.top_k(x, 2).indices))
    for traced in kept:
        for rows in (1, len(kept) + 1):
            assert traced(jax.numpy.asarray([[1.0, 3.0, 2.0]] * rows)).tolist() == [[1, 2]] * rows
""",
    "numba": """
import numba
kept = []

def calls():
    names = {"dmlops": dmlops}
    exec("def find(x):\\n    return dmlops.top_k(x, 2).indices", names)
    kept.append(numba.njit(names["find"]))
    for find in kept:
        for rows in (1, len(kept) + 1):
            assert find(np.array([[1.0, 3.0, 2.0]] * rows)).tolist() == [[1, 2]] * rows
""",
}
AGAIN = {
    "reload": "importlib.reload(dmlops)",
    "reload everything": """
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    importlib.reload(sys.modules[name])
""",
    "without dmlops": """
for name in [name for name in sys.modules if name.partition(".")[0] == "dmlops"]:
    del sys.modules[name]
""",
    "without all packages": """
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]
""",
}
TWICE = """
earlier = dmlops.top_k
calls()
for dtype in ("float32", "int32"):
    {again}
    import dmlops
    gc.collect()
    calls()
    assert dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype).tolist() == [[1, 0], [0, 1]]
# Functions of earlier imports go on working, too: for kinds of calls that they have made, and for others.
for dtype in ("float64", "int16"):
    assert earlier(np.array([[1, 3, 2]], dtype), 2).indices.tolist() == [[1, 2]]
print("done")
"""


@pytest.mark.parametrize("library", serve(*CALLS))
@pytest.mark.parametrize("again", [*map(exhaustive, [*AGAIN][:-1]), [*AGAIN][-1]])
def test_a_second_import(library, again):
    needs(library)
    script = TWICE.format(again=AGAIN[again].replace("\n", "\n    "))
    assert run_script(BEGIN, CALLS[library], script).strip() == "done"


@pytest.mark.parametrize("again", [*map(nightly, [*AGAIN][:-1]), exhaustive([*AGAIN][-1])])
def test_a_second_import_compiles_too(again, tmp_path):
    script = TWICE.format(again=AGAIN[again].replace("\n", "\n    "))
    script = script.replace('"int32"', '"int8"').replace("float64", "float32")
    printed = run_script(BEGIN, CALLS["numba"], script, DMLOPS_CACHE_DIR=str(tmp_path))
    assert printed.strip() == "done"


class TestAnotherCopy:
    SCRIPT = """
calls()
first = dmlops
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]
sys.path.insert(0, {folder!r})
import dmlops
assert dmlops.__file__.startswith({folder!r})
top_k()
try:
    calls()
    print("done")
except dmlops.DmlError as error:
    print(error)
"""

    @pytest.fixture
    def copy(self, tmp_path):
        def copy(version):
            for package in ("dmlops", "kernels_cpu", "kernels_cuda"):
                shutil.copytree(
                    ROOT / package,
                    tmp_path / package,
                    ignore=shutil.ignore_patterns("__pycache__", "*.kernels"),
                )
            path = tmp_path / "dmlops" / "__init__.py"
            text = path.read_text()
            assert f'"{dmlops.__version__}"' in text
            path.write_text(text.replace(f'"{dmlops.__version__}"', f'"{version}"'))
            return str(tmp_path)

        return copy

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("library", serve(*CALLS))
    def test_of_the_same_version_takes_over(self, library, copy):
        needs(library)
        script = self.SCRIPT.format(folder=copy(dmlops.__version__))
        assert run_script(BEGIN, CALLS[library], script).strip() == "done"

    @pytest.mark.parametrize("library", serve("torch", "jax"))
    def test_of_another_version_is_told(self, library, copy):
        needs(library)
        folder = copy("9.9.9")
        printed = run_script(BEGIN, CALLS[library], self.SCRIPT.format(folder=folder)).strip()
        there = f"{library} already has the operators of dmlops {dmlops.__version__} in {ROOT / 'dmlops'}"
        reason = "a process can have one version of them; start a new process"
        assert printed == f"dmlops 9.9.9 in {os.path.join(folder, 'dmlops')}: {there}, and {reason}"

    @pytest.mark.parametrize("library", serve("numpy", "numba"))
    def test_of_another_version_works_where_nothing_is_registered_by_name(self, library, copy):
        needs(library)
        script = self.SCRIPT.format(folder=copy("9.9.9"))
        assert run_script(BEGIN, CALLS[library], script).strip() == "done"


# One thread has a lock of others, and makes a call whose kernel has to be compiled; so does the other one.
LOCKS = """
from tests.test_processes import CALLS
failures, other_may_go, other_is_at_work = [], threading.Event(), threading.Event()

def other():
    other_may_go.wait()
    try:
        CALLS["rows_without_input"]()
    except BaseException as error:
        failures.append(repr(error))

def cross(call=CALLS["rows_with_input"]):
    # The other thread begins its work, and comes to wait for the lock of this one.
    other_may_go.set()
    time.sleep({seconds})
    call()

thread = threading.Thread(target=other)
thread.start()
"""
END = """
thread.join()
CALLS["columns"]()
print(failures)
"""
HANDLER = """
class Handler(logging.Handler):
    def emit(self, record):
        record.getMessage()

class Argument:
    def __str__(self):
        if not other_may_go.is_set():
            cross({call})
        return ""

handler = Handler()
logging.getLogger().addHandler(handler)
"""
HOLDERS = {
    "Numba's compiler, in an overload": """
import numba, numba.extending

def function(x):
    pass

@numba.extending.overload(function)
def overloaded(x):
    if not other_may_go.is_set():
        cross()
    return lambda x: x

assert numba.njit(lambda x: function(x))(1) == 1
""",
    "Numba's compiler, in a signal handler": """
import numba, numba.extending

signal.signal(signal.SIGUSR1, lambda *_: cross())

def function(x):
    pass

@numba.extending.overload(function)
def overloaded(x):
    if not other_may_go.is_set():
        signal.raise_signal(signal.SIGUSR1)
    return lambda x: x

assert numba.njit(lambda x: function(x))(1) == 1
""",
    "Numba's compiler, in a finalizer": """
import numba, numba.extending

class Finalized:
    def __del__(self):
        cross()

def function(x):
    pass

kept = [Finalized()]

@numba.extending.overload(function)
def overloaded(x):
    kept.clear()
    return lambda x: x

assert numba.njit(lambda x: function(x))(1) == 1
""",
    "Numba's lock": """
import numba
from numba.core.compiler_lock import global_compiler_lock

with global_compiler_lock:
    cross()
""",
    "LLVM's lock": """
import llvmlite.binding as llvm

def acquired():
    if not other_may_go.is_set():
        cross()

import numba
llvm.ffi.register_lock_callback(acquired, lambda: None)
llvm.get_process_triple()
""",
    "a log's handler, in the text of an argument": HANDLER.format(call="")
    + """
logging.getLogger("dmlops").setLevel(logging.INFO)
logging.warning("%s", Argument())
""",
    "a log's handler, without a record": HANDLER.format(call="")
    + """
logging.getLogger("dmlops").setLevel(logging.INFO)
handler.acquire()
cross()
handler.release()
""",
    "a log's handler, and the log is of the cache": HANDLER.format(call="")
    + """
os.environ["DMLOPS_CACHE_DIR"] = os.devnull  # a warning says so
logging.warning("%s", Argument())
""",
}
FORK = """
def fork():
    child = os.fork()
    if not child:
        signal.alarm(100)
        CALLS["one_element"]()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
FORKS = {
    "dmlops": 'logging.getLogger("dmlops").setLevel(logging.INFO)\n',
    "numba": 'logging.getLogger("numba").setLevel(logging.DEBUG)\n',
}


class TestLocksOfOthers:
    @pytest.mark.parametrize("holder", [exhaustive(name) for name in HOLDERS])
    def test_are_crossed_with_a_cold_call(self, holder, tmp_path):
        locks = LOCKS.format(seconds=1.5)
        script = BEGIN, "import numba\n", locks, HOLDERS[holder], END
        assert run_script(*script, DMLOPS_CACHE_DIR=str(tmp_path)).strip() == "[]"

    @pytest.mark.exhaustive
    def test_of_an_import(self, tmp_path):
        # The call that is made while Numba is imported finds its kernel; the other one needs Numba.
        script = """
from importlib.abc import MetaPathFinder

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numba.core.types" and not other_may_go.is_set():
            cross(CALLS["columns"])

sys.meta_path.insert(0, Finder())
import numba
assert other_may_go.is_set()
"""
        path = str(tmp_path)
        run_script("from tests.test_processes import CALLS; CALLS['columns']()", DMLOPS_CACHE_DIR=path)
        locks = LOCKS.format(seconds=1.5)
        assert run_script(BEGIN, locks, script, END, DMLOPS_CACHE_DIR=path).strip() == "[]"

    @pytest.mark.exhaustive
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
    @pytest.mark.parametrize("logger", FORKS)
    def test_are_crossed_with_a_fork(self, logger, tmp_path):
        path = str(tmp_path)
        run_script("from tests.test_processes import CALLS; CALLS['one_element']()", DMLOPS_CACHE_DIR=path)
        locks = LOCKS.format(seconds=0.3)
        script = HANDLER.format(call="fork"), FORKS[logger], 'logging.warning("%s", Argument())\n'
        assert (
            run_script(BEGIN, "import numba\n", locks, FORK, *script, END, DMLOPS_CACHE_DIR=path).strip()
            == "[]"
        )


def test_a_log_is_told_while_the_work_is_done(tmp_path):
    """Who waits for a compilation reads why, before it has ended."""
    script = """
from tests.test_processes import CALLS
times = {}

class Handler(logging.Handler):
    def emit(self, record):
        times[record.getMessage().split()[0]] = time.perf_counter()
        assert threading.current_thread() is threading.main_thread()

logging.getLogger("dmlops").addHandler(Handler())
logging.getLogger("dmlops").setLevel(logging.INFO)
CALLS["rows_with_input"]()
print(times["compiled"] - times["compiling"] > 0.1)
"""
    assert run_script(BEGIN, script, DMLOPS_CACHE_DIR=str(tmp_path)).strip() == "True"
