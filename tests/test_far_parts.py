"""Selections whose answer lies in every part of a row: of each thread, run, tile and remainder."""

import functools

import numpy as np
import pytest

import dmlops
from tests.data import assert_same, random

# A row that is worth seven threads.
LONG = 8_000_003


@pytest.fixture(autouse=True)
def restore_num_threads():
    yield
    dmlops.set_num_threads(None)


def check(x, k, *, axis=-1, largest=True, index_dtype="int64"):
    """Compare a selection with NumPy's stable sort; `x` has no NaN, and no zero of either sign."""
    # The complement reverses the order of integers, and never overflows.
    keys = x if not largest else -x if x.dtype.kind == "f" else ~x
    order = np.take(np.argsort(keys, axis=axis, kind="stable"), range(k), axis=axis)
    check_indices(x, order, k, axis=axis, largest=largest, index_dtype=index_dtype)


def check_indices(x, order, k, *, axis=-1, largest=True, index_dtype="int64"):
    """Compare a selection with the indices that it must have."""
    values, indices = dmlops.top_k(x, k, axis=axis, largest=largest, index_dtype=index_dtype)
    assert_same(indices, order.astype(index_dtype))
    assert_same(values, np.take_along_axis(x, order, axis=axis))


@functools.cache
def long_row():
    """Return a long row of numbers in (1, 2]."""
    return 2 - random("far parts").random(LONG, dtype="float32")


@pytest.mark.parametrize("k", [150, 300])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 7])
def test_selected_in_every_part_of_every_thread(n_threads, k):
    dmlops.set_num_threads(n_threads)
    x = long_row().copy()
    # From the first element to the last, each third of them equal.
    places = np.linspace(0, LONG - 1, k).astype(int)
    x[places] = 3 + np.arange(k) % 3
    check_indices(x, places[np.argsort(-x[places], kind="stable")], k)


@pytest.mark.parametrize("place", [0, 1, LONG // 2, LONG - 2, LONG - 1])
def test_one_selected_anywhere(place):
    dmlops.set_num_threads(3)
    x = np.ones(LONG, "float32")
    x[place] = 2
    first = [i for i in range(10) if i != place][:9]
    check_indices(x, np.array([place, *first]), 10)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [7, 150, 1000])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "float64"])
def test_noisy_ascending_rows(dtype, k, largest):
    n = 300_001
    rng = random(("noisy", dtype))
    x = 10.0 * np.arange(n) + rng.normal(0, 300, n) - 1e6
    check(x.astype(dtype), k, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "k"), [((9001, 67), 9), ((9001, 67), 100), ((9001, 5), 60)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_noisy_ascending_columns(dtype, shape, k, largest):
    rng = random(("columns", dtype, shape))
    x = (10.0 * np.arange(shape[0])[:, np.newaxis] + rng.normal(0, 300, shape) - 4e4).astype(dtype)
    check(x, k, axis=0, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_negative_ascending_rows(n_threads, largest):
    dmlops.set_num_threads(n_threads)
    n = 3_000_000
    x = np.arange(n) - 2**50
    order = np.arange(n - 1, n - 101, -1) if largest else np.arange(100)
    check_indices(x, order, 100, largest=largest)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_sorted_parts_of_different_ranges(dtype, n_threads):
    dmlops.set_num_threads(n_threads)
    n = 100_003
    # From part to part a hundred times the range, so that the last part alone has the greatest and the least.
    reach = 10.0 ** np.linspace(0, 12, n)
    x = (random("ranges").uniform(-1, 1, n) * reach).round().astype(dtype)
    x[x == 0] = 1
    for row in (x, x[::-1].copy()):
        check(row, n)
        check(row, n * 5 // 8, largest=False)


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 15, 16, 17, 25, 33, 63])
def test_sorted_keys_of_so_many_bits(n_bits):
    """Radix sorts take digits of even sizes: none of the bits may be left out."""
    n = 3000
    x = random(n_bits).integers(0, 2**n_bits, n)
    x[[0, n - 1]] = 2**n_bits - 1, 0
    check(x - 5, n)
    check(x - 5, n, largest=False)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_ties_that_later_runs_bring(dtype):
    """The bound falls at the second run; all of its ties count, whatever was listed before."""
    dmlops.set_num_threads(1)
    n, k = 2_600_000, 100
    x = random("runs").integers(1, 1000, n).astype(dtype)
    places = np.sort(random("places").choice(np.arange(1_200_000, n), 5 * k, replace=False))
    x[places] = 5000
    check_indices(x, places[:k], k)
    x[places[k - 10 :]] = 1
    check_indices(x, np.concatenate([places[: k - 10], np.flatnonzero(x == 999)[:10]]), k)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("k", [20, 100])
def test_ties_that_later_runs_of_columns_bring(k, dtype):
    x = random("column runs").integers(1, 1000, (20_000, 67)).astype(dtype)
    for column in range(67):
        n_ties = 6 * k if column % 3 else k // 2
        x[random(column).choice(np.arange(5000, 20_000), n_ties, replace=False), column] = 5000
    check(x, k, axis=0)


@pytest.mark.parametrize("n_left", [0, 1, 5, 63])
@pytest.mark.parametrize("n_tiles", [1, 63, 64, 65, 128])
def test_selected_at_the_end_of_rows(n_tiles, n_left):
    """Tiles are looked at a word at a time, and behind the last of them is what they leave over."""
    x = random((n_tiles, n_left)).random((3, n_tiles * 128 + n_left), dtype="float32") + 1
    x = np.pad(x, ((0, 0), (0, max(5000 - x.shape[1], 0))), constant_values=1)
    x[:, -1] = 3
    x[:, -2] = 4
    check(x, 100)
    check(-x, 9, largest=False)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_each_element_of_short_rows_is_selected(dtype):
    for n in (9, 64, 67, 200):
        x = np.ones((n, n), dtype)
        np.fill_diagonal(x, 2)
        first = np.where(np.arange(n) == 0, 1, 0)
        check_indices(x, np.stack([np.arange(n), first], axis=1), 2)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("n_different", [1, 2, 3])
def test_short_rows_of_many_ties(n_different, dtype):
    x = random(("short ties", n_different)).integers(1, 1 + n_different, (60, 1000)).astype(dtype)
    for k in (2, 30, 96):
        check(x, k)
        check(x, k, largest=False)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_short_rows_whose_best_stand_together(dtype):
    x = random("together").integers(1, 1000, (300, 700)).astype(dtype)
    for row in range(300):
        start = row * 690 // 300
        x[row, start : start + 10] = 5000 + random(row).permutation(10)
    check(x, 10)


@pytest.mark.parametrize("shape", [(4003, 70), (4002, 131), (301, 64), (131, 33)])
def test_each_element_of_columns_is_selected(shape):
    """Two winners for each column, which go down the rows, to the last one."""
    n, columns = shape
    x = random(shape).random(shape, dtype="float32") + 1
    first = np.arange(columns) * (n - 2) // (columns - 1)
    x[first, range(columns)] = 3
    x[n - 1] = 4
    order = np.stack([np.full(columns, n - 1), first])
    check_indices(x, order, 2, axis=0)


@pytest.mark.parametrize("columns", [1, 2, 5, 13, 35])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_columns_that_fill_no_stripe(n_threads, columns):
    dmlops.set_num_threads(n_threads)
    for dtype, outer in (("float32", 1), ("float32", 41), ("uint8", 3)):
        x = random(columns).permuted(np.tile(np.arange(1, 251), (outer, columns, 5)), axis=-1)
        check(x.swapaxes(1, 2).astype(dtype, order="C"), 70, axis=1, index_dtype="uint32")


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_sorted_columns_of_which_a_part_is_selected(dtype):
    x = random("part").permuted(np.tile(np.arange(1, 1001), (5, 1)), axis=1).T
    check(x.astype(dtype, order="C"), 200, axis=0)
    check((x // 30 + 1).astype(dtype, order="C"), 200, axis=0, largest=False)
