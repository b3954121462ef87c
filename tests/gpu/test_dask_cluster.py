"""`dmlops.integrations.dask` on a cluster of two workers, each a process with a GPU of its own."""

import os

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
cupy = pytest.importorskip("cupy")
distributed = pytest.importorskip("distributed")
# Without it, `distributed` cannot send CuPy arrays, and tries for ever: this test runs without `on_archive`.
pytest.importorskip("numba.cuda")

from tests.dask_arrays import every_function  # noqa: E402
from tests.data import assert_same  # noqa: E402

pytestmark = [
    pytest.mark.two_gpus,
    # The cluster's own packages use each other's deprecated functions.
    pytest.mark.filterwarnings("default"),
]

HOST = "127.0.0.1"
# For a result to come, or an error.
TIMEOUT_S = 200


@pytest.fixture
def cluster():
    """Give a client of the workers. Each knows one GPU alone."""
    workers = {
        number: {
            "cls": distributed.Nanny,
            "options": {"host": HOST, "nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": str(number)}},
        }
        for number in range(2)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"host": HOST, "port": 0, "dashboard": False}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=TIMEOUT_S)
        yield client


def on_gpu(array):
    return array.map_blocks(cupy.asarray, meta=cupy.empty((0,) * array.ndim, array.dtype))


def kind_of(chunk):
    """Say in one byte whether a chunk is on a GPU."""
    return np.full((1,) * chunk.ndim, isinstance(chunk, cupy.ndarray))


def check(cluster, results, expected):
    for future, wanted in zip(cluster.compute(results), expected, strict=True):
        assert_same(cupy.asnumpy(future.result(TIMEOUT_S)), wanted)


def test_two_gpus(cluster):
    devices = cluster.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
    assert sorted(devices.values()) == ["0", "1"]
    results, expected = every_function(on_gpu, on_gpu)
    kinds = [
        result.map_blocks(kind_of, dtype=bool, chunks=tuple((1,) * n for n in result.numblocks))
        for result in results
    ]
    assert all(np.all(future.result(TIMEOUT_S)) for future in cluster.compute(kinds))
    check(cluster, results, expected)
