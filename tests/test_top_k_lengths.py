"""`top_k` with ``lengths``: each row has only its first elements, and padding if these are too few."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import INDEX_DTYPES, assert_same, random, sample
from tests.libraries import NUMPY, Torch


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_index_of_padding_has_all_bits_set(index_dtype):
    for lengths in (1, np.int32(1), np.array(1)):
        _, indices = dmlops.top_k([1.0, 2.0], 2, lengths=lengths, index_dtype=index_dtype)
        assert_same(indices, np.array([0, -1]).astype(index_dtype))


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
