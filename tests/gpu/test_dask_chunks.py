"""`dmlops.integrations.dask` on arrays of CuPy chunks: the results are NumPy's, and stay on the GPU."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
cupy = pytest.importorskip("cupy")

from dmlops.integrations.dask import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import assert_same, sample  # noqa: E402

SCHEDULERS = pytest.mark.parametrize("scheduler", ["sync", "threads"])


def on_gpu(x, chunks):
    """Give an array in CuPy chunks."""
    return da.from_array(cupy.asarray(x), chunks=chunks, asarray=False)


def check(lazy, expected, scheduler):
    """Check every bit, and that the array and its description are CuPy's."""
    assert isinstance(lazy._meta, cupy.ndarray)
    whole = lazy.compute(scheduler=scheduler)
    assert isinstance(whole, cupy.ndarray)
    assert_same(cupy.asnumpy(whole), expected)


@SCHEDULERS
def test_top_k(scheduler):
    x = sample("float32", (20, 90), "cupy chunks")
    for options in ({}, {"largest": False}, {"sorted": False}):
        got = top_k(on_gpu(x, (7, 13)), 9, **options)
        for lazy, expected in zip(got, reference.top_k(x, 9, **options), strict=True):
            check(lazy, expected, scheduler)


@SCHEDULERS
def test_nonzero_coordinates(scheduler):
    x = sample("int8", (20, 9), "cupy chunks")
    coordinates, count = nonzero_coordinates(on_gpu(x, (6, 4)))
    check(coordinates, np.argwhere(x), scheduler)
    check(count, np.array(np.count_nonzero(x)), scheduler)


@SCHEDULERS
@pytest.mark.parametrize("chunks", [(6, 5, 4), (2, 5, 1), (6, 2, 4)])
@pytest.mark.parametrize("mode", ["raise", "clip", "fill"])
def test_gather_nd(chunks, mode, scheduler):
    x = sample("float32", (6, 5, 4), "cupy chunks")
    reach = 4 if mode == "raise" else 9
    rng = np.random.default_rng(1)
    for shape in ((7, 2), (6, 3, 1), (5, 3)):
        indices = rng.integers(-reach, reach, shape)
        expected = reference.gather_nd(x, indices, mode=mode)
        for given in (indices, on_gpu(indices, 2), da.from_array(indices, chunks=3), indices.tolist()):
            check(gather_nd(on_gpu(x, chunks), given, mode=mode), expected, scheduler)


@SCHEDULERS
def test_diagonal_matrix(scheduler):
    x = sample("float32", (2, 7, 9), "cupy chunks")
    lazy = diagonal_matrix(on_gpu(x, (1, 3, 2)), value=3, begin=-1, end=2)
    check(lazy, reference.diagonal_matrix(x, value=3, begin=-1, end=2), scheduler)
