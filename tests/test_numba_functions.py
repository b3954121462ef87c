"""The functions inside `numba.njit` functions give the bytes, and raise the errors, of plain calls."""

import ctypes
import gc
import signal
import sys

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import dmlops
import dmlops.integrations.numba
from tests import data, reference
from tests.marks import exhaustive, nightly
from tests.numba_callers import assert_same, fill, find, gather, make, sample, select, select_into
from tests.scripts import run_page

WRITABLE, READ_ONLY = ("packed", "every_other", "reversed", "empty"), ("read_only", "broadcast_last")
TYPES = [
    "float32",
    *map(exhaustive, ("bool", "int8", "uint16", "int64", "float64", "m8[s]", "complex64", "complex128")),
    *map(nightly, ("uint8", "int16", "int32", "uint32", "uint64", "M8[D]")),
]


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
def least(x, axis, is_interrupted):
    if is_interrupted:
        INTERRUPT()
    return dmlops.top_k(x, 1, axis=axis, largest=False).values[0]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_that_python_cannot_begin_are_errors():
    """A signal handler can raise before the first line of a callback; results are not written then."""
    least(X[0], 0, False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(RuntimeError, match="an exception that Python has printed came first"):
            least(X[0, 1:], -1, True)  # of another kind, for which Python is called
    finally:
        signal.signal(signal.SIGINT, before)
    assert least(X[0, 1:], -1, False) == 1


MOST = np.uint64(2**64 - 1)
TOO_MUCH = {
    "negative size after a good one": (lambda x, n: dmlops.nonzero_coordinates(x, size=n), (3, -1)),
    "size": (lambda x, n: dmlops.nonzero_coordinates(x, size=n), (2**62, 2**60)),
    "unsigned size": (lambda x, n: dmlops.nonzero_coordinates(x, size=n), (np.uint64(3), MOST)),
    "shape": (lambda x, n: dmlops.diagonal_matrix(shape=(n, n)), (2, 2**40, 2**61)),
    "unsigned shape": (lambda x, n: dmlops.diagonal_matrix(shape=(n, 3)), (np.uint64(2), MOST)),
    "unsigned axis": (lambda x, n: dmlops.top_k(x, 1, axis=n), (np.uint64(1), MOST)),
    "unsigned k": (lambda x, n: dmlops.top_k(x, n, axis=0), (np.uint64(1), MOST)),
    "unsigned batch_dims": (lambda x, n: dmlops.gather_nd(x, TUPLES[0], batch_dims=n), (MOST,)),
    "bound": (lambda x, n: dmlops.diagonal_matrix(x, begin=n), (1.5,)),
    "nan": (lambda x, n: dmlops.diagonal_matrix(x, end=n), (np.nan,)),
}


@pytest.mark.parametrize("case", [exhaustive(case) if case[0] in "bn" else case for case in TOO_MUCH])
def test_sizes_that_do_not_fit(case):
    """Errors equal the errors of plain calls, with the values, also after calls that fit."""
    call, numbers = TOO_MUCH[case]
    compiled = numba.njit(call)
    for number in numbers:
        found = []
        for each in (call, compiled, compiled):
            try:
                each(X, number)
            except (dmlops.DmlError, TypeError) as error:
                found.append((type(error), str(error)))
        assert found in ([], [found[0]] * 3 if found else [])
    assert found


def test_bands():
    one = numba.njit(lambda x, begin: dmlops.diagonal_matrix(x, value=0, begin=begin))
    band = numba.njit(lambda x, begin, end: dmlops.diagonal_matrix(x, value=0, begin=begin, end=end))
    for begin in (2, -1, 2**63 - 1):
        assert_same(one(X, begin), reference.diagonal_matrix(X, value=0, begin=begin))
    for begin, end in ((1, np.inf), (-2, np.inf), (1, -np.inf), (2, np.inf)):
        assert_same(band(X, begin, end), reference.diagonal_matrix(X, value=0, begin=begin, end=end))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("gather_nd", lambda x, i: dmlops.gather_nd(x, i, 0)),
        ("top_k", lambda x, i: dmlops.top_k(x, 2, 0, False)),
        ("top_k", lambda x, i: dmlops.top_k(x=x, k=2)),
        ("nonzero_coordinates", lambda x, i: dmlops.nonzero_coordinates(x, 2)),
        ("diagonal_matrix", lambda x, i: dmlops.diagonal_matrix(x, None, None, 1)),
        ("top_k", lambda x, i: dmlops.top_k(x, 2, axes=1)),
    ],
)
def test_arguments_by_position_are_those_of_plain_calls(name, call):
    with pytest.raises(TypeError):
        call(X, TUPLES[0])
    with pytest.raises(numba.TypingError, match=rf"dmlops\.{name}: .*; arguments are passed by"):
        numba.njit(call)(X, TUPLES[0])


class TimeoutOfUserError(Exception):
    """An exception of a user, whose arguments are not those that it keeps."""

    def __init__(self, seconds, *, what):
        super().__init__(f"{what} took {seconds} s")
        self.seconds = seconds


def test_errors_of_handlers_are_raised_as_they_are():
    """Numba makes exceptions anew, from their class and what they keep."""
    error = TimeoutOfUserError(3, what="a call")
    n_seen = 0

    def handle(frame, event, argument):  # as a signal's handler, wherever Python runs
        nonlocal n_seen
        n_seen += event == "call" and frame.f_globals.get("__name__", "").startswith("dmlops.")
        if n_seen == 5:
            sys.setprofile(None)
            raise error

    call = numba.njit(lambda x, largest: dmlops.top_k(x, 3, axis=1, largest=largest, sorted=False).indices)
    x = X[:, 1:, None, None, None, None]  # of a kind that no other test has
    call(x, True)
    sys.setprofile(handle)
    try:
        with pytest.raises(TimeoutOfUserError, match="a call took 3 s") as raised:
            call(x, False)  # of another kind, which is bound in Python
    finally:
        sys.setprofile(None)
    assert raised.value is error
    assert raised.value.seconds == 3
    expected = reference.top_k(x, 3, axis=1, largest=False, sorted=False)[1]
    assert_same(call(x, False), expected)


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
        "top_k.lengths: got float64": lambda x: dmlops.top_k(x, 1, lengths=1.5),
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


@pytest.mark.exhaustive
def test_documentation():
    run_page("docs/njit.md")
