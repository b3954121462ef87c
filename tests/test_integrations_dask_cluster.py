"""`dmlops.integrations.dask` on a cluster: a killed process changes nothing, and memory is bounded."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

import dask  # noqa: E402

from dmlops.integrations.dask import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import assert_same  # noqa: E402


@pytest.fixture
def cluster():
    """Give a client of two workers, each a process with 1 GiB of memory."""
    with (
        dask.config.set({"distributed.admin.log-format": "%(message)s"}),
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


def kill_once(chunk, mark, block_info=None):
    """Kill this process when the last chunk is computed for the first time."""
    info = block_info[0]
    is_last = all(i + 1 == n for i, n in zip(info["chunk-location"], info["num-chunks"], strict=True))
    if is_last and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk


def test_a_worker_that_is_killed_changes_nothing(cluster, tmp_path):
    x = np.random.default_rng(0).integers(-2, 3, (120, 80)).astype("float32")
    indices = np.random.default_rng(1).integers(-120, 120, (50, 1))
    workers = set(cluster.scheduler_info()["workers"])
    lazy = da.from_array(x, chunks=20).map_blocks(kill_once, tmp_path / "killed", dtype="float32", meta=x[:0])
    tuples = da.from_array(indices, chunks=(20, 1))
    values, picks = top_k(lazy, 7, axis=0, lengths=np.arange(80))
    coordinates, count = nonzero_coordinates(lazy, size=5000, fill_value=-1)
    got = dask.compute(
        *(values, picks, coordinates, count, gather_nd(lazy, tuples), diagonal_matrix(lazy, value=5))
    )
    assert Path(tmp_path / "killed").exists()
    assert set(cluster.scheduler_info()["workers"]) != workers
    expected = (
        *reference.top_k(x, 7, axis=0, lengths=np.arange(80)),
        *reference.nonzero_coordinates(x, size=5000, fill_value=-1),
        reference.gather_nd(x, indices),
        reference.diagonal_matrix(x, value=5),
    )
    for actual, wanted in zip(got, expected, strict=True):
        assert_same(actual, wanted)


@pytest.mark.exhaustive
def test_two_elements_of_more_than_a_worker_has_memory_for(cluster):
    x = da.arange(400_000_000, chunks=10_000_000, dtype="int32") + 1  # 1.6 GB
    indices = np.array([[5], [399_999_999]])
    for given in (indices, da.from_array(indices, chunks=1)):
        got = gather_nd(x, given).compute()
        assert got.tolist() == [6, 400_000_000]
