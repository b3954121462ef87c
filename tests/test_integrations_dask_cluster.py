"""`dmlops.integrations.dask` on a cluster: a killed process changes nothing, and memory is bounded."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

import dask  # noqa: E402

from dmlops.integrations.dask import gather_nd  # noqa: E402
from tests.dask_arrays import every_function, kill  # noqa: E402
from tests.data import assert_same  # noqa: E402

# For a result to come, or an error.
TIMEOUT_S = 400


@pytest.fixture
def cluster():
    """Give a client of two workers, each a process with 1 GiB of memory."""
    with (
        dask.config.set(
            {
                "distributed.admin.log-format": "%(message)s",
                "distributed.scheduler.allowed-failures": 1,
                "distributed.scheduler.no-workers-timeout": "20s",
            }
        ),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="1 GiB",
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_worker_that_is_killed_changes_nothing(cluster, tmp_path):
    workers, once = set(cluster.scheduler_info()["workers"]), tmp_path / "killed"
    results, expected = every_function(
        lambda x: x.map_blocks(kill, once, meta=x._meta), lambda tuples: tuples
    )
    got = [future.result(TIMEOUT_S) for future in cluster.compute(results)]
    assert once.exists()
    assert set(cluster.scheduler_info()["workers"]) != workers
    for actual, wanted in zip(got, expected, strict=True):
        assert_same(actual, wanted)


@pytest.mark.exhaustive
def test_two_elements_of_more_than_a_worker_has_memory_for(cluster):
    x = da.arange(400_000_000, chunks=10_000_000, dtype="int32") + 1  # 1.6 GB
    indices = np.array([[5], [399_999_999]])
    for given in (indices, da.from_array(indices, chunks=1)):
        got = gather_nd(x, given).compute()
        assert got.tolist() == [6, 400_000_000]
