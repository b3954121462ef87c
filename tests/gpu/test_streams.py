"""Streams: a call uses the caller's stream, waits for nothing, and two streams do not disturb each other."""

import importlib
import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import sample
from tests.gpu.bound import Bound

# Long enough to outlast every launch that follows it in the tests.
BUSY_CYCLES = 400_000_000

CALLS = {
    "top_k": lambda x, **options: dmlops.top_k(x, 2, **options),
    "nonzero_coordinates": lambda x, **options: dmlops.nonzero_coordinates(x, size=50, **options),
    "gather_nd-clip": lambda x, **options: dmlops.gather_nd(x, x.long().abs(), mode="clip", **options),
    "gather_nd-fill": lambda x, **options: dmlops.gather_nd(x, x.long().abs(), mode="fill", **options),
    "diagonal_matrix": dmlops.diagonal_matrix,
}


@pytest.fixture
def busy(torch):
    """Start to keep a side stream busy ahead of what the test puts on it; everything it calls is loaded."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in CALLS.values():
            call(torch.ones((20, 2), device="cuda"))
    torch.cuda.synchronize()

    def start():
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY_CYCLES)
        return stream

    yield start
    stream.synchronize()


@pytest.mark.parametrize("name", CALLS)
def test_current_stream_of_torch(name, torch, busy):
    x, late = torch.zeros((20, 2), device="cuda"), torch.arange(40.0, device="cuda").reshape(20, 2)
    expected = CALLS[name](late)
    stream = busy()
    with torch.cuda.stream(stream):
        x.copy_(late)
        result = CALLS[name](x)
        assert not stream.query(), "the call waited for its stream"
    stream.synchronize()
    for actual, array in zip(_tensors(result), _tensors(expected), strict=True):
        # Of 50 rows of coordinates 39 are written.
        defined = slice(0, 39) if name == "nonzero_coordinates" and array.ndim == 2 else ...
        assert torch.equal(actual[defined], array[defined])


def _core_stream(stream):
    return importlib.import_module("cuda.core").Stream.from_handle(stream.cuda_stream)


@contextmanager
def nothing_waits(torch):
    """Make torch raise an error on every wait that it knows of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _tensors(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("form", ["int", "torch", "cuda_core", "cupy"])
def test_given_stream(form, torch, busy):
    x, late = torch.zeros((20, 2), device="cuda"), torch.rand((20, 2), device="cuda")
    stream = busy()
    if form == "cupy":
        cupy = pytest.importorskip("cupy")
        given = cupy.cuda.Stream.from_external(_core_stream(stream))
    elif form == "cuda_core":
        given = _core_stream(stream)
    else:
        given = stream.cuda_stream if form == "int" else stream
    with torch.cuda.stream(stream):
        x.copy_(late)
    result = dmlops.diagonal_matrix(x, value=5, stream=given)
    values, indices = dmlops.top_k(x, 1, stream=given)
    assert not stream.query(), "the call waited for its stream"
    stream.synchronize()
    host = late.cpu().numpy()
    np.testing.assert_array_equal(result.cpu().numpy(), reference.diagonal_matrix(host, value=5))
    np.testing.assert_array_equal(values.cpu().numpy(), reference.top_k(host, 1)[0])
    np.testing.assert_array_equal(indices.cpu().numpy(), reference.top_k(host, 1)[1])


def test_no_stream(torch):
    x = torch.ones((2, 2), device="cuda")
    for stream in ("0", 1.5, True, -1):
        with pytest.raises(
            TypeError, match=r"^diagonal_matrix.stream: got .*, but it is not a CUDA stream; "
        ):
            dmlops.diagonal_matrix(x, stream=stream)


def test_current_stream_of_cupy(torch):
    cupy = pytest.importorskip("cupy")
    x, late = (
        cupy.zeros((3, 100), "float32"),
        cupy.asarray(sample("int16", (3, 100), "cupy").astype("float32")),
    )
    dmlops.top_k(x, 4)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(BUSY_CYCLES)
        x[...] = late
        values, indices = dmlops.top_k(x, 4)
        assert not stream.done, "the call waited for its stream"
    given, _ = dmlops.top_k(x, 4, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(given), cupy.asnumpy(values))
    expected = reference.top_k(cupy.asnumpy(late), 4)
    np.testing.assert_array_equal(cupy.asnumpy(values), expected[0])
    np.testing.assert_array_equal(cupy.asnumpy(indices), expected[1])


def test_operands_of_two_libraries(torch):
    cupy = pytest.importorskip("cupy")
    x = torch.arange(12.0, device="cuda").reshape(6, 2)
    indices = cupy.asarray([[5], [0]])
    result = dmlops.gather_nd(x, indices)
    assert type(result) is torch.Tensor
    assert result.tolist() == [[10, 11], [0, 1]]
    result = dmlops.gather_nd(cupy.asarray(x), torch.tensor([[5], [0]], device="cuda"))
    assert type(result) is cupy.ndarray
    assert result.tolist() == [[10, 11], [0, 1]]


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_execute_neither_waits_nor_allocates(name, torch, busy):
    bound = Bound(torch, DESCRIPTORS[name])
    bound.execute()
    inputs = make_inputs(bound.descriptor, 2)
    bound.feed(inputs)
    stream = busy()
    before = torch.cuda.memory_stats()
    with torch.cuda.stream(stream), nothing_waits(torch):
        bound.execute()
    bound.execute(stream=stream.cuda_stream)
    assert not stream.query(), "execute waited for its stream"
    after = torch.cuda.memory_stats()
    for counter in ("allocation.all.allocated", "segment.all.allocated", "allocation.all.current"):
        assert after.get(counter) == before.get(counter)
    stream.synchronize()
    bound.check(cpu_answer(bound.descriptor, inputs))


@pytest.mark.parametrize(
    "name", ["top_k-rows", "top_k-long_row", "top_k-sort", "nonzero", "gather", "diagonal"]
)
def test_two_streams_at_once(name, torch):
    # Two threads, a stream each, one compiled operator's kernels: what they share must not be written to.
    pairs = [Bound(torch, DESCRIPTORS[name]) for _ in range(2)]
    pairs[1].operator = pairs[0].operator
    data = [[make_inputs(DESCRIPTORS[name], seed) for seed in (first, first + 2)] for first in (1, 2)]
    answers = [[cpu_answer(DESCRIPTORS[name], inputs) for inputs in series] for series in data]
    failures = []
    start = threading.Barrier(2)

    def work(which):
        stream = torch.cuda.Stream()
        start.wait()
        try:
            with torch.cuda.stream(stream):
                for turn in range(10):
                    pairs[which].feed(data[which][turn % 2])
                    for _ in range(5):
                        pairs[which].execute()
                    stream.synchronize()
                    pairs[which].check(answers[which][turn % 2])
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_functions_on_two_streams_at_once(torch):
    # Scratch memory of one stream's call must not be handed to the other's while it is in use.
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
    for which in range(2):
        for indices in results[which]:
            np.testing.assert_array_equal(indices.cpu().numpy(), expected[which])
