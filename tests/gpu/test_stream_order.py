"""A call runs on one stream and is ordered with the streams of every library that takes part.

Each stream that must be waited for first sleeps, so that a wrong order is always detected.
"""

import importlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import assert_same, sample
from tests.gpu.bound import Bound
from tests.gpu.numba_cuda import numba_cuda

torch = pytest.importorskip("torch")

# On devices of 1 to 2 GHz a tenth of a second and more.
SLEEP_CYCLES = 200_000_000
DEVICES = (0, pytest.param(1, marks=pytest.mark.two_gpus))
SHAPE = (60, 500)


def sleep_on(handle, device):
    """Keep a stream busy."""
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
        torch.cuda._sleep(SLEEP_CYCLES)


class OnTorch:
    """Arrays of torch, whose current stream is a side stream, which does not wait for the default stream.

    With a `stream` the caller orders that one with the arrays, and torch's current stream is another.
    """

    def __init__(self, device, stream=None):
        self.device, self.is_given = device, stream is not None
        with torch.cuda.device(device):
            self.stream = stream or torch.cuda.Stream()
        self.handle = self.stream.cuda_stream

    @contextmanager
    def current(self):
        """Make the side stream the library's current one, and leave the current device as it is."""
        if self.is_given:
            yield
            return
        before = torch.cuda.current_device()
        with torch.cuda.stream(self.stream):
            torch.cuda.set_device(before)
            yield

    def new(self, host):
        """Return an array, and a function that writes others' elements to it on the stream."""
        array = torch.from_numpy(host).to(f"cuda:{self.device}")
        return array, array

    def writes(self, array, host):
        """Return a function that puts a copy of `host` on the stream."""
        source = torch.from_numpy(host).to(f"cuda:{self.device}")

        def write():
            with torch.cuda.stream(self.stream):
                array.copy_(source)

        return write

    def reads(self, array):
        """Return a function that copies the array on the stream, and returns the copy."""
        copy = torch.empty_like(array)

        def read():
            with torch.cuda.stream(self.stream):
                copy.copy_(array)
            return lambda: copy.cpu().numpy()

        return read


class OnInterface(OnTorch):
    """Arrays that name their stream by the CUDA array interface."""

    class Array:
        def __init__(self, tensor, handle):
            self.keeps = tensor
            self.__cuda_array_interface__ = {
                **tensor.__cuda_array_interface__,
                "version": 3,
                "stream": handle,
            }

    @contextmanager
    def current(self):
        """Change nothing: the arrays name the stream."""
        yield

    def new(self, host):
        """Return an array, and what this class reads and writes it by."""
        tensor, _ = super().new(host)
        return self.Array(tensor, self.handle), tensor


class Handle:
    """A stream in the protocol that libraries exchange streams by."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class OnCuPy:
    """Arrays of CuPy, whose current stream is a side stream; with a `stream` as `OnTorch`."""

    def __init__(self, device, stream=None):
        self.cupy = importlib.import_module("cupy")
        self.device, self.is_given = device, stream is not None
        self.owner = stream
        with self.cupy.cuda.Device(device):
            if stream is None:
                self.stream = self.cupy.cuda.Stream(non_blocking=True)
            else:
                self.stream = self.cupy.cuda.Stream.from_external(Handle(stream.cuda_stream))
        self.handle = self.stream.ptr

    @contextmanager
    def current(self):
        """Make the side stream the current one."""
        if self.is_given:
            yield
            return
        with self.cupy.cuda.Device(self.device):
            self.stream.use()
        try:
            yield
        finally:
            with self.cupy.cuda.Device(self.device):
                self.cupy.cuda.Stream.null.use()

    def new(self, host):
        """Return an array, twice."""
        with self.cupy.cuda.Device(self.device):
            array = self.cupy.asarray(host)
        return array, array

    def writes(self, array, host):
        """Return a function that puts a copy of `host` on the stream."""
        _, source = self.new(host)

        def write():
            with self.cupy.cuda.Device(self.device), self.stream:
                array[...] = source

        return write

    def reads(self, array):
        """Return a function that copies the array on the stream, and returns the copy."""
        with self.cupy.cuda.Device(self.device):
            copy = self.cupy.empty_like(array)

        def read():
            with self.cupy.cuda.Device(self.device), self.stream:
                copy[...] = array
            return lambda: self.cupy.asnumpy(copy)

        return read


class OnNumba:
    """Numba's device arrays, which name the stream that they were made on."""

    def __init__(self, device):
        self.cuda = numba_cuda()
        self.device = device
        # Numba's own streams wait for the default stream, and would hide that a call does not.
        with torch.cuda.device(device):
            self.owner = torch.cuda.Stream()
        self.handle = self.owner.cuda_stream
        with self.cuda.gpus[device]:
            self.stream = self.cuda.external_stream(self.handle)

    @contextmanager
    def current(self):
        """Change nothing: the arrays name the stream."""
        yield

    def new(self, host):
        """Return an array, twice."""
        with self.cuda.gpus[self.device]:
            array = self.cuda.to_device(host, stream=self.stream)
        return array, array

    def writes(self, array, host):
        """Return a function that puts a copy of `host` on the stream."""
        with self.cuda.gpus[self.device]:
            source = self.cuda.to_device(host)

        def write():
            with self.cuda.gpus[self.device]:
                array.copy_to_device(source, stream=self.stream)

        return write

    def reads(self, array):
        """Return a function that copies the array on the stream, and returns the copy."""
        with self.cuda.gpus[self.device]:
            copy = self.cuda.device_array(array.shape, array.dtype)

        def read():
            with self.cuda.gpus[self.device]:
                copy.copy_to_device(array, stream=self.stream)
            return copy.copy_to_host

        return read


KINDS = {"torch": OnTorch, "interface": OnInterface, "numba": OnNumba}
if find_spec("cupy"):
    KINDS["cupy"] = OnCuPy
NAMES_STREAMS = {"interface", "numba"}


class Operands:
    """The arrays of a call, each of a different library, all written late on their streams."""

    def __init__(self, places, hosts):
        self.places = places
        self.late = hosts
        made = [place.new(np.zeros_like(host)) for place, host in zip(places, hosts, strict=True)]
        self.arrays = [array for array, _ in made]
        self.own = [own for _, own in made]
        pairs = list(zip(places, self.own, hosts, strict=True))
        self.fill = [place.writes(own, host) for place, own, host in pairs]
        self.spoil = [place.writes(own, np.zeros_like(host)) for place, own, host in pairs]


def check(call, inputs, input_places, expected, output_places, stream=None):
    """Check a call whose operands are written just before and just after it, each on its own stream."""
    operands = Operands(input_places, inputs)
    outputs = [
        place.new(np.full_like(array, 77)) for place, array in zip(output_places, expected, strict=True)
    ]
    reads = [place.reads(own) for place, (_, own) in zip(output_places, outputs, strict=True)]
    places = [*dict.fromkeys([*input_places, *output_places])]
    device = places[0].device
    # The first copy loads code, which waits for the device. The inputs are zero again then.
    for each in (*operands.fill, *operands.spoil, *reads):
        each()
    torch.cuda.synchronize(device)
    for handle in {place.handle for place in places} | ({stream} - {None}):
        sleep_on(handle, device)
    for fill in operands.fill:
        fill()
    with ExitStack() as currents:
        for place in places:
            currents.enter_context(place.current())
        call(*operands.arrays, out=tuple(array for array, _ in outputs), stream=stream)
        for spoil in operands.spoil:
            spoil()
        copies = [read() for read in reads]
    torch.cuda.synchronize(device)
    for copy, array in zip(copies, expected, strict=True):
        assert_same(copy(), array)


X = sample("int8", SHAPE, "order").astype("float32")
PICKS = np.random.default_rng(0).integers(0, SHAPE[0], (40, 1))
COORDINATES = reference.nonzero_coordinates(X)
OPERATORS = {
    "top_k": (
        lambda x, *, out, stream: dmlops.top_k(x, 7, out=out, stream=stream),
        (X,),
        reference.top_k(X, 7),
    ),
    "nonzero": (
        lambda x, *, out, stream: dmlops.nonzero_coordinates(x, out=out, stream=stream),
        (X,),
        (COORDINATES[0].astype("int64"), np.asarray(COORDINATES[1], "int64").reshape(1)),
    ),
    "gather-raise": (
        lambda x, i, *, out, stream: dmlops.gather_nd(x, i, out=out[0], stream=stream),
        (X, PICKS),
        (X[PICKS[:, 0]],),
    ),
    "gather-clip": (
        lambda x, i, *, out, stream: dmlops.gather_nd(x, i, mode="clip", out=out[0], stream=stream),
        (X, PICKS),
        (X[PICKS[:, 0]],),
    ),
    "diagonal": (
        lambda x, *, out, stream: dmlops.diagonal_matrix(
            x, value=3, begin=-2, end=5, out=out[0], stream=stream
        ),
        (X,),
        (reference.diagonal_matrix(X, value=3, begin=-2, end=5),),
    ),
}


def warm(place, name):
    """Make a call once, so that what it loads is loaded: loading waits for the device."""
    call, inputs, expected = OPERATORS[name]
    arrays = [place.new(host)[0] for host in inputs]
    outputs = tuple(place.new(np.zeros_like(array))[0] for array in expected)
    with place.current():
        call(*arrays, out=outputs, stream=None)
    torch.cuda.synchronize(place.device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("first", "second"), [*itertools.product(KINDS, KINDS)])
@pytest.mark.parametrize("name", OPERATORS)
def test_two_libraries(name, first, second, device):
    call, inputs, expected = OPERATORS[name]
    warm(KINDS[first](device), name)
    a = KINDS[first](device)
    # A library has one current stream; other arrays name streams of their own.
    b = a if first == second and not NAMES_STREAMS & {first} else KINDS[second](device)
    # The second library has the last input where there are two, and the outputs.
    check(call, inputs, (a, b)[: len(inputs)], expected, [b] * len(expected))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_stream_of_the_caller(name, kind, device):
    call, inputs, expected = OPERATORS[name]
    warm(KINDS[kind](device), name)
    other = OnTorch(device)
    # Those that name their streams are waited for; with the others' own work the caller orders the stream.
    place = KINDS[kind](device) if kind in NAMES_STREAMS else KINDS[kind](device, other.stream)
    check(call, inputs, [place] * len(inputs), expected, [place] * len(expected), stream=other.handle)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_dlpack_waits_for_its_producer(name, device):
    class Array:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    class OnDLPack(OnTorch):
        def new(self, host):
            tensor, _ = super().new(host)
            return Array(tensor), tensor

    call, inputs, expected = OPERATORS[name]
    warm(OnDLPack(device), name)
    # Were there an array of torch itself, its current stream would be waited for anyway.
    a, b = OnDLPack(device), OnTorch(device)
    operands = Operands([a] * len(inputs), inputs)
    outputs = [a.new(np.full_like(array, 77)) for array in expected]
    # Earlier writes to the outputs must not arrive after the call.
    early = [
        a.writes(own, np.full_like(array, 99)) for (_, own), array in zip(outputs, expected, strict=True)
    ]
    for each in (*operands.fill, *operands.spoil, *early):
        each()
    torch.cuda.synchronize(device)
    sleep_on(a.handle, device)
    for each in (*operands.fill, *early):
        each()
    with a.current():
        call(*operands.arrays, out=tuple(array for array, _ in outputs), stream=b.handle)
    torch.cuda.synchronize(device)
    for (_, own), array in zip(outputs, expected, strict=True):
        assert_same(own.cpu().numpy(), array)


@pytest.mark.parametrize("name", OPERATORS)
def test_jax_input_lives_until_the_call_has_ended(name):
    jax = pytest.importorskip("jax")
    call, inputs, expected = OPERATORS[name]
    inputs = [host.astype("int32") if host.dtype == np.int64 else host for host in inputs]
    place = OnTorch(0)
    warm(place, name)
    for _ in range(2):
        arrays = [jax.device_put(host) for host in inputs]
        jax.block_until_ready(arrays)
        outputs = [place.new(np.full_like(array, 77))[0] for array in expected]
        torch.cuda.synchronize()
        sleep_on(place.handle, 0)
        with place.current():
            call(*arrays, out=tuple(outputs), stream=place.handle)
        del arrays
        others = [
            jax.block_until_ready(jax.numpy.full(host.shape, 7, host.dtype))
            for host in inputs
            for _ in range(8)
        ]
        torch.cuda.synchronize()
        del others
        for output, array in zip(outputs, expected, strict=True):
            assert_same(output.cpu().numpy(), array)


def test_a_view_is_resolved_on_the_stream_of_the_call():
    place = OnTorch(0)
    host = sample("int8", SHAPE, "negative").astype("float32")
    x = torch.zeros(SHAPE, device="cuda")
    late = torch.from_numpy(-host).cuda()
    warm(place, "diagonal")
    dmlops.diagonal_matrix(torch._neg_view(x), value=3, stream=place.handle)
    torch.cuda.synchronize()
    sleep_on(place.handle, 0)
    with torch.cuda.stream(place.stream):
        x.copy_(late)
    result = dmlops.diagonal_matrix(torch._neg_view(x), value=3, stream=place.handle)
    torch.cuda.synchronize()
    assert (result.cpu().numpy() == reference.diagonal_matrix(host, value=3)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_are_those_of_the_arrays(name, kind, handle, device):
    call, inputs, expected = OPERATORS[name]
    place = KINDS[kind](device)
    warm(place, name)
    torch.cuda.set_device(0)
    arrays = [place.new(host)[0] for host in inputs]
    outputs = [place.new(np.full_like(array, 77)) for array in expected]
    torch.cuda.synchronize(device)
    call(*arrays, out=tuple(array for array, _ in outputs), stream=handle)
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(device)
    for (_, own), array in zip(outputs, expected, strict=True):
        copy = place.reads(own)()
        torch.cuda.synchronize(device)
        assert_same(copy(), array)
    # Results of its own, too; torch knows the legacy default stream by one of its two handles.
    results = call(*arrays, out=None, stream=handle) if name in ("top_k", "nonzero") else ()
    torch.cuda.synchronize(device)
    assert torch.cuda.current_device() == 0
    for result, array in zip(results, expected[: len(results)], strict=True):
        found = torch.as_tensor(result, device=f"cuda:{device}").cpu().numpy()
        assert_same(found.reshape(array.shape), array)


@pytest.mark.parametrize("kind", KINDS)
def test_a_workspace_of_another_library(kind):
    """A write to a workspace after the call does not affect the call."""
    descriptor = DESCRIPTORS["top_k-long_row"]
    bound = Bound(torch, descriptor)
    data = make_inputs(descriptor, 2)
    expected = cpu_answer(descriptor, data)
    bound.feed(data)
    a, b = OnTorch(0), KINDS[kind](0)
    b = a if kind == "torch" else b
    noise = np.full(bound.operator.workspace_size, 0xAB, np.uint8)
    workspace, own = b.new(noise)
    spoil = b.writes(own, noise)
    arrays = bound.inputs | bound.outputs
    with a.current(), b.current():
        bound.operator.execute(arrays, workspace=workspace)
    spoil()
    torch.cuda.synchronize()
    for output in bound.outputs.values():
        output.fill_(77)
    torch.cuda.synchronize()
    sleep_on(a.handle, 0)
    with ExitStack() as currents:
        for place in dict.fromkeys((a, b)):
            currents.enter_context(place.current())
        bound.operator.execute(arrays, workspace=workspace)
        spoil()
    torch.cuda.synchronize()
    bound.check(expected)


# torch's allocator knows streams by their handles, and gives memory of one thread's stream to another's.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "torch"])
def test_the_per_thread_stream_is_another_one_in_each_thread(kind):
    """Scratch of one thread must not be handed to another, whose stream only has the same handle."""
    place = KINDS[kind](0)
    hosts = [sample("int16", (1, 1_000_000), ("thread", thread)).astype("float32") for thread in range(4)]
    arrays = [place.new(host)[0] for host in hosts]
    expected = [reference.top_k(host, 50)[1] for host in hosts]
    dmlops.top_k(arrays[0], 50, stream=2)
    torch.cuda.synchronize()
    start = threading.Barrier(len(hosts))

    def work(thread):
        start.wait()
        results = [dmlops.top_k(arrays[thread], 50, stream=2).indices for _ in range(20)]
        # The driver may hang if the thread ends before its stream's work does: see thread_exit.py.
        torch.cuda.ExternalStream(2, device=0).synchronize()
        return results

    with ThreadPoolExecutor(len(hosts)) as pool:
        results = list(pool.map(work, range(len(hosts))))
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        for indices in found:
            assert_same(torch.as_tensor(indices, device="cuda").cpu().numpy(), wanted)
