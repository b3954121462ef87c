"""Repeated calls take the fast path, which distinguishes arrays and makes all necessary checks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DiagonalMatrix1,
    InvalidDescriptorError,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from tests import reference
from tests.data import assert_same, sample, unaligned
from tests.kept_calls import needs_gil, path_of, place, settled_path


class Sub(np.ndarray):
    """A subclass, which becomes a plain array."""


class Interface:
    """An array that is known by NumPy's protocol alone."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.owner = array


class Exchanged:
    """An array that is known by DLPack alone."""

    def __init__(self, array):
        self.owner = array

    def __dlpack__(self, **options):
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.owner.__dlpack_device__()


def locked(x):
    """Return a copy that may not be written to."""
    x = x.copy()
    x.flags.writeable = False
    return x


# Arrays of the same elements, and the path that repeated calls on them take.
KINDS = {
    "owner": (np.copy, "fast"),
    "view": (lambda x: place(x, "view"), "fast"),
    "read-only": (locked, "fast"),
    "strided": (lambda x: np.repeat(x, 2, -1)[:, ::2], "fast"),
    "backwards": (lambda x: x[:, ::-1].copy()[:, ::-1], "fast"),
    "transposed": (lambda x: x.T.copy().T, "fast"),
    "subclass": (lambda x: x.copy().view(Sub), "converted"),
    "list": (np.ndarray.tolist, "converted"),
    "rows": (list, "converted"),
    "interface": (Interface, "converted"),
    "dlpack": (Exchanged, "converted"),
    "unaligned": (unaligned, "vouched"),
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
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts_of_one_shape_take_turns_on_the_fast_path(name):
    x = sample("float32", (5, 23), "turns")
    arrays = [KINDS[kind][0](x) for kind in ("owner", "strided", "transposed", "view", "backwards")]
    for _ in range(3):
        for array in arrays:
            FUNCTIONS[name](array)
    assert {path_of(lambda array=array: FUNCTIONS[name](array)) for array in arrays} == {"fast"}


@needs_gil
def test_calls_that_are_logged_take_the_ordinary_path(caplog):
    x = sample("float32", (5, 41), "logged")
    for name, function in FUNCTIONS.items():
        assert settled_path(lambda function=function: function(x)) == "fast"
        with caplog.at_level("DEBUG", logger="dmlops"):
            assert path_of(lambda function=function: function(x)) == "ordinary"
        assert caplog.messages[-1].startswith(f"{name} on cpu: ")


@needs_gil
def test_a_list_takes_the_entry_of_the_array_that_it_becomes():
    x = sample("float64", (3, 29), "list")
    for name, function in FUNCTIONS.items():
        assert settled_path(lambda function=function: function(x)) == "fast", name
        assert path_of(lambda function=function: function(x.tolist())) == "converted"
        assert path_of(lambda function=function: function(x.view(Sub))) == "converted"


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
    assert settled_path(lambda: operator.execute(arrays, workspace)) == "vouched"


@needs_gil
@pytest.mark.parametrize("name", FUNCTIONS)
def test_path_of_torch_tensors(name):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(sample("float32", (5, 37), "torch"))
    tensors = [x, torch.stack([x, x])[1], x.T.contiguous().T, x.repeat_interleave(2, -1)[:, ::2]]
    calls = {
        "top_k": lambda tensor: dmlops.top_k(tensor, 3),
        "gather_nd": lambda tensor: dmlops.gather_nd(tensor, torch.tensor([[1], [-2]])),
    }
    function = calls.get(name, FUNCTIONS[name])
    for tensor in tensors:
        assert settled_path(lambda tensor=tensor: function(tensor)) == "fast"
    assert {path_of(lambda tensor=tensor: function(tensor)) for tensor in tensors} == {"fast"}


def test_matrices_without_input():
    like = np.zeros(3, "int16")
    for _ in range(3):
        for shape in ((4, 6), [4, 6], (6, 4), (2, 4, 6), (np.int64(4), 6)):
            expected = np.broadcast_to(np.eye(*shape[-2:], 1), shape)
            assert_same(dmlops.diagonal_matrix(shape=shape, begin=1, end=2), expected)
            for dtype in ("float32", np.dtype("uint8")):
                got = dmlops.diagonal_matrix(shape=shape, dtype=dtype, begin=1, end=2)
                assert_same(got, expected.astype(dtype))
            got = dmlops.diagonal_matrix(shape=shape, like=like, begin=1, end=2)
            assert_same(got, expected.astype("int16"))
            out = np.full(shape, 77, "float64")
            assert dmlops.diagonal_matrix(begin=1, end=2, out=out) is out
            assert_same(out, expected)
            assert_same(dmlops.diagonal_matrix(out, value=5), np.where(np.eye(*shape[-2:]) == 1, 5, out))
        with pytest.raises(TypeError, match="one of x, shape and out"):
            dmlops.diagonal_matrix(begin=1, end=2)
        for wrong in ((4, 6.0), (4,), 4, "46"):
            with pytest.raises((TypeError, InvalidDescriptorError), match=r"diagonal_matrix\.shape"):
                dmlops.diagonal_matrix(shape=wrong, begin=1, end=2)
        with pytest.raises(InvalidDescriptorError, match=r"diagonal_matrix\.out"):
            dmlops.diagonal_matrix(shape=(4, 5), out=np.zeros((4, 6)))


def test_executions_without_input():
    descriptor = DiagonalMatrix1(
        output_tensor=TensorDesc(TensorDataType.FLOAT32, (5, 7)),
        value=2,
        diagonal_fill_begin=-1,
        diagonal_fill_end=1,
    )
    operator = dmlops.compile(descriptor)
    for turn in range(4):
        out = np.full((5, 7), turn, "float32")
        operator.execute({"output_tensor": out})
        assert_same(out, (np.tri(5, 7, 0) - np.tri(5, 7, -2)).astype("float32") * 2)
    with pytest.raises(InvalidDescriptorError, match=r"DiagonalMatrix1\.execute"):
        operator.execute({"input_tensor": out, "output_tensor": out})
    with pytest.raises(InvalidDescriptorError, match=r"DiagonalMatrix1\.execute"):
        operator.execute({"input_tensor": out})


def small_calls(seed):
    """Yield (call, expected) of every operator on small arrays, with outputs made and given."""
    x = np.random.default_rng(seed).integers(-3, 4, (7, 12)).astype("float32")
    picks = np.random.default_rng(seed).integers(-7, 7, (20, 1))
    taken = x[picks[:, 0]]
    coordinates = np.argwhere(x)
    count = np.array(len(coordinates))
    best = reference.top_k(x, 3)
    out = tuple(map(np.empty_like, best))
    found = np.empty_like(coordinates), np.empty_like(count)
    band, rows = np.empty_like(x), np.empty_like(taken)
    for _ in range(3):
        yield dmlops.diagonal_matrix(x, value=0, begin=1, end=50), np.tril(x)
        yield dmlops.diagonal_matrix(x, value=0, begin=1, end=50, out=band), np.tril(x)
        yield dmlops.gather_nd(x, picks), taken
        yield dmlops.gather_nd(x, picks, out=rows), taken
        yield dmlops.gather_nd(x, picks, mode="clip", out=rows), taken
        yield from zip(dmlops.top_k(x, 3), best, strict=True)
        yield from zip(dmlops.top_k(x, 3, out=out), best, strict=True)
        yield from zip(dmlops.nonzero_coordinates(x), (coordinates, count), strict=True)
        yield from zip(dmlops.nonzero_coordinates(x, out=found), (coordinates, count), strict=True)


def test_small_calls_from_many_threads():
    def check(seed):
        for got, expected in small_calls(seed):
            assert_same(got, expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, range(200)))


@pytest.mark.parametrize("given", [False, True])
def test_indices_are_looked_at_each_time(given):
    x, picks = np.arange(20, dtype="float32"), np.arange(6).reshape(6, 1)
    options = {"out": np.full(6, 77, "float32")} if given else {}
    for _ in range(3):
        assert_same(dmlops.gather_nd(x, picks, **options), x[:6])
    picks[4] = 20
    if given:
        options["out"][...] = 77
    with pytest.raises(dmlops.IndexOutOfRangeError, match="20"):
        dmlops.gather_nd(x, picks, **options)
    assert not given or (options["out"] == 77).all()


@pytest.mark.parametrize("has_workspace", [False, True])
def test_executions(has_workspace):
    data = TensorDesc(TensorDataType.FLOAT32, (3, 500))
    descriptor = TopK1(input_tensor=data, axis=1, k=4, axis_direction=AxisDirection.DECREASING)
    operator = dmlops.compile(descriptor)
    memory = np.zeros(4000, "float32")
    workspace = np.empty(operator.workspace_size, np.uint8) if has_workspace else None
    for turn in range(4):
        x = memory[turn : turn + 1500].reshape(3, 500)
        x[...] = sample("float32", x.shape, turn)
        values, indices = np.empty((3, 4), "float32"), np.empty((3, 4), "uint32")
        arrays = {"input_tensor": x, "output_index_tensor": indices, "output_value_tensor": values}
        operator.execute(arrays, workspace)
        assert_same(values, reference.top_k(x, 4)[0])
        assert_same(indices, reference.top_k(x, 4)[1].astype("uint32"))
    arrays["output_value_tensor"] = memory[9:21].reshape(3, 4)
    with pytest.raises(InvalidDescriptorError, match=r"TopK1.output_value_tensor: .* shares memory"):
        operator.execute(arrays, workspace)
    if has_workspace:
        arrays["output_value_tensor"] = workspace[64:112].view("float32").reshape(3, 4)
        with pytest.raises(InvalidDescriptorError, match=r"TopK1.workspace: .* shares memory"):
            operator.execute(arrays, workspace)


def test_small_strided_listings_grow():
    x = np.zeros((6, 20), "float32")[:, ::2]
    for n_rows in (1, 4, 6, 2, 6):
        x[:n_rows], x[n_rows:] = 1, 0
        coordinates, count = dmlops.nonzero_coordinates(x)
        assert_same(coordinates, np.argwhere(x))
        assert count == 10 * n_rows
