"""`dmlops.integrations.torch`: custom operators in graphs, their inferred shapes and their gradients."""

import pytest

torch = pytest.importorskip("torch")

from torch import func  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from dmlops.integrations.torch import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests.data import sample  # noqa: E402
from tests.marks import nightly  # noqa: E402
from tests.scripts import run_page  # noqa: E402
from tests.torch_calls import CALLS, Recorder, assert_same, fresh_compiler, normal  # noqa: E402, F401

# Importing torch's compiler raises warnings about torch itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if torch.cuda.is_available() else ("cpu",)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def sparse(*shape, device="cpu"):
    x = normal(*shape, device=device)
    return x * (x > 0.3)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_opcheck(call, device):
    with Recorder() as mode:
        call(normal(3, 5, device=device))
    assert mode.operators()
    for operator, (x, *others) in mode.operators():
        torch.library.opcheck(operator, (x, *others))
        if x.is_floating_point() and "nonzero" not in operator.name():
            torch.library.opcheck(operator, (x.detach().requires_grad_(), *others))


def test_diagonal_matrix(device):
    """The one function whose parameters differ from the function of `dmlops`."""
    x = normal(3, 6, 7, device=device)
    assert torch.equal(diagonal_matrix(x, value=0, begin=-6, end=2), x.triu(2))
    made = diagonal_matrix(shape=(4, 5), dtype=torch.int32, device=device)
    # torch.equal ignores types.
    assert (made.dtype, made.device.type) == (torch.int32, device)
    assert torch.equal(made, torch.eye(4, 5, dtype=torch.int32, device=device))
    assert diagonal_matrix(shape=(4, 5), device=device).dtype == torch.get_default_dtype()
    with pytest.raises(TypeError, match="shape: got None"):
        diagonal_matrix(value=3)


def scores(x, queries, k, lengths):
    """Put all operators into one graph."""
    length = x.shape[-1]
    masked = diagonal_matrix(x, value=-float("inf"), begin=1, end=length)
    values, indices = top_k(masked, k)
    picked = gather_nd(masked, indices.unsqueeze(-1), batch_dims=x.dim() - 1, mode="clip")
    coordinates, count = nonzero_coordinates(queries)
    rows, _ = nonzero_coordinates(queries, size=4, fill_value=0)
    found = gather_nd(queries, coordinates)
    return values * 2, picked, coordinates + 1, count, rows, found.cumsum(0), *top_k(x[0], 1, lengths=lengths)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_as_one_graph_for_any_size(backend, device):
    # Triton sums in a different order.
    tolerance = {} if (backend, device) == ("inductor", "cuda") else {"rtol": 0, "atol": 0}
    compiled = torch.compile(scores, fullgraph=True, backend=backend, dynamic=True)
    for batch, length in ((2, 6), (3, 7), (2, 300)):
        x, queries = normal(batch, length, length, device=device), sparse(length, device=device)
        arguments = x, queries, 3, torch.arange(length, device=device)
        with torch._dynamo.config.patch(error_on_recompile=length > 6):
            actual = compiled(*arguments)
        for got, wanted in zip(actual, scores(*arguments), strict=True):
            torch.testing.assert_close(got, wanted, **tolerance)


def test_batches_of_unrelated_symbols_are_told_to_be_equal():
    compiled = torch.compile(gather_nd, fullgraph=True, backend="aot_eager")
    x, indices = normal(4, 5, 3), torch.tensor([[[2]], [[0]], [[1]], [[4]]])
    torch._dynamo.decorators.mark_unbacked(x, 0)
    torch._dynamo.decorators.mark_unbacked(indices, 0)
    actual = compiled(x, indices, batch_dims=1, mode="clip")
    assert torch.equal(actual, x[torch.arange(4), indices[:, 0, 0]].unsqueeze(1))
    actual = compiled(x.requires_grad_(), indices, batch_dims=1, mode="fill")
    assert torch.equal(actual.detach(), x[torch.arange(4), indices[:, 0, 0]].unsqueeze(1))


class TestGradients:
    """Gradients of calls that are not in `OPERATIONS`, on each device."""

    @pytest.mark.parametrize("options", [{"mode": "clip"}, {"mode": "fill", "fill_value": -3.0}])
    @pytest.mark.parametrize("wraps", [True, False])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64])
    def test_gather_nd(self, options, wraps, dtype, device):
        extreme = 2**63 if dtype == torch.uint64 else 2**31 - 1
        indices = torch.tensor([[1, 2], [1, 2], [3, 0], [0, extreme]], dtype=dtype)
        if dtype.is_signed:
            indices = torch.cat([indices, torch.tensor([[-1, -9], [-3, -4], [-(2**31), 0]], dtype=dtype)])
        indices, x = indices.to(device), normal(3, 4, 2, device=device).requires_grad_()

        def gathered(x):
            return gather_nd(x, indices, wrap_negative=wraps, **options)

        assert torch.autograd.gradcheck(gathered, (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(gathered, (x,))

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

    def test_what_is_beyond_the_length_of_a_row(self, device):
        x = normal(3, 4, device=device).requires_grad_()
        top_k(x, 2, lengths=torch.tensor([4, 1, 0], device=device)).values.sum().backward()
        assert x.grad.count_nonzero(1).tolist() == [2, 1, 0]


TUPLES = torch.tensor([[1, 0], [2, 3], [1, 0], [0, -2]])
BATCHES = torch.tensor([[[1, 0], [2, 3]], [[2, 1], [0, 4]], [[0, 0], [3, 2]]])
# The second and the last tuple are out of range, and clamped to (2, 3) and (0, 0).
OUTSIDE = torch.tensor([[1, 0], [7, 3], [1, 0], [0, -9]])
BAND = torch.ones(4, 5, dtype=torch.bool).tril(1).triu(-1)

# Each call on a tensor of shape (3, 4, 5), with the same computation in torch's own operators.
OPERATIONS = {
    "top_k": (lambda x: top_k(x, 2, axis=1).values, lambda x: x.topk(2, dim=1).values),
    "bottom_k": (
        lambda x: top_k(x, 3, axis=-1, largest=False).values,
        lambda x: x.topk(3, dim=-1, largest=False).values,
    ),
    "gather_nd": (lambda x: gather_nd(x, TUPLES), lambda x: x[TUPLES[:, 0], TUPLES[:, 1]]),
    "gather_nd_clip": (
        lambda x: gather_nd(x, OUTSIDE, mode="clip"),
        lambda x: x[torch.tensor([1, 2, 1, 0]), torch.tensor([0, 3, 0, 0])],
    ),
    "gather_nd_fill": (
        lambda x: gather_nd(x, OUTSIDE, mode="fill"),
        lambda x: torch.stack([x[1, 0], 0 * x[0, 0], x[1, 0], 0 * x[0, 0]]),
    ),
    "gather_nd_batch": (
        lambda x: gather_nd(x, BATCHES, batch_dims=1),
        lambda x: x[torch.arange(3).unsqueeze(1), BATCHES[..., 0], BATCHES[..., 1]],
    ),
    "diagonal_matrix": (
        lambda x: diagonal_matrix(x, value=3.5, begin=-1, end=2),
        lambda x: x.masked_fill(BAND, 3.5),
    ),
    "diagonal_matrix_inverted": (
        lambda x: diagonal_matrix(x, value=-1, begin=2, end=-1),
        lambda x: x.masked_fill(~BAND, -1),
    ),
}


def cubes(f):
    return lambda x: (f(x) ** 3).sum()


def in_batches(f, axis):
    return lambda x: torch.vmap(f, in_dims=axis, out_dims=1)(torch.stack([x, x * 2], axis))


def dual(f, x, t):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))))


def backward(f, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cubes(f)(x), x)


# Derivatives of a function `f` at `x`, some along a tangent `t`.
TRANSFORMATIONS = {
    "value": lambda f, x, _: f(x),
    "backward": lambda f, x, _: backward(f, x),
    "dual": dual,
    "dual_of_a_leaf": lambda f, x, t: dual(f, x.clone().requires_grad_(), t),
    "dual_without_grad_mode": torch.no_grad()(dual),
    "jvp": lambda f, x, t: func.jvp(f, (x,), (t,)),
    "linearize": lambda f, x, t: func.linearize(f, x)[1](t),
    "vjp": lambda f, x, t: func.vjp(f, x)[1](f(t)),
    "grad": lambda f, x, _: func.grad(cubes(f))(x),
    "jacrev": lambda f, x, _: func.jacrev(f)(x),
    "jacfwd": lambda f, x, _: func.jacfwd(f)(x),
    "hessian": lambda f, x, _: func.hessian(cubes(f))(x),
    "jacfwd_of_jacfwd": lambda f, x, _: func.jacfwd(func.jacfwd(cubes(f)))(x),
    "grad_of_grad": lambda f, x, _: func.grad(lambda x: (func.grad(cubes(f))(x) ** 2).sum())(x),
    "jvp_of_grad": lambda f, x, t: func.jvp(func.grad(cubes(f)), (x,), (t,)),
    "grad_of_jvp": lambda f, x, t: func.grad(lambda x: func.jvp(cubes(f), (x,), (t,))[1])(x),
    "vmap_first": lambda f, x, _: in_batches(f, 0)(x),
    "vmap_last": lambda f, x, _: in_batches(f, -1)(x),
    "vmap_of_vmap": lambda f, x, _: torch.vmap(torch.vmap(f, 1), 2)(
        x[:, None, None] * torch.ones(1, 2, 2, 1, 1)
    ),
    "grad_of_vmap": lambda f, x, _: func.grad(cubes(in_batches(f, 1)))(x),
    "jvp_of_vmap": lambda f, x, t: func.jvp(in_batches(f, 1), (x,), (t,)),
    "vmap_of_grad": lambda f, x, _: torch.vmap(func.grad(cubes(f)))(torch.stack([x, x * 2])),
    "vmap_of_jvp": lambda f, x, t: torch.vmap(lambda t: func.jvp(f, (x,), (t,))[1])(torch.stack([t, t * 2])),
    # The inner one follows another variable, and must not lose what the outer one follows.
    "grad_around_grad": lambda f, x, t: func.grad(
        lambda x: func.grad(lambda y: (y**2 * f(x)).sum())(f(t)).sum()
    )(x),
    "jvp_around_grad": lambda f, x, t: func.jvp(
        lambda x: func.grad(lambda y: (y**2 * f(x)).sum())(f(t)), (x,), (t,)
    ),
    "grad_around_jvp": lambda f, x, t: func.grad(
        lambda x: func.jvp(lambda y: (y**2 * f(x)).sum(), (f(t),), (f(t),))[1]
    )(x),
    "jvp_around_jvp": lambda f, x, t: func.jvp(
        lambda x: func.jvp(lambda y: (y**2 * f(x)).sum(), (f(t),), (f(t),)), (x,), (t,)
    ),
    "grad_of_functionalize": lambda f, x, _: func.grad(func.functionalize(cubes(f)))(x),
    "functionalize_of_jvp": lambda f, x, t: func.functionalize(lambda x: func.jvp(f, (x,), (t,)))(x),
}
# One case per kind of nesting, because compilation takes seconds.
AT_NIGHT = "jacfwd", "jvp_of_grad", "jvp_of_vmap", "vmap_of_grad", "grad_around_grad", "jvp_around_jvp"
COMPILED = "jvp", "grad", "vmap_last", *map(nightly, AT_NIGHT)


def points():
    generator = torch.Generator().manual_seed(3)
    x = torch.randperm(60, generator=generator).reshape(3, 4, 5).double() / 7
    return x, torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)


def everything(place):
    """Return a function of the results of all operations, by dmlops or by torch."""
    return lambda x: torch.cat([pair[place](x).reshape(-1) for pair in OPERATIONS.values()])


# torch's linearize, functionalize and export raise warnings about torch itself.
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore:.*LeafSpec:FutureWarning")
class TestTransformations:
    @pytest.mark.parametrize("transformation", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)
    def test_like_torch(self, transformation):
        actual, expected = (transformation(everything(place), *points()) for place in (0, 1))
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("name", COMPILED)
    def test_compiled_like_torch(self, name):
        function, own = everything(0), everything(1)
        compiled = torch.compile(
            lambda x, t: TRANSFORMATIONS[name](function, x, t),
            fullgraph=True,
            backend="aot_eager",
            dynamic=True,
        )
        expected = TRANSFORMATIONS[name](own, *points())
        torch.testing.assert_close(compiled(*points()), expected, rtol=1e-12, atol=1e-12)

    def test_saved_graphs(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return everything(0)(x)

        x, t = points()
        program, own = torch.export.export(Model(), (x,)), everything(1)
        for exported in (program, program.run_decompositions()):
            model = exported.module()
            torch.testing.assert_close(func.jvp(model, (x,), (t,)), func.jvp(own, (x,), (t,)), rtol=0, atol=0)
            torch.testing.assert_close(backward(model, x), backward(own, x), rtol=1e-12, atol=0)


class TestTracked:
    """A call that is differentiated gives the same answer as any other."""

    CALLS = (
        lambda x: top_k(x, 3, axis=0),
        lambda x: top_k(x, 3, axis=1, largest=False),
        lambda x: (gather_nd(x, (TUPLES[:, :1] % 3).to(x.device), mode="clip"),),
        lambda x: (gather_nd(x, OUTSIDE.to(x.device), mode="fill"),),
        lambda x: (gather_nd(x, TUPLES[:3, :1].to(x.device), batch_dims=0),),
        lambda x: (diagonal_matrix(x, value=-0.0, begin=-1, end=1),),
        lambda x: (diagonal_matrix(x, value=0.1, begin=1, end=-1),),
    )

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_every_bit_and_stride(self, dtype, transposed, device):
        x = torch.from_numpy(sample("int64", (4, 6), "tracked")).view(getattr(torch, dtype))[:, :4].to(device)
        x = x.T if transposed else x
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        for call in self.CALLS:
            for actual, expected in zip(call(x.clone().requires_grad_()), call(x), strict=True):
                assert actual.stride() == expected.stride()
                if actual.is_floating_point():
                    assert torch.equal(actual.detach().view(whole), expected.view(whole))
                else:
                    assert torch.equal(actual, expected)

    def test_a_value_has_no_derivative(self):
        x, value = normal(3, 4), torch.tensor(2.0)
        assert torch.equal(diagonal_matrix(x, value=value), diagonal_matrix(x, value=2.0))
        value.requires_grad_()
        with pytest.raises(TypeError, match=r"diagonal_matrix\.value: .* no derivative"):
            diagonal_matrix(x, value=value)
        with pytest.raises(TypeError, match=r"diagonal_matrix\.value: .* no derivative"):
            func.grad(lambda value: diagonal_matrix(x, value=value).sum())(torch.tensor(2.0))
        with pytest.raises(TypeError, match=r"diagonal_matrix\.value: .* no derivative"):
            torch.vmap(lambda value: diagonal_matrix(x, value=value))(torch.ones(2))

    def test_coordinates_have_no_derivative(self):
        x = sparse(4, 5)
        for size in (None, 9):
            found = nonzero_coordinates(x.clone().requires_grad_(), size=size)
            assert not any(result.requires_grad for result in found)

            def scaled(x, size=size):
                return (x * nonzero_coordinates(x, size=size).count).sum()

            count = torch.count_nonzero(x)
            assert torch.equal(func.grad(scaled)(x), count.expand(4, 5).double())
            _, tangent = func.jvp(scaled, (x,), (torch.ones_like(x),))
            assert tangent == 20 * count


class TestVmap:
    def test_indices(self):
        x, indices = normal(4, 5, 3), torch.stack([TUPLES, TUPLES.flip(0)], 1)
        expected = torch.stack([x[i[:, 0], i[:, 1]] for i in indices.unbind(1)])
        assert torch.equal(torch.vmap(lambda i: gather_nd(x, i), in_dims=1)(indices), expected)
        both = torch.vmap(gather_nd, in_dims=(2, 1))(torch.stack([x, x + 1], 2), indices)
        assert torch.equal(both, expected + torch.tensor([0.0, 1.0]).reshape(2, 1, 1))

    @pytest.mark.parametrize("in_dims", [(0, 0), (1, None), (None, 1), (2, 1)])
    def test_lengths(self, in_dims):
        sizes, counts = [4, 5], [4]
        for each, dim in zip((sizes, counts), in_dims, strict=True):
            if dim is not None:
                each.insert(dim, 3)
        x, lengths = normal(*sizes), (normal(*counts).abs() * 4).int()
        batched = torch.vmap(lambda x, n: top_k(x, 2, lengths=n), in_dims=in_dims)(x, lengths)
        for i in range(3):
            one = [a if d is None else a.select(d, i) for a, d in zip((x, lengths), in_dims, strict=True)]
            for actual, expected in zip(batched, top_k(one[0], 2, lengths=one[1]), strict=True):
                assert torch.equal(actual[i], expected)

    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("shape", [(4, 6), (4,)])
    def test_rows_and_numbers(self, shape, axis):
        x = normal(*shape)
        found = torch.vmap(lambda x: top_k(x, 1, axis=axis))(x)
        assert_same(found, x.reshape(4, -1).topk(1))


def test_page_examples():
    run_page("docs/integrations/torch.md")
