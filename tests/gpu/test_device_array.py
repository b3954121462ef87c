"""`dmlops.DeviceArray`: other libraries take it, its stream orders it, and its memory is given back."""

import gc
import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import dmlops
from dmlops import DeviceArray
from tests import reference
from tests.data import DTYPES, assert_same, sample
from tests.gpu.arrays import to_numpy
from tests.gpu.numba_cuda import numba_cuda
from tests.gpu.test_capture import DriverGraph, ask
from tests.gpu.test_gpu_arrays import check_every_function
from tests.inside import cuda_driver

pytestmark = pytest.mark.usefixtures("current_device")

SLEEP_CYCLES = 200_000_000
N_BYTES = 1 << 20


def driver():
    return importlib.import_module("cuda.bindings.driver")


def bytes_in_use():
    """Return how much of the device's default pool is in use, once the device has nothing to do."""
    gc.collect()
    ask(driver().cuCtxSynchronize())
    pool = ask(driver().cuDeviceGetDefaultMemPool(0))
    attribute = driver().CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    return int(ask(driver().cuMemPoolGetAttribute(pool, attribute)))


def late(torch, stream):
    """Keep a stream busy."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.kind in "biuf"], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5, 7)], ids=str)
def test_elements_come_back(dtype, shape):
    host = sample(dtype, shape, "device array")
    array = DeviceArray.from_numpy(host)
    assert (array.shape, array.dtype, str(array.device)) == (shape, dtype, "cuda:0")
    assert_same(array.to_numpy(), host)


def test_every_function_returns_it():
    host = sample("float32", (9, 50), "functions")
    for given in (host, host[::2, ::-3]):
        results = check_every_function(DeviceArray.from_numpy(given), given)
        assert {type(result) for result in results} == {DeviceArray}


LIBRARIES = {
    "torch": lambda array: pytest.importorskip("torch").as_tensor(array, device="cuda"),
    "torch-dlpack": lambda array: pytest.importorskip("torch").from_dlpack(array),
    "cupy": lambda array: pytest.importorskip("cupy").asarray(array),
    "cupy-dlpack": lambda array: pytest.importorskip("cupy").from_dlpack(array),
    "jax-dlpack": lambda array: pytest.importorskip("jax.dlpack").from_dlpack(array),
    "numba": lambda array: numba_cuda().as_cuda_array(array),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_takes_it(library):
    host = sample("float32", (4, 6), "libraries")
    array = DeviceArray.from_numpy(host)
    taken = LIBRARIES[library](array)
    assert_same(to_numpy(taken), host)
    if library.startswith("torch"):
        assert taken.data_ptr() == array.pointer
        assert LIBRARIES[library](DeviceArray((0, 3), "float32")).shape == (0, 3)


def test_a_library_keeps_it(torch):
    tensors = [torch.from_dlpack(DeviceArray.from_numpy(np.full(N_BYTES, n, np.uint8))) for n in range(5)]
    gc.collect()
    others = [DeviceArray.from_numpy(np.full(N_BYTES, 99, np.uint8)) for _ in range(5)]
    assert [tensor.unique().tolist() for tensor in tensors] == [[0], [1], [2], [3], [4]]
    del others


def test_results_name_the_stream_that_writes_them(torch):
    host = sample("float32", (5, 100), "streams")
    x, stream, reader = DeviceArray.from_numpy(host), torch.cuda.Stream(), torch.cuda.Stream()
    expected = reference.top_k(host, 3)
    dmlops.top_k(x, 3, stream=stream)
    torch.from_dlpack(x)
    torch.cuda.synchronize()
    late(torch, stream)
    values, indices = dmlops.top_k(x, 3, stream=stream)
    assert values.stream == indices.stream == stream.cuda_stream
    with torch.cuda.stream(reader):
        copy = torch.from_dlpack(values).clone()
    assert not stream.query(), "the host has waited"
    torch.cuda.synchronize()
    assert_same(copy.cpu().numpy(), expected[0])
    late(torch, stream)
    assert_same(dmlops.top_k(x, 3, stream=stream.cuda_stream).values.to_numpy(), expected[0])
    # Another call is ordered with the stream that its operand names.
    late(torch, stream)
    values = dmlops.top_k(x, 3, stream=stream).values
    assert_same(dmlops.top_k(values, 1).values.to_numpy(), expected[0][:, :1])


def test_memory_is_given_back_in_the_order_of_its_stream(torch):
    stream, n_before = torch.cuda.Stream(), bytes_in_use()
    array = DeviceArray.from_numpy(np.full(N_BYTES, 7, np.uint8), stream=stream)
    copy = torch.empty(N_BYTES, dtype=torch.uint8, device="cuda")
    assert bytes_in_use() >= n_before + N_BYTES
    late(torch, stream)
    with torch.cuda.stream(stream):
        copy.copy_(torch.as_tensor(array, device="cuda"))
    del array
    others = [DeviceArray.from_numpy(np.full(N_BYTES, 9, np.uint8)) for _ in range(4)]
    torch.cuda.synchronize()
    assert (copy == 7).all()
    del others
    assert bytes_in_use() == n_before


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_captures(mode):
    """No memory is allocated in a capture, nor is memory freed of arrays that are dropped meanwhile."""
    host = sample("float32", (5, 100), "captured")
    x, out = DeviceArray.from_numpy(host), DeviceArray((5, 100), "float32")
    graph, n_before = DriverGraph(mode), bytes_in_use()
    dropped = [DeviceArray.from_numpy(host), DeviceArray.from_numpy(host, stream=graph.stream)]
    dmlops.diagonal_matrix(x, out=out)

    def captured(options):
        with pytest.raises(dmlops.InvalidDescriptorError, match="captured into a CUDA graph"):
            dmlops.diagonal_matrix(x, **options)
        dropped.clear()
        dmlops.diagonal_matrix(x, value=3, out=out, **options)

    graph.capture(captured)
    graph.replay()
    assert_same(out.to_numpy(), reference.diagonal_matrix(host, value=3))
    DeviceArray((1,), "uint8")
    assert bytes_in_use() == n_before
    graph.delete()


def test_a_blocking_stream_may_be_captured():
    """Nothing of another array goes to the default stream meanwhile: that would end the capture."""
    x, out = DeviceArray.from_numpy(sample("float32", (5, 100), "blocking")), DeviceArray((5, 100), "float32")
    dmlops.diagonal_matrix(x, out=out)
    n_before = bytes_in_use()
    dropped = [DeviceArray((N_BYTES,), "uint8")]
    stream = ask(driver().cuStreamCreate(driver().CUstream_flags.CU_STREAM_DEFAULT.value))
    mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ask(driver().cuStreamBeginCapture(stream, mode))
    dropped.clear()
    with pytest.raises(dmlops.InvalidDescriptorError, match="captured into a CUDA graph"):
        DeviceArray((N_BYTES,), "uint8")
    dmlops.diagonal_matrix(x, out=out, stream=int(stream))
    ask(driver().cuGraphDestroy(ask(driver().cuStreamEndCapture(stream))))
    ask(driver().cuStreamDestroy(stream))
    assert len(cuda_driver._unfreed) == 1
    DeviceArray((1,), "uint8")
    assert bytes_in_use() == n_before


@pytest.mark.two_gpus
def test_the_second_device():
    host = sample("float32", (9, 50), "second")
    x = DeviceArray.from_numpy(host, 1)
    values = dmlops.top_k(x, 3).values
    assert str(values.device) == "cuda:1"
    assert_same(values.to_numpy(), reference.top_k(host, 3)[0])
    with pytest.raises(dmlops.DeviceMismatchError, match="cuda:0"):
        dmlops.gather_nd(x, DeviceArray((2, 1), "int64"))


@pytest.mark.two_gpus
@pytest.mark.parametrize("number", [0, 1])
def test_memory_of_a_pool_of_its_own(number):
    """Neither the context nor the ordinal of such memory tells its device."""
    properties = driver().CUmemPoolProps()
    properties.allocType = driver().CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver().CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = number
    with cuda_driver.device_made_current(number):
        pool = ask(driver().cuMemPoolCreate(properties))
        pointer = ask(driver().cuMemAllocFromPoolAsync(256, pool, cuda_driver.LEGACY_STREAM))
        ask(driver().cuMemsetD32Async(pointer, 5, 64, cuda_driver.LEGACY_STREAM))
        interface = {"version": 3, "shape": (64,), "typestr": "<i4", "data": (int(pointer), False)}
        x = SimpleNamespace(__cuda_array_interface__=interface)
    values = dmlops.top_k(x, 3).values
    assert str(values.device) == f"cuda:{number}"
    assert values.to_numpy().tolist() == [5, 5, 5]
    with cuda_driver.device_made_current(number):
        ask(driver().cuMemFreeAsync(pointer, cuda_driver.LEGACY_STREAM))
        ask(driver().cuMemPoolDestroy(pool))
