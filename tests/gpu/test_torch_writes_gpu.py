"""Calls that write into torch's CUDA tensors, also on streams of the caller: torch is told."""

import pytest

torch = pytest.importorskip("torch")

import dmlops  # noqa: E402
from tests.test_torch_writes import (  # noqa: E402, F401 - collected here with CUDA tensors
    MODIFIED,
    test_a_refused_call_is_no_write,
    test_a_saved_tensor_that_is_overwritten,
    test_every_write_is_counted,
    test_inference_tensors,
    test_interrupts_between_the_write_and_the_count,
    test_leaves_that_require_a_gradient,
)


class Foreign:
    """Memory of a tensor as an array of another library."""

    def __init__(self, tensor):
        self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


@pytest.fixture
def device():
    return "cuda"


@pytest.fixture(params=["torch", "foreign"])
def of(request):
    return Foreign if request.param == "foreign" else torch.Tensor.contiguous


def test_streams():
    """The write is counted when the call returns, whichever stream will write."""
    x, out, side = torch.ones(3, 3, device="cuda"), torch.zeros(3, 3, device="cuda"), torch.cuda.Stream()
    for stream in (None, side, side.cuda_stream):
        for _ in range(4):
            a, before = torch.ones(3, 3, device="cuda", requires_grad=True), out._version
            loss = (a * out).sum()
            dmlops.tril(x, out=out, stream=stream)
            assert out._version > before
            with torch.cuda.stream(side):
                dmlops.tril(x, out=out)
            with pytest.raises(RuntimeError, match=MODIFIED):
                loss.backward()


def test_captured_calls():
    """The call that is captured is counted; what a graph replays is not, as with torch's own operators."""
    x, out = torch.ones(3, 3, device="cuda"), torch.zeros(3, 3, device="cuda")
    dmlops.tril(x, out=out)
    graph, before = torch.cuda.CUDAGraph(), out._version
    with torch.cuda.graph(graph):
        dmlops.tril(x, out=out)
    assert out._version > before
