"""Calls inside `numba.njit` functions with threads, forks, options, caches and other versions."""

import contextlib
import ctypes
import os
import sys
import textwrap
import threading
import tomllib
from types import SimpleNamespace

import numba
import numpy as np
import pytest

import dmlops
from tests import data, reference
from tests.inside import njit_building, nopython_call
from tests.marks import exhaustive
from tests.numba_callers import assert_same, fill, find, select
from tests.scripts import ROOT, run_script


@numba.njit(nogil=True)
def count_wrong(x, sizes):
    """Select from rows of many lengths, whose last element is the greatest."""
    n_wrong = 0
    for n in sizes:
        values, indices = dmlops.top_k(x[:n], 1)
        n_wrong += values[0] != x[n - 1] or indices[0] != n - 1
    return n_wrong


@pytest.mark.parametrize("n_kinds", [700, exhaustive(6000)])
def test_more_kinds_than_are_kept_on_several_threads(n_kinds):
    x = np.arange(n_kinds + 1, dtype=np.float32)
    sizes = [data.random(i).permutation(np.arange(1, n_kinds + 1)).repeat(2) for i in range(4)]
    found = []
    threads = [threading.Thread(target=lambda own=own: found.append(count_wrong(x, own))) for own in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 4


@pytest.mark.exhaustive
def test_parallel_loops():
    @numba.njit(parallel=True)
    def rows(x, k):
        indices = np.empty((len(x), k), np.int64)
        for i in numba.prange(len(x)):
            indices[i] = dmlops.top_k(x[i], k).indices
        return indices

    x = data.sample("float32", (2000, 100), "parallel")
    assert_same(rows(x, 5), reference.top_k(x, 5)[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [
        {"boundscheck": True},
        {"fastmath": True},
        {"error_model": "numpy"},
        {"parallel": True, "fastmath": True},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::numba.NumbaPerformanceWarning")  # some have nothing that is parallel
def test_options_of_users_change_nothing(options):
    x = np.array([[3, np.nan, -0.0, np.inf], [0, -np.inf, 7, -np.nan]], np.float32)
    selected, found, filled = (numba.njit(**options)(call.py_func) for call in (select, find, fill))
    for _ in range(2):
        assert_same(selected(x, 3, 1, False, True), reference.top_k(x, 3, largest=False))
        trimmed = found(x, 9, -1, np.zeros((9, 2), np.int64), np.zeros((), np.int64))[0]
        assert_same(trimmed, reference.nonzero_coordinates(x))
        expected = reference.diagonal_matrix(x, value=-0.0, begin=1, end=3)
        assert_same(filled(x, -0.0, 1, 3, np.zeros_like(x)), (expected, expected))


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the test starts threads as Linux does")
def test_threads_that_python_does_not_know():
    @numba.cfunc("intp(CPointer(int64))")
    def select_in_place(address):
        words = numba.carray(address, 40)
        for _ in range(3):
            words[:2] = dmlops.top_k(words[2:], 2).indices
        return 0

    words, thread, library = np.arange(40), ctypes.c_ulong(), ctypes.CDLL(None)
    for _ in range(2):
        words[:2] = -1
        code, argument = ctypes.c_void_p(select_in_place.address), ctypes.c_void_p(words.ctypes.data)
        assert library.pthread_create(ctypes.byref(thread), None, code, argument) == 0
        assert library.pthread_join(thread, None) == 0
        assert words[:2].tolist() == [37, 36]


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_children():
    script = """
        import os, warnings
        import numba, numpy as np
        import dmlops.integrations.numba

        def check(x, k):
            assert call(x, k).tolist() == np.argsort(-x)[:k].tolist()

        x, call = np.array([2.0, 5, 3, 4]), numba.njit(lambda x, k: dmlops.top_k(x, k).indices)
        check(x, 2)
        warnings.simplefilter("ignore")  # of a fork where there are several threads
        child = os.fork()
        check(x, 2), check(x[:3], 1), check(x, 3), check(x[::-1].copy(), 2)
        if child == 0:
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_script(script) == "0\n"


@pytest.mark.exhaustive
def test_errors_of_many_rows_are_those_of_one():
    @numba.guvectorize(["void(int64[:], int64[:])"], "(n)->(n)", target="parallel")
    def picked(indices, out):
        out[:] = dmlops.gather_nd(indices, np.ascontiguousarray(indices).reshape(-1, 1))

    assert (picked(np.ones((100, 4), np.int64)) == 1).all()
    with contextlib.suppress(dmlops.IndexOutOfRangeError):  # Numba loses errors of threads other than this
        picked(np.full((100, 4), 7))


@pytest.mark.exhaustive
def test_callers_of_another_version_are_refused(monkeypatch):
    call = numba.njit(lambda x: dmlops.top_k(x, 1, sorted=False).indices)
    other = SimpleNamespace(**{**vars(nopython_call), "FORMAT": 99})
    monkeypatch.setattr(njit_building, "words_of", other)
    for _ in range(2):
        with pytest.raises(dmlops.DmlError, match="another version of dmlops made it; remove Numba's cache"):
            call(np.zeros((2, 3, 4), np.uint16))


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRY_POINT = PROJECT["entry-points"]["numba_extensions"]["init"]
PROGRAM = """
    import sys
    import numba, numpy as np
    import dmlops

    @numba.njit(cache=True, nogil=True)
    def call(x, k):
        x = dmlops.diagonal_matrix(x, value=9, begin=1)
        rows = dmlops.nonzero_coordinates(x).coordinates
        return dmlops.top_k(dmlops.gather_nd(x, rows, mode="clip"), k)

    x = np.arange(12.0).reshape(3, 4)
    values, stats = call(x, 2).values, call.stats
    print(values.tolist(), sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
    try:
        call(x, 99)
    except dmlops.InvalidDescriptorError as error:
        print(error)
"""


@pytest.mark.exhaustive
def test_functions_of_users_are_cached(tmp_path):
    """Nothing but the entry point of the distribution registers the functions; here, the test writes it."""
    folder = tmp_path / "dmlops-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: dmlops\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[numba_extensions]\ninit = {ENTRY_POINT}\n")
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    run = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import program"
    found = [run_script(run, NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines() for _ in range(2)]
    assert [lines[0] for lines in found] == ["[10.0, 9.0] 0 1", "[10.0, 9.0] 1 0"]
    assert {lines[1] for lines in found} == {
        "top_k.k: got 99, but axis 0 of x has 11 elements; k must be in [0, 11]"
    }


@pytest.mark.exhaustive
def test_numba_imports_nothing_for_programs_without_dmlops():
    """Not even after it has called the entry point, before it first compiles."""
    module, function = ENTRY_POINT.split(":")
    script = f"""
        import sys
        import numba, {module} as entry
        numba.njit(lambda x: x + 1)(1)
        entry.{function}()
        print("dmlops" in sys.modules)
        import dmlops
        print("dmlops.integrations.numba" in sys.modules)
        print(numba.njit(lambda x: dmlops.top_k(x, 1).indices[0])(__import__("numpy").arange(4.0)))
    """
    assert run_script(script).split() == ["False", "True", "3"]
