"""`top_k` with ``lengths``: each row has only its first elements, and padding if these are too few."""

import importlib

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import DTYPES, INDEX_DTYPES, LAYOUTS, OUTPUT_LAYOUTS, assert_same, bits, random, sample
from tests.libraries import NUMPY, Torch, check
from tests.top_k_cases import OF_LENGTHS, row_lengths


@pytest.mark.parametrize("case", OF_LENGTHS, ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


def check_call(x, k, lengths, **options):
    """Check every bit of what a call answers."""
    expected = reference.top_k(np.asarray(x), k, lengths=np.asarray(lengths), **options)
    for got, answer in zip(dmlops.top_k(x, k, lengths=lengths, **options), expected, strict=True):
        assert_same(got, answer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding(dtype):
    x = sample(dtype, (2, 9), "padding")
    for largest in (True, False):
        values, indices = dmlops.top_k(x, 5, largest=largest, lengths=[0, 2])
        padding = np.full(5, reference.padding(dtype, largest))
        assert_same(values[0], padding)
        assert_same(values[1, 2:], padding[2:])
        assert indices.tolist()[0] == [-1] * 5
        assert indices.tolist()[1][2:] == [-1] * 3
        assert sorted(indices[1, :2]) == [0, 1]


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_index_of_padding_has_all_bits_set(index_dtype):
    _, indices = dmlops.top_k([1.0, 2.0], 2, lengths=1, index_dtype=index_dtype)
    assert_same(indices, np.array([0, -1]).astype(index_dtype))


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
def test_extreme_lengths(dtype):
    x = sample("float32", (6, 40), "extreme")
    info = np.iinfo(dtype)
    lengths = np.array([info.min, info.max, 40, 41, 1 << 31 if info.bits == 64 else 39, 0], dtype)
    for is_sorted in (True, False):
        check_call(x, 30, lengths, sorted=is_sorted)


def test_what_comes_after_a_length_does_not_matter():
    x = sample("float32", (7, 50), "after")
    lengths = np.arange(0, 49, 7)
    expected = dmlops.top_k(x, 20, lengths=lengths)
    for value in (np.inf, -np.inf, np.nan, 0):
        changed = np.where(np.arange(50) < lengths[:, None], x, np.float32(value))
        for got, answer in zip(dmlops.top_k(changed, 20, lengths=lengths), expected, strict=True):
            assert_same(bits(got), bits(answer))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_elements_equal_to_the_padding_are_selected(largest, is_sorted):
    edge = -np.inf if largest else np.inf
    x = np.full((3, 8), edge, "float32")
    x[1] = np.nan
    x[2, 1::2] = np.nan
    check_call(x, 6, np.array([4, 5, 7]), largest=largest, sorted=is_sorted)


def test_takes_lists_and_numbers():
    check_call([[3, 1, 2], [0, 0, 5]], 2, [2, 1])
    check_call([3, 1, 2], 2, 1)
    check_call([3, 1, 2], 2, np.int32(2))


@pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
def test_out_of_any_layout(layout):
    x = sample("float32", (20, 30, 5), "out")
    for axis in (0, 1, 2):
        lengths = row_lengths(x, axis, 4, "uint32")
        for is_sorted in (True, False):
            options = {"axis": axis, "sorted": is_sorted, "lengths": lengths}
            values, indices = reference.top_k(x, 4, **options)
            out = LAYOUTS[layout](np.ones_like(values)), LAYOUTS[layout](np.zeros_like(indices, "uint64"))
            dmlops.top_k(x, 4, **options, out=out)
            assert_same(out[0], values)
            assert_same(out[1], indices.astype("uint64"))


def test_out_keeps_what_lies_around_it():
    x = sample("float32", (6, 50), "around")
    lengths = np.array([0, 1, 3, 5, 8, 50])
    values, indices = np.full((6, 9), 77, "float32"), np.full((6, 9), 77, "int32")
    dmlops.top_k(x, 5, lengths=lengths, out=(values[:, 2:7], indices[:, 2:7]))
    expected = reference.top_k(x, 5, lengths=lengths)
    assert_same(bits(values[:, 2:7]), bits(expected[0]))
    np.testing.assert_array_equal(indices[:, 2:7], expected[1])
    for array in (values, indices):
        assert (array[:, [0, 1, 7, 8]] == 77).all()


def test_inputs_are_not_written_to():
    x, lengths = sample("float32", (3, 500), "inputs"), np.array([-1, 30, 900])
    before = x.copy()
    dmlops.top_k(x, 60, lengths=lengths)
    assert_same(x, before)
    assert lengths.tolist() == [-1, 30, 900]


@pytest.mark.parametrize("kind", ["array", "view", "list", "torch"])
def test_repeated_calls_read_the_lengths_anew(kind):
    x = sample("float32", (4, 60), "repeated")
    lengths = memory = np.zeros(4, "int64")
    if kind == "view":
        memory = np.zeros((4, 2), "int64")
        lengths = memory[:, 0]
    elif kind == "torch":
        memory = pytest.importorskip("torch").from_numpy(lengths)
    for turn in range(6):
        lengths[...] = random(turn).integers(-3, 64, 4)
        given = lengths.tolist() if kind == "list" else memory if kind == "torch" else lengths
        array = Torch("cpu").from_numpy(x) if kind == "torch" else x
        got = dmlops.top_k(array, 9, lengths=given, sorted=turn % 2 == 0)
        expected = reference.top_k(x, 9, lengths=lengths, sorted=turn % 2 == 0)
        for result, answer in zip(got, expected, strict=True):
            assert_same(np.asarray(result), answer)


def test_repeated_calls_with_and_without_lengths():
    x = sample("float32", (4, 60), "mixed")
    for _ in range(4):
        check_call(x, 9, np.array([0, 5, 9, 70]))
        check_call(x, 9, np.array([0, 5, 9, 70], "uint32"))
        for got, answer in zip(dmlops.top_k(x, 9), reference.top_k(x, 9), strict=True):
            assert_same(got, answer)


def test_lengths_of_another_library():
    torch = pytest.importorskip("torch")
    x = sample("float32", (4, 60), "library")
    lengths = np.array([3, 60, -5, 9])
    expected = reference.top_k(x, 9, lengths=lengths)
    of_numpy = dmlops.top_k(x, 9, lengths=torch.from_numpy(lengths))
    of_torch = dmlops.top_k(torch.from_numpy(x), 9, lengths=lengths)
    for library, results in ((NUMPY, of_numpy), (Torch("cpu"), of_torch)):
        for got, answer in zip(results, expected, strict=True):
            assert_same(library.to_numpy(got), answer)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_any_number_of_threads(n_threads):
    before = dmlops.get_num_threads()
    try:
        dmlops.set_num_threads(n_threads)
        for shape, axis, k in (((700, 500), 1, 30), ((400_000,), 0, 1000), ((500, 700), 0, 30)):
            x = random("threads").integers(0, 50, shape).astype("float32")
            check_call(x, k, row_lengths(x, axis, k), axis=axis, sorted=n_threads != 2)
    finally:
        dmlops.set_num_threads(before)


def test_out_shares_no_memory_with_the_lengths():
    x, memory = sample("float32", (4, 6), "shared"), np.full(100, 2, "int64")
    lengths = memory[:4]
    for _ in range(3):
        for start, is_shared in ((4, False), (0, True), (3, True)):
            out = np.empty((4, 3), "float32"), memory[start : start + 12].reshape(4, 3)
            if is_shared:
                with pytest.raises(InvalidDescriptorError, match="shares memory"):
                    dmlops.top_k(x, 3, lengths=lengths, out=out)
            else:
                dmlops.top_k(x, 3, lengths=lengths, out=out)


def test_under_torch_compile():
    torch = pytest.importorskip("torch")
    integration = importlib.import_module("dmlops.integrations.torch")
    x, lengths = sample("float32", (4, 60), "compile"), np.array([3, 60, -5, 9])
    compiled = torch.compile(lambda x, n: integration.top_k(x, 9, lengths=n, sorted=False), backend="eager")
    results = compiled(torch.from_numpy(x), torch.from_numpy(lengths))
    expected = reference.top_k(x, 9, lengths=lengths, sorted=False)
    for got, answer in zip(results, expected, strict=True):
        assert_same(got.numpy(), answer)
