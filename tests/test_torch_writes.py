"""Calls that write into torch's tensors: version counters and inference tensors."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dmlops  # noqa: E402
from dmlops import DmlError  # noqa: E402
from tests.torch_calls import SHAPE, WRITES, rows, values  # noqa: E402

# The first calls bind, and the later ones repeat what was bound.
ROUNDS = 4
MODIFIED = "modified by an inplace operation"
INFERENCE = r"got an inference tensor, but .*torch\.inference_mode"

writes = pytest.mark.parametrize("name", WRITES)


@pytest.fixture
def device():
    return "cpu"


@pytest.fixture(params=["torch", "numpy"])
def of(request):
    """Return what makes the input of a tensor."""
    return torch.Tensor.numpy if request.param == "numpy" else torch.Tensor.contiguous


def versions(tensors):
    return [tensor._version for tensor in tensors]


@writes
def test_every_write_is_counted(name, of, device):
    """As torch's own operators have it: views and `detach` share the counter, and `data` does not."""
    call, make = WRITES[name]
    x, bases = of(values(device=device)), [torch.stack([new(device)] * 2) for new in make]
    for view, is_shared in (
        (lambda base: base[1], True),
        (lambda base: base.detach()[1], True),
        (lambda base: base.data[1], False),
    ):
        for _ in range(ROUNDS):
            before = versions(bases)
            call(x, *map(view, bases))
            counted = [now > then for now, then in zip(versions(bases), before, strict=True)]
            assert counted == [is_shared] * len(bases)


@pytest.mark.parametrize("tril", [torch.tril, dmlops.tril])
def test_a_saved_tensor_that_is_overwritten(tril, device):
    for _ in range(ROUNDS):
        a = torch.ones(2, 2, device=device, requires_grad=True)
        w = torch.full((2, 2), 5.0, device=device)
        loss = (a * w).sum()
        tril(torch.ones(2, 2, device=device), out=w)
        with pytest.raises(RuntimeError, match=MODIFIED):
            loss.backward()


# The others write integers.
@pytest.mark.parametrize("name", [name for name in WRITES if "onzero" not in name and name != "sample"])
def test_leaves_that_require_a_gradient(name, device):
    """torch refuses them as outputs, and counts the write where gradients are off."""
    call, make = WRITES[name]
    x, out = values(device=device), [new(device) for new in make]
    next(tensor for tensor in out if tensor.is_floating_point()).requires_grad_()
    for _ in range(ROUNDS):
        with pytest.raises(DmlError, match=r"requires a gradient.*torch\.no_grad"):
            call(x, *out)
        assert not any(versions(out))
    for n in range(1, ROUNDS):
        with torch.no_grad():
            call(x, *out)
        assert versions(out) == [n] * len(out)


@writes
def test_inference_tensors(name, device):
    call, make = WRITES[name]
    x = values(device=device)
    with torch.inference_mode():
        out = [new(device) for new in make]
    for written in ([*out[:-1], make[-1](device)], [make[0](device), *out[1:]], out):
        if not any(tensor.is_inference() for tensor in written):
            continue
        for _ in range(2):
            before = [tensor.clone() for tensor in written]
            with pytest.raises(DmlError, match=INFERENCE):
                call(x, *written)
            assert all(map(torch.equal, written, before))
            with torch.inference_mode():
                for _ in range(ROUNDS):
                    call(x, *written)


def test_inference_tensors_of_calls_that_torch_dispatches():
    with torch.inference_mode():
        out = torch.zeros(SHAPE)
    x = values().as_subclass(type("Subclass", (torch.Tensor,), {}))
    with pytest.raises(DmlError, match=r"diagonal_matrix\.out: " + INFERENCE):
        dmlops.diagonal_matrix(x, out=out)
    with torch.inference_mode():
        dmlops.diagonal_matrix(x, value=0, end=9, begin=-9, out=out)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda out, other: dmlops.diagonal_matrix(out, out=out), "overlapping"),
        (lambda out, other: dmlops.diagonal_matrix(other, out=out[:2]), "shape"),
        (lambda out, other: dmlops.gather_nd(other, rows(out, 0, 1, 7), out=out), "position"),
        (lambda out, other: dmlops.gather_nd(other, rows(out, 0, 1, 2), out=out.double()), "float64"),
    ],
)
def test_a_refused_call_is_no_write(call, error, device):
    out, other = values(device=device), values(device=device)
    for _ in range(ROUNDS):
        dmlops.diagonal_matrix(other, out=out)
        dmlops.gather_nd(other, rows(out, 0, 1, 2), out=out)
        before, contents = out._version, out.clone()
        with pytest.raises((DmlError, IndexError), match=error):
            call(out, other)
        assert out._version == before
        assert torch.equal(out, contents)


def test_interrupts_between_the_write_and_the_count(of, device):
    """An interrupt at any line of a call leaves no write that is not counted."""
    x, out = of(values(device=device)), torch.zeros(SHAPE, device=device)
    for _ in range(ROUNDS):
        dmlops.diagonal_matrix(x, value=7, out=out)
    n_written = 0
    for line in range(10**4):
        out.zero_()
        before, lines = out._version, iter(range(line))

        def trace(frame, event, argument, lines=lines):
            if event == "line" and next(lines, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        tracer = sys.gettrace()
        try:
            sys.settrace(trace)
            dmlops.diagonal_matrix(x, value=7, out=out)
        except KeyboardInterrupt:
            is_written = bool(out.any())
            n_written += is_written
            assert not is_written or out._version > before
        else:
            break
        finally:
            sys.settrace(tracer)
    assert n_written


def test_memory_that_numpy_shares_is_not_counted():
    """Nothing says that an array of another library is the memory of a tensor."""
    out = torch.zeros(SHAPE)
    dmlops.diagonal_matrix(np.ones(SHAPE, np.float32), out=out.numpy())
    assert out._version == 0
