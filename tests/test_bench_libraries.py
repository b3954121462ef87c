"""The benchmark's view of the libraries that it compares with dmlops."""

from importlib.util import find_spec

import numpy as np
import pytest

import dmlops
from bench import libraries, peers
from bench.data import NumPySource
from bench.peers import TABLE, Task, contenders
from bench.workloads import CPU, CUDA, DiagonalMatrix, GatherND, TopK

LIBRARIES = {"dmlops", "numpy", "torch", "onnxruntime", "jax", "bottleneck", "cupy", "flashinfer"}


def test_each_contender_belongs_to_a_library():
    assert {who.library for who in TABLE} == LIBRARIES
    for who in TABLE:
        assert who.is_ours == who.name.startswith("dmlops")
        assert who.has_own_stream == who.name.startswith("jax")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_what_is_installed_is_not_missing(name):
    pytest.importorskip(name)
    assert libraries.missing(name, CPU) is None


def test_what_is_not_installed_is_missing(monkeypatch):
    assert libraries.missing("no_such_library", CPU) == "no_such_library is not installed"
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == "onnx" else find_spec("numpy"))
    assert libraries.missing("onnxruntime", CPU) == "onnx is not installed"


@pytest.mark.parametrize("has_cuda", [True, False])
def test_a_torch_without_cuda_is_missing_on_a_gpu_only(has_cuda, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert libraries.missing("torch", CUDA) == (None if has_cuda else "this torch has no CUDA")
    assert libraries.missing("torch", CPU) is None


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


def test_bfloat16_keeps_its_meaning_in_torch():
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    tensor = libraries.to_torch(array)
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [1.5, -2, 3]
    back = libraries.to_numpy(tensor)
    assert back.dtype == array.dtype
    assert back.tolist() == [1.5, -2, 3]
    assert tensor.data_ptr() == array.ctypes.data


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_jax_is_not_asked_for_what_it_narrows(dtype):
    pytest.importorskip("jax")
    with pytest.raises(libraries.NotServedError, match="64-bit"):
        libraries.to_jax(np.zeros(3, dtype))


def test_whoever_gets_flat_indices_is_spared_work():
    for who in TABLE:
        assert who.is_spared == who.note.startswith(peers.FLAT), who.name
    assert any(who.is_spared for who in contenders("gather_nd", CPU))
    assert any(who.is_spared for who in contenders("gather_nd", CUDA))


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


def test_dmlops_is_asked_to_check_where_the_workload_says_so():
    workload = GatherND(name="", reason="", shape=(4,), tuples=2, coordinates=1, batch_dims=0, mode="raise")
    inputs = np.arange(4, dtype=np.float32), np.array([[1], [4]], np.uint32)
    ours = contenders("gather_nd", CPU)[0]
    with pytest.raises(dmlops.IndexOutOfRangeError):
        ours.prepare(Task(workload, inputs, 1))()


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_indices_have_the_type_of_the_workload(dtype):
    workload = GatherND(
        name="", reason="", shape=(4, 9), tuples=5, coordinates=1, batch_dims=1, index_dtype=dtype
    )
    _, indices = workload.inputs(NumPySource())
    assert (indices.shape, indices.dtype) == ((4, 5, 1), dtype)
    assert workload.bytes_moved == 4 * 5 * (4 + 2 * 4)


def test_bfloat16_rows_have_the_same_answer_from_torch():
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    x = np.array([[3, -1, 2, -7, 0.5]], ml_dtypes.bfloat16)
    workload = TopK(name="", reason="", shape=x.shape, dtype="bfloat16", k=2)
    (who,) = (who for who in contenders("top_k", CPU) if who.name == "torch.topk")
    values, indices = who.prepare(Task(workload, (x,), 1))()
    assert values.dtype == torch.bfloat16
    assert (values.tolist(), indices.tolist()) == ([[3, 2]], [[0, 2]])
