"""A call runs on one stream and is ordered with the streams of every library that takes part; it never waits.

Each stream that must be waited for first sleeps, so that a wrong order is always detected.
"""

import importlib
import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import assert_same, sample
from tests.gpu.arrays import KINDS
from tests.gpu.bound import Bound
from tests.libraries import DLPack

torch = pytest.importorskip("torch")

# On devices of 1 to 2 GHz a tenth of a second and more.
SLEEP_CYCLES = 200_000_000
DEVICES = (0, pytest.param(1, marks=pytest.mark.two_gpus))
SHAPE = (60, 500)
NAMES_STREAMS = {"interface", "numba"}


def sleep_on(handle, device=0):
    """Keep a stream busy."""
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
        torch.cuda._sleep(SLEEP_CYCLES)


class Handle:
    """A stream in the protocol that libraries exchange streams by."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class Place:
    """Arrays of a library, whose current stream is a side stream, or which name that stream.

    With a `stream` the caller orders that one with the arrays, and the library's current stream is another.
    """

    def __init__(self, kind, device=0, stream=None):
        self.kind, self.device, self.is_given = kind, device, stream is not None
        with torch.cuda.device(device):
            # It does not wait for the default stream, as Numba's own would.
            self.stream = stream or torch.cuda.Stream()
        self.handle = self.stream.cuda_stream

    def new(self, host):
        """Return an array, and a tensor of the same memory."""
        tensor = torch.from_numpy(host).to(f"cuda:{self.device}")
        return KINDS[self.kind](tensor, self.handle if self.kind in NAMES_STREAMS else None), tensor

    @contextmanager
    def current(self):
        """Make the stream the library's current one, and leave the current device as it is."""
        if self.is_given or self.kind in NAMES_STREAMS:
            yield
        elif self.kind == "torch":
            before = torch.cuda.current_device()
            with torch.cuda.stream(self.stream):
                torch.cuda.set_device(before)
                yield
        else:
            cuda = importlib.import_module("cupy").cuda
            with cuda.Device(self.device):
                stream = cuda.Stream.from_external(Handle(self.handle))
                stream.use()
            try:
                yield
            finally:
                with cuda.Device(self.device):
                    cuda.Stream.null.use()


X = sample("int8", SHAPE, "order").astype("float32")
PICKS = np.random.default_rng(0).integers(0, SHAPE[0], (40, 1))
LENGTHS = np.arange(60) * 9 - 5
COORDINATES = reference.nonzero_coordinates(X)
GATHERED = (X[PICKS[:, 0]],)
# By name: a call, its inputs, and the outputs.
OPERATORS = {
    "top_k": (lambda x, **given: dmlops.top_k(x, 7, **given), (X,), reference.top_k(X, 7)),
    "top_k-lengths": (
        lambda x, lengths, **given: dmlops.top_k(x, 7, sorted=False, lengths=lengths, **given),
        (X, LENGTHS),
        reference.top_k(X, 7, sorted=False, lengths=LENGTHS),
    ),
    "nonzero": (
        dmlops.nonzero_coordinates,
        (X,),
        (COORDINATES[0].astype("int64"), np.asarray(COORDINATES[1], "int64").reshape(1)),
    ),
    "gather-raise": (
        lambda x, i, *, out, stream: dmlops.gather_nd(x, i, out=out[0], stream=stream),
        (X, PICKS),
        GATHERED,
    ),
    "gather-clip": (
        lambda x, i, *, out, stream: dmlops.gather_nd(x, i, mode="clip", out=out[0], stream=stream),
        (X, PICKS),
        GATHERED,
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
    outputs = tuple(place.new(np.zeros_like(array))[0] for array in expected)
    with place.current():
        call(*(place.new(host)[0] for host in inputs), out=outputs, stream=None)
    torch.cuda.synchronize(place.device)


def check(name, inputs_at, outputs_at, stream=None, never_waits=False):
    """Check a call whose operands are written just before and just after it, each on its own stream."""
    call, inputs, expected = OPERATORS[name]
    inputs_at = inputs_at[: len(inputs)]
    given = [place.new(np.zeros_like(host)) for place, host in zip(inputs_at, inputs, strict=True)]
    sources = [place.new(host)[1] for place, host in zip(inputs_at, inputs, strict=True)]
    outputs = [outputs_at.new(np.full_like(array, 77)) for array in expected]
    copies = [torch.empty_like(tensor) for _, tensor in outputs]

    def fill():
        for place, (_, tensor), source in zip(inputs_at, given, sources, strict=True):
            with torch.cuda.stream(place.stream):
                tensor.copy_(source)

    def spoil():
        for place, (_, tensor) in zip(inputs_at, given, strict=True):
            with torch.cuda.stream(place.stream):
                tensor.zero_()

    def read():
        with torch.cuda.stream(outputs_at.stream):
            for copy, (_, tensor) in zip(copies, outputs, strict=True):
                copy.copy_(tensor)

    places, device = [*dict.fromkeys([*inputs_at, outputs_at])], outputs_at.device
    # The first copy loads code, which waits for the device. The inputs are zero again then.
    for each in (fill, spoil, read):
        each()
    torch.cuda.synchronize(device)
    for handle in {place.handle for place in places} | ({stream} - {None}):
        sleep_on(handle, device)
    fill()
    with ExitStack() as currents:
        for place in places:
            currents.enter_context(place.current())
        call(*(array for array, _ in given), out=tuple(array for array, _ in outputs), stream=stream)
        assert not never_waits or not outputs_at.stream.query(), "the call waited for its stream"
        spoil()
        read()
    torch.cuda.synchronize(device)
    for copy, array in zip(copies, expected, strict=True):
        assert_same(copy.cpu().numpy(), array)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("first", "second"), [*itertools.product(KINDS, KINDS)])
@pytest.mark.parametrize("name", OPERATORS)
def test_two_libraries(name, first, second, device):
    warm(Place(first, device), name)
    a = Place(first, device)
    # A library has one current stream; other arrays name streams of their own.
    b = a if first == second and first not in NAMES_STREAMS else Place(second, device)
    # The second library has the last input where there are two, and the outputs.
    check(name, (a, b), b, never_waits=a is b and name not in ("gather-raise", "nonzero"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_stream_of_the_caller(name, kind, device):
    warm(Place(kind, device), name)
    other = Place("torch", device)
    # Those that name their streams are waited for; with the others' own work the caller orders the stream.
    place = Place(kind, device, None if kind in NAMES_STREAMS else other.stream)
    check(name, (place, place), place, stream=other.handle)


@pytest.mark.parametrize("form", ["torch", "cuda_core", "cupy"])
def test_forms_of_streams(form):
    other = Place("torch")
    warm(other, "top_k")
    stream = other.stream
    if form != "torch":
        stream = importlib.import_module("cuda.core").Stream.from_handle(other.handle)
    if form == "cupy":
        stream = pytest.importorskip("cupy").cuda.Stream.from_external(stream)
    tensor = torch.zeros(SHAPE, device="cuda")
    late = torch.from_numpy(X).cuda()
    torch.cuda.synchronize()
    sleep_on(other.handle)
    with torch.cuda.stream(other.stream):
        tensor.copy_(late)
    values, indices = dmlops.top_k(tensor, 7, stream=stream)
    assert not other.stream.query(), "the call waited for its stream"
    other.stream.synchronize()
    assert_same(values.cpu().numpy(), reference.top_k(X, 7)[0])
    assert_same(indices.cpu().numpy(), reference.top_k(X, 7)[1])
    for no_stream in ("0", 1.5, True, -1):
        with pytest.raises(TypeError, match=r"^top_k.stream: got .*, but it is not a CUDA stream; "):
            dmlops.top_k(tensor, 7, stream=no_stream)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_dlpack_waits_for_its_producer(name, device):
    call, inputs, expected = OPERATORS[name]
    # Were there an array of torch itself, its current stream would be waited for anyway.
    a, b = Place("torch", device), Place("torch", device)
    warm(a, name)
    sources = [a.new(host)[1] for host in inputs]
    tensors = [torch.zeros_like(source) for source in sources]
    outputs = [a.new(np.full_like(array, 77))[1] for array in expected]

    def write():
        """Fill the inputs, and write to the outputs, which must not arrive after the call."""
        with torch.cuda.stream(a.stream):
            for tensor, source in zip(tensors, sources, strict=True):
                tensor.copy_(source)
            for output in outputs:
                output.fill_(99)

    write()
    torch.cuda.synchronize(device)
    for tensor in tensors:
        tensor.zero_()
    call(*map(DLPack, sources), out=tuple(map(DLPack, outputs)), stream=b.handle)
    torch.cuda.synchronize(device)
    sleep_on(a.handle, device)
    write()
    with a.current():
        call(*map(DLPack, tensors), out=tuple(map(DLPack, outputs)), stream=b.handle)
    torch.cuda.synchronize(device)
    for output, array in zip(outputs, expected, strict=True):
        assert_same(output.cpu().numpy(), array)


@pytest.mark.parametrize("name", OPERATORS)
def test_jax_input_lives_until_the_call_has_ended(name):
    jax = pytest.importorskip("jax")
    call, inputs, expected = OPERATORS[name]
    inputs = [host.astype("int32") if host.dtype == np.int64 else host for host in inputs]
    place = Place("torch")
    warm(place, name)
    for _ in range(2):
        arrays = [jax.device_put(host) for host in inputs]
        jax.block_until_ready(arrays)
        outputs = [place.new(np.full_like(array, 77))[0] for array in expected]
        torch.cuda.synchronize()
        sleep_on(place.handle)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_are_those_of_the_arrays(name, kind, handle, device):
    call, inputs, expected = OPERATORS[name]
    place = Place(kind, device)
    warm(place, name)
    torch.cuda.set_device(0)
    arrays = [place.new(host)[0] for host in inputs]
    outputs = [place.new(np.full_like(array, 77)) for array in expected]
    torch.cuda.synchronize(device)
    call(*arrays, out=tuple(array for array, _ in outputs), stream=handle)
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(device)
    for (_, tensor), array in zip(outputs, expected, strict=True):
        assert_same(tensor.cpu().numpy(), array)
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
    a = Place("torch")
    b = a if kind == "torch" else Place(kind)
    workspace, own = b.new(np.full(bound.operator.workspace_size, 0xAB, np.uint8))
    arrays = bound.inputs | bound.outputs
    for sleeps in (False, True):  # what the first call loads waits for the device
        for output in bound.outputs.values():
            output.fill_(77)
        torch.cuda.synchronize()
        if sleeps:
            sleep_on(a.handle)
        with ExitStack() as currents:
            for place in dict.fromkeys((a, b)):
                currents.enter_context(place.current())
            bound.operator.execute(arrays, workspace=workspace)
        with torch.cuda.stream(b.stream):
            own.fill_(0xAB)
        torch.cuda.synchronize()
    bound.check(expected)


# torch's allocator knows streams by their handles, and gives memory of one thread's stream to another's.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "torch"])
def test_the_per_thread_stream_is_another_one_in_each_thread(kind):
    """Scratch of one thread must not be handed to another, whose stream only has the same handle."""
    place = Place(kind)
    hosts = [sample("int16", (1, 1_000_000), ("thread", thread)).astype("float32") for thread in range(4)]
    arrays = [place.new(host)[0] for host in hosts]
    expected = [reference.top_k(host, 50)[1] for host in hosts]
    dmlops.top_k(arrays[0], 50, stream=2)
    torch.cuda.synchronize()
    start = threading.Barrier(len(hosts))

    def work(thread):
        start.wait()
        results = [dmlops.top_k(arrays[thread], 50, stream=2).indices for _ in range(20)]
        # The driver may hang if the thread ends before its stream's work does: see docs/reliability.md.
        torch.cuda.ExternalStream(2, device=0).synchronize()
        return results

    with ThreadPoolExecutor(len(hosts)) as pool:
        results = list(pool.map(work, range(len(hosts))))
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        for indices in found:
            assert_same(torch.as_tensor(indices, device="cuda").cpu().numpy(), wanted)


def test_scratch_of_two_streams():
    """Scratch memory of one stream's call must not be handed to the other's while it is in use."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    rows = [torch.rand((1, 2_000_000), device="cuda") for _ in range(2)]
    expected = [row.cpu().numpy().argsort(axis=1, kind="stable")[:, :50] for row in rows]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(20):
        for which, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[which].append(dmlops.top_k(rows[which], 50, largest=False).indices)
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        for indices in found:
            assert_same(indices.cpu().numpy(), wanted)


@contextmanager
def nothing_waits():
    """Make torch raise an error on every wait that it knows of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


RESULTS = {
    "top_k": lambda x, n: dmlops.top_k(x, 20),
    "top_k-long_rows": lambda x, n: dmlops.top_k(x.view(1, -1), 90),
    "top_k-lengths": lambda x, n: dmlops.top_k(x, 20, sorted=False, lengths=n),
    "top_k-columns": lambda x, n: dmlops.top_k(x, 2, axis=0),
    "nonzero": lambda x, n: dmlops.nonzero_coordinates(x, size=600_000, fill_value=0),
    "gather-clip": lambda x, n: (dmlops.gather_nd(x, n[:, None], mode="clip"),),
    "gather-fill": lambda x, n: (dmlops.gather_nd(x, n[:, None], mode="fill"),),
    "diagonal": lambda x, n: (dmlops.diagonal_matrix(x),),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_without_a_wait(name):
    host = sample("int8", (300, 2000), "late").astype("float32")
    numbers = np.arange(300) * 7 - 20
    late, late_numbers = torch.from_numpy(host).cuda(), torch.from_numpy(numbers).cuda()
    x, n = torch.zeros_like(late), torch.zeros_like(late_numbers)
    expected, stream = RESULTS[name](late, late_numbers), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        RESULTS[name](x, n)
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        x.copy_(late)
        n.copy_(late_numbers)
        with nothing_waits():
            results = RESULTS[name](x, n)
        assert not stream.query(), "the call waited for its stream"
    stream.synchronize()
    for result, wanted in zip(results, expected, strict=True):
        assert_same(result.cpu().numpy(), wanted.cpu().numpy())


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_execute_neither_waits_nor_allocates(name):
    bound, stream = Bound(torch, DESCRIPTORS[name]), torch.cuda.Stream()
    bound.execute()
    inputs = make_inputs(bound.descriptor, 2)
    bound.feed(inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    with torch.cuda.stream(stream), nothing_waits():
        torch.cuda._sleep(2 * SLEEP_CYCLES)
        bound.execute()
    bound.execute(stream=stream.cuda_stream)
    assert not stream.query(), "execute waited for its stream"
    after = torch.cuda.memory_stats()
    for counter in ("allocation.all.allocated", "segment.all.allocated", "allocation.all.current"):
        assert after.get(counter) == before.get(counter)
    stream.synchronize()
    bound.check(cpu_answer(bound.descriptor, inputs))
