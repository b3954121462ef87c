"""The functions inside `numba.njit` functions give the bytes, and raise the errors, of plain calls."""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import textwrap
import threading
import tomllib

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import dmlops
import dmlops.integrations.numba
from tests import data, reference
from tests.marks import exhaustive, nightly
from tests.scripts import ROOT, run_page, run_script

WRITABLE, READ_ONLY = ("packed", "every_other", "reversed", "empty"), ("read_only", "broadcast_last")
TYPES = [
    "float32",
    *map(exhaustive, ("bool", "int8", "uint16", "int64", "float64", "m8[s]", "complex64", "complex128")),
    *map(nightly, ("uint8", "int16", "int32", "uint32", "uint64", "M8[D]")),
]


def sample(dtype, shape, name="numba"):
    """Return elements with ties, and with NaN or NaT where the type has them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return data.sample(f"float{4 * dtype.itemsize}", (*shape, 2), name).view(dtype)[..., 0]
    return data.sample("int64" if dtype.kind in "mM" else dtype, shape, name).view(dtype)


def assert_same(results, expected):
    """Compare arrays, or tuples of them, bit by bit."""
    pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
    for result, array in pairs:
        assert result.shape == array.shape
        assert result.tobytes() == array.astype(result.dtype).tobytes()


@numba.njit
def select(x, k, axis, largest, is_sorted):
    return dmlops.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted)


@numba.njit
def select_into(x, k, axis, lengths, values, indices):
    return dmlops.top_k(x, k, axis=axis, lengths=lengths, out=(values, indices))


@numba.njit
def find(x, size, fill, coordinates, count):
    trimmed = dmlops.nonzero_coordinates(x, index_dtype="uint32")
    sized = dmlops.nonzero_coordinates(x, size=size, fill_value=fill)
    return trimmed, sized, dmlops.nonzero_coordinates(x, out=(coordinates, count))


@numba.njit
def gather(x, tuples, indices, out):
    picked, filled = (
        dmlops.gather_nd(x, tuples),
        dmlops.gather_nd(x, tuples[:, :, :1], batch_dims=1, mode="fill"),
    )
    return picked, filled, dmlops.gather_nd(x, indices, out=out)


@numba.njit
def gather_clipped(x, indices, out):
    return dmlops.gather_nd(x, indices, mode="clip", out=out)


@numba.njit
def fill(x, value, begin, end, out):
    new = dmlops.diagonal_matrix(x, value=value, begin=begin, end=end)
    return new, dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)


@numba.njit
def make(rows, columns, value, out):
    new = dmlops.diagonal_matrix(shape=(rows, columns), dtype="int16", value=value, end=2)
    return new, dmlops.diagonal_matrix(shape=(rows, columns), value=value), dmlops.diagonal_matrix(out=out)


def top_k(x, k, **options):
    """Return what the reference selects; dates have none."""
    return (dmlops if x.dtype.kind in "mM" else reference).top_k(x, k, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layouts", [WRITABLE, exhaustive(READ_ONLY)])
def test_answers(dtype, layouts):
    x = sample(dtype, (7, 33))
    functions = {**data.LAYOUTS, "packed": np.copy, "empty": lambda x: x[:, :0]}
    for array in (functions[layout](x) for layout in layouts):
        rows, columns = array.shape
        if x.dtype.kind != "c":
            for k, axis in ((0, 0), (rows, 0), (min(columns, 5), 1), (columns, -1)):
                for largest, is_sorted in ((True, True), (False, False)):
                    options = {"axis": axis, "largest": largest, "sorted": is_sorted}
                    assert_same(select(array, k, *options.values()), top_k(array, k, **options))
        coordinates, count = np.zeros((9, 4), np.int32)[:, ::2], np.zeros((), np.int32)
        trimmed, sized, written = find(array, 300, -1, coordinates, count)
        numbers = array.view(np.int64) if x.dtype.kind in "mM" else array  # to NumPy, no date equals 0
        expected, n = reference.nonzero_coordinates(numbers)
        assert_same(trimmed, (expected.astype(np.uint32), n))
        assert_same(sized, reference.nonzero_coordinates(numbers, size=300, fill_value=-1))
        assert_same(written.count, n)
        assert_same(coordinates[:n], expected[:9])
        band = fill(array, True, -2, 3, np.zeros_like(array))
        assert_same(band, 2 * (reference.diagonal_matrix(array, value=1, begin=-2, end=3),))
        if columns:
            tuples = data.random(dtype).integers(-7, 7, (7, 2, 2))
            out = np.zeros((7, columns), x.dtype)[:, ::-1]
            picked, filled, taken = gather(array, tuples, tuples[:, 0, :1].astype(np.int32), out)
            assert_same(picked, reference.gather_nd(array, tuples))
            assert_same(filled, reference.gather_nd(array, tuples[:, :, :1], batch_dims=1, mode="fill"))
            assert_same(taken, array[tuples[:, 0, 0]])
            assert_same(out, taken)


def test_lengths_and_outputs():
    x = data.sample("float32", (3, 4, 50), "lengths")
    lengths = np.array([[0, 1, 2, 50], [9, -3, 5, 4], [7, 7, 60, 1]], np.int32)
    values, indices = np.zeros((3, 4, 6), np.float32)[::-1], np.zeros((3, 4, 12), np.uint32)[:, :, ::2]
    for _ in range(3):
        result = select_into(x, 6, 2, lengths, values, indices)
        assert_same(tuple(result), reference.top_k(x, 6, lengths=lengths))
        assert_same((values, indices), tuple(result))
        values[...] = indices[...] = 0


def test_matrices_without_an_input():
    out = np.zeros((4, 6), np.uint8)[:, ::-1]
    for rows, columns, value in ((3, 5, 2), (0, 4, -1), (3, 2, 2)):
        small, ordinary, written = make(rows, columns, value, out)
        shape = rows, columns
        assert_same(small, reference.diagonal_matrix(shape=shape, dtype=np.int16, value=value, end=2))
        assert_same(ordinary, reference.diagonal_matrix(shape=shape, dtype=np.float64, value=value))
        assert_same(written, np.eye(4, 6, dtype=np.uint8))
        out[...] = 9


@pytest.mark.parametrize("shape", [*map(exhaustive, [(), (2, 3, 2, 2, 1, 2, 2), (2,) * 12])])
def test_any_number_of_dimensions(shape):
    x = data.sample("float32", shape, "dimensions")
    for _ in range(2):
        assert_same(select(x, 1, -1, True, True), reference.top_k(x, 1))
        assert_same(select(data.unaligned(x), 1, -1, True, True), reference.top_k(x, 1))  # Python copies it
        trimmed = find(x, 3, 7, np.zeros((3, len(shape)), np.int64), np.zeros(1, np.int64))[0]
        assert_same(trimmed, reference.nonzero_coordinates(x))
    if shape:
        assert_same(
            select(np.flip(x), 2, 0, False, True), reference.top_k(np.flip(x), 2, axis=0, largest=False)
        )


X = np.arange(24, dtype=np.float32).reshape(4, 6)
INDICES, LENGTHS, TUPLES = np.zeros((4, 2), np.int64), np.full(4, 6, np.int32), np.zeros((7, 2, 2), np.int64)
FIXED, UNLIKE = data.LAYOUTS["read_only"](X[:, :2]), np.zeros((4, 3), np.float32)
OUT, OUTSIDE, COUNT = np.ones((1, 6), np.float32), np.array([[4]], np.int32), np.zeros((), np.int32)


REFUSED = {
    "k": (select, (X, 7, 1, True, True)),
    "negative_k": (select, (X, -1, -1, True, False)),
    "axis": (select, (X, 2, 2, True, True)),
    "shape_of_out": (select_into, (X, 2, 1, LENGTHS, UNLIKE, INDICES)),
    "overlap": (select_into, (X, 2, 1, LENGTHS, X[:, 3:5], INDICES)),
    "unaligned": (select_into, (X, 2, 1, LENGTHS, data.unaligned(X[:, :2]), INDICES)),
    "lengths": (select_into, (X, 2, 0, LENGTHS, X[:2], INDICES)),
    "read_only": (select_into, (X, 2, 1, LENGTHS, FIXED, INDICES)),
    "size": (find, (X, -1, 0, np.zeros((3, 2), np.int32), COUNT)),
    "tuple": (gather, (X, TUPLES[:4] + 5, OUTSIDE, OUT)),
    "tuple_into": (gather, (X, TUPLES[:4], OUTSIDE, OUT)),
    "batches": (gather, (X, TUPLES, OUTSIDE, OUT)),
    "value": (make, (2, 3, 1 << 40, np.zeros((2, 2), np.uint8))),
    "negative_size": (make, (2, -3, 1, np.zeros((2, 2), np.uint8))),
}
ORDINARY = ("k", "axis", "size", "tuple_into")


@pytest.mark.parametrize("case", [case if case in ORDINARY else exhaustive(case) for case in REFUSED])
def test_errors_are_those_of_plain_calls(case):
    compiled, arguments = REFUSED[case]
    found = []
    for call in (compiled.py_func, compiled, compiled):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the errors are compared
            call(*arguments)
        found.append((raised.type, str(raised.value)))
    assert issubclass(found[0][0], dmlops.DmlError)
    assert found[1:] == [found[0]] * 2
    assert (OUT == 1).all()


def test_a_result_whose_dimensions_numba_cannot_know_needs_an_array():
    with pytest.raises(dmlops.InvalidDescriptorError, match=r"has shape \(4, 2, 6\), .*; pass an array"):
        gather(X, TUPLES[:4, :, :1], OUTSIDE, OUT)


@numba.njit
def select_or_none(x, k):
    try:
        return dmlops.top_k(x, k).indices[0]
    except Exception:
        return -1


@pytest.mark.exhaustive
def test_errors_can_be_caught():
    assert [select_or_none(X[0], k) for k in (1, 7, 3, -1)] == [5, -1, 5, -1]


@numba.njit
def gather_or_none(x, indices):
    try:
        return dmlops.gather_nd(x, indices)[0]
    except Exception:
        return None


@pytest.mark.exhaustive
def test_errors_release_results():
    assert gather_or_none(X[0], np.full((2, 1), 6)) is None  # compiles, which collects garbage
    gc.collect()  # arrays of other tests must not be released meanwhile
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        assert gather_or_none(X[0], np.full((3, 1), 6)) is None
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free > 0


INTERRUPT = ctypes.CFUNCTYPE(None)(("PyErr_SetInterrupt", ctypes.pythonapi))


@numba.njit
def least(x, is_interrupted):
    if is_interrupted:
        INTERRUPT()
    return dmlops.top_k(x, 1, largest=False).values[0]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_that_python_cannot_begin_are_errors():
    """A signal handler can raise before the first line of a callback; results are not written then."""
    least(X[0], False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(RuntimeError, match="an exception that Python has printed came first"):
            least(X[0, 1:], True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert least(X[0, 1:], False) == 1


@pytest.mark.exhaustive
def test_unsigned_integers_do_not_wrap():
    band = numba.njit(lambda x, value, end: dmlops.diagonal_matrix(x, value=value, begin=0, end=end))
    x, most = np.zeros((3, 4), np.uint64), np.uint64(2**64 - 1)
    data.assert_same(band(x, most, most), reference.diagonal_matrix(x, value=most, begin=0, end=4))
    padded = numba.njit(
        lambda x, v: dmlops.nonzero_coordinates(x, size=2, fill_value=v, index_dtype="uint64")
    )
    for value in (most, np.uint64(7), most):
        assert (padded(x, value).coordinates == np.full((2, 2), value)).all()


RECORDS = np.dtype([("a", "u2"), ("b", "m8[s]")])
SWAPPED = np.dtype([("a", "m8[s]"), ("b", "u2")])
RECORDS_12 = np.dtype([("a", "u1", 3), ("b", [("c", "f4"), ("d", "S5")])])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [RECORDS, RECORDS_12], ids=["10_bytes", "12_bytes"])
def test_records(dtype):
    x = data.random("records").integers(0, 256, (7, 5 * dtype.itemsize), np.uint8).view(dtype)
    tuples = data.random("tuples").integers(0, 5, (7, 2, 2))
    rows, columns = np.indices(x.shape)
    is_in_band = (columns - rows >= -2) & (columns - rows < 1)
    for array in (x, data.unaligned(x), x[::-1]):
        for _ in range(2):
            picked, filled, taken = gather(array, tuples, tuples[:, 0, :1], np.zeros_like(x))
            assert {result.dtype for result in (picked, filled, taken)} == {dtype}
            assert_same(picked, array[tuples[..., 0], tuples[..., 1]])
            assert_same(filled, np.take_along_axis(array, tuples[..., 0], 1))
            assert_same(taken, array[tuples[:, 0, 0]])
            expected = np.where(is_in_band, np.zeros((), dtype), array)
            assert_same(fill(array, 0, -2, 1, np.zeros_like(x)), (expected, expected))


@pytest.mark.exhaustive
def test_what_is_refused_when_it_is_compiled():
    calls = {
        "top_k.k: got float64": lambda x: dmlops.top_k(x, 1.5),
        "top_k.k: got none": lambda x: dmlops.top_k(x, None),
        "top_k.index_dtype: got int64": lambda x: dmlops.top_k(x, 1, index_dtype=x.shape[0]),
        "top_k.index_dtype: got .*nonsense": lambda x: dmlops.top_k(x, 1, index_dtype="nonsense"),
        "top_k.lengths: got .* an array": lambda x: dmlops.top_k(x, 1, lengths=3),
        "gather_nd.indices: got none": lambda x: dmlops.gather_nd(x, None),
        "gather_nd.out: got .*records must be": lambda x: dmlops.gather_nd(
            x.view(RECORDS), np.zeros((1, 1), np.int64), out=x.view(SWAPPED)
        ),
        "tril, .*call diagonal_matrix": lambda x: dmlops.tril(x, k=1),
        "top_k.x: got float32": lambda x: dmlops.top_k(x[0, 0], 1),
        "top_k.out: got array": lambda x: dmlops.top_k(x, 1, out=x),
        "top_k.out: got .* of 2 arrays": lambda x: dmlops.top_k(x, 1, out=(x,)),
        r"top_k.out\[1\]: got .* an array": lambda x: dmlops.top_k(x, 1, out=(x, 3)),
        "gather_nd.mode: got": lambda x: dmlops.gather_nd(x, x, mode="wrap"),
        "diagonal_matrix.shape: got None": lambda x: dmlops.diagonal_matrix(value=x[0, 0]),
        "diagonal_matrix.shape: got float64": lambda x: dmlops.diagonal_matrix(shape=(2.0, 2)),
        "diagonal_matrix.shape: got .* a tuple": lambda x: dmlops.diagonal_matrix(shape=x.size),
        "diagonal_matrix.x: got array": lambda x: dmlops.diagonal_matrix(x, shape=(2, 2)),
        "diagonal_matrix.x: got .* and dtype": lambda x: dmlops.diagonal_matrix(x, dtype="int8"),
        "diagonal_matrix.value: got array": lambda x: dmlops.diagonal_matrix(x, value=x),
    }
    for text, call in calls.items():
        with pytest.raises(numba.TypingError, match=f"dmlops.{text}"):
            numba.njit(call)(X)


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
    monkeypatch.setattr(dmlops.integrations.numba, "FORMAT", 99)
    for _ in range(2):
        with pytest.raises(dmlops.DmlError, match="another version of dmlops made it; remove Numba's cache"):
            call(np.zeros((2, 3, 4), np.uint16))


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
    (folder / "entry_points.txt").write_text("[numba_extensions]\ninit = kernels_cpu.nopython_call:init\n")
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    run = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import program"
    found = [run_script(run, NUMBA_CACHE_DIR=str(tmp_path / "cache")).splitlines() for _ in range(2)]
    assert [lines[0] for lines in found] == ["[11.0, 10.0] 0 1", "[11.0, 10.0] 1 0"]
    assert {lines[1] for lines in found} == {
        "top_k.k: got 99, but axis 0 of x has 11 elements; k must be in [0, 11]"
    }


@pytest.mark.exhaustive
def test_numba_imports_nothing_for_programs_without_dmlops():
    """Not even after it has called the entry point, before it first compiles."""
    script = """
        import sys
        import numba, kernels_cpu.nopython_call
        numba.njit(lambda x: x + 1)(1)
        kernels_cpu.nopython_call.init()
        print("dmlops" in sys.modules)
        import dmlops
        print("dmlops.integrations.numba" in sys.modules)
        print(numba.njit(lambda x: dmlops.top_k(x, 1).indices[0])(__import__("numpy").arange(4.0)))
    """
    assert run_script(script).split() == ["False", "True", "3"]


def test_the_entry_point_is_in_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["entry-points"]["numba_extensions"]["init"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.exhaustive
def test_documentation():
    run_page("docs/njit.md")
