"""First calls, threads without a context, memory and interrupts, in separate processes."""

import os
from importlib.util import find_spec

import pytest

from tests.kernel_sources import ARE_SHIPPED, CAN_COMPILE, NO_COMPILER
from tests.scripts import run_script

# The test of memory makes so many calls.
MEMORY_CALLS = int(os.environ.get("DMLOPS_MEMORY_CALLS", "20000"))
N_INTERRUPTS = 200

BEGIN = """
    import warnings
    warnings.simplefilter("default")  # other libraries' are not our errors
    import gc, signal, sys, threading, traceback
    import numpy as np
    import dmlops
    from tests import reference
"""
LIBRARIES = {
    "torch": """
    import torch
    make = lambda host: torch.from_numpy(host).cuda()
    """,
    "cupy": """
    import cupy
    make = cupy.asarray
    """,
    "numba": """
    from numba import cuda as numba_cuda
    len(numba_cuda.gpus)  # Numba itself cannot begin to use the driver in several threads
    make = numba_cuda.to_device
    """,
    "dmlops": "make = dmlops.DeviceArray.from_numpy\n",
}


def serve(*names):
    """Return names of libraries as parameters; those that are not installed are skipped."""
    packages = {name: "numba_cuda" if name == "numba" else name for name in names}
    return [
        pytest.param(name, marks=pytest.mark.skipif(not find_spec(package), reason=f"no {package} here"))
        for name, package in packages.items()
    ]


CALLS = """
    X = (np.arange(30_000) * 7919 % 251 - 125).astype("float32").reshape(60, 500)
    PICKS = np.arange(-60, 60, 7).reshape(-1, 1)
    CALLS = {
        "nonzero": (lambda x, i: dmlops.nonzero_coordinates(x), reference.nonzero_coordinates(X)),
        "gather-raise": (lambda x, i: [dmlops.gather_nd(x, i)], [X[PICKS[:, 0]]]),
        "top_k": (lambda x, i: dmlops.top_k(x, 7), reference.top_k(X, 7)),
        "nonzero-size": (
            lambda x, i: dmlops.nonzero_coordinates(x, size=20_000, fill_value=5),
            reference.nonzero_coordinates(X, size=20_000, fill_value=5),
        ),
        "gather-clip": (lambda x, i: [dmlops.gather_nd(x, i, mode="clip")], [X[PICKS[:, 0]]]),
        "diagonal": (
            lambda x, i: [dmlops.diagonal_matrix(x, value=3, begin=-2, end=5)],
            [reference.diagonal_matrix(X, value=3, begin=-2, end=5)],
        ),
    }

    def to_numpy(array):
        for method in ("to_numpy", "copy_to_host"):
            if hasattr(array, method):
                return getattr(array, method)()
        return array.get() if hasattr(array, "get") else array.cpu().numpy()

    def check(found, wanted):
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(to_numpy(actual), expected)

    failures = []

    def in_threads(works):
        def run(work):
            try:
                work()
            except BaseException:
                failures.append(traceback.format_exc())

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, "\\n".join(failures)
"""
SIX_THREADS = """
    names = list(CALLS)
    for _ in range(2):  # what failed once used to stay broken
        start = threading.Barrier(len(names))

        def work(first):
            start.wait()
            for place in range(len(names)):
                call, wanted = CALLS[names[(first + place) % len(names)]]
                check(call(make(X), make(PICKS)), wanted)

        in_threads([lambda first=first: work(first) for first in range(len(names))])
    for call, wanted in CALLS.values():
        check(call(make(X), make(PICKS)), wanted)
    print("done", "numba" in sys.modules)
"""


@pytest.mark.skipif(not CAN_COMPILE and not ARE_SHIPPED, reason=NO_COMPILER)
@pytest.mark.parametrize("library", serve(*LIBRARIES))
def test_first_calls_from_six_threads(library, tmp_path):
    # The native code of calls on torch tensors is compiled without Numba.
    for compiles in (not ARE_SHIPPED, False):
        printed = run_script(
            BEGIN, LIBRARIES[library], CALLS, SIX_THREADS, DMLOPS_CACHE_DIR=str(tmp_path)
        ).split()
        assert printed == ["done", str(compiles or library == "numba")]


WITHOUT_CONTEXT = """
    from cuda.bindings import driver

    def current():
        status, context = driver.cuCtxGetCurrent()
        return int(context) if status == driver.CUresult.CUDA_SUCCESS else 0

    made = threading.Event()
    arrays = []

    def work():
        made.wait()
        before = current()
        for _ in range(3):
            for name, (call, _) in CALLS.items():
                results[name] = call(*arrays)
        if current() != before:
            raise AssertionError("the thread's current context is another one")
        for name, (_, wanted) in CALLS.items():
            check(results[name], wanted)

    for when in ("early", "late"):
        results = {}
        if when == "early":
            made.clear()
            thread = threading.Thread(target=lambda: in_threads([work]))
            thread.start()
        arrays[:] = make(X), make(PICKS)
        made.set()
        if when == "early":
            thread.join()
        else:
            in_threads([work])
        assert not failures, failures
        assert len(results) == len(CALLS)
    print("done")
"""


@pytest.mark.parametrize("library", serve(*LIBRARIES))
def test_threads_without_a_current_context(library):
    """CUDA is started by one library in the main thread, and the other threads have never met it."""
    assert run_script(BEGIN, LIBRARIES[library], CALLS, WITHOUT_CONTEXT).strip() == "done"


MEMORY = """
    from cuda.bindings import driver

    def ask(result):
        assert result[0] == driver.CUresult.CUDA_SUCCESS, result[0]
        return result[1]

    torch.cuda.init()
    pool = ask(driver.cuDeviceGetDefaultMemPool(0))
    used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    rng = np.random.default_rng(0)
    x = torch.rand(40 * 3000, device="cuda")
    picks = torch.zeros((3000, 1), dtype=torch.int64, device="cuda")
    streams = [None, torch.cuda.Stream().cuda_stream]
    torch.cuda.synchronize()

    class Interface:
        # A library by the protocol alone: scratch comes from the driver.
        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    def one_call(number):
        rows, columns = int(rng.integers(1, 40)), int(rng.integers(200, 1200))
        array, stream = x[: rows * columns].view(rows, columns), streams[number // 6 % 2]
        coordinates = torch.empty((rows * columns, 2), dtype=torch.int64, device="cuda")
        count = torch.empty((), dtype=torch.int64, device="cuda")
        (
            lambda: dmlops.top_k(array, int(rng.integers(1, 9)), stream=stream),
            lambda: dmlops.nonzero_coordinates(array, stream=stream),
            lambda: dmlops.gather_nd(array, picks[:columns], stream=stream),
            lambda: dmlops.diagonal_matrix(array, begin=-int(rng.integers(1, 9)), stream=stream),
            lambda: dmlops.nonzero_coordinates(array, size=columns, stream=stream),
            lambda: dmlops.nonzero_coordinates(Interface(array), out=(coordinates, count), stream=stream),
        )[number % 6]()

    def held():
        torch.cuda.synchronize()
        gc.collect()
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * 4096
        free, total = torch.cuda.mem_get_info()
        return {
            "resident": resident,
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "pool": int(ask(driver.cuMemPoolGetAttribute(pool, used))),
            "device": total - free,
        }

    for number in range(n_calls // 3):  # so that the cache of calls is full
        one_call(number)
    before = held()
    for number in range(n_calls // 3, n_calls):
        one_call(number)
    after = held()
    for name in before:
        print(name, after[name] - before[name])
"""
# Allocators may round up to this, or keep it in pieces.
MEMORY_LIMITS = {"resident": 24 << 20, "allocated": 0, "reserved": 64 << 20, "pool": 0, "device": 96 << 20}


def test_memory_is_flat():
    pytest.importorskip("torch")
    n_calls = f"\nn_calls = {MEMORY_CALLS}\n"
    printed = run_script(BEGIN, LIBRARIES["torch"], n_calls, MEMORY)
    grown = {name: int(number) for name, number in (line.split() for line in printed.splitlines())}
    if "PYTEST_XDIST_WORKER" in os.environ:
        grown.pop("device")  # other processes use it at the same time
    assert {name: number for name, number in grown.items() if number > MEMORY_LIMITS[name]} == {}


INTERRUPTS = """
    class Interrupted(KeyboardInterrupt):
        pass

    def interrupt(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    rng = np.random.default_rng(0)
    hosts = [np.where(rng.random((60, 500)) < share, 1, 0).astype("float32") for share in (0.1, 0.5, 0.9)]
    chosen = [rng.integers(-60, 60, (n, 1)) for n in (5, 50, 3000)]
    wrong = [picks.copy() for picks in chosen]
    for picks, place in zip(wrong, (4, 7, 2999)):
        picks[place] = 60 + place
    data = [
        (make(host), make(picks), make(bad), reference.nonzero_coordinates(host), host[picks[:, 0]])
        for host, picks, bad in zip(hosts, chosen, wrong)
    ]

    def check_all():
        for (x, picks, bad, found, picked), place in zip(data, (4, 7, 2999)):
            check(dmlops.nonzero_coordinates(x), found)
            check([dmlops.gather_nd(x, picks)], [picked])
            try:
                dmlops.gather_nd(x, bad)
            except dmlops.IndexOutOfRangeError as error:
                assert f"at position ({place},)" in str(error), error
                assert f"is {60 + place}" in str(error), error
            else:
                raise AssertionError("an index out of range was not seen")

    def busy():
        if "torch" in sys.modules:
            torch.cuda._sleep(1_000_000)

    for _ in range(3):
        check_all()
    n_interrupts = n_turns = 0
    while n_interrupts < wanted:
        n_turns += 1
        assert n_turns < 20 * wanted, (n_turns, n_interrupts)
        x, picks, *_ = data[n_turns % 3]
        try:
            if n_turns % 4 > 1:  # so that the interrupt comes while the call waits
                busy()
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 1e-3))
            for _ in range(100):
                if n_turns % 2:
                    dmlops.nonzero_coordinates(x)
                else:
                    dmlops.gather_nd(x, picks)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            n_interrupts += 1
        if n_turns % 5 == 0:
            check_all()
    check_all()
    print("done")
"""


@pytest.mark.parametrize("library", serve("torch", "cupy", "dmlops"))
def test_interrupts_of_the_calls_that_wait(library):
    wanted = f"\nwanted = {N_INTERRUPTS}\n"
    printed = run_script(BEGIN, LIBRARIES[library], CALLS, wanted, INTERRUPTS)
    assert printed.strip() == "done"


LAST_CALLS = dict.fromkeys(LIBRARIES, "last = dmlops.top_k(make(X), 7)\n") | {
    # JAX arrays are kept until the call has ended, which nobody asks about any more.
    "jax": """
    import jax
    out = make(np.zeros((60, 7), "float32")), make(np.zeros((60, 7), "int64"))
    dmlops.top_k(jax.device_put(X), 7, out=out)
    """
}


@pytest.mark.parametrize("library", serve(*LAST_CALLS))
def test_a_process_that_ends_right_after_a_call(library):
    if library == "jax":
        pytest.importorskip("torch")
    codes = LIBRARIES.get(library, LIBRARIES["torch"]), CALLS, LAST_CALLS[library], 'print("done")\n'
    output, log = run_script(BEGIN, *codes, errors=True, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert output.strip() == "done"
    assert "Traceback" not in log
