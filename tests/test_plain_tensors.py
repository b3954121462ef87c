"""torch tensors that have no memory, or less than they claim: torch runs the call, or it is refused.

Each of these tensors used to end the process. More are among the faults of `test_refusals.py`.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch import distributed, nested  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed import device_mesh, tensor  # noqa: E402
from torch.masked import masked_tensor  # noqa: E402

import dmlops  # noqa: E402
from dmlops import DeviceMismatchError, InvalidDescriptorError  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore:Sparse CSR"),
]
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if torch.cuda.is_available() else ("cpu",)
SHAPES = ((6 + n, 8) for n in itertools.count())  # one that no call had before
N_GOOD_CALLS = (0, 3)  # before each refusal


class Wrapper(torch.Tensor):
    """A subclass that only looks like a tensor."""

    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError


class Subclass(torch.Tensor):
    """A subclass with memory."""


def shrunk(x, n_bytes):
    """Take the memory of a tensor away, but for some bytes at its beginning."""
    x.untyped_storage().resize_(n_bytes)
    return x


def freed_view(x):
    """Return the second half of a tensor whose memory is taken away then."""
    both = torch.stack([x, x])
    half = both[1]
    shrunk(both, 0)
    return half


def shared(x):
    """Return a DTensor on one process."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh = device_mesh.init_device_mesh(x.device.type, (1,))
    return tensor.DTensor.from_local(x, mesh, [tensor.Replicate()])


@pytest.fixture(autouse=True)
def _no_group():
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


# These are refused everywhere, ...
REFUSED = {
    "freed": lambda x: shrunk(x.clone(), 0),
    "freed_view": freed_view,
    "shrunk": lambda x: shrunk(x.clone(), x.element_size()),
    "masked": lambda x: masked_tensor(x.float(), x > 1),
    "nested": lambda x: nested.nested_tensor([x[0], x[1]]),
    "jagged": lambda x: nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
}
# ... these only as outputs, ...
INPUTS = {
    "fake": lambda x: FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x),
    "meta": lambda x: x.to("meta"),
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device),
    "subclass": lambda x: x.clone().as_subclass(Subclass),
}
# ... and what these do as inputs is up to their own code.
OTHERS = {"wrapper": Wrapper, "distributed": shared}


def places(device, dtype):
    """Return by the words of errors what fits a place, and a call with a tensor there."""
    shape = next(SHAPES)
    x = torch.arange(shape[0] * 8, device=device).reshape(shape).to(dtype)
    picks = torch.tensor([[1], [5], [-6]], device=device)
    values, indices = dmlops.top_k(x, 2)
    coordinates, count = dmlops.nonzero_coordinates(x)
    picked = x[[1, 5, -6]]
    return {
        "top_k.x": (x, lambda x: dmlops.top_k(x, 2)),
        "nonzero_coordinates.x": (x, lambda x: dmlops.nonzero_coordinates(x, size=9)),
        "gather_nd.x": (x, lambda x: (dmlops.gather_nd(x, picks.to(x.device)),)),
        "gather_nd.indices": (picks, lambda picks: (dmlops.gather_nd(x, picks, mode="clip"),)),
        "diagonal_matrix.x": (x, lambda x: (dmlops.diagonal_matrix(x),)),
        "top_k.out[0]": (values, lambda out: dmlops.top_k(x, 2, out=(out, indices))),
        "top_k.out[1]": (indices, lambda out: dmlops.top_k(x, 2, out=(values, out))),
        "nonzero_coordinates.out[0]": (
            coordinates,
            lambda out: dmlops.nonzero_coordinates(x, out=(out, count)),
        ),
        "nonzero_coordinates.out[1]": (
            count,
            lambda out: dmlops.nonzero_coordinates(x, out=(coordinates, out)),
        ),
        "gather_nd.out": (picked, lambda out: dmlops.gather_nd(x, picks, mode="fill", out=out)),
        "diagonal_matrix.out": (x.clone(), lambda out: dmlops.diagonal_matrix(x, out=out)),
    }


def error_of(call, tensor):
    """Return what a call raises, without the frames in which pytest would print the tensor."""
    try:
        call(tensor)
    except Exception as error:
        return type(error), str(error)
    return None, "there was no error"


def assert_refused(where, call, tensor):
    kind, text = error_of(call, tensor)
    assert kind in (TypeError, InvalidDescriptorError, DeviceMismatchError), text
    assert text.startswith(f"{where}: got ")
    assert ";" in text  # the remedy


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [*REFUSED, *INPUTS, *OTHERS])
def test_tensors_of_other_kinds(kind, device):
    make = (REFUSED | INPUTS | OTHERS)[kind]
    for dtype, n_good_calls in itertools.product((torch.float32, torch.int64, torch.uint8), N_GOOD_CALLS):
        for where, (like, call) in places(device, dtype).items():
            is_output = ".out" in where
            # Vectors have fewer kinds.
            if (kind in OTHERS and not is_output) or (kind in REFUSED and like.dim() < 2):
                continue
            for _ in range(n_good_calls):
                call(like)
            if is_output or kind in REFUSED or (kind, where) == ("meta", "gather_nd.indices"):
                assert_refused(where, call, make(like))
            else:
                for part, expected in zip(call(make(like)), call(like), strict=True):
                    assert part.shape == expected.shape
            call(like)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_lose_their_memory(device):
    """The same call took them before."""
    for where, (like, call) in places(device, torch.float32).items():
        for _ in range(3):
            call(like)
        n_bytes = like.untyped_storage().nbytes()
        shrunk(like, 0)
        kind, text = error_of(call, like)
        shrunk(like, n_bytes)  # so that a report can print it
        assert (kind, text.partition(":")[0]) == (TypeError, where), text


def test_elements_at_odd_addresses():
    """They are copied as inputs, and refused as outputs."""
    for where, (like, call) in places("cpu", torch.float32).items():
        memory = torch.zeros(like.nbytes + 1, dtype=torch.uint8)
        odd = torch.frombuffer(memory.numpy(), dtype=like.dtype, offset=1, count=like.numel())
        odd = odd.reshape(like.shape).copy_(like)
        assert odd.data_ptr() % odd.element_size()
        for _ in range(2):
            if ".out" in where:
                with pytest.raises(InvalidDescriptorError) as error:
                    call(odd)
                assert str(error.value).startswith(f"{where}: got ")
            else:
                for part, expected in zip(call(odd), call(like), strict=True):
                    assert part.equal(expected)
