"""Every call that a tracer of torch sees is an operator in its graph, or it is refused."""

import io
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import dmlops  # noqa: E402
from dmlops import DmlError  # noqa: E402
from tests.marks import exhaustive  # noqa: E402
from tests.torch_calls import CALLS, SHAPE, WRITES, Recorder, assert_same, values  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    # Sizes are compared while a call is traced, as they should be.
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

TRACED = "torch traces this call"


@pytest.fixture
def device():
    return "cpu"


def _jit(call, x):
    graph = torch.jit.trace(lambda x: tuple(call(x)), (x,), check_trace=False)
    return graph, str(graph.graph)


def _fx(**options):
    def trace(call, x):
        graph = make_fx(lambda x: tuple(call(x)), **options)(x)
        return graph, str(graph.code)

    return trace


TRACERS = {"jit": _jit}
TRACERS |= {
    f"{mode}{'_pre_dispatch' if early else ''}": _fx(tracing_mode=mode, pre_dispatch=early)
    for mode in ("real", "fake", "symbolic")
    for early in (False, True)
}


# A real trace and a symbolic one pass through the code of the others.
SERVED = [tracer if tracer[:3] in ("jit", "sym") else exhaustive(tracer) for tracer in TRACERS]


@pytest.mark.parametrize("tracer", SERVED)
@pytest.mark.parametrize("name", [name for name in CALLS if name != "nonzero"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_graphs_compute_the_answer(name, tracer, requires_grad, device):
    call, x = CALLS[name], values(device=device)
    for _ in range(3):  # so that there is a call to repeat
        call(x)
    graph, code = TRACERS[tracer](call, x.requires_grad_(requires_grad))
    assert "dmlops" in code
    assert "has_" not in code
    for seed in (1, 2):
        other = values(seed, device)
        assert_same([part.detach() for part in graph(other)], call(other))


def test_outputs_of_traced_calls():
    def call(x):
        return dmlops.top_k(x, 2, out=(x.new_zeros(3, 2), torch.zeros(3, 2, dtype=torch.int32)))

    for trace in TRACERS.values():
        graph, code = trace(call, values())
        assert "dmlops" in code
        assert_same(graph(values(1)), dmlops.top_k(values(1), 2, index_dtype="int32"))


def test_counts_that_graphs_find():
    def call(x):
        return tuple(dmlops.nonzero_coordinates(x))

    for trace in (TRACERS["jit"], TRACERS["real"]):
        graph, _ = trace(call, values())
        for x in (values(1), torch.ones(SHAPE), torch.zeros(SHAPE)):
            coordinates, count = graph(x)
            assert torch.equal(coordinates, x.nonzero())
            assert count.item() == len(coordinates)


@pytest.mark.parametrize("tracer", [tracer for tracer in TRACERS if tracer[:3] in ("jit", "rea")])
@pytest.mark.parametrize("name", WRITES)
def test_writes_that_no_graph_would_have(name, tracer, device):
    """Compiled operators, and functions of arrays of other libraries, into tensors."""
    call, make = WRITES[name]
    inputs = [values(device=device)] if name[0].isupper() else []
    inputs += [values().numpy()] if device == "cpu" and "eye" not in name and "without" not in name else []
    for x in inputs:
        out = [new(device) for new in make]
        for _ in range(3):
            call(x, *out)
        before = [tensor.clone() for tensor in out]

        def write(y, x=x, out=out):
            call(x, *out)
            return (y,)

        with pytest.raises(DmlError, match=TRACED):
            TRACERS[tracer](write, values(1, device))
        assert all(map(torch.equal, out, before))


def test_onnx():
    """The exporter without dynamo writes the operator, or refuses it where no one has told it of a symbol."""
    onnx = pytest.importorskip("onnx")

    class Largest(torch.nn.Module):
        def forward(self, x):
            return dmlops.top_k(x, 2)

    def export(**options):
        written = io.BytesIO()
        torch.onnx.export(Largest(), (values(),), written, dynamo=False, **options)
        return onnx.load_model_from_string(written.getvalue()).graph

    for _ in range(3):
        dmlops.top_k(values(), 2)
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="dmlops::top_k"):
        export()
    nodes = export(operator_export_type=torch.onnx.OperatorExportTypes.ONNX_FALLTHROUGH).node
    assert "top_k" in [node.op_type for node in nodes]


def wrapped(x):
    return dmlops.top_k(x, 2)


torch.fx.wrap("wrapped")


class TestSymbolicTrace:
    @pytest.mark.parametrize(
        ("call", "where"),
        [
            (lambda x: dmlops.top_k(x, 2), r"top_k\.x"),
            (lambda x: dmlops.top_k(np.ones(3), 2, lengths=x), r"top_k\.lengths"),
            (lambda x: dmlops.gather_nd(torch.ones(3), x), r"gather_nd\.indices"),
            (lambda x: dmlops.diagonal_matrix(np.ones((3, 5)), out=x), r"diagonal_matrix\.out"),
            (lambda x: dmlops.tril(x, 1), r"tril\.m"),
            (lambda x: dmlops.eye(3, like=x), r"eye\.like"),
        ],
    )
    def test_refused(self, call, where):
        text = where + r": got a torch\.fx\.Proxy, .*torch\.export or make_fx, .*torch\.fx\.wrap"
        with pytest.raises(TypeError, match=text):
            torch.fx.symbolic_trace(call)

    def test_the_remedy(self):
        graph = torch.fx.symbolic_trace(lambda x: wrapped(x + 1).values)
        x = values(1)
        assert torch.equal(graph(x), (x + 1).topk(2).values)


class TestModes:
    @pytest.mark.parametrize("name", CALLS)
    def test_dispatch_modes_see_operators(self, name):
        call, x = CALLS[name], values()
        for _ in range(3):
            expected = call(x)
            with Recorder() as mode:
                results = call(x)
            assert mode.operators()
            assert not any("has_" in str(operator) for operator, _ in mode.seen)
            assert_same(results, expected)

    def test_writes_that_no_mode_would_see(self):
        call, make = WRITES["TopK1"]
        out = [new("cpu") for new in make]
        for _ in range(3):
            call(values(), *out)
            with pytest.raises(DmlError, match=TRACED), Recorder():
                call(values(), *out)

    def test_modes_of_other_threads(self):
        x, entered, done = values(), threading.Event(), threading.Event()

        def other():
            with Recorder() as mode:
                entered.set()
                done.wait(60)
                seen.extend(mode.seen)

        seen = []
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        for _ in range(3):
            assert torch.equal(dmlops.tril(x), x.tril())
        done.set()
        thread.join()
        assert seen == []

    def test_flop_counters(self):
        x = values()
        for _ in range(3):
            with FlopCounterMode(display=False) as counter:
                assert torch.equal(dmlops.tril(x) @ x.T, x.tril() @ x.T)
            assert counter.get_total_flops() == 2 * (2 * 3 * 5 * 3)

    def test_default_devices(self):
        """A default device is a mode too, but only for what creates tensors."""
        x, out = values(), torch.zeros(SHAPE)
        for _ in range(3):
            with torch.device("meta"):
                assert torch.equal(dmlops.tril(x), x.tril())
                assert dmlops.eye(3, 5, like=x).device == x.device
                dmlops.tril(x.numpy(), out=out)
            assert torch.equal(out, x.tril())
