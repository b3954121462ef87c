"""Calls that torch differentiates, transforms or traces are refused like other calls, with `out` too."""

from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import func  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import dmlops  # noqa: E402
from dmlops import DeviceMismatchError, DmlError, FeatureLevel  # noqa: E402
from tests import test_errors as errors  # noqa: E402
from tests.torch_calls import QUIET, Recorder, Subclass, assert_same, compiled, fresh_compiler, normal  # noqa: E402, F401

pytestmark = QUIET


def picks(x, *tuples):
    return torch.tensor(tuples, device=x.device)


# Refused by what can be known of a call while it is traced.
REFUSED = {
    "k": lambda x: dmlops.top_k(x, 6),
    "negative_k": lambda x: dmlops.top_k(x, -x.shape[0]),
    "axis": lambda x: dmlops.top_k(x, 1, axis=2),
    "negative_axis": lambda x: dmlops.top_k(x, 0, axis=-3),
    "index_dtype": lambda x: dmlops.top_k(x, 1, index_dtype="int8"),
    "size": lambda x: dmlops.nonzero_coordinates(x, size=-1),
    "fill_value": lambda x: dmlops.nonzero_coordinates(x, fill_value=1),
    "tuples": lambda x: dmlops.gather_nd(x, picks(x, [0, 1, 2])),
    "real_indices": lambda x: dmlops.gather_nd(x, x[:1, :1]),
    "small_indices": lambda x: dmlops.gather_nd(x, picks(x, [0]).to(torch.int8)),
    "indices_without_dimension": lambda x: dmlops.gather_nd(x, picks(x, 0)[0]),
    "x_without_dimension": lambda x: dmlops.gather_nd(x[0, 0], picks(x, [0])),
    "negative_batch_dims": lambda x: dmlops.gather_nd(x, picks(x, [0]), batch_dims=-1),
    "batch_dims": lambda x: dmlops.gather_nd(x, picks(x, [0]), batch_dims=2),
    "batch_sizes": lambda x: dmlops.gather_nd(x, picks(x, [0]), batch_dims=1),
    "mode": lambda x: dmlops.gather_nd(x, picks(x, [0]), mode="wrap"),
    "no_mode": lambda x: dmlops.gather_nd(x, picks(x, [0]), mode=None),
    "no_indices": lambda x: dmlops.gather_nd(x, None),
    "dict": lambda x: dmlops.top_k(x, 1, lengths={}),
    "no_index_dtype": lambda x: dmlops.top_k(x, 1, index_dtype="nonsense"),
    "real_out": lambda x: dmlops.top_k(x, 1, out=(x.new_empty(3, 1), x.new_empty(3, 1))),
    "matrix": lambda x: dmlops.diagonal_matrix(x[0]),
    "number": lambda x: dmlops.diagonal_matrix(x[0, 0]),
    "tril": lambda x: dmlops.tril(x[0]),
    "value": lambda x: dmlops.diagonal_matrix(x.bool(), value=2),
    "negative_shape": lambda x: dmlops.diagonal_matrix(shape=(2, -1), like=x),
    "shape_without_sizes": lambda x: dmlops.diagonal_matrix(shape=5, like=x),
    "shape": lambda x: dmlops.diagonal_matrix(shape=(3,), like=x),
    "no_shape": lambda x: dmlops.diagonal_matrix(like=x),
    "no_dtype": lambda x: dmlops.diagonal_matrix(shape=(2, 2), like=x, dtype="nonsense"),
}


def error_of(call, x):
    with pytest.raises((DmlError, TypeError)) as raised:
        call(x)
    return type(raised.value), str(raised.value)


class TestRefusals:
    """Graphs, stand-ins and calls with a derivative are refused in the words of other calls."""

    @pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
    def test_same_words(self, call):
        x = normal(3, 5)
        expected = error_of(call, x)
        with Recorder():
            assert error_of(call, x) == expected
        assert error_of(call, x.to("meta")) == expected
        assert error_of(call, x.requires_grad_()) == expected

    @pytest.mark.parametrize("call", [call for call, *_ in errors.CALLS if "stream" not in call])
    def test_same_words_in_modes(self, call):
        names = {"dmlops": dmlops, "np": np, "MANY": errors.MANY}
        names |= {"X": torch.from_numpy(errors.X), "INDICES": torch.from_numpy(errors.INDICES)}
        expected = error_of(lambda call: eval(call, names), f"dmlops.{call}")
        with Recorder():
            assert error_of(lambda call: eval(call, names), f"dmlops.{call}") == expected

    @pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
    def test_same_words_in_graphs(self, call):
        """torch puts its own words around them."""
        _, expected = error_of(call, normal(3, 5))
        with pytest.raises(Exception, match="Error") as raised:
            compiled(call, "eager")(normal(3, 5))
        assert expected in str(raised.value).replace("\\'", "'")

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: dmlops.top_k(x.to_sparse(), 1),
            lambda x: dmlops.gather_nd(x, picks(x, [2, 3], [4, 5])),
            lambda x: dmlops.gather_nd(x[:0], picks(x, [0])),
        ],
    )
    def test_same_words_with_a_gradient(self, call):
        x = normal(3, 5)
        assert error_of(call, x) == error_of(call, x.requires_grad_())

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda x: dmlops.top_k(x, 1, axis=-2), r"top_k\.axis: got -2, but x has 1 dimension;"),
            (lambda x: dmlops.top_k(x, 6), r"top_k\.k: got 6, but axis 0 of x has 5 elements"),
            (lambda x: dmlops.gather_nd(x, picks(x, [0, 1])), r"1 dimension of x can be indexed"),
            (lambda x: dmlops.gather_nd(x, x.long()[:, None], batch_dims=-1), r"batch_dims: got -1"),
            (dmlops.diagonal_matrix, "a matrix has height and width"),
        ],
    )
    def test_in_terms_of_one_example(self, call, text):
        with pytest.raises(DmlError, match=text):
            func.vmap(call)(normal(3, 5))

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda x: dmlops.top_k(x, 1, stream=7), r"top_k\.stream: got 7, .*torch\.cuda\.stream"),
            (lambda x: dmlops.gather_nd(x, [[0.5]]), r"gather_nd\.indices: got float64, but it is not an"),
            (lambda x: dmlops.top_k([1.0, 2.0], 1), r"top_k\.x: got a list, .*must be a tensor"),
            (lambda x: dmlops.top_k(x, 1, axis=2**63), r"top_k\.axis: got 9223372036854775808, .*64 bits"),
            (lambda x: dmlops.diagonal_matrix(shape=(2, 2)), r"diagonal_matrix\.like: got None, .*NumPy"),
            (lambda x: dmlops.diagonal_matrix(x, value=2**63), r"diagonal_matrix\.value: .*64 bits"),
            (lambda x: dmlops.diagonal_matrix(x, value=x.sum()), r"diagonal_matrix\.value: .*no derivative"),
        ],
    )
    def test_in_graphs_only(self, call, text):
        with pytest.raises(Exception, match=text):
            compiled(call, "eager")(normal(3, 5))

    def test_what_graphs_accept_as_other_calls_do(self):
        x = normal(3, 5)
        assert compiled(lambda x: dmlops.gather_nd(x, []), "eager")(x).equal(x)
        assert compiled(lambda x: dmlops.top_k(x, np.True_).indices, "eager")(x).equal(x.argmax(1)[:, None])

    def test_a_matrix_like_nested_tensors(self):
        like = torch.nested.nested_tensor([normal(2), normal(3)], layout=torch.jagged)
        with pytest.raises(TypeError, match=r"diagonal_matrix\.like: got a nested tensor"):
            dmlops.diagonal_matrix(shape=(2, 2), like=like)

    def test_a_new_matrix_names_the_argument_that_it_is_like(self):
        masked = torch.masked.masked_tensor(normal(2, 2), torch.ones(2, 2, dtype=torch.bool))
        lost = "got a MaskedTensor, but its mask would be lost; "
        with pytest.raises(TypeError, match=rf"^eye\.out: {lost}an output must be a dense tensor"):
            dmlops.eye(2, out=masked)
        with pytest.raises(TypeError, match=rf"^eye\.like: {lost}pass like\.get_data\(\)"):
            dmlops.eye(2, like=masked, out=masked)

    def test_sizes_that_change(self):
        """Errors of graphs that stand for many sizes name the argument too."""
        x, lengths = normal(3, 5), torch.tensor([1, 2, 3])
        plain = compiled(dmlops.top_k, dynamic=True)
        graph = compiled(lambda x, k, n: dmlops.top_k(x, k, lengths=n), dynamic=True)
        drawn = compiled(dmlops.sample, dynamic=True)
        plain(x, 2)
        graph(x, 2, lengths)
        drawn(x, lengths)
        for call, text in (
            (lambda: plain(x, 6), r"top_k\.k: got \w+, but the axis of x has \w+ elements"),
            (lambda: plain(x, -4), r"top_k\.k: got \S+, but it must be >= 0"),
            (lambda: graph(x, -4, lengths), r"top_k\.k: got \S+, but it must be >= 0"),
            (
                lambda: graph(x, 3, lengths[1:]),
                r"top_k\.lengths: got shape \(\w+,\), but x has sizes \(\w+,\) there",
            ),
            (
                lambda: drawn(x, lengths[1:]),
                r"sample\.seeds: got shape \(\w+,\), but logits has sizes \(\w+,\) there",
            ),
        ):
            with pytest.raises(Exception, match=text):
                call()

    def test_with_a_gradient_only(self):
        x = normal(3, 5).requires_grad_()
        with pytest.raises(DmlError, match=r"top_k\.k: got 9223372036854775808, .*64 bits"):
            dmlops.top_k(x, 2**63)
        with pytest.raises(TypeError, match=r"top_k\.stream: got 0, .* call it within torch\.cuda\.stream"):
            dmlops.top_k(x, 1, stream=0)
        with pytest.raises(DeviceMismatchError, match=r"gather_nd\.indices: .* meta"):
            dmlops.gather_nd(x, torch.zeros(1, 1, device="meta").long())

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


def _x(memory):
    return memory[:15].view(3, 5)


SHARED = {
    "x": (
        lambda m: dmlops.diagonal_matrix(_x(m), out=m[3:18].view(3, 5)),
        r"diagonal_matrix\.out: got an overlapping array, but it shares memory with diagonal_matrix\.x",
    ),
    "m": (lambda m: dmlops.tril(_x(m), out=_x(m)), r"tril\.out: .* shares memory with tril\.m"),
    "indices": (
        lambda m: dmlops.gather_nd(_x(m).long(), i := torch.tensor([[0], [2]]), out=i.expand(2, 5)),
        r"gather_nd\.out: got strides \(1, 0\), but",
    ),
    "lengths": (
        lambda m: dmlops.top_k(
            _x(m), 2, lengths=(n := torch.ones(8).long())[:3], out=(m[20:26].view(3, 2), n[2:].view(3, 2))
        ),
        r"top_k\.out\[1\]: .* shares memory with top_k\.lengths",
    ),
    "outputs": (
        lambda m: dmlops.top_k(
            _x(m).long(), 2, out=((n := torch.zeros(9).long())[:6].view(3, 2), n[3:].view(3, 2))
        ),
        r"top_k\.out\[1\]: .* shares memory with top_k\.out\[0\]",
    ),
    "expanded": (
        lambda m: dmlops.top_k(_x(m), 2, out=(m[20:26].view(3, 2), torch.zeros(1, 2).long().expand(3, 2))),
        r"top_k\.out\[1\]: got strides \(0, 1\), but sizes \(3, 2\) then may share addresses",
    ),
    "expanded_first": (
        lambda m: dmlops.diagonal_matrix(_x(m), out=m[20:25].expand(3, 5)),
        r"diagonal_matrix\.out: got strides \(0, 1\), but",
    ),
    "expanded_window": (
        lambda m: dmlops.gather_nd(_x(m), [[0], [1]], out=m[20:30].as_strided((2, 5), (2, 1))),
        r"gather_nd\.out: got strides \(2, 1\), but",
    ),
}


class TestOut:
    """Graphs write into tensors that the caller gives."""

    def test_top_k(self):
        x, out = normal(3, 5), (torch.zeros(3, 2).double(), torch.zeros(3, 2).int())
        results = compiled(lambda x, out: dmlops.top_k(x * 2, 2, out=out))(x, out)
        expected = dmlops.top_k(x * 2, 2, index_dtype="int32")
        assert_same(out, expected)
        assert_same(results, expected)

    def test_others(self):
        def call(x, *out):
            dmlops.nonzero_coordinates(x, fill_value=0, out=out[:2])
            dmlops.gather_nd(x, [[2]], out=out[2])
            dmlops.diagonal_matrix(x, out=out[3])

        x = normal(3, 5)
        expected = *dmlops.nonzero_coordinates(x), x[2:], dmlops.diagonal_matrix(x)
        out = [torch.zeros_like(part) for part in expected]
        compiled(call)(x, *out)
        assert_same(out, expected)
        coordinates, count = torch.zeros(15, 2).long(), torch.zeros(1).long()
        compiled(lambda x, *out: dmlops.nonzero_coordinates(x, out=out))(x, coordinates, count)
        assert count == 15

    def test_in_vmap(self):
        x, out = normal(3, 5), (torch.zeros(3, 2).double(), torch.zeros(3, 2).long())
        func.vmap(lambda x, *out: dmlops.top_k(x, 2, out=out))(x, *out)
        assert_same(out, x.topk(2))

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: torch.zeros(1, 5, device="meta").double(), r"gather_nd\.out: .*device"),
            (lambda: np.zeros((1, 5)), r"gather_nd\.out: got an ndarray"),
            (lambda: torch.zeros(1, 5).double().requires_grad_(), r"gather_nd\.out: .*no derivative"),
        ],
    )
    def test_refused(self, make, text):
        x = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(normal(3, 5))
        with pytest.raises((TypeError, DmlError), match=text):
            dmlops.gather_nd(x, [[2]], out=make())

    @pytest.mark.parametrize("out", [torch.zeros(1, 4).double(), torch.zeros(1, 5), torch.zeros(5).double()])
    def test_same_words(self, out):
        def call(x):
            dmlops.gather_nd(x, [[2]], out=out)

        expected = error_of(call, normal(3, 5))
        assert error_of(call, normal(3, 5).as_subclass(Subclass)) == expected

    @pytest.mark.parametrize("context", [Recorder, lambda: FlopCounterMode(display=False), nullcontext])
    @pytest.mark.parametrize("fault", SHARED)
    def test_memory_that_is_shared(self, fault, context):
        """Nothing is written, whether a mode sees the call or not."""
        call, text = SHARED[fault]
        memory = torch.arange(60.0)
        with context(), pytest.raises(DmlError, match=text):
            call(memory)
        assert torch.equal(memory, torch.arange(60.0))

    @pytest.mark.parametrize("fault", [fault for fault in SHARED if "expanded" in fault])
    def test_strides_that_overlap_in_graphs(self, fault):
        call, text = SHARED[fault]
        for dynamic in (False, True):
            with pytest.raises(Exception, match="the strides of an output must not overlap"):
                compiled(call, "eager", dynamic=dynamic)(torch.arange(60.0))
        with pytest.raises(DmlError, match=text):
            call(FakeTensorMode(allow_non_fake_inputs=True).from_tensor(torch.arange(60.0)))

    def test_memory_that_examples_of_vmap_share(self):
        x, values, indices = normal(3, 5), torch.zeros(3, 2).double(), torch.zeros(3, 2).long()
        top_k = func.vmap(lambda x, *out: dmlops.top_k(x, 2, out=out))
        shared = r"top_k\.out\[0\]: got an overlapping array, but it shares memory with top_k\.x"
        for out, text in (
            ((x[:, :2], indices), shared),
            ((x[:, 1:3], indices), shared),
            ((values, indices[:1].expand(3, 2)), r"top_k\.out\[1\]: got strides \(0, 1\)"),
            ((values, indices[:, :1].expand(3, 2)), r"top_k\.out\[1\]: got strides \(2, 0\)"),
        ):
            with pytest.raises(DmlError, match=text):
                top_k(x, *out)
        with pytest.raises(DmlError, match=r"top_k\.out\[1\]: got shape \(2,\), but all examples"):
            func.vmap(lambda x, values: dmlops.top_k(x, 2, out=(values, indices[0])))(x, values)
        both = torch.zeros(3, 4).long()
        with pytest.raises(DmlError, match=r"out\[1\]: got an overlapping array, but .*\.out\[0\]"):
            top_k(x.long(), both[:, :2], both[:, 1:3])
        assert not any(part.any() for part in (values, indices, both))
        assert torch.equal(x, normal(3, 5))
        assert_same(top_k(x, values, indices), x.topk(2))

    def test_nothing_is_written_if_one_does_not_fit(self):
        x, out = normal(3, 5).as_subclass(Subclass), (torch.zeros(3, 2).double(), torch.zeros(3, 3).long())
        with pytest.raises(DmlError, match=r"top_k\.out\[1\]: got shape \(3, 3\)"):
            dmlops.top_k(x, 2, out=out)
        with pytest.raises(DmlError, match=r"top_k\.out\[1\]: got an overlapping array"):
            dmlops.top_k(x.long(), 3, out=(out[1], out[1]))
        assert not any(part.any() for part in out)

    def test_no_derivative(self):
        x, out = normal(3, 5).requires_grad_(), (torch.zeros(3, 1).double(), torch.zeros(3, 1).long())
        with pytest.raises(TypeError, match=r"top_k\.out\[0\]: .* no derivative; leave it out"):
            dmlops.top_k(x, 1, out=out)
        with torch.no_grad():
            assert torch.equal(dmlops.top_k(x, 1, out=out).values, x.detach().topk(1).values)


@pytest.mark.parametrize(("fill", "dtype"), [(2**32 + 5, "int32"), (-1, "uint32")])
def test_fill_values_are_checked_before_they_are_converted(fill, dtype):
    def found(x):
        return dmlops.nonzero_coordinates(x, size=2, fill_value=fill, index_dtype=dtype).coordinates

    told = rf"^nonzero_coordinates\.fill_value: got {fill}, but coordinates are {dtype}"
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
