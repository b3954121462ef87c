"""The contenders of the benchmark: which workloads each serves, and that its answers are what its note says.

Those of a GPU get tensors in host memory, and stand-ins for the libraries that need one.
"""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from bench import answers, data, libraries
from bench.peers import Task, contenders
from bench.workloads import CPU, CUDA, DiagonalMatrix, GatherND, NonzeroCoordinates, TopK
from tests import reference
from tests.scripts import ROOT

FLAT = {"shape": (40,), "tuples": 9, "coordinates": 1, "batch_dims": 0}
BATCH = {"shape": (4, 5, 6, 3), "tuples": 9, "coordinates": 2, "batch_dims": 1}
WORKLOADS = [
    make(name=name, **arguments)
    for make, name, arguments in (
        (TopK, "small rows", {"shape": (3, 64), "k": 8}),
        (TopK, "odd rows", {"shape": (3, 50), "k": 4}),
        (TopK, "all", {"shape": (20, 5), "k": 20, "axis": 0}),
        (TopK, "integers", {"shape": (2, 300), "k": 7, "dtype": "int32"}),
        (TopK, "by index", {"shape": (3, 64), "k": 8, "is_sorted": False}),
        (TopK, "smallest", {"shape": (3, 64), "k": 8, "largest": False}),
        (TopK, "ties", {"shape": (1, 256), "k": 32, "data": "ties"}),
        (TopK, "half", {"shape": (2, 128), "k": 16, "dtype": "bfloat16", "is_sorted": False}),
        (TopK, "sorted half", {"shape": (2, 128), "k": 16, "dtype": "bfloat16"}),
        # As large as some kernels take them, and larger.
        (TopK, "most", {"shape": (1, 4096), "k": 32}),
        (TopK, "more", {"shape": (1, 4097), "k": 33}),
        (TopK, "most by index", {"shape": (1, 4096), "k": 2048, "is_sorted": False}),
        (TopK, "more by index", {"shape": (1, 8193), "k": 4097, "is_sorted": False}),
        (TopK, "most half", {"shape": (2, 1 << 14), "k": 2048, "dtype": "bfloat16", "is_sorted": False}),
        (TopK, "more half", {"shape": (2, 16385), "k": 2049, "dtype": "bfloat16", "is_sorted": False}),
        (NonzeroCoordinates, "small mask", {"shape": (6, 7, 8), "dtype": "uint8", "density": 0.3}),
        (NonzeroCoordinates, "new", {"shape": (90,), "density": 0.3, "given": False}),
        (GatherND, "batch", BATCH),
        (GatherND, "small flat", FLAT),
        (GatherND, "checked", FLAT | {"index_dtype": "int64", "mode": "raise"}),
        (DiagonalMatrix, "small triangle", {"shape": (2, 8, 8), "begin": 1, "end": 2**31}),
        (DiagonalMatrix, "short triangle", {"shape": (8, 8), "begin": 1, "end": 7}),
        (DiagonalMatrix, "filled triangle", {"shape": (8, 8), "begin": 1, "end": 8, "value": 0.5}),
        (DiagonalMatrix, "band", {"shape": (8, 9), "begin": -2, "end": 3, "value": 0.5}),
    )
]
# Other contenders serve everything that theirs do.
LARGEST = {each.name for each in WORKLOADS if isinstance(each, TopK)} - {"smallest"}
FLOATS = LARGEST - {"all", "integers"}
HALVES = {name for name in LARGEST if "half" in name}
BY_INDEX = {name for name in LARGEST if "by index" in name} | HALVES - {"sorted half"}
SORTED = FLOATS - BY_INDEX
WHOLE = {"by index", "most by index", "half", "most half"}  # rows and results of whole lines
SERVED = {
    "numpy.argpartition": LARGEST,
    "torch.sort": {"all"},
    "onnxruntime.TopK": LARGEST - HALVES,
    "jax.lax.top_k": LARGEST,
    "jax.lax.top_k is_stable=False": LARGEST,
    "flashinfer.top_k": FLOATS,
    "flashinfer.top_k stable": SORTED,
    "cub.DeviceBatchedTopK": FLOATS - {"more by index"},
    "sglang.topk_v2": {"by index", "most by index"},
    "sglang.topk_bf16_small": {"half", "most half"},
    "sglang.deep_select": {"small rows", "ties", "most", *WHOLE},
    "sglang.deep_select indices": WHOLE,
    "sglang.gate_topk": SORTED - {"more"},
    "numpy.tril": {"small triangle"},
    "torch.tril": {"small triangle"},
    "onnxruntime.Trilu": {"small triangle"},
}


def select(x, k, *, ties=0, is_sorted=True):
    """Return the largest of each row of a tensor: with ties by index (1), or the last ones first."""
    order = x.float() if ties else x.float().flip(-1)
    indices = order.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    indices = indices if ties else x.shape[1] - 1 - indices
    indices = indices if is_sorted else indices.sort(descending=True).values
    return x.gather(1, indices), indices


def flashinfer(x, k, *, sorted=False, deterministic=False, tie_break=0):
    return select(x, k, ties=deterministic and tie_break == 1, is_sorted=sorted)


def deep_select(x, k, *, sorted=False, return_value=False):
    values, indices = select(x, k, is_sorted=sorted)
    return values if return_value else None, indices.int()


def paged(x, lengths, pages, indices, page_size, plan):
    assert (lengths == plan).all()
    assert (pages, page_size) == (None, 1)
    indices.copy_(select(x, indices.shape[1])[1])


def paged_half(x, lengths, pages, indices, page_size):
    assert (lengths == x.shape[1]).all()
    indices.copy_(select(x, indices.shape[1])[1] + page_size * pages)


@pytest.fixture
def stand_ins(monkeypatch):
    """Let every library be there."""
    modules = {
        "cupy": SimpleNamespace(where=np.where, from_dlpack=lambda tensor: tensor.numpy()),
        "flashinfer": SimpleNamespace(top_k=flashinfer),
        "sglang.kernels.ops.attention.dsv4.topk": SimpleNamespace(
            plan_topk_v2=lambda lengths: lengths.clone(),
            topk_transform_paged_v2=paged,
            topk_transform_bf16_small=paged_half,
        ),
        "sglang.kernels.ops.attention.deep_select": SimpleNamespace(topk=deep_select),
        "sglang.kernels.ops.moe.gate_topk": SimpleNamespace(
            gate_topk=lambda x, k: (*select(x, k, ties=1)[:1], select(x, k, ties=1)[1].int())
        ),
    }
    module = libraries.module
    monkeypatch.setattr(libraries, "module", lambda name: modules.get(name) or module(name))
    monkeypatch.setattr(libraries, "missing", lambda library, device: None)


def check_top_k(workload, who, x, results):
    """Check that these are the k elements, and that they are ordered as the contender's note says."""
    k, axis, largest = workload.k, workload.axis, workload.largest
    values, indices = reference.top_k(x, k, axis=axis, largest=largest)
    if who.name == "torch.sort":  # of all elements
        results = [each.take(range(k), axis) for each in results]
    *_, found = results
    is_stable = "stable" in f"{who.name} {who.note}".replace("is_stable=False", "")
    taken = np.take_along_axis(x, found.astype("int64"), axis)
    if len(results) == 2:
        np.testing.assert_array_equal(results[0], taken)
    if is_stable or who.is_ours:
        expected = reference.top_k(x, k, axis=axis, largest=largest, sorted=workload.is_sorted)
        np.testing.assert_array_equal(found, expected[1] if who.is_ours else indices)
    elif not workload.is_sorted:
        np.testing.assert_array_equal(np.sort(taken, axis), np.sort(values, axis))
        assert all(len({*row}) == k for row in np.moveaxis(found, axis, -1).reshape(-1, k))
    else:
        np.testing.assert_array_equal(taken, values)
    (dtype,) = re.findall(r"\bu?int\d+\b", who.note) or ["int32" if who.is_ours else ""]
    assert found.dtype.name.removeprefix("u") == dtype


def check(workload, who, task, answer):
    """Check the answer of a contender in its library's own form; return the first array."""
    x, *others = map(libraries.to_numpy, task.inputs)
    if hasattr(answer, "get_outputs"):
        answer = [each.numpy() for each in answer.get_outputs()]
    results = [*map(libraries.to_numpy, answer if isinstance(answer, (tuple, list)) else [answer])]
    if workload.operator == "top_k":
        check_top_k(workload, who, x, results)
        return results[0]
    found = results[0]
    if workload.operator == "nonzero_coordinates":
        found = np.stack(results, -1) if who.library == "jax" else found
        found = found.T if who.library == "onnxruntime" else found
        expected = np.argwhere(x)
        assert found.dtype.name in (who.note or "int32, int64, uint32")
    elif workload.operator == "gather_nd":
        expected = reference.gather_nd(x, others[0], batch_dims=workload.batch_dims)
    else:
        expected = reference.diagonal_matrix(x, value=workload.value, begin=workload.begin, end=workload.end)
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    return results[0]


def test_notes_tell_the_kind_of_answers_that_tied_data_showed():
    record = json.loads((ROOT / "bench/results/contest-h100-2026-11-26.json").read_text())
    peers = {who.name: who for who in contenders("top_k", CUDA)}
    seen = [each for each in record["ties"] if each["problems"]]
    assert len(seen) > 15
    for each in seen:
        if each["contender"] not in peers:  # FlashInfer's CUB back-end is no longer measured
            continue
        who = peers[each["contender"]]
        # JAX sorts although any order would do.
        is_sorted = each["is_sorted"] or who.library == "jax"
        assert who.contract(is_sorted) == each["contract"], who.name


@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is theirs
@pytest.mark.parametrize(
    ("device", "who"),
    [
        pytest.param(
            device,
            who,
            id=f"{device}-{who.operator}-{who.name}",
            marks=[pytest.mark.exhaustive] * who.has_own_stream,
        )
        for device in (CPU, CUDA)
        for operator in ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")
        for who in contenders(operator, device)
        if who.name != "cub.DeviceBatchedTopK"  # which nvcc compiles
    ],
)
def test_every_contender_gives_the_answer(device, who, stand_ins):
    for package in {"torch", "onnxruntime", "jax"} & {who.library, {CUDA: "torch"}.get(device)}:
        pytest.importorskip(package)
    source, served = data.NumPySource() if device == CPU else data.TorchSource("cpu"), set()
    workloads = [each for each in WORKLOADS if each.operator == who.operator]
    if who.is_ours:  # kernels for another width would be compiled
        workloads = [each for each in workloads if each.dtype != "bfloat16" and each.size < 1000]
    for workload in workloads:
        task = Task(workload, workload.inputs(source))
        try:
            call = who.prepare(task)
        except libraries.NotServedError:
            continue
        found = []
        for answer in (call(), call()):
            found.append(check(workload, who, task, answer))
            assert not who.is_ours or answers.fault(task, answer) is None
        is_new = "new outputs" in who.note or not workload.given
        assert np.shares_memory(*found) != is_new or who.library == "onnxruntime"
        served.add(workload.name)
    assert who.is_spared == ("indices alone" in who.note)
    everything = {each.name for each in workloads}
    expected = SERVED.get(who.name, everything) & everything
    assert served == expected != set() or "is_stable" in who.name  # which older versions lack
