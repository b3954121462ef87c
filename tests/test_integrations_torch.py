"""`dmlops.integrations.torch`: custom operators in graphs, their inferred shapes, their gradients."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import dmlops  # noqa: E402
from dmlops import InvalidDescriptorError  # noqa: E402
from dmlops.integrations.torch import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.scripts import ROOT  # noqa: E402

# torch warns about parts of itself when its compiler is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if torch.cuda.is_available() else ("cpu",)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def normal(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(device, dtype)


def sparse(*shape, device="cpu"):
    x = normal(*shape, device=device)
    return x * (x > 0.3)


CALLS = {
    "top_k": ("top_k", lambda: (normal(4, 9), 3, -1, True)),
    "top_k_axis0_smallest": ("top_k", lambda: (normal(4, 9).half(), 2, 0, False)),
    "top_k_strided": ("top_k", lambda: (normal(9, 4).T, 9, 1, True)),
    "top_k_integers": ("top_k", lambda: ((normal(4, 9) * 9).long(), 5, 1, True)),
    "top_k_none": ("top_k", lambda: (normal(4, 0), 0, 1, True)),
    "top_k_scalar": ("top_k", lambda: (normal(), 1, 0, True)),
    "top_k_grad": ("top_k", lambda: (normal(3, 4, 5).requires_grad_(), 2, 1, True)),
    "nonzero": ("nonzero_coordinates", lambda: (sparse(5, 6, 2),)),
    "nonzero_scalar": ("nonzero_coordinates", lambda: (torch.ones(()),)),
    "nonzero_nothing": ("nonzero_coordinates", lambda: (torch.zeros(5, 6),)),
    "nonzero_static": ("nonzero_coordinates_static", lambda: (sparse(5, 6), 11, 0)),
    "nonzero_static_wide": ("nonzero_coordinates_static", lambda: (sparse(5, 6).bool(), 40, -1)),
    "gather_nd": ("gather_nd", lambda: (normal(4, 5, 3), torch.tensor([[1, -1], [0, 2]]), 0, "raise")),
    "gather_nd_batch": (
        "gather_nd",
        lambda: (normal(2, 5, 3).requires_grad_(), torch.tensor([[[1], [-9]], [[7], [0]]]), 1, "fill"),
    ),
    "gather_nd_all": (
        "gather_nd",
        lambda: (normal(2, 5).requires_grad_(), torch.tensor([[[1, 2]], [[5, -9]]]).int(), 0, "clip"),
    ),
    "diagonal_matrix": ("diagonal_matrix", lambda: (normal(2, 4, 5).requires_grad_(), -np.inf, 1, 2**40)),
    "diagonal_matrix_inverted": ("diagonal_matrix", lambda: (normal(4, 5).long(), 2**53 + 1, 2, -1)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_opcheck(call, device):
    operator, arguments = call
    moved = [
        a.detach().to(device).requires_grad_(a.requires_grad) if torch.is_tensor(a) else a
        for a in arguments()
    ]
    torch.library.opcheck(getattr(torch.ops.dmlops, operator).default, tuple(moved))


class TestSameAsDmlops:
    def test_top_k(self, device):
        x = (normal(6, 50, device=device) * 3).round()
        values, indices = top_k(x, 7, largest=False)
        expected = reference.top_k(x.cpu().numpy(), 7, largest=False)
        np.testing.assert_array_equal(values.cpu(), expected[0])
        np.testing.assert_array_equal(indices.cpu(), expected[1])

    def test_nonzero_coordinates(self, device):
        x = sparse(7, 8, device=device)
        expected = x.nonzero()
        coordinates, count = nonzero_coordinates(x)
        assert torch.equal(coordinates, expected)
        assert count.tolist() == [len(expected)]
        coordinates, count = nonzero_coordinates(x, size=50, fill_value=-1)
        assert torch.equal(coordinates, torch.nonzero_static(x.cpu(), size=50).to(device))
        assert count.tolist() == [len(expected)]

    def test_gather_nd(self, device):
        x, indices = normal(6, 7, 2, device=device), torch.tensor([[5, -1], [0, 3]], device=device)
        assert torch.equal(gather_nd(x, indices), x[indices[:, 0], indices[:, 1]])
        with pytest.raises(IndexError, match="at position"):
            gather_nd(x, indices + 4)

    def test_diagonal_matrix(self, device):
        x = normal(3, 6, 7, device=device)
        assert torch.equal(diagonal_matrix(x, value=0, begin=-6, end=2), x.triu(2))
        made = diagonal_matrix(shape=(4, 5), dtype=torch.int32, device=device)
        assert torch.equal(made, torch.eye(4, 5, dtype=torch.int32, device=device))
        with pytest.raises(TypeError, match="shape: got None"):
            diagonal_matrix(value=3)


def scores(x, queries, k):
    """Put all operators into one graph."""
    length = x.shape[-1]
    masked = diagonal_matrix(x, value=-float("inf"), begin=1, end=length)
    values, indices = top_k(masked, k)
    picked = gather_nd(masked, indices.unsqueeze(-1), batch_dims=x.dim() - 1, mode="clip")
    coordinates, count = nonzero_coordinates(queries)
    rows, _ = nonzero_coordinates(queries, size=4, fill_value=0)
    found = gather_nd(queries, coordinates)
    return values * 2, picked, coordinates + 1, count, rows, found.cumsum(0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(backend, dynamic, device):
    compiled = torch.compile(scores, fullgraph=True, backend=backend, dynamic=dynamic)
    arguments = normal(2, 6, 6, device=device), sparse(9, device=device), 3
    for actual, expected in zip(compiled(*arguments), scores(*arguments), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_new_sizes_compile_nothing_anew(device):
    compiled = torch.compile(scores, fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(normal(2, 6, 6, device=device), sparse(9, device=device), 3)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, length in ((3, 7), (5, 4), (2, 300)):
            arguments = normal(batch, length, length, device=device), sparse(length, device=device), 3
            for actual, expected in zip(compiled(*arguments), scores(*arguments), strict=True):
                torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_batches_of_unrelated_symbols_are_told_to_be_equal():
    compiled = torch.compile(gather_nd, fullgraph=True, backend="aot_eager")
    x, indices = normal(4, 5, 3), torch.tensor([[[2]], [[0]], [[1]], [[4]]])
    torch._dynamo.decorators.mark_unbacked(x, 0)
    torch._dynamo.decorators.mark_unbacked(indices, 0)
    actual = compiled(x, indices, batch_dims=1, mode="clip")
    assert torch.equal(actual, x[torch.arange(4), indices[:, 0, 0]].unsqueeze(1))


def test_exports():
    class Model(torch.nn.Module):
        def forward(self, x):
            coordinates, _ = nonzero_coordinates(x)
            return gather_nd(x, coordinates, mode="clip")

    program = torch.export.export(Model(), (sparse(5, 6),), dynamic_shapes=[{0: torch.export.Dim("rows")}])
    x = sparse(9, 6)
    assert torch.equal(program.module()(x), x[x != 0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: top_k(x, 6), "TopK1.k: got 6, but axis 1 of input_tensor has 5 elements"),
        (lambda x: top_k(x, 1, axis=2), "TopK1.axis"),
        (lambda x: top_k(x, 0, axis=-3), "TopK1.axis"),
        (lambda x: gather_nd(x, torch.zeros(2, 3, dtype=torch.int64)), "GatherND1.indices_tensor.sizes"),
        (lambda x: gather_nd(x, torch.zeros(2, 1).long(), batch_dims=1), "the batch sizes must be equal"),
        (lambda x: diagonal_matrix(x[0]), "a matrix has height and width"),
        (lambda x: diagonal_matrix(x.bool(), value=2), "it fills BOOL"),
    ],
)
def test_errors_come_while_tracing(call, text):
    with FakeTensorMode(), pytest.raises(InvalidDescriptorError, match=text):
        call(torch.empty(4, 5))
    with FakeTensorMode(), pytest.raises(TypeError, match="no operator takes that type"):
        top_k(torch.empty(4, 5, dtype=torch.complex64), 1)


def double(*shape, device):
    return normal(*shape, dtype=torch.float64, device=device).requires_grad_()


class TestGradients:
    def check(self, function, *inputs):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)

    @pytest.mark.parametrize(
        ("shape", "k", "axis"), [((3, 6), 2, -1), ((3, 4, 2), 3, 1), ((), 1, 0), ((3, 2), 0, 0)]
    )
    def test_top_k(self, shape, k, axis, device):
        self.check(lambda x: top_k(x, k, axis=axis)[0], double(*shape, device=device))

    @pytest.mark.parametrize("mode", ["clip", "fill"])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64])
    def test_gather_nd(self, mode, dtype, device):
        extreme = 2**63 if dtype == torch.uint64 else 2**31 - 1
        indices = torch.tensor([[1, 2], [1, 2], [3, 0], [0, extreme]], dtype=dtype)
        if dtype.is_signed:
            indices = torch.cat([indices, torch.tensor([[-1, -9], [-3, -4], [-(2**31), 0]], dtype=dtype)])
        indices = indices.to(device)
        self.check(lambda x: gather_nd(x, indices, mode=mode), double(3, 4, 2, device=device))

    def test_gather_nd_in_batches(self, device):
        indices = torch.tensor([[[1], [0], [1]], [[-1], [-4], [2]]], device=device)
        self.check(lambda x: gather_nd(x, indices, batch_dims=1), double(2, 4, 3, device=device))

    @pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4, 0)])
    def test_gather_nd_of_nothing(self, shape, device):
        x = torch.zeros(shape, requires_grad=True, device=device)
        gather_nd(x, torch.tensor([[2, 3]], device=device), mode="fill").sum().backward()
        assert x.grad.shape == shape

    def test_gather_nd_keeps_nan_out(self, device):
        x = torch.zeros(3, requires_grad=True, device=device)
        indices = torch.tensor([[2], [3]], device=device)
        gather_nd(x, indices, mode="fill").backward(torch.tensor([1.0, float("nan")], device=device))
        assert x.grad.tolist() == [0, 0, 1]

    @pytest.mark.parametrize(("begin", "end"), [(0, 1), (-1, 2), (2, -1), (1, 2**62)])
    def test_diagonal_matrix(self, begin, end, device):
        self.check(
            lambda x: diagonal_matrix(x, value=3, begin=begin, end=end), double(2, 3, 4, device=device)
        )

    def test_compiled(self, device):
        def loss(x):
            values, _ = top_k(diagonal_matrix(x, value=0, begin=1, end=9), 2)
            return (values**2).sum() + gather_nd(x, torch.tensor([[1], [1]], device=device)).sum()

        gradients = []
        for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            x = normal(4, 4, device=device).requires_grad_()
            function(x).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_results_are_those_of_dmlops():
    x = normal(3, 4)
    assert isinstance(top_k(x, 1), dmlops.TopKResult)
    assert isinstance(nonzero_coordinates(x), dmlops.NonzeroResult)
    assert not top_k(x.requires_grad_(), 1).indices.requires_grad


def test_page_examples():
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    section = page.partition("## torch")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert examples
    exec("\n".join(examples), {})
