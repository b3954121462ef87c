"""`dmlops.integrations.dask` on dask-cuda's cluster, of a worker for each of two GPUs."""

import os

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
dask_cuda = pytest.importorskip("dask_cuda")
cupy = pytest.importorskip("cupy")
distributed = pytest.importorskip("distributed")

import dask  # noqa: E402

from dmlops.integrations.dask import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import assert_same  # noqa: E402


@pytest.fixture
def cluster():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("no GPU but one")
    with (
        dask_cuda.LocalCUDACluster(CUDA_VISIBLE_DEVICES="0,1", dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield client


def kind_of(chunk):
    """Say in one byte whether a chunk is on a GPU."""
    return np.full((1,) * chunk.ndim, isinstance(chunk, cupy.ndarray))


@pytest.mark.filterwarnings("default")  # the cluster's own packages warn of what is deprecated in one another
def test_two_gpus(cluster):
    devices = cluster.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])
    assert sorted(devices.values()) == ["0", "1"]
    x = np.random.default_rng(0).integers(-2, 3, (400, 300)).astype("float32")
    indices = np.random.default_rng(1).integers(-400, 400, (500, 1))
    lazy = da.from_array(x, chunks=50).map_blocks(cupy.asarray, meta=cupy.empty((0, 0), "float32"))
    tuples = da.from_array(indices, chunks=(90, 1)).map_blocks(cupy.asarray, meta=cupy.empty((0, 0), int))
    results = (
        *top_k(lazy, 7, axis=0, lengths=np.arange(300)),
        *nonzero_coordinates(lazy, size=100_000, fill_value=-1),
        gather_nd(lazy, tuples),
        gather_nd(lazy, indices),
        diagonal_matrix(lazy, value=5),
    )
    expected = (
        *reference.top_k(x, 7, axis=0, lengths=np.arange(300)),
        *reference.nonzero_coordinates(x, size=100_000, fill_value=-1),
        *[reference.gather_nd(x, indices)] * 2,
        reference.diagonal_matrix(x, value=5),
    )
    kinds = [
        result.map_blocks(kind_of, dtype=bool, chunks=tuple((1,) * n for n in result.numblocks))
        for result in results
    ]
    assert all(np.all(kind) for kind in dask.compute(*kinds))
    for result, wanted in zip(dask.compute(*results), expected, strict=True):
        assert_same(cupy.asnumpy(result), wanted)
