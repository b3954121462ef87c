"""`top_k` of windows of rows, of segments, and of elements that have the caller's own numbers."""

import itertools

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import INDEX_DTYPES, assert_same, random, sample


def assert_selects(x, k, **options):
    """Check what `top_k` answers, at the first call of a kind and at the second, with other outputs too."""
    expected = reference.top_k(x, k, **options)
    for _ in range(2):
        for result, answer in zip(dmlops.top_k(x, k, **options), expected, strict=True):
            assert_same(result, answer)
    out = np.empty_like(expected[0]), np.empty_like(expected[1])
    assert dmlops.top_k(x, k, out=out, **options).indices is out[1]
    for result, answer in zip(out, expected, strict=True):
        assert_same(result, answer)


def test_a_one_dimensional_array_has_a_row_for_each_segment():
    x, indptr = sample("float32", (50,), "segments"), np.array([0, 0, 7, 8, 30, 50])
    options = {"starts": indptr[:-1], "lengths": np.diff(indptr)}
    values, indices = dmlops.top_k(x, 3, **options)
    assert values.shape == indices.shape == (5, 3)
    for number, (begin, end) in enumerate(itertools.pairwise(indptr)):
        n = min(3, end - begin)
        assert_same(values[number, :n], dmlops.top_k(x[begin:end], n).values)
        assert (x[indices[number, :n]].view("int32") == values[number, :n].view("int32")).all()
        assert (indices[number, n:] == -1).all()
    assert_selects(x, 3, **options)
    assert_selects(x, 3, max_length=22, sorted=False, **options)
    assert_selects(x, 99, **options)


@pytest.mark.parametrize(
    ("x_shape", "axis", "starts", "lengths"),
    [
        ((6,), 0, (4,), ()),
        ((6,), -1, (2, 1), (3,)),
        ((1, 6), 1, (5,), (5,)),
        ((4, 6), 1, (3, 4), (4,)),
        ((4, 6), 1, (), (3, 1)),
        ((4, 6), 0, (6,), (1,)),
        ((4, 1, 6), -1, (5, 1, 3), ()),
        ((4, 6, 1), 1, (1, 5), (4, 1)),
        ((), 0, (3,), ()),
    ],
)
def test_windows_broadcast_with_each_other_and_with_rows(x_shape, axis, starts, lengths):
    x, rng = sample("float32", x_shape, "broadcast"), random((x_shape, starts, lengths))
    given = {"starts": rng.integers(-2, 5, starts), "lengths": rng.integers(0, 5, lengths)}
    for _ in range(2):
        got = dmlops.top_k(x, 2, axis=axis, **given)
        for result, answer in zip(got, reference.top_k(x, 2, axis=axis, **given), strict=True):
            assert_same(result, answer)


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
def test_no_sum_of_a_start_and_a_length_overflows(dtype):
    info, x = np.iinfo(dtype), np.arange(9.0)
    edges = [info.min, info.min + 1, info.max // 2, info.max - 1, info.max, 0, 1, 8, 9]
    starts, lengths = (each.ravel() for each in np.meshgrid(*2 * [np.array(edges, dtype)]))
    assert_selects(x, 4, starts=starts, lengths=lengths)
    assert_selects(x, 4, starts=starts)
    assert_selects(x, 4, starts=starts, lengths=lengths, max_length=2)


def test_integers_are_windows_of_all_rows():
    x = sample("float32", (3, 9), "integers")
    for given in (2, np.int32(2), np.array(2)):
        for result, answer in zip(
            dmlops.top_k(x, 4, starts=given, lengths=6),
            reference.top_k(x, 4, starts=np.array(2), lengths=np.array(6)),
            strict=True,
        ):
            assert_same(result, answer)


def test_padded_results_are_the_input_of_the_next_call():
    """Candidates of shards of any kind are merged by their numbers; padding takes no part."""
    x = np.float32(random("shards").integers(0, 9, (5, 60)))
    owner = random("owner").integers(0, 4, 60)
    found = []
    for shard in range(4):
        numbers = np.flatnonzero(owner == shard)
        found.append(dmlops.top_k(x[:, numbers], 20, indices=numbers))
    values, numbers = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    assert (numbers == -1).any()
    for is_sorted in (True, False):
        merged = dmlops.top_k(values, 20, indices=numbers, sorted=is_sorted)
        for result, answer in zip(merged, reference.top_k(x, 20, sorted=is_sorted), strict=True):
            assert_same(result, answer)


def test_equal_numbers_are_in_order_of_position():
    x = np.array([1.0, 2.0, 2.0, 1.0, 2.0])
    values, numbers = dmlops.top_k(x, 5, indices=np.array([7, 5, 5, -1, 3], "int32"))
    assert_same(numbers, np.array([3, 5, 5, 7, -1], "int32"))
    assert_same(values, np.array([2.0, 2.0, 2.0, 1.0, -np.inf]))


def test_where_none_takes_part():
    for dtype in ("float32", "int64"):
        x = sample(dtype, (2, 5), "none")
        assert_selects(x, 3, indices=np.full(5, -1))
        assert_selects(x, 3, starts=np.array(5), lengths=np.array(3))
        assert_selects(x, 3, lengths=np.array([0, -1]), max_length=0)


@pytest.mark.parametrize("n", [40, 3000, 20_000])
@pytest.mark.parametrize("worst", [-np.inf, np.nan])
def test_elements_that_take_no_part_do_not_displace_the_worst(n, worst):
    """The element that loses to all others takes part all the same."""
    x = np.full((2, n), worst, "float32")
    x[:, ::7] = np.arange(0, n, 7)
    numbers = np.where(np.arange(n) % 3 == 0, -1, np.arange(n)[::-1])
    for k in (n // 2, n // 4, n):
        assert_selects(x, k, indices=numbers, nan_last=True)
        assert_selects(x, k, indices=numbers, largest=False)


def test_nan_last_is_the_order_of_numpy():
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5.0])
    for largest in (True, False):
        values, indices = dmlops.top_k(x, 7, largest=largest, nan_last=True)
        assert indices[-2:].tolist() == [0, 1]
        assert np.isnan(values[-2:]).all()
    assert dmlops.top_k(x, 3, nan_last=True).indices.tolist() == [2, 6, 4]
    for unit in ("datetime64[s]", "timedelta64[D]"):
        times = np.array([3, "NaT", -5, 8], unit)
        assert dmlops.top_k(times, 4, nan_last=True).indices.tolist() == [3, 0, 2, 1]
        assert dmlops.top_k(times, 4, nan_last=True, largest=False).indices.tolist() == [2, 0, 3, 1]


def test_repeated_calls_read_the_windows_anew(library):
    x, starts, numbers = sample("float32", (4, 60), "anew"), np.zeros(4, "int64"), np.zeros(60, "int64")
    for turn in range(5):
        rng = random(turn)
        starts[...] = rng.integers(-9, 64, 4)
        numbers[...] = rng.integers(-1, 30, 60)
        given = {"starts": starts, "indices": numbers}
        got = dmlops.top_k(
            library.from_numpy(x),
            9 + turn,
            **{name: library.from_numpy(each) for name, each in given.items()},
        )
        for result, answer in zip(got, reference.top_k(x, 9 + turn, **given), strict=True):
            assert_same(library.to_numpy(result), answer)


@pytest.mark.parametrize("name", ["starts", "indices"])
def test_out_shares_no_memory_with_other_inputs(name):
    x, memory = sample("float32", (4, 6), "shared"), np.full(100, 2, "int64")
    given = {"starts": memory[:4], "indices": memory[:24].reshape(4, 6)}[name]
    for _ in range(3):
        for start, is_shared in ((given.size, False), (0, True), (given.size - 1, True)):
            out = np.empty((4, 3), "float32"), memory[start : start + 12].reshape(4, 3)
            if is_shared:
                with pytest.raises(InvalidDescriptorError, match="shares memory"):
                    dmlops.top_k(x, 3, out=out, **{name: given})
            else:
                dmlops.top_k(x, 3, out=out, **{name: given})


def test_the_first_k_of_more_are_the_k():
    x = np.float32(random("prefix").integers(0, 5, (3, 400)))
    longest = dmlops.top_k(x, 400, starts=np.array([0, 30, 390])).indices
    for k in (1, 7, 90):
        assert_same(dmlops.top_k(x, k, starts=np.array([0, 30, 390])).indices, longest[:, :k])


def test_no_segments_in_a_list():
    for _ in range(2):
        found = dmlops.top_k(np.arange(4.0), 2, starts=[], lengths=[])
        assert found.values.shape == found.indices.shape == (0, 2)
        found = dmlops.top_k(np.ones((3, 0, 4)), 1, lengths=[[], [], []])
        assert found.values.shape == found.indices.shape == (3, 0, 1)


def test_lists_of_integers_are_exact():
    """NumPy makes floats of lists in which only some numbers need all 64 bits."""
    numbers = [2**64 - 2, 1, 2**63]
    for _ in range(2):
        found = dmlops.top_k(np.zeros(3), 3, indices=numbers)
        assert_same(found.indices, np.array([1, 2**63, 2**64 - 2], "uint64"))
        found = dmlops.top_k([numbers, numbers], 1)
        assert_same(found.values, np.array([[2**64 - 2]] * 2, "uint64"))
        assert_same(dmlops.top_k([3.0, 2.0**64, 1.0], 1).values, np.array([2.0**64]))


@pytest.mark.parametrize("lengths", [2**70, [3, -(2**70)], [2**64 - 1, -1], [[2**64]]])
def test_integers_of_more_than_64_bits_are_refused_as_such(lengths):
    with pytest.raises(InvalidDescriptorError, match=r"top_k.lengths: got -?\d+, but no type of 64 bits"):
        dmlops.top_k(np.zeros(3), 2, lengths=lengths)


@pytest.mark.parametrize("k", [2**62, 2**70])
def test_a_k_that_no_memory_holds_is_refused_by_its_name(k):
    for lengths in (3, [3, 2]):
        with pytest.raises(InvalidDescriptorError, match=f"top_k.k: got {k}, but rows have shape "):
            dmlops.top_k(np.zeros(3), k, lengths=lengths)


def test_remedies_name_the_argument():
    masked = np.ma.masked_array([1, 2], [True, False])
    with pytest.raises(TypeError, match=r"pass lengths.filled\(value\) or lengths.data"):
        dmlops.top_k(np.zeros((2, 3)), 2, lengths=masked)
    with pytest.raises(TypeError, match=r"use starts.astype\(starts.dtype.newbyteorder"):
        dmlops.top_k(np.zeros((2, 3)), 2, starts=np.array([1, 2], np.dtype(int).newbyteorder()))
    with pytest.raises(TypeError, match=r"pass x.filled\(value\) or x.data"):
        dmlops.top_k(masked, 2)
