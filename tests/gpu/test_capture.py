"""CUDA graphs of calls that need scratch memory: replays write only to the graph's memory and to the outputs.

After a capture the pools of the libraries are given away to other arrays, all filled with 0xAB. A replay must
give the right answers on new data, and leave every one of these bytes.
"""

import functools
import gc
import importlib
import logging

import numpy as np
import pytest

import dmlops
from tests import inside, reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import sample
from tests.gpu.bound import Bound
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
    **{
        f"top_k-lengths-{n}": Call(
            lambda x, i, out, **given: dmlops.top_k(x, 50, sorted=False, lengths=i, out=out, **given),
            lambda x, i: reference.top_k(x, 50, sorted=False, lengths=i),
            (200, 1, n),
        )
        for n in (400, 20_001)
    },
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

    def kinds(self):
        """Return the kind of each node."""
        _, _, count = self.driver.cuGraphGetNodes(self.graph)
        _, nodes, _ = self.driver.cuGraphGetNodes(self.graph, count)
        return [ask(self.driver.cuGraphNodeGetType(node)) for node in nodes]

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


# Each makes an array in memory of its library: scratch comes from where that comes from.
LIBRARIES = {
    "cupy": lambda host: pytest.importorskip("cupy").asarray(host),
    "torch": lambda host: pytest.importorskip("torch").from_numpy(host).cuda(),
    "numba": lambda host: numba_cuda().to_device(host),
    "dmlops": dmlops.DeviceArray.from_numpy,
}


def tensor_of(array):
    """Return a tensor that shares the memory of an array."""
    return importlib.import_module("torch").as_tensor(array, device="cuda")


# Who captures, and whose arrays. No request of a call to the driver ends a capture, in any mode.
PAIRS = {
    "cupy": (CuPyGraph, "cupy"),
    "torch": (TorchGraph, "torch"),
    **{f"driver-{library}": (DriverGraph, library) for library in LIBRARIES},
    **{
        f"driver-{mode}": (functools.partial(DriverGraph, mode), "dmlops")
        for mode in ("GLOBAL", "THREAD_LOCAL")
    },
}
# From small blocks to those that scratch for long rows has.
FILL_SIZES = [1 << power for power in range(9, 25)]


class Prepared:
    """A call with its arrays, which has run once: what it loads is loaded."""

    def __init__(self, name, library):
        self.call, self.new = CALLS[name], LIBRARIES[library]
        inputs, self.wanted = self.call.data(0)
        self.inputs = [self.new(host) for host in inputs]
        self.out = [self.new(np.full_like(array, 77)) for array in self.wanted]
        self({})
        self.feed(0)

    def __call__(self, options):
        self.call.function(*self.inputs, self.out, **options)

    def feed(self, seed):
        """Write new inputs, and what no call answers to the outputs."""
        inputs, self.wanted = self.call.data(seed)
        hosts = (*inputs, *(np.full_like(array, 99) for array in self.wanted))
        synchronize()
        for array, host in zip((*self.inputs, *self.out), hosts, strict=True):
            tensor_of(array).copy_(tensor_of(np.ascontiguousarray(host)))
        synchronize()

    def check(self):
        """Compare the outputs with what they must hold."""
        for array, expected in zip(self.out, self.wanted, strict=True):
            np.testing.assert_array_equal(tensor_of(array).cpu().numpy(), expected)


def synchronize():
    """Wait for all work on the device."""
    ask(importlib.import_module("cuda.bindings.driver").cuCtxSynchronize())


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", CALLS)
def test_replays(name, pair):
    make_graph, library = PAIRS[pair]
    call, graph = Prepared(name, library), make_graph()
    graph.capture(call)
    gc.collect()
    kept = [call.new(np.full(size, FILL, np.uint8)) for size in FILL_SIZES for _ in range(2)]
    for seed in range(1, 4):
        call.feed(seed)
        graph.replay()
        call.check()
        for array in kept:
            assert (tensor_of(array).cpu() == FILL).all(), "a replay wrote to another array"
    graph.delete()


@pytest.mark.parametrize("name", NEED_SCRATCH)
@pytest.mark.parametrize("library", ["cupy", "numba", "dmlops"])
def test_scratch_belongs_to_the_graph(name, library):
    """The graph allocates and frees its own scratch, and gives the memory back when it is deleted."""
    call = Prepared(name, library)
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
    kinds, types = graph.kinds(), driver.CUgraphNodeType
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


CAPTURED = "but the stream is being captured into a CUDA graph.*"


def test_a_capture_outlives_refused_calls():
    """Of calls that wait, also of those that were made before."""
    call = Prepared("diagonal", "dmlops")
    x, indices = call.inputs[0], call.new(np.array([[4], [0]]))
    waiting = {
        f"^nonzero_coordinates.size: got None, {CAPTURED}size must be a number": dmlops.nonzero_coordinates,
        f'^gather_nd.mode: got \'raise\', {CAPTURED}"clip".*"fill"': (
            lambda x, **given: dmlops.gather_nd(x, indices, **given)
        ),
    }
    for function in waiting.values():
        for _ in range(4):
            function(x)
    graph = DriverGraph()

    def captured(options):
        for text, function in waiting.items():
            with pytest.raises(dmlops.InvalidDescriptorError, match=text):
                function(x, **options)
        call(options)

    graph.capture(captured)
    graph.replay()
    call.check()
    graph.delete()
    for function in waiting.values():
        function(x)


def test_a_capture_outlives_an_interrupted_call(monkeypatch):
    """The scratch of the call that failed is freed within the graph, and nothing waits for the capture."""
    call, graph = Prepared("top_k-long_row", "dmlops"), DriverGraph()
    launch = inside.launch
    real, launched = launch.launch_entry(), []

    def entry(*arguments):
        launched.append(arguments)
        if len(launched) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    def captured(options):
        with monkeypatch.context() as patch:
            # Native code makes all launches of a call at once, but calls that are logged are made in Python.
            patch.setattr(logging.getLogger("dmlops"), "level", logging.DEBUG)
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
    call, graph = Prepared("diagonal", "torch"), DriverGraph()
    host = call.call.data(0)[0][0]
    call.inputs[0] = jax.block_until_ready(jax.device_put(host))
    call({})
    tensor_of(call.out[0]).fill_(99)
    synchronize()
    graph.capture(call)
    graph.replay()
    call.check()
    graph.delete()


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_executions_with_a_workspace_only_launch_kernels(name, torch):
    """There is no copy and no fill; in this mode the driver refuses allocations and waits of any thread."""
    bound, graph = Bound(torch, DESCRIPTORS[name]), DriverGraph("GLOBAL")
    bound.execute()
    synchronize()
    graph.capture(lambda options: bound.execute(**options))
    assert {*graph.kinds()} == {graph.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL}
    graph.delete()


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_a_thousand_replays(name, torch):
    bound = Bound(torch, DESCRIPTORS[name])
    bound.execute()
    hosts = [make_inputs(bound.descriptor, seed) for seed in range(1, 6)]
    answers = [cpu_answer(bound.descriptor, inputs) for inputs in hosts]
    data, expected = (
        [{key: torch.from_numpy(array).cuda() for key, array in arrays.items()} for arrays in series]
        for series in (hosts, answers)
    )
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.execute()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(1000):
        which = turn * turn % len(data)
        for key, tensor in data[which].items():
            bound.inputs[key].copy_(tensor)
        for tensor in bound.outputs.values():
            tensor.fill_(77)
        bound.workspace.fill_(turn % 256)
        graph.replay()
        for key, tensor in bound.outputs.items():
            found, wanted = (each.reshape(-1).view(torch.uint8) for each in (tensor, expected[which][key]))
            wrong += found.ne(wanted).any()
    assert wrong.item() == 0


def test_first_use_within_a_capture(torch):
    """Compiling and loading a kernel is allowed while another stream's work is recorded."""
    x = torch.rand((37, 4001), device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        values, _ = dmlops.top_k(x, 13)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(values.cpu().numpy(), reference.top_k(x.cpu().numpy(), 13)[0])
