"""torch tensors that have no memory as inputs, which torch answers; `test_refusals.py` has the others."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import dmlops  # noqa: E402
from tests.torch_calls import Subclass  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if torch.cuda.is_available() else ("cpu",)
SHAPES = ((6 + n, 8) for n in itertools.count())  # one that no call had before


INPUTS = {
    "fake": lambda x: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x),
    "meta": lambda x: x.to("meta"),
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device),
    "subclass": lambda x: x.clone().as_subclass(Subclass),
}


def places(device, dtype):
    """Return by the words of errors what fits a place, and a call with a tensor there."""
    shape = next(SHAPES)
    x = torch.arange(shape[0] * 8, device=device).reshape(shape).to(dtype)
    picks = torch.tensor([[1], [5], [-6]], device=device)
    return {
        "top_k.x": (x, lambda x: dmlops.top_k(x, 2)),
        "nonzero_coordinates.x": (x, lambda x: dmlops.nonzero_coordinates(x, size=9)),
        "gather_nd.x": (x, lambda x: (dmlops.gather_nd(x, picks.to(x.device)),)),
        "gather_nd.indices": (picks, lambda picks: (dmlops.gather_nd(x, picks, mode="clip"),)),
        "diagonal_matrix.x": (x, lambda x: (dmlops.diagonal_matrix(x),)),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_of_other_kinds(kind, device):
    for dtype, n_good_calls in itertools.product((torch.float32, torch.int64, torch.uint8), (0, 3)):
        for where, (like, call) in places(device, dtype).items():
            for _ in range(n_good_calls):
                call(like)
            if (kind, where) == ("meta", "gather_nd.indices"):
                with pytest.raises(dmlops.DmlError, match=r"^gather_nd\.indices: got .*;"):
                    call(INPUTS[kind](like))
            else:
                for part, expected in zip(call(INPUTS[kind](like)), call(like), strict=True):
                    assert part.shape == expected.shape
            call(like)


def test_inputs_at_odd_addresses():
    """They are copied."""
    for like, call in places("cpu", torch.float32).values():
        memory = torch.zeros(like.nbytes + 1, dtype=torch.uint8)
        odd = torch.frombuffer(memory.numpy(), dtype=like.dtype, offset=1, count=like.numel())
        odd = odd.reshape(like.shape).copy_(like)
        assert odd.data_ptr() % odd.element_size()
        for _ in range(2):
            for part, expected in zip(call(odd), call(like), strict=True):
                assert part.equal(expected)
