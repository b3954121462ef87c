"""CUDA graphs: every operator is captured once and replayed on changed data."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import sample
from tests.gpu.bound import Bound


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_execute(name, torch):
    bound = Bound(torch, DESCRIPTORS[name])
    bound.execute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.execute()
    for seed in (2, 5, 1):
        inputs = make_inputs(bound.descriptor, seed)
        bound.feed(inputs)
        for tensor in bound.outputs.values():
            tensor.fill_(77)
        bound.workspace.fill_(0x5A)
        graph.replay()
        torch.cuda.synchronize()
        bound.check(cpu_answer(bound.descriptor, inputs))


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
            wrong += _bytes(torch, tensor).ne(_bytes(torch, expected[which][key])).any()
    assert wrong.item() == 0


def _bytes(torch, tensor):
    return tensor.reshape(-1).view(torch.uint8)


def test_first_use_within_a_capture(torch):
    # Compiling and loading a kernel is allowed while another stream's work is recorded.
    x = torch.rand((37, 4001), device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        values, _ = dmlops.top_k(x, 13)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(values.cpu().numpy(), reference.top_k(x.cpu().numpy(), 13)[0])


FUNCTIONS = {
    "top_k": (lambda x, i: dmlops.top_k(x, 20), lambda x, i: reference.top_k(x, 20)),
    "top_k-smallest": (
        lambda x, i: dmlops.top_k(x, 300, axis=0, largest=False),
        lambda x, i: reference.top_k(x, 300, axis=0, largest=False),
    ),
    "nonzero": (
        lambda x, i: dmlops.nonzero_coordinates(x, size=5000, fill_value=1),
        lambda x, i: reference.nonzero_coordinates(x, size=5000, fill_value=1),
    ),
    "gather-clip": (
        lambda x, i: (dmlops.gather_nd(x, i, mode="clip"),),
        lambda x, i: (reference.gather_nd(x, i, mode="clip"),),
    ),
    "gather-fill": (
        lambda x, i: (dmlops.gather_nd(x, i, mode="fill"),),
        lambda x, i: (reference.gather_nd(x, i, mode="fill"),),
    ),
    "diagonal": (
        lambda x, i: (dmlops.diagonal_matrix(x, begin=-5, end=3),),
        lambda x, i: (reference.diagonal_matrix(x, begin=-5, end=3),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, torch):
    function, oracle = FUNCTIONS[name]
    x = torch.zeros((400, 300), device="cuda")
    indices = torch.zeros((50, 1), dtype=torch.int64, device="cuda")
    function(x, indices)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = function(x, indices)
    for seed in range(3):
        values = sample("int8", (400, 300), seed).astype("float32") * (seed != 1)
        picks = sample("int16", (50, 1), seed).astype("int64")
        x.copy_(torch.from_numpy(values))
        indices.copy_(torch.from_numpy(picks))
        graph.replay()
        torch.cuda.synchronize()
        for actual, expected in zip(results, oracle(values, picks), strict=True):
            np.testing.assert_array_equal(actual.cpu().numpy(), expected)


def test_captured_by_cupy():
    cupy = pytest.importorskip("cupy")
    x = cupy.zeros((5, 600), "float32")
    values, indices = cupy.empty((5, 9), "float32"), cupy.empty((5, 9), "uint32")
    dmlops.top_k(x, 9, out=(values, indices))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        dmlops.top_k(x, 9, out=(values, indices))
        graph = stream.end_capture()
        x[...] = cupy.asarray(sample("float32", (5, 600), "cupy"))
        graph.launch(stream)
    stream.synchronize()
    expected = reference.top_k(cupy.asnumpy(x), 9)
    np.testing.assert_array_equal(cupy.asnumpy(values), expected[0])
    np.testing.assert_array_equal(cupy.asnumpy(indices), expected[1])


WAITS = {
    "gather_nd": (
        lambda x: dmlops.gather_nd(x, x.long()),
        "gather_nd.mode: got 'raise', but the stream is being captured into a CUDA graph",
        ('"clip"', '"fill"'),
    ),
    "nonzero_coordinates": (
        dmlops.nonzero_coordinates,
        "nonzero_coordinates.size: got None, but the stream is being captured into a CUDA graph",
        ("size must be a number",),
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_refused(name, torch):
    call, text, remedies = WAITS[name]
    x = torch.ones((3, 1), device="cuda")
    call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(dmlops.InvalidDescriptorError) as error:
            call(x)
        y = x + 1
    assert str(error.value).startswith(text)
    for remedy in remedies:
        assert remedy in str(error.value)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [[2], [2], [2]]
