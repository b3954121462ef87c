"""CUDA graphs of calls that need scratch memory: replays write only to the graph's memory and to the outputs.

After a capture the pools of the libraries are given away to other arrays, all filled with 0xAB. A replay must
give the right answers on new data, and leave every one of these bytes.
"""

import functools
import gc
import importlib

import numpy as np
import pytest

import dmlops
from dmlops.devices import cuda_driver
from tests import reference
from tests.data import sample
from tests.gpu.numba_cuda import numba_cuda

pytestmark = pytest.mark.usefixtures("current_device")

FILL = 0xAB
# Rows for which every algorithm of top_k takes scratch.
LONG, SHAPE = (1, 1_000_000), (300, 400)


class Call:
    """A call that is captured, and what it must answer.

    Parameters
    ----------
    function : callable
        Makes the call with arrays ``x`` and ``indices``, and outputs.
    oracle : callable
        Returns what the outputs hold, of NumPy arrays.
    shape : tuple of int
        Of x.
    """

    def __init__(self, function, oracle, shape=SHAPE):
        self.function, self.oracle, self.shape = function, oracle, shape

    @functools.cache  # noqa: B019 - there are few calls, and they live as long as the module
    def data(self, seed):
        """Return inputs, and what the outputs must hold."""
        x = sample("int8", self.shape, ("capture", seed)).astype("float32")
        indices = np.random.default_rng(seed).integers(-900, 900, (200, 1))
        return (x, indices), [np.ascontiguousarray(array) for array in self.oracle(x, indices)]


CALLS = {
    "top_k-long_row": Call(
        lambda x, i, out, **given: dmlops.top_k(x, 100, out=out, **given),
        lambda x, i: reference.top_k(x, 100),
        LONG,
    ),
    "top_k-all": Call(
        lambda x, i, out, **given: dmlops.top_k(x, x.shape[1], largest=False, out=out, **given),
        lambda x, i: reference.top_k(x, x.shape[1], largest=False),
        (1, 200_000),
    ),
    "nonzero": Call(
        lambda x, i, out, **given: dmlops.nonzero_coordinates(
            x, size=100_000, fill_value=7, out=out, **given
        ),
        lambda x, i: [
            np.atleast_1d(array) for array in reference.nonzero_coordinates(x, size=100_000, fill_value=7)
        ],
    ),
    "gather-clip": Call(
        lambda x, i, out, **given: dmlops.gather_nd(x, i, mode="clip", out=out[0], **given),
        lambda x, i: [reference.gather_nd(x, i, mode="clip")],
    ),
    "gather-fill": Call(
        lambda x, i, out, **given: dmlops.gather_nd(x, i, mode="fill", out=out[0], **given),
        lambda x, i: [reference.gather_nd(x, i, mode="fill")],
    ),
    "diagonal": Call(
        lambda x, i, out, **given: dmlops.diagonal_matrix(x, value=3, begin=-5, end=3, out=out[0], **given),
        lambda x, i: [reference.diagonal_matrix(x, value=3, begin=-5, end=3)],
    ),
}
NEED_SCRATCH = ("top_k-long_row", "top_k-all", "nonzero")


def ask(result):
    """Return what the driver answers."""
    driver = importlib.import_module("cuda.bindings.driver")
    status, *values = result
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if values else None


class DriverGraph:
    """A graph that the driver captures on a separate stream."""

    def __init__(self, mode="RELAXED"):
        self.driver = importlib.import_module("cuda.bindings.driver")
        flags = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = int(ask(self.driver.cuStreamCreate(flags.value)))
        self.mode = getattr(self.driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")

    def capture(self, call):
        """Record what `call` puts on the stream."""
        # A collection might free arrays, which some modes of capture forbid.
        gc.collect()
        gc.disable()
        ask(self.driver.cuStreamBeginCapture(self.stream, self.mode))
        try:
            call({"stream": self.stream})
        finally:
            graph = ask(self.driver.cuStreamEndCapture(self.stream))
            gc.enable()
        self.graph, self.executable = graph, ask(self.driver.cuGraphInstantiate(graph, 0))

    def replay(self):
        """Run what was recorded, and wait for it."""
        ask(self.driver.cuGraphLaunch(self.executable, self.stream))
        ask(self.driver.cuStreamSynchronize(self.stream))

    def delete(self):
        """Give the graph back."""
        ask(self.driver.cuGraphExecDestroy(self.executable))
        ask(self.driver.cuGraphDestroy(self.graph))
        ask(self.driver.cuStreamDestroy(self.stream))


class CuPyGraph:
    """A graph that CuPy captures on its current stream."""

    def __init__(self):
        self.cupy = importlib.import_module("cupy")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def capture(self, call):
        """Record what `call` puts on the stream."""
        with self.stream:
            self.stream.begin_capture()
            try:
                call({})
            finally:
                self.graph = self.stream.end_capture()

    def replay(self):
        """Run what was recorded, and wait for it."""
        self.graph.launch(self.stream)
        self.stream.synchronize()

    def delete(self):
        """Give the graph back."""
        del self.graph


class TorchGraph:
    """A graph that torch captures on its current stream."""

    def __init__(self):
        self.torch = importlib.import_module("torch")
        self.graph = self.torch.cuda.CUDAGraph()

    def capture(self, call):
        """Record what `call` puts on the stream."""
        with self.torch.cuda.graph(self.graph):
            call({})

    def replay(self):
        """Run what was recorded, and wait for it."""
        self.graph.replay()
        self.torch.cuda.synchronize()

    def delete(self):
        """Give the graph back."""
        del self.graph


class OnCuPy:
    """CuPy's arrays."""

    def __init__(self):
        self.cupy = pytest.importorskip("cupy")

    def new(self, host):
        return self.cupy.asarray(host)

    def write(self, array, host):
        array[...] = self.cupy.asarray(host)
        self.cupy.cuda.Device().synchronize()

    def read(self, array):
        return self.cupy.asnumpy(array)

    def fill(self, size):
        """Return an array of a size that the pool may have memory for, all bytes equal."""
        return self.cupy.full(size, FILL, "uint8")


class OnTorch:
    """torch's arrays."""

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def new(self, host):
        return self.torch.from_numpy(host).cuda()

    def write(self, array, host):
        array.copy_(self.torch.from_numpy(host))
        self.torch.cuda.synchronize()

    def read(self, array):
        return array.cpu().numpy()

    def fill(self, size):
        """Return an array of a size that the pool may have memory for, all bytes equal."""
        return self.torch.full((size,), FILL, dtype=self.torch.uint8, device="cuda")


class OnNumba:
    """Numba's arrays, which no pool keeps."""

    def __init__(self):
        self.cuda = numba_cuda()

    def new(self, host):
        return self.cuda.to_device(host)

    def write(self, array, host):
        array.copy_to_device(host)
        self.cuda.synchronize()

    def read(self, array):
        return array.copy_to_host()

    def fill(self, size):
        """Return an array of a size that the driver may have memory for, all bytes equal."""
        return self.cuda.to_device(np.full(size, FILL, np.uint8))


class OnDeviceArrays:
    """Arrays of dmlops' own."""

    def new(self, host):
        return dmlops.DeviceArray.from_numpy(host)

    def write(self, array, host):
        cuda_driver.copy_from_host(
            array.pointer, np.ascontiguousarray(host).ctypes.data, array.nbytes, array.stream
        )

    def read(self, array):
        return array.to_numpy()

    def fill(self, size):
        """Return an array of a size that the driver may have memory for, all bytes equal."""
        return self.new(np.full(size, FILL, np.uint8))


# Who captures, and whose arrays.
PAIRS = {
    "cupy": (CuPyGraph, OnCuPy),
    "torch": (TorchGraph, OnTorch),
    "driver-cupy": (DriverGraph, OnCuPy),
    "driver-torch": (DriverGraph, OnTorch),
    "driver-numba": (DriverGraph, OnNumba),
    "driver-dmlops": (DriverGraph, OnDeviceArrays),
}
# From small blocks to those that scratch for long rows has.
FILL_SIZES = [1 << power for power in range(9, 25)]


class Prepared:
    """A call with its arrays, which has run once: what it loads is loaded."""

    def __init__(self, name, library):
        self.call, self.library = CALLS[name], library
        inputs, self.wanted = self.call.data(0)
        self.inputs = [library.new(host) for host in inputs]
        self.out = [library.new(np.full_like(array, 77)) for array in self.wanted]
        self({})
        self.feed(0)

    def __call__(self, options):
        self.call.function(*self.inputs, self.out, **options)

    def feed(self, seed):
        """Write new inputs, and what no call answers to the outputs."""
        inputs, self.wanted = self.call.data(seed)
        synchronize()
        for array, host in zip(self.inputs, inputs, strict=True):
            self.library.write(array, host)
        for array, host in zip(self.out, self.wanted, strict=True):
            self.library.write(array, np.full_like(host, 99))
        synchronize()

    def check(self):
        """Compare the outputs with what they must hold."""
        for array, expected in zip(self.out, self.wanted, strict=True):
            np.testing.assert_array_equal(self.library.read(array), expected)


def synchronize():
    """Wait for all work on the device."""
    ask(importlib.import_module("cuda.bindings.driver").cuCtxSynchronize())


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", CALLS)
def test_replays(name, pair):
    make_graph, make_library = PAIRS[pair]
    library = make_library()
    call, graph = Prepared(name, library), make_graph()
    graph.capture(call)
    gc.collect()
    kept = [library.fill(size) for size in FILL_SIZES for _ in range(2)]
    for seed in range(1, 4):
        call.feed(seed)
        graph.replay()
        call.check()
        for array in kept:
            assert (library.read(array) == FILL).all(), "a replay wrote to another array"
    graph.delete()


@pytest.mark.parametrize("name", NEED_SCRATCH)
@pytest.mark.parametrize("library", [OnCuPy, OnNumba, OnDeviceArrays])
def test_scratch_belongs_to_the_graph(name, library):
    """The graph allocates and frees its own scratch, and gives the memory back when it is deleted."""
    call = Prepared(name, library())
    driver = importlib.import_module("cuda.bindings.driver")
    device = ask(driver.cuDeviceGet(0))

    def held(kind):
        attribute = getattr(driver.CUgraphMem_attribute, f"CU_GRAPH_MEM_ATTR_{kind}_MEM_CURRENT")
        return int(ask(driver.cuDeviceGetGraphMemAttribute(device, attribute)))

    gc.collect()
    ask(driver.cuDeviceGraphMemTrim(device))
    before = held("USED"), held("RESERVED")
    graph = DriverGraph()
    graph.capture(call)
    _, _, count = driver.cuGraphGetNodes(graph.graph)
    _, nodes, _ = driver.cuGraphGetNodes(graph.graph, count)
    kinds = [ask(driver.cuGraphNodeGetType(node)) for node in nodes]
    types = driver.CUgraphNodeType
    assert kinds.count(types.CU_GRAPH_NODE_TYPE_MEM_ALLOC) == 1
    assert kinds.count(types.CU_GRAPH_NODE_TYPE_MEM_FREE) == 1
    assert kinds.count(types.CU_GRAPH_NODE_TYPE_KERNEL) == len(kinds) - 2
    for _ in range(20):
        graph.replay()
    call.check()
    graph.delete()
    ask(driver.cuDeviceGraphMemTrim(device))
    assert held("USED") == before[0]
    assert held("RESERVED") <= before[1]


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
@pytest.mark.parametrize("name", CALLS)
def test_modes_of_capture(name, mode):
    """No request of a call to the driver ends a capture, in any mode."""
    call, graph = Prepared(name, OnDeviceArrays()), DriverGraph(mode)
    graph.capture(call)
    graph.replay()
    call.check()
    graph.delete()


def test_a_capture_outlives_refused_calls():
    call = Prepared("diagonal", OnDeviceArrays())
    x, indices = call.inputs
    indices = call.library.new(np.array([[4], [0]]))
    waiting = [dmlops.nonzero_coordinates, lambda x, **given: dmlops.gather_nd(x, indices, **given)]
    for function in waiting:
        function(x)
    graph = DriverGraph()

    def captured(options):
        for function in waiting:
            with pytest.raises(dmlops.InvalidDescriptorError, match="captured"):
                function(x, **options)
        call(options)

    graph.capture(captured)
    graph.replay()
    call.check()
    graph.delete()


def test_a_capture_outlives_an_interrupted_call(monkeypatch):
    """The scratch of the call that failed is freed within the graph, and nothing waits for the capture."""
    call, graph = Prepared("top_k-long_row", OnDeviceArrays()), DriverGraph()
    launch = importlib.import_module("kernels_cuda.runtime.launch")
    real, launched = launch.launch_entry(), []

    def entry(*arguments):
        launched.append(arguments)
        if len(launched) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    def captured(options):
        with monkeypatch.context() as patch:
            patch.setattr(launch, "launch_entry", lambda: entry)
            with pytest.raises(KeyboardInterrupt):
                call(options)
        call(options)

    graph.capture(captured)
    for _ in range(2):
        graph.replay()
        call.check()
    graph.delete()


def test_inputs_without_streams_may_be_captured():
    """JAX arrays are kept by the caller: to ask for the graph's events would end the capture."""
    jax = pytest.importorskip("jax")
    call, graph = Prepared("diagonal", OnTorch()), DriverGraph()
    host = call.call.data(0)[0][0]
    call.inputs[0] = jax.block_until_ready(jax.device_put(host))
    call({})
    call.library.write(call.out[0], np.full_like(host, 99))
    synchronize()
    graph.capture(call)
    graph.replay()
    call.check()
    graph.delete()
