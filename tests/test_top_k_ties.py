"""`top_k` of ordinary data with many equal elements, by each algorithm of the CPU."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, bits, random

# Shape, axis and k: short rows, long rows, sorted rows of which a part is selected, columns.
PROBLEMS = {
    "short": ((40, 256), 1, 8),
    "short, many": ((7, 3000), 1, 60),
    "one word": ((50, 40), 1, 3),
    "long": ((2, 40_000), 1, 50),
    "long, many": ((1, 70_000), 1, 700),
    "part": ((3, 5000), 1, 1000),
    "most": ((3, 1500), 1, 1000),
    "strided part": ((5000, 3), 0, 1000),
    "side by side": ((1024, 70), 0, 16),
    "few side by side": ((300, 34), 0, 9),
}
DATA = {
    "constant": lambda rng, shape: np.ones(shape),
    "two values": lambda rng, shape: rng.integers(0, 2, shape),
    "few values": lambda rng, shape: rng.integers(0, 16, shape),
    "mostly zeros": lambda rng, shape: np.where(rng.random(shape) < 0.02, rng.standard_normal(shape), 0),
    "clamped": lambda rng, shape: np.clip(rng.standard_normal(shape), -1, 1),
    "negative": lambda rng, shape: np.minimum(rng.standard_normal(shape), 0),
    "masked": lambda rng, shape: np.where(rng.random(shape) < 0.9, -np.inf, rng.standard_normal(shape)),
    "NaN": lambda rng, shape: np.where(rng.random(shape) < 0.5, np.nan, rng.standard_normal(shape)),
    "ascending": lambda rng, shape: np.arange(np.prod(shape)).reshape(shape),
    "descending": lambda rng, shape: -np.arange(np.prod(shape)).reshape(shape),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_ties(problem, data):
    shape, axis, k = PROBLEMS[problem]
    x = DATA[data](random(data), shape).astype(np.float32)
    for is_sorted in (True, False):
        values, indices = dmlops.top_k(x, k, axis=axis, sorted=is_sorted)
        expected = reference.top_k(x, k, axis=axis, sorted=is_sorted)
        assert_same(indices, expected[1])
        assert_same(bits(values), bits(expected[0]))


@pytest.mark.parametrize("threads", [1, 2])
def test_long_sorts(threads):
    k = 1 << 16
    before = dmlops.get_num_threads()
    try:
        dmlops.set_num_threads(threads)
        for data in ("masked", "ascending", "few values", "NaN"):
            x = DATA[data](random(data), (1, k)).astype(np.float32)
            values, indices = dmlops.top_k(x, k)
            expected = reference.top_k(x, k)
            assert_same(indices, expected[1])
            assert_same(bits(values), bits(expected[0]))
    finally:
        dmlops.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
@pytest.mark.parametrize("problem", ["short", "part", "side by side"])
def test_ties_of_other_widths(problem, dtype):
    shape, axis, k = PROBLEMS[problem]
    x = random(dtype).integers(0, 3, shape).astype(dtype)
    for is_sorted in (True, False):
        values, indices = dmlops.top_k(x, k, axis=axis, largest=False, sorted=is_sorted)
        expected = reference.top_k(x, k, axis=axis, largest=False, sorted=is_sorted)
        assert_same(indices, expected[1])
        assert_same(bits(values), bits(expected[0]))


def test_rows_shorter_than_what_is_selected():
    x = random("lengths").integers(0, 4, (6, 5000)).astype(np.float32)
    lengths = np.array([0, 3, 999, 1000, 1001, 5000])
    for is_sorted in (True, False):
        values, indices = dmlops.top_k(x, 1000, lengths=lengths, sorted=is_sorted)
        expected = reference.top_k(x, 1000, lengths=lengths, sorted=is_sorted)
        np.testing.assert_array_equal(indices.astype(np.int32), expected[1])
        assert_same(bits(values), bits(expected[0]))


@pytest.mark.parametrize("sorted", [True, False], ids=["sorted", "by index"])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("problem", [*PROBLEMS, "whole rows"])
def test_set_bytes_are_true(problem, largest, sorted):
    shape, axis, k = PROBLEMS.get(problem, ((3, 900), 1, 900))
    rng = random(("set bytes", problem))
    for share in (0.01, 0.5, 0.99):
        patterns = np.where(rng.random(shape) < share, rng.integers(1, 256, shape), 0).astype(np.uint8)
        is_set = patterns != 0
        expected = np.argsort(~is_set if largest else is_set, axis, kind="stable").take(range(k), axis)
        expected = expected if sorted else np.sort(expected, axis)
        selected = np.take_along_axis(patterns, expected, axis)
        lengths = np.full(np.delete(shape, axis), shape[axis])
        for options in ({}, {"lengths": lengths}):
            found = dmlops.top_k(patterns.view(bool), k, axis=axis, largest=largest, sorted=sorted, **options)
            assert np.array_equal(found.indices, expected)
            assert np.array_equal(found.values.view(np.uint8), selected)


def test_padding_ties_with_set_bytes():
    x = np.array([[7, 0, 9], [0, 0, 0]], np.uint8).view(bool)
    found = dmlops.top_k(x, 3, largest=False, lengths=[2, 0])
    assert found.values.view(np.uint8).tolist() == [[0, 7, 1], [1, 1, 1]]
    assert found.indices.tolist() == [[1, 0, -1], [-1, -1, -1]]


def test_set_bytes_of_torch_are_sorted_as_torch_does():
    torch = pytest.importorskip("torch")
    patterns = torch.tensor(random("torch").choice([0, 0, 1, 2, 128, 255], (5, 300)).astype(np.uint8))
    x = patterns.view(torch.bool)
    found = dmlops.top_k(x, 300)
    _, indices = torch.sort(patterns != 0, descending=True, stable=True)
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.values.view(torch.uint8), patterns.gather(1, indices))
