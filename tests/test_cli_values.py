"""The options of commands: numbers, shapes, types, and their defaults."""

import sys

import numpy as np
import pytest

import dmlops
from tests.command_line import assert_one_line, assert_refused

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int16)


def diagonal(command, *options):
    """Return what `dmlops diagonal` writes."""
    code, _, error = command("diagonal", *options, "-o", "y.npy")
    assert (code, error) == (0, "")
    return np.load("y.npy")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0x10", 16), ("-0x1", -1), ("0b11", 3), ("0o17", 15), ("1_000", 1000)),
        *(("-3", -3), ("1e2", 100), ("0.5", 0.5), (".25", 0.25), ("inf", np.inf), ("-inf", -np.inf)),
    ],
)
def test_values(command, text, value):
    filled = diagonal(command, "--shape", "2,2", "--dtype", "float64", "--value", text)
    assert filled.tolist() == [[value, 0], [0, value]]


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("complex64", "1-2j", 1 - 2j),
        ("datetime64[D]", "2024-02-29", np.datetime64("2024-02-29")),
        ("datetime64[s]", "NaT", np.datetime64("NaT")),
        ("timedelta64[s]", "NaT", np.timedelta64("NaT")),
        ("timedelta64[s]", "7", np.timedelta64(7, "s")),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_values_of_other_types(command, dtype, text, value, is_new):
    x = np.zeros((2, 2), dtype)
    np.save("x.npy", x)
    source = ["--shape", "2,2", "--dtype", dtype] if is_new else ["x.npy"]
    filled = diagonal(command, *source, "--value", text)
    np.fill_diagonal(x, value)
    assert filled.dtype == x.dtype
    np.testing.assert_array_equal(filled, x)


def test_dates_without_a_unit_are_printed_as_numbers(command):
    np.save("x.npy", np.full((2, 2), 5, "M8"))
    code, printed, error = command("diagonal", "x.npy", "--value", "NaT")
    assert (code, error) == (0, "")
    assert f"output datetime64 (2, 2)\n[[{-(2**63)}                    5]\n" in printed


def test_a_value_that_is_left_out_is_one_of_float32(command):
    filled = diagonal(command, "--shape", "2,2")
    assert filled.dtype == np.float32
    assert filled.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("begin", [-2, -1, 0, 1, 2])
def test_the_first_diagonal_alone_is_a_band_of_one(command, begin):
    expected = np.eye(3, 4, begin, np.float32)
    np.testing.assert_array_equal(diagonal(command, "--shape", "3,4", "--begin", begin), expected)


def test_the_end_alone_begins_at_the_main_diagonal(command):
    expected = np.eye(3, dtype=np.float32) + np.eye(3, k=1, dtype=np.float32)
    np.testing.assert_array_equal(diagonal(command, "--shape", "3,3", "--end", 2), expected)


def test_an_end_of_zero_is_an_end(command):
    expected = np.eye(3, k=-1, dtype=np.float32)
    np.testing.assert_array_equal(diagonal(command, "--shape", "3,3", "--begin", -1, "--end", 0), expected)
    assert not diagonal(command, "--shape", "3,3", "--end", 0).any()


@pytest.mark.parametrize("text", ["2,3,4", "(2,3,4)", " 2, 3, 4 ", "(2, 3, 4)"])
def test_shapes(command, text):
    assert diagonal(command, "--shape", text).shape == (2, 3, 4)


def test_rows_beyond_the_count_are_zero_where_nothing_else_is_said(command):
    np.save("x.npy", np.array([0, 1, 1]))
    assert command("nonzero", "x.npy", "--size", 4, "-o", "there.npz")[0] == 0
    with np.load("there.npz") as there:
        assert there["coordinates"].tolist() == [[1], [2], [0], [0]]
        assert there["count"] == 2


@pytest.mark.parametrize("dtype", ["uint64", "int32", None])
def test_the_type_of_indices(command, dtype):
    np.save("x.npy", X.astype(np.float32))
    options = () if dtype is None else ("--index-dtype", dtype)
    assert command("nonzero", "x.npy", *options, "-o", "there.npz")[0] == 0
    assert command("top-k", "x.npy", "-k", 1, *options, "-o", "best.npz")[0] == 0
    with np.load("there.npz") as there, np.load("best.npz") as best:
        found = {there["coordinates"].dtype.name, best["indices"].dtype.name}
        assert found == {"int64" if dtype is None else dtype}


@pytest.mark.parametrize("kind", [">i2", ">f4"])
def test_the_other_byte_order_has_the_same_values(command, kind):
    np.save("x.npy", X.astype(kind))
    assert command("top-k", "x.npy", "-k", 2, "-o", "best.npz")[0] == 0
    with np.load("best.npz") as best:
        assert best["values"].tolist() == [[3, 3], [5, 5]]
        assert best["indices"].tolist() == [[0, 2], [1, 2]]
        assert best["values"].dtype == np.dtype(kind).newbyteorder("=")


def test_indices_out_of_range(command):
    np.save("x.npy", np.array([4, 5, 6], np.float32))
    np.save("i.npy", np.array([[2], [3], [-4]]))
    code, _, error = command("gather", "x.npy", "i.npy", "-o", "y.npy")
    assert code == 1
    assert error.startswith("dmlops: gather: gather_nd.indices: ")
    for mode, expected in (("clip", [6, 6, 4]), ("fill", [6, 0, 0])):
        assert command("gather", "x.npy", "i.npy", "--mode", mode, "-o", "y.npy")[0] == 0
        assert np.load("y.npy").tolist() == expected


@pytest.mark.parametrize("line", ["-h", "top-k -h"])
def test_the_short_form_of_help(command, line):
    code, printed, error = command(*line.split())
    assert (code, error) == (0, "")
    assert printed == command(*line.replace("-h", "--help").split())[1]


def test_a_type_that_needs_another_package_is_told(command, monkeypatch):
    def needs_another(**options):
        message = "bfloat16 needs the ml_dtypes package"
        raise ModuleNotFoundError(message)

    monkeypatch.setattr(dmlops, "diagonal_matrix", needs_another)
    code, printed, error = command("diagonal", "--shape", "2,2", "--dtype", "bfloat16")
    assert (code, printed) == (1, "")
    assert error == "dmlops: diagonal: bfloat16 needs the ml_dtypes package\n"


def test_a_module_of_ours_that_is_missing_is_no_missing_extra(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "dmlops.cli.app", None)
    code, _, error = command("--version")
    assert code == 1
    assert error.startswith("dmlops: internal error: ModuleNotFoundError: ")
    assert "dmlops[cli]" not in error


@pytest.mark.parametrize("line", ["warmup --jobs 0"])
def test_numbers_that_are_too_small_are_refused(command, monkeypatch, line):
    code, printed, error = command(*line.split())
    assert (code, printed) == (2, "")
    assert f"Invalid value for '{line.split()[-2]}'" in error


DIGITS = ["9" * 4300, "-" + "9" * 4300, "9" * 5000, str(2**63)]
INTEGERS = [
    "top-k x.npy -k",
    "top-k x.npy -k 1 --axis",
    "nonzero x.npy --size",
    "nonzero x.npy --size 1 --fill-value",
]
INTEGERS += [
    "gather x.npy x.npy --batch-dims",
    "diagonal x.npy --begin",
    "diagonal x.npy --end",
    "warmup --jobs",
]


@pytest.mark.parametrize("line", INTEGERS)
@pytest.mark.parametrize("digits", DIGITS, ids=len)
def test_integers_of_any_length_are_refused_in_one_line(command, line, digits):
    np.save("x.npy", X)
    code, printed, error = command(*line.split(), digits)
    assert (code, printed) == (2, "")
    assert_one_line(code, error)
    assert f"Invalid value for '{line.split()[-1]}': " in error


@pytest.mark.parametrize("digits", DIGITS, ids=len)
def test_shapes_of_any_length_are_refused_in_one_line(command, digits):
    for shape in (digits, f"{digits},2"):
        outcome = command("diagonal", "--shape", shape)
        assert_refused(outcome, "--shape: ", "is not a shape of 64-bit integers; write it as 4,4")


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", "-1e400", "1e400j", "1-1e999j"])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
def test_values_that_only_an_infinity_stands_for_are_refused(command, text, dtype):
    outcome = command("diagonal", "--shape", "2,2", "--dtype", dtype, "--value", text)
    assert_refused(outcome, "--value: ", "is beyond the range of float64")
