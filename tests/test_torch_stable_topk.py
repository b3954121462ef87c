"""`dmlops.integrations.torch.stable_topk`: code of models that calls torch.topk runs on dmlops' kernels."""

import io
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import dmlops  # noqa: E402
from dmlops.integrations.torch import stable_topk  # noqa: E402
from tests import reference  # noqa: E402
from tests.torch_calls import QUIET, Recorder, compiled, fresh_compiler  # noqa: E402, F401

pytestmark = QUIET
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if torch.cuda.is_available() else ("cpu",)
on_each_device = pytest.mark.parametrize("device", DEVICES)


def tied(*shape, device="cpu"):
    """Return floats of which many are equal."""
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0)).float().to(device)


def seen_by_torch(function, *arguments):
    """Return which operators select in a call: those of dmlops, or torch's own."""
    with Recorder() as mode:
        function(*arguments)
    return {operator.name() for operator, _ in mode.seen if "top" in operator.name()}


OURS, TORCHS = frozenset({"dmlops::top_k"}), frozenset({"aten::topk"})


def check(results, x, k, **options):
    """Compare with plain NumPy."""
    values, indices = reference.top_k(x.cpu().numpy(), k, **options)
    assert results.values.dtype == x.dtype
    assert results.indices.dtype == torch.int64
    assert np.array_equal(results.values.cpu().numpy(), values)
    assert np.array_equal(results.indices.cpu().numpy(), indices)


FORMS = {
    "function": (lambda x: torch.topk(x, 3), {}),
    "method": (lambda x: x.topk(3), {}),
    "positions": (
        lambda x: torch.topk(x, 3, 0, False, False),
        {"axis": 0, "largest": False, "sorted": False},
    ),
    "names": (
        lambda x: torch.topk(input=x, k=3, dim=1, largest=True, sorted=False),
        {"axis": 1, "sorted": False},
    ),
    "method with names": (lambda x: x.topk(k=3, largest=False), {"largest": False}),
    "NumPy's names": (lambda x: torch.topk(x=x, k=3, axis=0), {"axis": 0}),
}


@on_each_device
@pytest.mark.parametrize(("call", "options"), FORMS.values(), ids=FORMS)
def test_every_form_of_the_call(call, options, device):
    x = tied(5, 40, device=device)
    with stable_topk():
        results = call(x)
    assert type(results) is torch.return_types.topk
    check(results, x, 3, **options)


@pytest.mark.parametrize("sizes", [(5, 3), (0,)], ids=["fits", "without elements"])
def test_out(sizes):
    x = tied(5, 40)
    out = torch.empty(sizes), torch.empty(sizes, dtype=torch.int64)
    with stable_topk():
        results = torch.topk(x, 3, out=out)
    assert type(results) is torch.return_types.topk_out
    assert results.values is out[0]
    assert results.indices is out[1]
    check(results, x, 3)
    with stable_topk(), pytest.raises(dmlops.InvalidDescriptorError, match=r"top_k.*int32.*int64"):
        torch.topk(x, 3, out=(out[0], out[1].int()))


def test_tensors_without_dimensions():
    x = torch.tensor(3.0)
    out = torch.empty(()), torch.empty((), dtype=torch.int64)
    with stable_topk():
        for results in (torch.topk(x, 1), torch.topk(x, 1, out=out)):
            assert results.values.equal(x)
            assert results.indices.equal(torch.tensor(0))


def test_integers():
    x = tied(3, 9).int()
    with stable_topk():
        check(x.topk(4), x, 4)


def test_only_in_the_context():
    x = tied(3, 9)
    call = lambda: x.topk(2)  # noqa: E731
    assert seen_by_torch(call) == TORCHS
    with stable_topk():
        assert seen_by_torch(call) == OURS
        with stable_topk():
            assert seen_by_torch(call) == OURS
        assert seen_by_torch(call) == OURS
        with pytest.raises(dmlops.InvalidDescriptorError, match=r"top_k\.k: got 10"):
            x.topk(10)
    assert seen_by_torch(call) == TORCHS


def test_what_dmlops_refuses_never_becomes_torchs_own():
    x = torch.tensor([1.0, 2.0]).to_sparse()
    with stable_topk(), pytest.raises(TypeError, match=r"top_k\.x.*to_dense"):
        torch.topk(x, 1)
    with stable_topk(), pytest.raises(TypeError, match="unexpected keyword argument 'direction'"):
        torch.topk(tied(3), 1, direction="up")


def test_enable_and_disable():
    x = tied(3, 9)
    call = lambda: x.topk(2)  # noqa: E731
    mode = stable_topk()
    mode.enable()
    mode.enable()
    assert seen_by_torch(call) == OURS
    mode.disable()
    assert seen_by_torch(call) == OURS
    mode.disable()
    assert seen_by_torch(call) == TORCHS


class Other(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


def test_disable_leaves_no_other_mode():
    mode = stable_topk()
    with pytest.raises(RuntimeError, match="call enable"):
        mode.disable()
    mode.enable()
    for inner in (Other(), stable_topk()):
        with inner, pytest.raises(RuntimeError, match="entered since"):
            mode.disable()
    mode.disable()
    with pytest.raises(RuntimeError, match="call enable"):
        mode.disable()


def test_all_threads_while_any_is_in_the_context():
    x = torch.zeros(3, 9)
    found = {}

    def work(number):
        if number % 2:
            mode = stable_topk()
            mode.enable()
        barrier.wait()
        found[number] = x.topk(2).indices.tolist()
        barrier.wait()
        if number % 2:
            mode.disable()

    own = x.topk(2).indices.tolist()
    for _ in range(20):
        barrier = threading.Barrier(4, timeout=60)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == dict.fromkeys(range(4), [[0, 1]] * 3)
        assert x.topk(2).indices.tolist() == own


@on_each_device
def test_calls_of_the_operator_itself(device):
    x = tied(3, 40, device=device)
    out = torch.empty(3, 4, device=device), torch.empty(3, 4, dtype=torch.int64, device=device)
    scripted = torch.jit.trace(lambda x: torch.topk(x, 4), x)
    with stable_topk():
        for results in (
            torch.ops.aten.topk(x, 4),
            torch.ops.aten.topk.values(x, 4, values=out[0], indices=out[1]),
            scripted(x),
        ):
            check(torch.return_types.topk(tuple(results)), x, 4)
    assert seen_by_torch(scripted, x) == TORCHS


def test_derivative():
    x = tied(3, 9).requires_grad_()
    with stable_topk():
        values, indices = x.topk(2)
    values.mul(torch.arange(6.0).reshape(3, 2)).sum().backward()
    expected = np.zeros((3, 9), np.float32)
    np.put_along_axis(expected, indices.numpy(), np.arange(6, dtype=np.float32).reshape(3, 2), 1)
    assert np.array_equal(x.grad.numpy(), expected)


@on_each_device
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_parts_that_a_backward_pass_computes_again(use_reentrant, device):
    x = tied(3, 40, device=device).requires_grad_()
    with stable_topk():
        part = checkpoint(lambda x: x.topk(4).values, x * 1, use_reentrant=use_reentrant)
        part.backward(torch.ones_like(part))
    expected = np.zeros((3, 40), np.float32)
    np.put_along_axis(expected, reference.top_k(x.detach().cpu().numpy(), 4)[1], 1, 1)
    assert np.array_equal(x.grad.cpu().numpy(), expected)


def test_bodies_of_operators():
    def function(x):
        return torch.cond(x.sum() >= 0, lambda x: x.topk(2).indices, lambda x: -x.topk(2).indices, (x,))

    with stable_topk():
        assert compiled(function)(torch.zeros(3, 9)).tolist() == [[0, 1]] * 3


def test_vmap():
    x = tied(4, 3, 9)
    with stable_topk():
        results = torch.func.vmap(lambda x: tuple(x.topk(2)))(x)
    check(torch.return_types.topk(results), x, 2)


def recorded(function, **options):
    """Compile a function without a graph break; return it, and a list of what selects in each run."""
    runs = []

    def backend(graph, inputs):
        targets = [node.target for node in graph.graph.nodes if "top" in str(node.target)]
        selecting = {OURS if "dmlops" in str(target) else TORCHS for target in targets}

        def run(*arguments):
            runs.append(selecting)
            return graph(*arguments)

        return run

    return compiled(function, backend, **options), runs


@on_each_device
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions(dynamic, device):
    def function(x):
        values, indices = torch.topk(x, 3)
        return values + 1, indices, x.topk(2, dim=0, largest=False)

    graph, runs = recorded(function, dynamic=dynamic)
    x = tied(6, 40, device=device)
    graph(x)
    with stable_topk():
        for rows in (6, 7):  # the second time with another size
            x = tied(rows, 40, device=device)
            values, indices, smallest = graph(x)
            check(torch.return_types.topk((values - 1, indices)), x, 3)
            check(smallest, x, 2, axis=0, largest=False)
    graph(x)
    assert runs == [{TORCHS}, {OURS}, {OURS}, {TORCHS}]


def test_context_within_a_compiled_function():
    def function(x):
        with stable_topk():
            ours = x.topk(3)
        return ours, x.topk(1)

    x = tied(6, 40)
    graph, runs = recorded(function)
    ours, _ = graph(x)
    check(ours, x, 3)
    assert runs == [{OURS, TORCHS}]


class Best(torch.nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, k=3, dim=-1)
        return values * 2, indices


def test_contexts_across_breaks_of_a_graph():
    def within(x):
        with stable_topk():
            first = x.topk(3)
            torch._dynamo.graph_break()
            return first, x.topk(2)

    def enabled(x):
        mode = stable_topk()
        mode.enable()
        first = x.topk(3)
        mode.disable()
        return first, x.topk(2)

    x, alike = tied(6, 40), torch.zeros(3, 9)
    own = alike.topk(2).indices
    for function in (within, enabled):
        graph = torch.compile(function, backend="eager")
        for _ in range(2):
            results = graph(x)
            check(results[0], x, 3)
            assert torch.equal(results[1].values, x.topk(2).values)
            assert seen_by_torch(lambda: x.topk(1)) == TORCHS
            # Neither a mode nor a kernel of dmlops is left.
            assert torch.equal(alike.topk(2).indices, own)
            assert torch.equal(torch.ops.aten.topk(alike, 2)[1], own)
    torch.compiler.reset()
    with pytest.raises(Exception, match="enable: call it outside of compiled functions"):
        compiled(enabled)(x)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_keep_it(strict):
    rows = torch.export.Dim("rows")
    x = tied(6, 40)
    with stable_topk():
        program = torch.export.export(Best(), (x,), dynamic_shapes=({0: rows},), strict=strict)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    loaded = torch.export.load(saved).module()
    x = tied(9, 40)
    assert seen_by_torch(loaded, x) == OURS
    values, indices = loaded(x)
    check(torch.return_types.topk((values / 2, indices)), x, 3)


class Router(torch.nn.Module):
    """The router of DeepSeek-V3, as its published code has it: groups first, then experts, with a bias."""

    def __init__(self, width=16, n_experts=32, n_groups=4, n_selected_groups=2, k=6):
        super().__init__()
        self.n_groups, self.n_selected_groups, self.k = n_groups, n_selected_groups, k
        self.weight = torch.nn.Parameter(torch.randint(-1, 2, (n_experts, width)).float())
        self.bias = torch.nn.Parameter(torch.randint(0, 3, (n_experts,)).float() / 4)

    def forward(self, hidden):
        scores = torch.nn.functional.linear(hidden, self.weight).sigmoid()
        biased = scores + self.bias
        grouped = biased.view(len(hidden), self.n_groups, -1)
        group_scores = grouped.topk(2, dim=-1)[0].sum(dim=-1)
        groups = torch.topk(group_scores, k=self.n_selected_groups, dim=-1, sorted=False)[1]
        mask = torch.zeros_like(group_scores).scatter_(1, groups, 1).unsqueeze(-1).expand_as(grouped)
        masked = grouped.masked_fill(~mask.bool(), -torch.inf).reshape(len(hidden), -1)
        experts = torch.topk(masked, k=self.k, dim=-1, sorted=False)[1]
        weights = scores.gather(1, experts)
        return experts, weights / weights.sum(dim=-1, keepdim=True)


def routed(router, hidden):
    """Return the experts of each token, in ascending order, by sorting in plain NumPy."""
    biased = (hidden @ router.weight.T).sigmoid() + router.bias
    answer = []
    for row in biased.detach().cpu().numpy().reshape(len(hidden), router.n_groups, -1):
        group_scores = np.sort(row, axis=-1)[:, -2:].sum(axis=-1)
        groups = np.argsort(-group_scores, kind="stable")[: router.n_selected_groups]
        eligible = np.full_like(row, -np.inf)
        eligible[groups] = row[groups]
        answer.append(np.sort(np.argsort(-eligible.ravel(), kind="stable")[: router.k]))
    return np.array(answer)


@on_each_device
@pytest.mark.parametrize("compiles", [False, True])
def test_router_of_deepseek(compiles, device):
    torch.manual_seed(0)
    router = Router()
    # Small integers, so that scores tie and sums of any order are equal.
    hidden = torch.randint(-1, 2, (64, 16)).float()
    router, hidden = router.to(device), hidden.to(device)
    expected = routed(router, hidden)
    with stable_topk(), torch.no_grad():
        experts, weights = (compiled(router) if compiles else router)(hidden)
        alone = [router(token[None])[0] for token in hidden]
    assert np.array_equal(experts.cpu().numpy(), expected)
    assert torch.equal(torch.cat(alone), experts)
    torch.testing.assert_close(weights.sum(-1), torch.ones(64, device=device))


class Model(torch.nn.Module):
    """A language model with random weights: attention, and a mixture of experts behind the router."""

    def __init__(self, n_tokens=50, width=16, n_experts=8):
        super().__init__()
        self.embedding = torch.nn.Embedding(n_tokens, width)
        self.router = Router(width, n_experts, 4, 2, 3)
        self.experts = torch.nn.Parameter(torch.randn(n_experts, width, width) / 4)
        self.head = torch.nn.Linear(width, n_tokens)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        hidden = hidden + (hidden @ hidden.mT).softmax(-1) @ hidden
        flat = hidden.reshape(-1, hidden.shape[-1])
        experts, weights = self.router(flat)
        mixed = torch.einsum("tk,tw,tkwv->tv", weights, flat, self.experts[experts])
        return self.head((flat + mixed).reshape(hidden.shape)[:, -1])


def generated(model, tokens, k=10, top_p=0.9, n=4):
    """Generate tokens as libraries do: top-k, then top-p, then a draw."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(n):
        logits = model(tokens)
        logits = logits.masked_fill(logits < torch.topk(logits, k)[0][..., -1, None], -torch.inf)
        ordered, order = torch.sort(logits, descending=False)
        removed = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        logits = logits.masked_fill(removed.scatter(1, order, removed), -torch.inf)
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


def test_a_model_generates_as_before():
    torch.manual_seed(0)
    model = Model().eval()
    tokens = torch.randint(0, 50, (3, 5))
    with torch.no_grad():
        plain = generated(model, tokens)
        with stable_topk():
            assert seen_by_torch(generated, model, tokens) == OURS
            eager = generated(model, tokens)
            model = compiled(model, dynamic=True)
            graph = generated(model, tokens)
    # Random weights have no ties, where torch's own selects the same.
    assert torch.equal(eager, plain)
    assert torch.equal(graph, eager)
