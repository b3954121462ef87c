"""The cache of calls with torch tensors and JAX arrays: each call checks what else the answer depends on."""

import numpy as np
import pytest

import dmlops
from dmlops import DmlError
from tests import reference
from tests.data import assert_same
from tests.kept_calls import needs_gil, python_calls, settle

pytestmark = pytest.mark.quick

X = np.random.default_rng(3).integers(-3, 4, (6, 8)).astype("float32")
PICKS = np.random.default_rng(4).integers(0, 6, (5, 2))
MEMORIES = ["own", "view"]
# Each function of a tensor, and what NumPy answers.
FUNCTIONS = {
    "top_k": (lambda x, **out: dmlops.top_k(x, 3, **out), lambda x: reference.top_k(x, 3)),
    "nonzero_coordinates": (dmlops.nonzero_coordinates, reference.nonzero_coordinates),
    "diagonal_matrix": (
        lambda x, **out: dmlops.diagonal_matrix(x, value=0, **out),
        lambda x: [reference.diagonal_matrix(x, value=0)],
    ),
}


@pytest.fixture
def torch():
    """Serve torch, where it is installed."""
    return pytest.importorskip("torch")


def tensor(array, memory):
    """Return a tensor whose elements begin its storage, or one that begins later in a larger storage."""
    torch = pytest.importorskip("torch")
    if memory == "own":
        return torch.from_numpy(array.copy())
    whole = torch.zeros(array.size + 16, dtype=torch.from_numpy(array[:0].copy()).dtype)
    part = whole[8 : 8 + array.size].reshape(array.shape)
    return part.copy_(torch.from_numpy(array.copy()))


class Torch:
    """A function with arguments that fit it, in memory of one kind."""

    def __init__(self, name, memory, *, given):
        self.name, self.memory, self.given = name, memory, given
        self.function, self.oracle = FUNCTIONS[name]

    def outputs(self, x=X):
        """Return outputs to give."""
        arrays = [np.full_like(array, 77) for array in self.oracle(x)]
        return [tensor(array, self.memory) if array.ndim else tensor(array[None], "own") for array in arrays]

    def check(self, x, expected=X, out=None):
        """Make the call; return how many Python functions it took."""
        out = self.outputs(expected) if out is None and self.given else out
        options = {} if out is None else {"out": tuple(out) if len(out) == 2 else out[0]}
        results, count = python_calls(lambda: self.function(x, **options))
        results = results if isinstance(results, tuple) else (results,)
        for got, array in zip(results, self.oracle(expected), strict=True):
            assert_same(got.numpy().reshape(array.shape), array)
        return count

    def good(self):
        """Make the call on a tensor that fits."""
        return self.check(tensor(X, self.memory))


@pytest.fixture(params=MEMORIES)
def memory(request):
    """Serve each kind of memory."""
    return request.param


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
class TestTorch:
    @needs_gil
    def test_they_take_a_shorter_way(self, torch, name, memory, given):
        calls = Torch(name, memory, given=given)
        x = X[:, : 4 + MEMORIES.index(memory)].copy()  # of sizes that no test had before
        counts = settle(lambda: calls.check(tensor(x, memory), x))
        assert counts[-1] < counts[1] // 2 < counts[0]

    @pytest.mark.parametrize("change", ["type", "strides", "sizes", "elements", "negative", "parameter"])
    def test_tensors_of_other_kinds(self, torch, name, memory, given, change):
        calls = Torch(name, memory, given=given)
        for _ in range(2):
            settle(calls.good)
            if change == "type":
                x = tensor(X.view("int32"), memory)
            elif change == "strides":
                x = tensor(X.T.copy(), memory).T
            elif change == "sizes":
                x = tensor(X.reshape(8, 6), memory)
            elif change == "elements":
                x = tensor(-X - 1, memory)
            elif change == "negative":
                x = torch.complex(tensor(X, memory), tensor(X, memory)).conj().imag
                assert x.is_neg()
            else:
                x = torch.nn.Parameter(tensor(X, memory), requires_grad=False)
            expected = x.resolve_neg().detach().contiguous().numpy()
            settle(lambda x=x, expected=expected: calls.check(x, expected))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
    def test_inputs_that_may_not_be_read(self, torch, name, memory, given):
        calls = Torch(name, memory, given=given)
        whole = torch.zeros(X.size + 16)
        short = whole[8:-8].reshape(X.shape)
        whole.untyped_storage().resize_(4 * (8 + X.size) - 1)

        faults = [
            (short, "its elements are not in memory"),
            (tensor(X, memory).to_sparse(), "its elements are not strided"),
        ]
        for x, text in faults:
            settle(calls.good)
            with pytest.raises(TypeError, match=text):
                calls.check(x)
        with torch.no_grad():
            calls.check(tensor(X, memory).requires_grad_())
        calls.good()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
    def test_inputs_that_torch_dispatches(self, torch, name, memory, given):
        calls = Torch(name, memory, given=given)

        class Sub(torch.Tensor):
            """A subclass with memory."""

        def results(x):
            out = (
                {}
                if not given
                else {"out": calls.outputs() if name != "diagonal_matrix" else calls.outputs()[0]}
            )
            found = calls.function(x, **out)
            return found if isinstance(found, tuple) else (found,)

        is_refused = given and name != "nonzero_coordinates"
        settle(calls.good)
        plain = results(tensor(X, memory))
        parts = results(tensor(X, memory).as_subclass(Sub))
        assert all(type(part) is (torch.Tensor if given else Sub) for part in parts)
        assert all(torch.equal(part, expected) for part, expected in zip(parts, plain, strict=True))
        settle(calls.good)
        if is_refused:
            with pytest.raises(TypeError, match="an output that is written in place has no derivative"):
                results(tensor(X, memory).requires_grad_())
        else:
            parts = results(tensor(X, memory).requires_grad_())
            assert parts[0].requires_grad == (name != "nonzero_coordinates")
            assert all(torch.equal(part, expected) for part, expected in zip(parts, plain, strict=True))
        settle(calls.good)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(tensor(X, memory), tensor(X, memory))
            if is_refused:
                with pytest.raises(TypeError, match="an output that is written in place has no derivative"):
                    results(dual)
            elif name != "nonzero_coordinates":
                values, tangent = torch.autograd.forward_ad.unpack_dual(results(dual)[0])
                assert torch.equal(values, plain[0])
                assert torch.equal(tangent, plain[0])  # as X is its own tangent, and zeros are filled in
        settle(calls.good)
        if given:
            with pytest.raises(dmlops.DeviceMismatchError, match="meta"):
                results(tensor(X, memory).to("meta"))
        elif name != "nonzero_coordinates":
            parts = results(tensor(X, memory).to("meta"))
            assert [part.shape for part in parts] == [part.shape for part in plain]
        calls.good()

    def test_outputs_that_may_not_be_written(self, torch, name, memory, given):
        if not given:
            return
        calls = Torch(name, memory, given=True)
        for number, like in enumerate(calls.outputs()):
            faults = [
                (like.to("meta"), "its elements are not in memory"),
                (like.to(torch.int16), "types must be equal|it must be uint32"),
                (like[..., None], "shapes must be equal"),
                (torch.zeros((), dtype=like.dtype).expand(like.shape), "must not overlap"),
            ]
            if like.is_floating_point():
                negative = torch.complex(like, like).conj().imag
                faults.append((negative, "what is written to it would be read negated"))
                faults.append((like.clone().requires_grad_(), "it is written to in place"))
            for wrong, text in faults:
                if like.numel() == 1 and text in ("must not overlap", "shapes must be equal"):
                    continue
                settle(calls.good)
                out = calls.outputs()
                out[number] = wrong
                with pytest.raises((DmlError, TypeError), match=text):
                    calls.function(tensor(X, memory), out=tuple(out) if len(out) == 2 else out[0])
                assert all((array == 77).all() for i, array in enumerate(out) if i != number)
                calls.good()

    def test_memory_that_is_shared(self, torch, name, memory, given):
        if not given:
            return
        calls = Torch(name, memory, given=True)
        for number, like in enumerate(calls.outputs()):
            settle(calls.good)
            whole = torch.zeros(200, dtype=torch.int64)
            x = whole.view(torch.float32)[: X.size].reshape(X.shape)
            x.copy_(tensor(X, "own"))
            out = calls.outputs()
            last = whole[(X.size - 1) // 2 :].view(like.dtype)
            out[number] = last[: like.numel()].reshape(like.shape)
            with pytest.raises(DmlError, match="shares memory"):
                calls.check(x, out=out)
            calls.good()


@pytest.mark.parametrize("given", [False, True])
def test_indices_of_torch(torch, memory, given):
    expected = reference.gather_nd(X, PICKS)
    x = tensor(X, memory)

    def check(picks, text=None):
        out = {"out": tensor(np.full_like(expected, 77), memory)} if given else {}
        if text is None:
            result, count = python_calls(lambda: dmlops.gather_nd(x, picks, **out))
            assert_same(result.numpy(), expected)
            return count
        with pytest.raises((DmlError, TypeError), match=text):
            dmlops.gather_nd(x, picks, **out)
        return None

    for picks, text in (
        (tensor(PICKS, memory).int(), None),
        (tensor(np.asfortranarray(PICKS), memory), None),
        (tensor(PICKS.T.copy(), memory).T, None),
        (tensor(PICKS, memory).view(torch.uint64), None),
        (tensor(PICKS, memory).double(), "it is not an index type"),
        (tensor(PICKS + 8, memory), "it must be in"),
        (tensor(PICKS, memory).to("meta"), "all arrays must share a device"),
        (PICKS, None),
    ):
        settle(lambda: check(tensor(PICKS, memory)))
        check(picks, text)
        check(tensor(PICKS, memory))


def test_new_outputs_are_of_the_library_of_the_input(torch):
    x, picks = tensor(X, "own"), tensor(PICKS, "own")
    for _ in range(4):
        assert type(dmlops.gather_nd(X, PICKS)) is np.ndarray
        assert type(dmlops.gather_nd(x, picks)) is torch.Tensor
        assert type(dmlops.gather_nd(X, picks)) is np.ndarray
        assert type(dmlops.gather_nd(x, PICKS)) is torch.Tensor
        assert type(dmlops.diagonal_matrix(shape=(2, 3))) is np.ndarray
        assert type(dmlops.diagonal_matrix(shape=(2, 3), like=x, dtype="float64")) is torch.Tensor


def test_the_default_integer_of_jax():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    before = jax.config.jax_enable_x64
    try:
        for _ in range(2):
            for is_wide, dtype in ((False, "int32"), (True, "int64")):
                jax.config.update("jax_enable_x64", is_wide)
                for _ in range(3):
                    assert dmlops.top_k(x, 2).indices.dtype == dtype
                    assert dmlops.nonzero_coordinates(x).count.dtype == dtype
    finally:
        jax.config.update("jax_enable_x64", before)
