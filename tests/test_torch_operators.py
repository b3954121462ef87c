"""The plain functions on tensors that torch differentiates, transforms or traces."""

import gc
import shutil
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import func  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import dmlops  # noqa: E402
from dmlops import DmlError  # noqa: E402
from tests.scripts import run_script  # noqa: E402
from tests.torch_calls import CALLS, QUIET, Subclass, assert_same, compiled, fresh_compiler, normal  # noqa: E402, F401

pytestmark = QUIET

INDEX_TYPES = (torch.int32, torch.int64, torch.uint32, torch.uint64)
LENGTHS = torch.tensor([5, 0, 2])


def everything(x):
    return [part for call in CALLS.values() for part in call(x)]


class Everything(torch.nn.Module):
    def forward(self, x):
        return everything(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    x = normal(3, 5)
    assert_same(compiled(everything, dynamic=dynamic)(x), everything(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict):
    x = normal(3, 5)
    assert_same(torch.export.export(Everything(), (x,), strict=strict).module()(x), everything(x))


def test_numbers_in_programs_are_finite():
    """AOTInductor writes the arguments of operators as JSON, which has no others."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return dmlops.diagonal_matrix(x, value=-torch.inf), dmlops.diagonal_matrix(x, value=2.5)

    nodes = torch.export.export(Model(), (normal(3, 5),)).graph.nodes
    arguments = [each for node in nodes if "dmlops" in str(node.target) for each in node.args]
    numbers = {each for each in arguments if isinstance(each, (int, float))}
    assert 2.5 in numbers
    assert np.isfinite([*numbers]).all()


def test_numbers_that_graphs_take():
    """They may be known only when the graph runs, or change from call to call."""

    def call(x, value, k):
        return (dmlops.top_k(dmlops.diagonal_matrix(x, value=value.item()), k.item()).values,)

    x, k = normal(3, 5), torch.tensor(2)
    for value in (torch.tensor(2.5), torch.tensor(-7)):
        expected = x.where(~torch.eye(3, 5, dtype=torch.bool), value).topk(2).values
        assert_same(compiled(call, "eager")(x, value, k), [expected])
    band = compiled(lambda x, value: dmlops.diagonal_matrix(x, value=value), "eager")
    for number in (1.5, 2.5, -torch.inf):
        assert torch.equal(band(x, number), x.where(~torch.eye(3, 5, dtype=torch.bool), number))


@pytest.mark.parametrize("strict", [False, True])
def test_numbers_that_programs_take(strict):
    class Model(torch.nn.Module):
        def forward(self, x, value):
            return dmlops.diagonal_matrix(x, value=value.item()), dmlops.top_k(x, x.shape[0]).values

    program = torch.export.export(
        Model(),
        (normal(3, 5), torch.tensor(2.5)),
        strict=strict,
        dynamic_shapes=[{0: torch.export.Dim("n", max=5)}, {}],
    )
    x, diagonal = normal(4, 5), ~torch.eye(4, 5, dtype=torch.bool)
    expected = x.where(diagonal, torch.inf), x.topk(4).values
    assert_same(program.module()(x, torch.tensor(torch.inf)), expected)


def test_compiled_functions_execute_operators_on_numpy_arrays():
    """torch's compiler frees objects as soon as no variable is read any more; these are arrays' addresses.

    Python's debug allocator overwrites what is freed.
    """
    script = """
        import numpy as np, torch, dmlops

        desc = dmlops.TensorDesc("FLOAT32", (3, 4))
        operator = dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=1, k=2, axis_direction=1))
        arrays = {"input_tensor": np.arange(12, dtype="float32").reshape(3, 4)}
        arrays |= {"output_value_tensor": np.zeros((3, 2), "float32")}
        arrays |= {"output_index_tensor": np.zeros((3, 2), "uint32")}

        def execute(x):
            operator.execute(arrays)
            return x + 1

        assert torch.compile(execute, backend="eager")(torch.ones(2)).tolist() == [2, 2]
        assert arrays["output_value_tensor"].tolist() == [[3, 2], [7, 6], [11, 10]]
        assert arrays["output_index_tensor"].tolist() == [[3, 2]] * 3
    """
    run_script("import warnings; warnings.simplefilter('ignore')\n", script, PYTHONMALLOC="debug")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
class TestCalls:
    def test_without_elements(self, call, request):
        if "nonzero]" in request.node.name:  # the number of rows depends on the elements
            pytest.skip("not served: a shape that depends on elements")
        x = normal(3, 5)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = call(mode.from_tensor(x))
        assert [(part.shape, part.dtype) for part in fake] == [(part.shape, part.dtype) for part in call(x)]

    def test_functional(self, call):
        x = normal(3, 5)
        assert_same(func.functionalize(call)(x), call(x))

    def test_within_a_transformation_of_something_else(self, call):
        """Outputs that are made there stand for others, and kernels cannot write them."""
        x = normal(3, 5)
        for _ in range(3):
            call(x)
        expected = sum(part.double().nan_to_num(neginf=0).sum() for part in call(x))

        def scaled(y):
            return y * sum(part.double().nan_to_num(neginf=0).sum() for part in call(x))

        assert func.grad(scaled)(normal()) == expected
        assert func.jvp(scaled, (normal(),), (normal() / normal(),))[1] == expected
        assert torch.equal(func.vmap(scaled)(torch.ones(2).double()), expected.expand(2))


@pytest.mark.parametrize("name", ["top_k", "top_k_lengths", "gather_nd", "diagonal_matrix"])
def test_results_may_be_changed(name):
    """As the results of torch's own operators may."""
    x = normal(3, 5).requires_grad_()
    values = CALLS[name](x)[0]
    values *= 2
    values.nan_to_num(neginf=0).sum().backward()
    assert 0 < x.grad.count_nonzero() <= values.numel()
    assert not x.grad.fmod(2).any()


@pytest.mark.parametrize("dtype", INDEX_TYPES)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_index_types_with_a_gradient(dtype, lengths):
    x = normal(3, 5)
    results = dmlops.top_k(x.clone().requires_grad_(), 3, lengths=lengths, index_dtype=dtype)
    assert_same(results, dmlops.top_k(x, 3, lengths=lengths, index_dtype=dtype))
    assert results.values.requires_grad


def test_plain_calls_load_nothing_and_compiled_ones_raise_no_warning():
    script = """
        import sys, warnings, torch, dmlops
        warnings.simplefilter("default")

        def call(x, lengths, k):
            values, indices = dmlops.top_k(dmlops.tril(x), k, lengths=lengths)
            coordinates, _ = dmlops.nonzero_coordinates(x > 0)
            return values, dmlops.gather_nd(x, indices.clamp(0).unsqueeze(-1), batch_dims=1), coordinates

        x, lengths = torch.randn(5, 5), torch.tensor([5, 0, 2, 3, 1])
        expected = call(x, lengths, 2)
        print(hasattr(torch.ops.dmlops, "top_k"))
        dmlops.top_k(x.clone().requires_grad_(), 2)
        print(hasattr(torch.ops.dmlops, "top_k"), "torch._dynamo" in sys.modules)
        torch.compile(lambda x: x + 1, backend="eager")(x)  # imports what warns about torch itself
        warnings.simplefilter("error")
        # Without fullgraph, a graph breaks at what depends on elements, as at torch.nonzero.
        for fullgraph in (False, True):
            torch.compiler.reset()
            compiled = torch.compile(call, fullgraph=fullgraph, backend="eager", dynamic=True)
            for actual, wanted in zip(compiled(x, lengths, 2), expected):
                assert torch.equal(actual, wanted)
        with torch._dynamo.config.patch(error_on_recompile=True):
            import colorsys, wave  # modules that come later are not looked at
            compiled(torch.randn(6, 6), torch.arange(6), 3)
    """
    assert run_script("import warnings; warnings.simplefilter('default')\n", script).split() == [
        "False",
        "True",
        "False",
    ]


class TestMemory:
    """A backward pass keeps positions, and no copy of `x`."""

    CALLS = (
        lambda x: dmlops.top_k(x, 2).values,
        lambda x: dmlops.top_k(x, 2, lengths=torch.full((50,), 7), index_dtype="uint32").values,
        lambda x: dmlops.gather_nd(x, [[1], [4]]),
        lambda x: dmlops.gather_nd(x.T, [[1, 2], [4, 900]], mode="fill"),
    )

    @pytest.mark.parametrize("call", CALLS)
    def test_saved(self, call):
        x, memory = normal(50, 60).requires_grad_(), np.zeros((50, 60), np.float32)
        y, kept = torch.from_numpy(memory).add_(x), weakref.ref(memory)
        values = call(y)
        del y, memory
        gc.collect()
        assert kept() is None
        values.sum().backward()
        assert 0 < x.grad.count_nonzero() <= values.numel()

    @pytest.mark.parametrize("call", CALLS)
    def test_what_is_changed_afterwards(self, call):
        x = normal(50, 60).requires_grad_()
        y = x * 1
        values = call(y)
        with torch.no_grad():
            y.zero_()
        (values**2).sum().backward()
        expected = func.grad(lambda x: (call(x) ** 2).sum())(x.detach())
        assert torch.equal(x.grad, expected)


class TestVmap:
    @pytest.mark.parametrize(
        ("call", "own"),
        [
            (lambda x: tuple(dmlops.top_k(x, 2)), lambda x: tuple(x.topk(2))),
            (
                lambda x: tuple(dmlops.nonzero_coordinates(x, size=2)),
                lambda x: (torch.nonzero_static(x, size=2), x.sum().long()),
            ),
            (lambda x: (dmlops.gather_nd(x, [[1, 0]]),), lambda x: (x[1:2, 0],)),
            (lambda x: (dmlops.tril(x),), lambda x: (x.tril(),)),
        ],
    )
    def test_no_examples(self, call, own):
        results = func.vmap(call, in_dims=1, out_dims=-1)(torch.zeros(3, 0, 5))
        expected = [part.unsqueeze(-1)[..., :0] for part in own(torch.zeros(3, 5))]
        assert_same(results, expected)

    @pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3), (4,), (4, 0), (4, 3, 0, 2), (3, 2, 2100)])
    @pytest.mark.parametrize("size", [0, 3, 9])
    def test_nonzero_coordinates(self, shape, size):
        """Of examples that share a call of the kernel, and of such that do not."""
        x = normal(*shape).round()
        x.reshape(-1)[::3] = -0.0

        def found(x):
            return dmlops.nonzero_coordinates(x, size=size, fill_value=-7)

        batched, nested = func.vmap(found)(x), func.vmap(func.vmap(found, in_dims=-1))(x.unsqueeze(-1))
        for row, *parts in zip(x, *batched, *nested, strict=True):
            assert_same(parts[:2], found(row))
            assert_same([part[0] for part in parts[2:]], found(row))

    def test_nonzero_coordinates_in_graphs(self):
        """The graph does not depend on the number of examples."""
        graph = compiled(func.vmap(lambda x: tuple(dmlops.nonzero_coordinates(x > 0, size=4))), dynamic=True)
        graph(normal(3, 5))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for examples in (7, 4):
                assert graph(normal(examples, 6))[1].equal((normal(examples, 6) > 0).sum(1))

    def test_a_count_per_example_is_refused(self):
        with pytest.raises(DmlError, match=r"nonzero_coordinates\.size: got None, .*vmap"):
            func.vmap(dmlops.nonzero_coordinates)(normal(3, 4))


def test_subclasses():
    x = normal(3, 5)
    part = x.as_subclass(Subclass)
    for name in ("top_k", "top_k_lengths", "nonzero", "gather_nd", "diagonal_matrix"):
        results = CALLS[name](part)
        assert all(type(result) is Subclass for result in results)
        assert_same([result.as_subclass(torch.Tensor) for result in results], CALLS[name](x))
    picks = torch.tensor([[2]]).as_subclass(Subclass)
    assert torch.equal(dmlops.gather_nd(x, picks).as_subclass(torch.Tensor), x[2:])


def test_parameters_and_modes():
    x = torch.nn.Parameter(normal(3, 5))
    assert dmlops.top_k(x, 2).values.requires_grad
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            results = dmlops.top_k(x, 2)
            assert not results.values.requires_grad
            assert_same(results, dmlops.top_k(x.detach(), 2))
    with torch.autocast("cpu", torch.bfloat16):
        half = x.detach().bfloat16().requires_grad_()
        assert dmlops.top_k(half, 2).values.dtype == torch.bfloat16


@pytest.mark.nightly
def test_ahead_of_time(tmp_path):
    """A package runs in a process that has imported the operators; no warning is raised on the way."""
    if not shutil.which("g++"):
        pytest.skip("unable to import module: no C++ compiler")
    script = f"""
        import torch, dmlops.integrations.torch
        model = torch._inductor.aoti_load_package({str(tmp_path / "model.pt2")!r})
        results = model(torch.arange(15.0).reshape(3, 5))
        print(results[0].tolist(), results[1].tolist())
    """

    class Model(torch.nn.Module):
        def forward(self, x):
            masked = dmlops.diagonal_matrix(x, value=-torch.inf, begin=1, end=9)
            coordinates, _ = dmlops.nonzero_coordinates(masked > 5)
            return coordinates, dmlops.top_k(masked, 1).indices

    with torch.no_grad():
        program = torch.export.export(Model(), (normal(3, 5, dtype=torch.float32),))
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "model.pt2"),
            inductor_configs={"aot_inductor.precompile_headers": False},  # they serve one model
        )
    expected = "[[1, 1], [2, 0], [2, 1], [2, 2]] [[0], [1], [2]]"
    assert run_script("import warnings; warnings.simplefilter('ignore')\n", script).strip() == expected


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_indices_that_are_changed_before_the_backward_pass(backend):
    function = dmlops.top_k if backend is None else compiled(dmlops.top_k, backend)
    x = torch.tensor([[3.0, 1, 2, 0]], requires_grad=True)
    values, indices = function(x, 2)
    indices += 1
    values.sum().backward()
    assert x.grad.tolist() == [[1, 0, 1, 0]]


def test_arguments_stay_where_they_are():
    """They do not move to torch's default device."""
    x, lengths, indices = normal(3, 5).requires_grad_(), torch.tensor([1, 2, 3]), torch.tensor([[0]])
    expected = dmlops.top_k(x, 2, lengths=lengths), dmlops.gather_nd(x, indices)
    with torch.device("meta"):
        for given in (lengths, lengths.tolist(), lengths.numpy()):
            assert_same(dmlops.top_k(x, 2, lengths=given), expected[0])
        for given in (indices, indices.tolist(), indices.numpy()):
            assert torch.equal(dmlops.gather_nd(x, given), expected[1])


def test_lists_of_symbols():
    """Numbers that a graph of dynamic shapes knows only by name."""

    def called(x, n):
        gathered = dmlops.gather_nd(x, [[0], [n - 1]])
        return gathered, *dmlops.top_k(x, 2, lengths=[n, 1, n - 1]), dmlops.sample(x, [1, n, n - 1])

    graph = compiled(called, dynamic=True)
    for n in (2, 3):
        assert_same(graph(normal(3, 4 + n), n), called(normal(3, 4 + n), n))
