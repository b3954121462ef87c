"""The plain functions on tensors that torch differentiates, transforms or traces."""

import gc
import shutil
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import func  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import dmlops  # noqa: E402
from dmlops import DeviceMismatchError, DmlError, FeatureLevel  # noqa: E402
from dmlops.array_libraries.numpy import NUMPY  # noqa: E402
from tests.scripts import run_script  # noqa: E402

# Importing torch's compiler raises warnings about torch itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

INDEX_TYPES = (torch.int32, torch.int64, torch.uint32, torch.uint64)
LENGTHS = torch.tensor([5, 0, 2])


@pytest.fixture(autouse=True)
def _fresh_compiler(monkeypatch, tmp_path_factory):
    # torch's cache on disk knows graphs by the names of operators, not by their code.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    torch.compiler.reset()


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def assert_same(actual, expected):
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


# Calls of every function with every argument that matters to a graph.
CALLS = {
    "top_k": lambda x: dmlops.top_k(x, 2),
    "top_k_unsorted": lambda x: dmlops.top_k(x, 3, axis=0, largest=False, sorted=False),
    "top_k_lengths": lambda x: dmlops.top_k(x, 3, lengths=LENGTHS, index_dtype="uint32"),
    "top_k_lengths_unsorted": lambda x: dmlops.top_k(
        x, 3, sorted=False, lengths=LENGTHS, index_dtype=np.int32
    ),
    "nonzero": lambda x: dmlops.nonzero_coordinates(x > 0, index_dtype=torch.uint64),
    "nonzero_static": lambda x: dmlops.nonzero_coordinates(
        x > 0, size=20, fill_value=-1, index_dtype="int32"
    ),
    "gather_nd": lambda x: (dmlops.gather_nd(x, torch.tensor([[0, -1], [2, 3]])),),
    "gather_nd_list": lambda x: (dmlops.gather_nd(x, [[0], [2]]),),
    "gather_nd_fill": lambda x: (dmlops.gather_nd(x, torch.tensor([[0], [7]]).int(), mode="fill"),),
    "gather_nd_batch": lambda x: (dmlops.gather_nd(x, torch.tensor([[[4]], [[0]], [[1]]]), batch_dims=1),),
    "gather_nd_one": lambda x: (dmlops.gather_nd(x, [1, -1]),),
    "gather_nd_no_index": lambda x: (dmlops.gather_nd(x, torch.zeros(3, 2, 0).long(), batch_dims=1),),
    "diagonal_matrix": lambda x: (dmlops.diagonal_matrix(x, value=-np.inf, begin=1, end=2**64),),
    "tril": lambda x: (dmlops.tril(x, -1),),
    "numpy_scalars": lambda x: (
        dmlops.top_k(dmlops.diagonal_matrix(x, value=np.float32(9.5)), np.int64(2)).values,
    ),
    "like": lambda x: (dmlops.diagonal_matrix(shape=(3, 4), dtype="int16", value=7, like=x),),
    "eye": lambda x: (dmlops.eye(4, k=1, like=x),),
}


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
            return dmlops.diagonal_matrix(x, value=value.item()), dmlops.diagonal_matrix(x, value=x.shape[0])

    program = torch.export.export(
        Model(),
        (normal(3, 5), torch.tensor(2.5)),
        strict=strict,
        dynamic_shapes=[{0: torch.export.Dim("n")}, {}],
    )
    x, diagonal = normal(4, 5), ~torch.eye(4, 5, dtype=torch.bool)
    assert_same(program.module()(x, torch.tensor(torch.inf)), [x.where(diagonal, n) for n in (torch.inf, 4)])


def test_addresses_of_numpy_arrays_in_compiled_functions():
    """torch's compiler frees objects as soon as no variable is read any more."""
    x = np.arange(3.0)
    assert torch.compile(NUMPY.address, backend="eager")(x) == x.ctypes.data


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


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name not in ("nonzero", "nonzero_static", "like", "eye")]
)
def test_gradients(name):
    def values(x):
        return CALLS[name](x)[0].nan_to_num(neginf=-9, posinf=9)

    x = normal(3, 5).requires_grad_()
    assert gradcheck(values, (x,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x: values(x) ** 3, (x,))


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
        print("dmlops.integrations.torch.operators" in sys.modules)
        dmlops.top_k(x.clone().requires_grad_(), 2)
        print("dmlops.integrations.torch.operators" in sys.modules, "torch._dynamo" in sys.modules)
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
        *("False", "True", "False")
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

    @pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3), (4,), (4, 0), (4, 3, 0, 2)])
    @pytest.mark.parametrize("size", [0, 3, 9])
    def test_nonzero_coordinates(self, shape, size):
        x = normal(*shape).round()
        x.reshape(-1)[::3] = -0.0
        batched = func.vmap(lambda x: dmlops.nonzero_coordinates(x, size=size, fill_value=-7))(x)
        for row, coordinates, count in zip(x, *batched, strict=True):
            assert_same((coordinates, count), dmlops.nonzero_coordinates(row, size=size, fill_value=-7))

    @pytest.mark.parametrize("dtype", [*INDEX_TYPES, torch.bool, torch.bfloat16, torch.complex64])
    def test_nonzero_coordinates_of_any_type(self, dtype):
        x = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]]).to(dtype)
        coordinates, count = func.vmap(
            lambda x: dmlops.nonzero_coordinates(x, size=1, index_dtype="uint32"), in_dims=1
        )(x)
        assert coordinates.flatten().tolist() == [1, 0, 2, 0][:0] or coordinates.dtype == torch.uint32
        assert count.tolist() == [1, 2, 0, 1]

    def test_a_count_per_example_is_refused(self):
        with pytest.raises(DmlError, match=r"nonzero_coordinates\.size: got None, .*vmap"):
            func.vmap(dmlops.nonzero_coordinates)(normal(3, 4))

    def test_lengths(self):
        x, lengths = normal(3, 5), torch.tensor([[5, 0, 2], [1, 1, 9]])
        batched = func.vmap(lambda n: dmlops.top_k(x, 2, sorted=False, lengths=n))(lengths)
        for place in range(2):
            expected = dmlops.top_k(x, 2, sorted=False, lengths=lengths[place])
            assert_same([part[place] for part in batched], expected)


class TestOut:
    """Graphs write into tensors that the caller gives."""

    def test_top_k(self):
        x, out = normal(3, 5), (torch.zeros(3, 2).double(), torch.zeros(3, 2).int())
        results = compiled(lambda x, out: dmlops.top_k(x * 2, 2, out=out))(x, out)
        expected = dmlops.top_k(x * 2, 2, index_dtype="int32")
        assert_same(out, expected)
        assert_same(results, expected)

    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_nonzero_coordinates(self, shape):
        x, out = normal(3, 5), (torch.zeros(15, 2).long(), torch.zeros(shape).long())
        compiled(lambda x, out: dmlops.nonzero_coordinates(x, fill_value=0, out=out))(x, out)
        assert_same((out[0], out[1].reshape(())), dmlops.nonzero_coordinates(x))

    def test_in_vmap(self):
        x, out = normal(3, 5), (torch.zeros(3, 2).double(), torch.zeros(3, 2).long())
        func.vmap(lambda x, *out: dmlops.top_k(x, 2, out=out))(x, *out)
        assert_same(out, x.topk(2))

    def test_others(self):
        x, picked, matrix = normal(3, 5), torch.zeros(1, 5).double(), torch.zeros(3, 5).double()

        def call(x, picked, matrix):
            return dmlops.gather_nd(x, [[2]], out=picked), dmlops.diagonal_matrix(x, out=matrix)

        compiled(call)(x, picked, matrix)
        assert torch.equal(picked, x[2:])
        assert torch.equal(matrix, dmlops.diagonal_matrix(x))

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: torch.zeros(1, 4).double(), r"gather_nd\.out: .*shapes must be equal"),
            (lambda: torch.zeros(1, 5), r"gather_nd\.out: .*float64"),
            (lambda: torch.zeros(1, 5, device="meta").double(), r"gather_nd\.out: .*device"),
            (lambda: np.zeros((1, 5)), r"gather_nd\.out: got an ndarray"),
            (lambda: torch.zeros(1, 5).double().requires_grad_(), r"gather_nd\.out: .*no derivative"),
        ],
    )
    def test_refused(self, make, text):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            x = mode.from_tensor(normal(3, 5))
        with pytest.raises((TypeError, DmlError), match=text):
            dmlops.gather_nd(x, [[2]], out=make())

    def test_nothing_is_written_if_one_does_not_fit(self):
        x, out = normal(3, 5).as_subclass(Subclass), (torch.zeros(3, 2).double(), torch.zeros(3, 3).long())
        with pytest.raises(DmlError, match=r"top_k\.out\[1\]: got torch\.int64 of shape \(3, 3\)"):
            dmlops.top_k(x, 2, out=out)
        assert not out[0].any()

    def test_no_derivative(self):
        out = torch.zeros(3, 1).double(), torch.zeros(3, 1).long()
        x = normal(3, 5).requires_grad_()
        with pytest.raises(TypeError, match=r"top_k\.out\[0\]: .* no derivative; leave out"):
            dmlops.top_k(x, 1, out=out)
        with torch.no_grad():
            assert torch.equal(dmlops.top_k(x, 1, out=out).values, x.detach().topk(1).values)


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda x: dmlops.top_k(x, 1, stream=7), r"top_k\.stream: got 7, .*torch\.cuda\.stream"),
            (lambda x: dmlops.top_k([1.0, 2.0], 1), r"top_k\.x: got a list, .*must be a tensor"),
            (lambda x: dmlops.top_k(x, 6), r"top_k\.k: got 6, but axis 1 of x has 5 elements"),
            (lambda x: dmlops.top_k(x, -x.shape[0]), r"top_k\.k: got -3"),
            (lambda x: dmlops.top_k(x, 1, axis=2**63), r"top_k\.axis: got 9223372036854775808, .*64 bits"),
            (lambda x: dmlops.top_k(x, 1, index_dtype="int8"), r"top_k\.index_dtype: got 'int8'"),
            (lambda x: dmlops.gather_nd(x, [[0]], mode="wrap"), r"gather_nd\.mode: got .*wrap.*no such mode"),
            (
                lambda x: dmlops.gather_nd(x, [[0]], mode=None),
                r"gather_nd\.mode: got None, but there is no such mode",
            ),
            (lambda x: dmlops.diagonal_matrix(shape=(2, 2)), r"diagonal_matrix\.like: got None, .*NumPy"),
            (lambda x: dmlops.diagonal_matrix(x, value=2**63), r"diagonal_matrix\.value: .*64 bits"),
            (lambda x: dmlops.diagonal_matrix(x, value=x.sum()), r"diagonal_matrix\.value: .*no derivative"),
            (
                lambda x: dmlops.nonzero_coordinates(x, fill_value=1),
                r"fill_value: got 1, but size is left out",
            ),
            (lambda x: dmlops.nonzero_coordinates(x, size=-1), r"nonzero_coordinates\.size: "),
        ],
    )
    def test_in_graphs(self, call, text):
        with pytest.raises(Exception, match=text):
            compiled(call)(normal(3, 5))

    def test_a_matrix_like_nested_tensors(self):
        like = torch.nested.nested_tensor([normal(2), normal(3)], layout=torch.jagged)
        with pytest.raises(TypeError, match=r"diagonal_matrix\.like: got a nested tensor"):
            dmlops.diagonal_matrix(shape=(2, 2), like=like)

    def test_sizes_that_change(self):
        """Errors of graphs that stand for many sizes name the argument too."""
        x, lengths = normal(3, 5), torch.tensor([1, 2, 3])
        graph = compiled(lambda x, k, n: dmlops.top_k(x, k, lengths=n), dynamic=True)
        graph(x, 2, lengths)
        for k, n, text in (
            (6, lengths, r"top_k\.k: got \w+, but the axis of x has \w+ elements"),
            (-4, lengths, r"top_k\.k: got \S+, but it must be >= 0"),
            (3, lengths[1:], r"top_k\.lengths: got shape \(\w+,\), but x has sizes \(\w+,\) there"),
        ):
            with pytest.raises(Exception, match=text):
                graph(x, k, n)

    def test_numbers_beyond_64_bits_with_a_gradient(self):
        with pytest.raises(DmlError, match=r"top_k\.k: got 9223372036854775808, .*64 bits"):
            dmlops.top_k(normal(3, 5).requires_grad_(), 2**63)

    def test_streams_with_a_gradient(self):
        with pytest.raises(TypeError, match=r"top_k\.stream: got 0, .* call it within torch\.cuda\.stream"):
            dmlops.top_k(normal(3, 5).requires_grad_(), 1, stream=0)

    def test_devices_with_a_gradient(self):
        with pytest.raises(DeviceMismatchError, match=r"gather_nd\.indices: .* meta"):
            dmlops.gather_nd(normal(3, 5).requires_grad_(), torch.zeros(1, 1, device="meta").long())

    def test_rows_of_meta_tensors(self):
        with pytest.raises(DmlError, match=r"nonzero_coordinates\.size: got None"):
            dmlops.nonzero_coordinates(torch.ones(3, device="meta"))
        assert dmlops.nonzero_coordinates(torch.ones(3, device="meta"), size=2).coordinates.shape == (2, 1)

    def test_levels(self):
        x = normal(1, 1, 3, 5, dtype=torch.float32)
        with dmlops.feature_level(FeatureLevel.DML_6_4):
            results = dmlops.top_k(x.clone().requires_grad_(), 2)
            assert_same(results, dmlops.top_k(x, 2))
            assert results.indices.dtype == torch.uint32
            with pytest.raises(dmlops.UnsupportedFeatureError, match=r"top_k\.lengths"):
                dmlops.top_k(x.requires_grad_(), 2, lengths=torch.ones(1, 1, 3).long())


class Subclass(torch.Tensor):
    """A subclass with memory."""


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


def test_programs_of_any_size(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return dmlops.top_k(dmlops.diagonal_matrix(x, value=-torch.inf, begin=1, end=9), x.shape[0])

    rows = torch.export.Dim("rows", max=5)
    for strict in (False, True):
        program = torch.export.export(Model(), (normal(3, 5),), strict=strict, dynamic_shapes=[{0: rows}])
        torch.export.save(program, tmp_path / "model.pt2")
        values, indices = torch.export.load(tmp_path / "model.pt2").module()(normal(4, 5))
        assert_same((values, indices), Model()(normal(4, 5)))


@pytest.mark.exhaustive
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


@pytest.mark.parametrize(("fill", "dtype"), [(2**32 + 5, "int32"), (-1, "uint32")])
def test_fill_values_are_checked_before_they_are_converted(fill, dtype):
    def found(x):
        return dmlops.nonzero_coordinates(x, size=2, fill_value=fill, index_dtype=dtype).coordinates

    told = rf"^nonzero_coordinates\.fill_value: got {fill}, but coordinates are {dtype.upper()}"
    for call in (found, func.vmap(found)):
        with pytest.raises(dmlops.InvalidDescriptorError, match=told):
            call(torch.eye(2))
    with pytest.raises(dmlops.InvalidDescriptorError, match=told):
        found(torch.empty(2, 2, device="meta"))


def test_torch_has_no_derivative_of_gathers_of_float8():
    x = torch.ones(3, 4).to(torch.float8_e4m3fn)
    assert dmlops.gather_nd(x, torch.tensor([[0]])).shape == (1, 4)
    with pytest.raises(TypeError, match=r"^gather_nd\.x: got torch\.float8_e4m3fn, but torch has no deriv"):
        dmlops.gather_nd(x.requires_grad_(), torch.tensor([[0]]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda x: dmlops.diagonal_matrix(shape=(2, -1), like=x),
            "diagonal_matrix.shape: got (2, -1), but a",
        ),
        (lambda x: dmlops.diagonal_matrix(shape=5, like=x), "diagonal_matrix.shape: got 5, but it is not a"),
        (lambda x: dmlops.diagonal_matrix(shape=(3,), like=x), "diagonal_matrix.shape: got 1 dimension"),
        (lambda x: dmlops.diagonal_matrix(x[0]), "diagonal_matrix.x: got 1 dimension"),
        (lambda x: dmlops.tril(x[0]), "tril.m: got 1 dimension"),
        (
            lambda x: dmlops.nonzero_coordinates(x, out=(x[0, 0].long(),) * 2),
            "nonzero_coordinates.out[0]: got",
        ),
    ],
)
def test_stand_ins_get_the_message_of_other_tensors(call, told):
    for x in (torch.empty(3, 5), torch.empty(3, 5, device="meta")):
        with pytest.raises((DmlError, TypeError)) as raised:
            call(x)
        assert str(raised.value).startswith(told)


def test_tangents_of_outputs_are_refused():
    """They would stay what they were."""
    x, indices, out = normal(3, 5), torch.tensor([[0], [1]]), torch.zeros(2, 5, dtype=torch.float64)
    for _ in range(3):
        dmlops.gather_nd(x, indices, out=out)
    with torch.autograd.forward_ad.dual_level():
        dmlops.gather_nd(x, indices, out=out)
        dual = torch.autograd.forward_ad.make_dual(out, torch.ones_like(out))
        with pytest.raises(
            dmlops.InvalidDescriptorError, match=r"^gather_nd\.out: got a tensor with a tangent"
        ):
            dmlops.gather_nd(x, indices, out=dual)
