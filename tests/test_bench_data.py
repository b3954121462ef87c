"""The benchmark's inputs: each distribution is what its name says, for both libraries."""

import numpy as np
import pytest

from bench import data, libraries

pytestmark = pytest.mark.quick

SHAPE = (4, 5000)


@pytest.fixture(params=["numpy", "torch"])
def make_source(request):
    """Return what makes a source of arrays of each library."""
    if request.param == "torch":
        pytest.importorskip("torch")
        return lambda: data.TorchSource("cpu")
    return data.NumPySource


@pytest.fixture
def source(make_source):
    return make_source()


def made(source, name, dtype="float32"):
    return libraries.to_numpy(source.make(name, SHAPE, dtype))


def test_shares(source):
    relu = made(source, "relu")
    assert relu.min() == 0
    assert 0.45 < (relu == 0).mean() < 0.55
    assert 0.45 < np.isnan(made(source, "nan")).mean() < 0.55
    assert 0.45 < (made(source, "two_valued") == 1).mean() < 0.55
    normal = made(source, "normal")
    assert abs(normal.mean()) < 0.05
    assert 0.9 < normal.std() < 1.1


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_indices_reach_each_bound(source, dtype):
    indices = source.indices((2, 500), (3, 7, 1), dtype)
    # torch barely supports uint32.
    expected = "int32" if libraries.is_torch(indices) and dtype == "uint32" else dtype
    indices = libraries.to_numpy(indices)
    assert (indices.shape, indices.dtype) == ((2, 500, 3), expected)
    assert indices.min(axis=(0, 1)).tolist() == [0, 0, 0]
    assert indices.max(axis=(0, 1)).tolist() == [2, 6, 0]
