"""The options of commands: numbers, types, and their defaults."""

import numpy as np
import pytest

from tests.command_line import assert_one_line, assert_refused

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)
FILES = {
    "x": X,
    "swapped": X.astype(">i4"),
    "mask": np.array([0, 1, 1]),
    "last": np.array([[2], [-1]]),
    "picks": np.array([[1], [2], [-3]]),
    "starts": np.array([1, -1]),
    "start": np.array(1),
    "lengths": np.array([3, 1]),
    "numbers": np.uint32([[7, 0, 5, 2**32 - 1], [3, 2, 1, 0]]),
    "missing": np.array([1.0, np.nan, 3.0]),
    "along": np.array([[0], [-1]]),
    "far": np.uint32([[3, 2**32 - 1]] * 2),
    "zeros": np.zeros((3, 4)),
    "complex": np.zeros((1, 2), "complex64"),
}
# Commands write these, by the name of the array.
ANSWERS = {
    "top-k x.npy -k 1 --axis 0 --smallest --index-dtype uint32": {
        "values": np.int32([[0, 1, 3, 2]]),
        "indices": np.uint32([[1, 0, 0, 0]]),
    },
    "top-k swapped.npy -k 2": {
        "values": np.int32([[3, 3], [5, 5]]),
        "indices": np.array([[0, 2], [1, 2]]),
    },
    "top-k x.npy -k 2 --lengths lengths.npy": {
        "values": np.int32([[3, 3], [0, -(2**31)]]),
        "indices": np.array([[0, 2], [0, -1]]),
    },
    "top-k x.npy -k 2 --starts starts.npy --lengths lengths.npy": {
        "values": np.int32([[3, 2], [-(2**31), -(2**31)]]),
        "indices": np.array([[2, 3], [-1, -1]]),
    },
    "top-k mask.npy -k 4 --starts start.npy --max-length 2 --smallest": {
        "values": np.array([1, 1, 2**63 - 1, 2**63 - 1]),
        "indices": np.array([1, 2, -1, -1]),
    },
    "top-k x.npy -k 2 --indices numbers.npy": {
        "values": np.int32([[3, 3], [5, 5]]),
        "indices": np.uint32([[5, 7], [0, 1]]),
    },
    "top-k missing.npy -k 2 --nan-last": {"values": np.array([3.0, 1.0]), "indices": np.array([2, 0])},
    "gather x.npy along.npy --along-axis 1": {"output": np.int32([[3], [5]])},
    "gather x.npy far.npy --along-axis -1 --mode fill": {"output": np.int32([[2, 0], [5, 0]])},
    "nonzero mask.npy --index-dtype int32": {"coordinates": np.int32([[1], [2]]), "count": np.int32(2)},
    "gather x.npy picks.npy --mode clip": {"output": X[[1, 1, 0]]},
    "gather x.npy picks.npy --mode fill": {"output": X[[1, 1, 0]] * np.int32([[1], [0], [0]])},
    "gather x.npy picks.npy --mode fill --fill-value 7": {
        "output": np.where([[1], [0], [0]], X[1], np.int32(7))
    },
    "gather mask.npy last.npy --mode fill --fill-value -4 --no-wrap-negative": {"output": np.array([1, -4])},
    "diagonal zeros.npy": {"output": np.eye(3, 4)},
    "diagonal zeros.npy --end 2": {"output": np.eye(3, 4) + np.eye(3, 4, 1)},
    "diagonal zeros.npy --end 0": {"output": np.zeros((3, 4))},
    "diagonal zeros.npy --begin 1 --end inf": {"output": np.tri(4, 3, -1).T},
    "diagonal zeros.npy --begin=-inf --end 0": {"output": np.tri(3, 4, -1)},
    **{f"diagonal zeros.npy --begin {begin}": {"output": np.eye(3, 4, begin)} for begin in (-2, -1, 0, 1, 2)},
    **{
        f"diagonal zeros.npy --value {text}": {"output": np.where(np.eye(3, 4), float(value), 0.0)}
        for text, value in [("0x10", 16), ("-0x1", -1), ("0b11", 3), ("1e2", 100), ("-inf", "-inf")]
    },
    "diagonal complex.npy --value 1-2j": {"output": np.complex64([[1 - 2j, 0]])},
}


@pytest.mark.parametrize("line", ANSWERS)
def test_answers(command, line):
    for name, array in FILES.items():
        np.save(f"{name}.npy", array)
    code, _, error = command(*line.split(), "-o", "y.npz")
    assert (code, error) == (0, "")
    with np.load("y.npz") as found:
        assert {*found.files} == {*ANSWERS[line]}
        for name, answer in ANSWERS[line].items():
            assert found[name].dtype == np.asarray(answer).dtype
            np.testing.assert_array_equal(found[name], answer)


DIGITS = ["9" * 4300, "-" + "9" * 4300, "9" * 5000, str(2**63)]
INTEGERS = ["top-k x.npy -k", "top-k x.npy -k 1 --axis", "gather x.npy x.npy --batch-dims"]


@pytest.mark.parametrize("line", INTEGERS)
def test_integers_of_any_length_are_refused_in_one_line(command, line):
    np.save("x.npy", X)
    for digits in DIGITS:
        code, printed, error = command(*line.split(), digits)
        assert printed == ""
        assert_one_line(code, error)


def test_bands_may_be_far_away(command):
    np.save("x.npy", X)
    code, printed, _ = command("diagonal", "x.npy", "--begin", "9" * 4300)
    assert code == 0
    assert "..., an integer of 14285 bits) (CPU)\n" in printed


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", "-1e400", "1e400j", "1-1e999j"])
def test_values_that_only_an_infinity_stands_for_are_refused(command, text):
    np.save("x.npy", X)
    assert_refused(
        command("diagonal", "x.npy", "--value", text), "--value: ", "is beyond the range of float64"
    )


@pytest.mark.parametrize(("size", "shown"), [(60, " ".join(["0"] * 60)), (61, "0 0 0 ... 0 0 0")])
def test_long_results_are_shortened(command, size, shown):
    np.save("x.npy", np.zeros((1, size), np.int8))
    code, printed, _ = command("diagonal", "x.npy", "--value", "0")
    assert (code, " ".join(printed.split()).partition("[[")[2]) == (0, f"{shown}]]")
