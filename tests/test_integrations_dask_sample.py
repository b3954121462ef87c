"""`sample` on chunked arrays: the tokens of the whole array."""

import numpy as np
import pytest

import dmlops
from tests.data import assert_same, random

da = pytest.importorskip("dask.array")
chunked = pytest.importorskip("dmlops.integrations.dask")

X = (random("chunked logits").standard_normal((4, 6, 50)) * 3).astype("float32")
SEEDS = np.arange(24).reshape(4, 6)


@pytest.mark.parametrize("chunks", [(4, 6, 50), (1, 4, 50), ((3, 1), 2, 50)], ids=str)
def test_tokens_are_those_of_the_whole(chunks):
    x = da.from_array(X, chunks=chunks)
    for options in ({}, {"k": 7, "top_p": 0.9}, {"temperature": 0.5, "min_p": 0.05, "index_dtype": "uint32"}):
        tokens = chunked.sample(x, SEEDS, **options)
        expected = dmlops.sample(X, SEEDS, **options)
        assert (tokens.chunks, tokens.dtype) == (x.chunks[:-1], expected.dtype)
        assert_same(tokens.compute(scheduler="synchronous"), expected)


def test_parameters_are_arrays_of_any_chunks():
    temperature = np.linspace(0, 2, 6).astype("float32")
    k = np.array([[1], [0], [5], [-1]])
    tokens = chunked.sample(
        da.from_array(X, chunks=(2, 3, 50)),
        da.from_array(SEEDS, chunks=(3, 2)),
        steps=da.from_array(SEEDS[0], chunks=4),
        temperature=temperature,
        k=da.from_array(k, chunks=1),
    )
    expected = dmlops.sample(X, SEEDS, steps=SEEDS[0], temperature=temperature, k=k)
    assert_same(tokens.compute(scheduler="synchronous"), expected)


def test_a_row():
    assert chunked.sample(X[0, 0], 7).compute(scheduler="synchronous") == dmlops.sample(X[0, 0], 7)


def test_refused():
    x = da.from_array(X, chunks=(2, 3, 20))
    with pytest.raises(dmlops.InvalidDescriptorError, match=r"sample\.logits: got 3 chunks .* rechunk"):
        chunked.sample(x, 1)
    with pytest.raises(dmlops.InvalidDescriptorError, match=r"sample\.seeds: got shape \(3,\)"):
        chunked.sample(X, np.zeros(3, int))
    with pytest.raises(dmlops.InvalidDescriptorError, match=r"sample\.top_p: got 2\.0"):
        chunked.sample(X, 1, top_p=2.0)
    with pytest.raises(TypeError, match=r"sample\.logits: got int64"):
        chunked.sample(da.zeros((3, 5), dtype="int64"), 1)
