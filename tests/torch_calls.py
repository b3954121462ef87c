"""Calls of every function on torch tensors, for tests of what torch is told of them."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dmlops
from dmlops import DiagonalMatrix1, NonzeroCoordinates, TensorDataType, TensorDesc, TopK1
from tests.compiled import gather_of

SHAPE = (3, 5)
# Importing torch's compiler raises warnings about torch itself.
QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


def values(seed=0, device="cpu"):
    """Return numbers of which some are zero and some are equal."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return (x.mul(2).round() / 2).to(device)


def normal(*shape, dtype=torch.float64, device="cpu"):
    """Return the same normally distributed numbers every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(device, dtype)


def compiled(function, backend="aot_eager", **options):
    """Return a function that torch compiles without a graph break."""
    return torch.compile(function, fullgraph=True, backend=backend, **options)


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch, tmp_path_factory):
    """Start each test without compiled graphs, in the modules that import this fixture."""
    # torch's cache on disk knows graphs by the names of operators, not by their code.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    torch.compiler.reset()


def _new(shape, dtype=torch.float32):
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


def rows(x, *numbers):
    """Return indices of rows: an array of NumPy if x is, or a tensor on the device of x."""
    indices = torch.tensor(numbers)[:, None]
    if isinstance(x, np.ndarray):
        return indices.numpy()
    return indices.to(x.device if isinstance(x, torch.Tensor) else "cuda")


def integers(x, numbers, dtype=torch.int64):
    """Return integers on the device of `x`."""
    return torch.tensor(numbers, dtype=dtype, device=x.device)


class Subclass(torch.Tensor):
    """A subclass with memory."""


class Recorder(TorchDispatchMode):
    """Lists the operators that torch runs, with their arguments."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.seen.append((function, arguments))
        return function(*arguments, **(options or {}))

    def operators(self):
        """Return those that are not torch's own."""
        return [call for call in self.seen if call[0].namespace == "dmlops"]


def assert_same(actual, expected):
    """Compare tensors, and their types."""
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


# Calls of every function on tensors of `SHAPE`, with every argument that matters to a graph.
CALLS = {
    "top_k": lambda x: dmlops.top_k(x, 2),
    "top_k_unsorted": lambda x: dmlops.top_k(x, 3, axis=0, largest=False, sorted=False),
    "top_k_lengths": lambda x: dmlops.top_k(x, 3, lengths=integers(x, [5, 0, 2]), index_dtype="uint32"),
    "top_k_lengths_unsorted": lambda x: dmlops.top_k(
        x, 3, sorted=False, lengths=integers(x, [5, 0, 2]), index_dtype=np.int32
    ),
    "top_k_none": lambda x: dmlops.top_k(x[:, :0], 0),
    "top_k_scalar": lambda x: dmlops.top_k(x[0, 0], 1),
    "nonzero_scalar": lambda x: dmlops.nonzero_coordinates(x[0, 0], size=1, fill_value=-1),
    "nonzero": lambda x: dmlops.nonzero_coordinates(x > 0, index_dtype=torch.uint64),
    "nonzero_static": lambda x: dmlops.nonzero_coordinates(
        x > 0, size=20, fill_value=-1, index_dtype="int32"
    ),
    "gather_nd": lambda x: (dmlops.gather_nd(x, integers(x, [[0, -1], [2, 3]])),),
    "gather_nd_clip": lambda x: (dmlops.gather_nd(x, integers(x, [[0], [7], [-9]]), mode="clip"),),
    "gather_nd_fill": lambda x: (dmlops.gather_nd(x, integers(x, [[0], [7]], torch.int32), mode="fill"),),
    "gather_nd_padded": lambda x: (
        dmlops.gather_nd(
            x, integers(x, [[0], [-1], [7]]), mode="fill", fill_value=-np.inf, wrap_negative=False
        ),
    ),
    "nonzero_fills": lambda x: dmlops.nonzero_coordinates(x > 0, size=20, fill_value=(3, -1)),
    "gather_nd_batch": lambda x: (dmlops.gather_nd(x, integers(x, [[[4]], [[0]], [[1]]]), batch_dims=1),),
    "gather_nd_one": lambda x: (dmlops.gather_nd(x, integers(x, [1, -1])),),
    "gather_nd_no_index": lambda x: (dmlops.gather_nd(x, integers(x, [[[], []]] * 3), batch_dims=1),),
    "diagonal_matrix": lambda x: (dmlops.diagonal_matrix(x, value=-np.inf, begin=1, end=2**64),),
    "one_diagonal": lambda x: (dmlops.diagonal_matrix(x, value=9, begin=2),),
    "open_bands": lambda x: (
        dmlops.diagonal_matrix(x, value=9, begin=1, end=np.inf),
        dmlops.diagonal_matrix(x, value=9, begin=-np.inf, end=x.shape[0] - 3),
        dmlops.diagonal_matrix(x, value=9, begin=x.shape[1] - 4),
    ),
    "tril": lambda x: (dmlops.tril(x, -1),),
    "numpy_scalars": lambda x: (
        dmlops.top_k(dmlops.diagonal_matrix(x, value=np.float32(9.5)), np.int64(2)).values,
    ),
    "like": lambda x: (dmlops.diagonal_matrix(shape=(3, 4), dtype="int16", value=7, like=x),),
    "eye": lambda x: (dmlops.eye(3, 4, k=1, like=x),),
    "sample": lambda x: (dmlops.sample(x, 7, temperature=integers(x, [1, 2, 0], x.dtype), k=3),),
}

# Each has a call, and a function that makes the tensors that it writes to.
WRITES = {
    "top_k": (lambda x, *out: dmlops.top_k(x, 2, out=out), (_new((3, 2)), _new((3, 2), torch.int64))),
    "nonzero_coordinates": (
        lambda x, *out: dmlops.nonzero_coordinates(x, fill_value=-1, out=out),
        (_new((15, 2), torch.int64), _new((), torch.int64)),
    ),
    "gather_nd": (lambda x, out: dmlops.gather_nd(x, rows(x, 2, 0), out=out), (_new((2, 5)),)),
    "gather_nd_clipped": (
        lambda x, out: dmlops.gather_nd(x, rows(x, 9, 0), mode="clip", out=out),
        (_new((2, 5)),),
    ),
    "diagonal_matrix": (lambda x, out: dmlops.diagonal_matrix(x, value=7, out=out), (_new(SHAPE),)),
    "matrix_without_input": (lambda x, out: dmlops.diagonal_matrix(end=2, out=out), (_new(SHAPE),)),
    "tril": (lambda x, out: dmlops.tril(x, 1, out=out), (_new(SHAPE),)),
    "triu": (lambda x, out: dmlops.triu(x, 1, out=out), (_new(SHAPE),)),
    "eye": (lambda x, out: dmlops.eye(3, 5, dtype=None, out=out), (_new(SHAPE),)),
    "sample": (lambda x, out: dmlops.sample(x, 7, out=out), (_new(SHAPE[:1], torch.int64),)),
}


def _executed(descriptor, inputs=lambda x, out: (x,), workspace_bytes=0):
    """Return an entry of `WRITES` for a compiled operator, with a workspace or without one."""

    def call(x, *written):
        operator = dmlops.compile(descriptor, device=str(written[0].device), feature_level="EXTENDED")
        tensors = dict(zip(operator.inputs, inputs(x, written[0]), strict=True))
        tensors.update(zip(operator.outputs, written, strict=False))
        operator.execute(tensors, workspace=written[len(operator.outputs)] if workspace_bytes else None)

    outputs = [
        _new(desc.sizes, getattr(torch, desc.data_type.name.lower())) for desc in descriptor.outputs.values()
    ]
    return call, (*outputs, *([_new(workspace_bytes, torch.uint8)] if workspace_bytes else []))


_X = TensorDesc(TensorDataType.FLOAT32, SHAPE)
_TOP_K = TopK1(input_tensor=_X, axis=1, k=2, axis_direction="DECREASING")
WRITES |= {
    "TopK1": _executed(_TOP_K),
    "TopK1_with_workspace": _executed(_TOP_K, workspace_bytes=1 << 20),
    "NonzeroCoordinates": _executed(NonzeroCoordinates(input_tensor=_X)),
    "GatherND1": _executed(
        gather_of(_X, TensorDesc(TensorDataType.INT64, (2, 1))), lambda x, out: (x, rows(x, 2, 0))
    ),
    "DiagonalMatrix1": _executed(
        DiagonalMatrix1(output_tensor=_X, value=1, diagonal_fill_begin=0, diagonal_fill_end=1),
        lambda x, out: (),
    ),
}
