"""The plain functions on CUDA tensors that torch differentiates, compiles and captures."""

import shutil

import pytest

import dmlops
from dmlops import DeviceMismatchError

torch = pytest.importorskip("torch")

from tests.torch_calls import QUIET, assert_same  # noqa: E402

pytestmark = QUIET
needs_cpp = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


def logits(seed, rows=6, columns=300):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).cuda()


def attend(x, lengths):
    """Call every function as a graph that never waits has them."""
    masked = dmlops.diagonal_matrix(x, value=-1e30, begin=200, end=2**40)
    values, indices = dmlops.top_k(masked, 5, lengths=lengths, index_dtype=torch.int32)
    picked = dmlops.gather_nd(x, indices.clamp(min=0).unsqueeze(-1), batch_dims=1, mode="clip")
    rows, count = dmlops.nonzero_coordinates(masked > 1, size=40, fill_value=-1)
    return values, indices, picked, rows, count


@needs_cpp
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, mode=mode)
    for seed in range(5):
        x, lengths = logits(seed), torch.tensor([300, 7, 0, 2, 100, 299], device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert_same([part.clone() for part in compiled(x, lengths)], attend(x, lengths))


def test_a_cuda_graph_of_a_backward_pass():
    x, weights = logits(0).requires_grad_(), logits(1, 6, 5)

    def step():
        x.grad = None
        (dmlops.top_k(x, 5).values * weights).sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    x.grad = None
    with torch.cuda.graph(graph):
        (dmlops.top_k(x, 5).values * weights).sum().backward()
    for seed in range(3):
        with torch.no_grad():
            x.copy_(logits(seed))
        graph.replay()
        expected = torch.zeros_like(x).scatter_(1, x.detach().topk(5).indices, weights)
        assert torch.equal(x.grad, expected)


def test_on_the_stream_of_a_context():
    x, stream = logits(0).requires_grad_(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**7)
        values = dmlops.top_k(x * 2, 3).values
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(values, (x * 2).topk(3).values)
    with pytest.raises(TypeError, match=r"top_k\.stream: .*torch\.cuda\.stream"):
        dmlops.top_k(x, 3, stream=stream)


def test_indices_on_another_device():
    x = logits(0).requires_grad_()
    with pytest.raises(DeviceMismatchError, match=r"gather_nd\.indices: .* cpu"):
        dmlops.gather_nd(x, torch.tensor([[0]]))
    with pytest.raises(DeviceMismatchError, match=r"gather_nd\.indices: .* cpu"):
        dmlops.gather_nd(x, [[0]])


def test_vmap_never_waits():
    x = logits(0, 4, 50).round()
    dmlops.nonzero_coordinates(x[0], size=20)
    batched = torch.func.vmap(lambda x: dmlops.nonzero_coordinates(x, size=20, fill_value=-1))
    batched(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = batched(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for place, row in enumerate(x):
        assert_same(
            [part[place] for part in results], dmlops.nonzero_coordinates(row, size=20, fill_value=-1)
        )
