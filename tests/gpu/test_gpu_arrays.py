"""GPU arrays of every library and kind: which are accepted, and which are returned."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, sample
from tests.gpu.arrays import KINDS, to_numpy
from tests.libraries import DLPack

# By kind, what makes an array of a torch tensor.
MAKERS = {**KINDS, "dlpack": DLPack}
VIEWS = {
    "whole": lambda array: array,
    "every_other": lambda array: array[::2, ::3],
    "columns": lambda array: array[1:, 3:],
    "transposed": lambda array: array.T,
}


def check_every_function(x, host):
    """Check all functions on the device array `x` that equals `host`; return the results."""
    results = (
        *dmlops.top_k(x, 3),
        *dmlops.nonzero_coordinates(x),
        dmlops.diagonal_matrix(x, begin=-1),
        dmlops.diagonal_matrix(shape=(2, 3), like=x),
    )
    expected = (
        *reference.top_k(host, 3),
        *reference.nonzero_coordinates(host),
        reference.diagonal_matrix(host, begin=-1),
        np.eye(2, 3, dtype=host.dtype),
    )
    for result, answer in zip(results, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(result), answer)
    assert_same(to_numpy(results[0]), expected[0])
    return results


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", MAKERS)
def test_each_kind(kind, view, torch):
    host = VIEWS[view](sample("float32", (9, 50), "kinds"))
    tensor = VIEWS[view](torch.from_numpy(sample("float32", (9, 50), "kinds")).cuda())
    torch.cuda.synchronize()
    x = MAKERS[kind](tensor)
    kinds = {type(result) for result in check_every_function(x, host)}
    assert kinds == {dmlops.DeviceArray if kind in ("interface", "dlpack") else type(x)}
    picked = dmlops.gather_nd(x, MAKERS[kind](torch.tensor([[4], [0]], device="cuda")))
    assert_same(to_numpy(picked), host[[4, 0]])


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("width", [61, 64, 257])
def test_rows_at_any_alignment(offset, width, torch):
    # Vector loads need 16 bytes of alignment; arrays promise that of an element only.
    for dtype in ("uint8", "float16", "float32"):
        host = sample(dtype, 40 * width + 8, (dtype, width))
        part = slice(offset, offset + 40 * width)
        x = torch.from_numpy(host).cuda()[part].reshape(40, width)
        check_every_function(x, host[part].reshape(40, width))


def test_jax():
    jax = pytest.importorskip("jax")
    host = sample("float32", (9, 50), "jax")
    assert all(isinstance(result, jax.Array) for result in check_every_function(jax.device_put(host), host))
