"""Repeated calls take the fast path, which distinguishes arrays and makes all necessary checks."""

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from tests.conftest import NEEDS_GPU
from tests.data import read_only, sample, unaligned
from tests.kept_calls import needs_gil, path_of, place, settled_path
from tests.libraries import DLPack


class Sub(np.ndarray):
    """A subclass, which becomes a plain array."""


class Interface:
    """An array that is known by NumPy's protocol alone."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.owner = array


# Arrays of the same elements, and the path that repeated calls on them take.
KINDS = {
    "owner": (np.copy, "fast"),
    "view": (lambda x: place(x, "view"), "fast"),
    "read-only": (read_only, "fast"),
    "strided": (lambda x: np.repeat(x, 2, -1)[:, ::2], "fast"),
    "backwards": (lambda x: x[:, ::-1].copy()[:, ::-1], "fast"),
    "transposed": (lambda x: x.T.copy().T, "fast"),
    "subclass": (lambda x: x.copy().view(Sub), "converted"),
    "list": (np.ndarray.tolist, "converted"),
    "rows": (list, "converted"),
    "interface": (Interface, "converted"),
    "dlpack": (DLPack, "converted"),
    "unaligned": (unaligned, "ordinary"),
}
FUNCTIONS = {
    "top_k": lambda x: dmlops.top_k(x, 3),
    "nonzero_coordinates": dmlops.nonzero_coordinates,
    "gather_nd": lambda x: dmlops.gather_nd(x, np.array([[1], [-2]])),
    "diagonal_matrix": lambda x: dmlops.diagonal_matrix(x, value=3),
}


@needs_gil
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_path_of_each_kind_of_array(name, kind):
    convert, path = KINDS[kind]
    # Of doubles, which is what lists become, and of sizes that no other test has.
    x = convert(sample("float64", (5, 19), "paths"))
    assert settled_path(lambda: FUNCTIONS[name](x)) == path


@needs_gil
def test_calls_that_are_logged_take_the_ordinary_path(caplog):
    x = sample("float32", (5, 41), "logged")
    for name, function in FUNCTIONS.items():
        assert settled_path(lambda function=function: function(x)) == "fast"
        with caplog.at_level("DEBUG", logger="dmlops"):
            assert path_of(lambda function=function: function(x)) in ("bound", "ordinary")
        assert caplog.messages[-1].startswith(f"{name} on cpu: ")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_call_is_logged_at_debug(caplog, name):
    """Also those that take the fast path at other levels."""
    x = sample("float32", (5, 43), "logged")
    for _ in range(3):
        FUNCTIONS[name](x)
    with caplog.at_level("DEBUG", logger="dmlops"):
        for _ in range(10):
            FUNCTIONS[name](x)
    assert [message.partition(": ")[0] for message in caplog.messages] == [f"{name} on cpu"] * 10


@needs_gil
def test_path_with_outputs_given():
    x, picks = sample("float32", (5, 31), "given"), np.array([[1], [-2]])
    best, band, rows = dmlops.top_k(x, 3), np.empty_like(x), np.empty((2, 31), "float32")
    found = dmlops.nonzero_coordinates(x, size=x.size)
    for call in (
        lambda: dmlops.top_k(x, 3, out=best),
        lambda: dmlops.top_k(x, 3, out=[*best]),
        lambda: dmlops.nonzero_coordinates(x, out=tuple(found)),
        lambda: dmlops.gather_nd(x, picks, out=rows),
        lambda: dmlops.gather_nd(x, picks, mode="clip", out=rows),
        lambda: dmlops.diagonal_matrix(x, value=3, out=band),
        lambda: dmlops.diagonal_matrix(value=3, out=band),
    ):
        assert settled_path(call) == "fast"
    other = np.empty((10, 31), "float32")[::2]
    for _ in range(3):
        for out in (band, other):
            dmlops.diagonal_matrix(x, value=3, out=out)
    paths = {path_of(lambda out=out: dmlops.diagonal_matrix(x, value=3, out=out)) for out in (other, band)}
    assert paths == {"fast"}


@needs_gil
@pytest.mark.parametrize("has_workspace", [False, True])
def test_path_of_executions(has_workspace):
    data = TensorDesc(TensorDataType.FLOAT32, (3, 50))
    descriptor = TopK1(input_tensor=data, axis=1, k=4, axis_direction=AxisDirection.DECREASING)
    operator = dmlops.compile(descriptor)
    x = sample("float32", (3, 50), "executions")
    arrays = {
        "input_tensor": x,
        "output_value_tensor": np.empty((3, 4), "float32"),
        "output_index_tensor": np.empty((3, 4), "uint32"),
    }
    workspace = np.empty(max(operator.workspace_size, 1), np.uint8) if has_workspace else None
    for kind in ("owner", "view", "read-only"):
        arrays["input_tensor"] = KINDS[kind][0](x)
        assert settled_path(lambda: operator.execute(arrays, workspace)) == "fast"
    arrays["input_tensor"] = x.view(Sub)
    assert settled_path(lambda: operator.execute(arrays, workspace)) == "ordinary"


@needs_gil
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_path_of_torch_tensors(device):
    """Views and strided tensors take the same path as tensors that own their memory."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(sample("float32", (6, 70), "torch")).to(device)
    tensors = [x, torch.stack([x, x])[1], x.T.contiguous().T, x.repeat_interleave(2, -1)[:, ::2]]
    picks, best, band = torch.tensor([[1], [-2]], device=device), dmlops.top_k(x, 3), torch.empty_like(x)
    for call in (
        lambda x: dmlops.top_k(x, 3),
        lambda x: dmlops.top_k(x, 3, out=best),
        dmlops.nonzero_coordinates,
        lambda x: dmlops.nonzero_coordinates(x, size=9),
        lambda x: dmlops.gather_nd(x, picks),
        lambda x: dmlops.gather_nd(x, picks, mode="clip"),
        lambda x: dmlops.diagonal_matrix(x, value=3),
        lambda x: dmlops.diagonal_matrix(x, value=3, out=band),
    ):
        for tensor in tensors:
            assert settled_path(lambda call=call, tensor=tensor: call(tensor)) == "fast"
        assert {path_of(lambda call=call, tensor=tensor: call(tensor)) for tensor in tensors} == {"fast"}
