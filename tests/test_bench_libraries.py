"""The benchmark's view of the libraries that it compares with dmlops."""

import numpy as np
import pytest

import dmlops
from bench import libraries, peers
from bench.peers import Task, contenders
from bench.workloads import CPU, DiagonalMatrix

LIBRARIES = {"dmlops", "numpy", "torch", "onnxruntime", "jax", "bottleneck", "cupy", "flashinfer"}


def test_every_library_gets_the_threads(monkeypatch):
    torch = pytest.importorskip("torch")
    before = dmlops.get_num_threads(), torch.get_num_threads()
    for name in ("NPROC", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")
    try:
        for count in (2, 1):
            libraries.set_threads(count, CPU)
            assert (dmlops.get_num_threads(), torch.get_num_threads()) == (count, count)
            assert libraries.os.environ["NPROC"] == str(count)
    finally:
        dmlops.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def test_no_peer_is_asked_for_what_it_cannot_do():
    """Those that know triangles of zeros only do no other band, whatever it begins with."""
    x = np.ones((8, 8), np.float32)
    for end, value, is_triangle in ((8, 0.0, True), (7, 0.0, False), (8, 0.5, False), (2**31, 0.0, True)):
        workload = DiagonalMatrix(name="", reason="", shape=(8, 8), begin=1, end=end, value=value)
        (tril,) = (who for who in contenders("diagonal_matrix", CPU) if who.name == "numpy.tril")
        if not is_triangle:
            with pytest.raises(libraries.NotServedError):
                tril.prepare(Task(workload, (x,), 1))
            continue
        expected = np.where(peers.band_mask(Task(workload, (x,), 1)), np.float32(value), x)
        np.testing.assert_array_equal(tril.prepare(Task(workload, (x,), 1))(), expected)


def test_libraries_that_are_absent_or_broken_are_not_served(tmp_path, monkeypatch):
    (tmp_path / "broken_kernels.py").write_text("raise OSError('no libcuda.so.1')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(libraries.NotServedError, match="broken_kernels cannot be imported: OSError: no lib"):
        libraries.module("broken_kernels")
    assert libraries.missing("broken_kernels", CPU) is None
    assert libraries.missing("absent_package.kernels", CPU) == "absent_package.kernels is not installed"
