"""`top_k` with ``lengths``: each row has only its first elements, and padding if these are too few."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import INDEX_DTYPES, assert_same, random, sample


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_index_of_padding_has_all_bits_set(index_dtype):
    for lengths in (1, np.int32(1), np.array(1)):
        _, indices = dmlops.top_k([1.0, 2.0], 2, lengths=lengths, index_dtype=index_dtype)
        assert_same(indices, np.array([0, -1]).astype(index_dtype))


@pytest.mark.parametrize("kind", ["array", "view", "list", "torch"])
def test_repeated_calls_read_the_lengths_anew(kind, library):
    x = sample("float32", (4, 60), "repeated")
    lengths = np.zeros((4, 2), "int64")[:, 0] if kind == "view" else np.zeros(4, "int64")
    shared = pytest.importorskip("torch").from_numpy(lengths) if kind == "torch" else lengths
    for turn in range(6):
        lengths[...] = random(turn).integers(-3, 64, 4)
        given, is_sorted = lengths.tolist() if kind == "list" else shared, turn % 2 == 0
        got = dmlops.top_k(library.from_numpy(x), 9, lengths=given, sorted=is_sorted)
        for result, answer in zip(got, reference.top_k(x, 9, lengths=lengths, sorted=is_sorted), strict=True):
            assert_same(library.to_numpy(result), answer)


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
