"""Arrays of every library and kind: which are accepted, which are returned, which are refused."""

import array
import tracemalloc

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel, TensorDesc
from tests import reference
from tests.data import as_strided, assert_same, sample
from tests.libraries import DLPack


def odd_places(x):
    """Return the elements of a matrix at addresses that are no multiples of their size."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    moved = memory[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def memory_of(call):
    """Return the most bytes that NumPy held during a call, beyond those before."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestPatterns:
    """A pattern is described, not read or copied."""

    @pytest.mark.parametrize("x", [odd_places(np.zeros((1000, 1000), "f4")), np.zeros(10**6, "u1,f4")["f1"]])
    def test_of_numpy(self, x):
        assert not x.flags.aligned
        made = dmlops.diagonal_matrix(shape=(2, 3), like=x)
        assert_same(made, np.eye(2, 3, dtype="f4"))
        assert memory_of(lambda: dmlops.diagonal_matrix(shape=(2, 2), like=x)) < 10**5

    def test_descriptions_of_what_kernels_would_copy(self):
        x = odd_places(np.zeros((1000, 1000), "f4"))
        for view, strides in ((x, None), (x[:, ::2], (1000, 2)), (x.T, (1, 1000)), (x[::-1], (-1000, 1))):
            assert TensorDesc.from_array(view).strides == strides
            assert memory_of(lambda view=view: TensorDesc.from_array(view)) < 10**5
        with pytest.raises(TypeError, match=r"array: got strides \(5,\), but it has elements of 4 bytes; "):
            TensorDesc.from_array(np.zeros(9, "u1,f4")["f1"])

    def test_of_torch(self):
        torch = pytest.importorskip("torch")
        x = torch.zeros(1000, 1000, 2)
        negative = torch.view_as_complex(x).conj().imag
        assert TensorDesc.from_array(negative).strides == (2000, 2)
        assert TensorDesc.from_array(negative[:1].expand(7, 1000)[:, ::2]).strides == (0, 4)
        odd = torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1, count=10)[::2].expand(3, 5)
        assert TensorDesc.from_array(odd).strides == (0, 2)
        for like in (torch.view_as_complex(x).conj(), negative, odd):
            made = dmlops.diagonal_matrix(shape=(2, 3), like=like)
            assert made.dtype == like.dtype
            assert not made.is_conj()
            assert not made.is_neg()
            assert torch.equal(made, torch.eye(2, 3, dtype=like.dtype))


class TestDescriptions:
    """`TensorDesc.from_array`."""

    @pytest.mark.parametrize(
        ("x", "sizes", "strides"),
        [
            (np.zeros((4, 6))[:, ::2], (4, 3), (6, 2)),
            (np.zeros((4, 6)).T, (6, 4), (1, 6)),
            (np.zeros((4, 6))[::-1], (4, 6), (-6, 1)),
            (np.broadcast_to(np.zeros(3), (2, 3)), (2, 3), (0, 1)),
            (np.zeros((4, 9))[:1, :6], (1, 6), None),
            (np.zeros((0, 6)), (0, 6), None),
            (np.zeros(()), (), None),
            ([[1, 2], [3, 4]], (2, 2), None),
        ],
    )
    def test_layouts(self, x, sizes, strides):
        found = TensorDesc.from_array(x)
        assert (found.sizes, found.strides) == (sizes, strides)

    @pytest.mark.parametrize(
        "x", [None, "text", np.zeros(3, "complex64"), np.ma.masked_array([1, 2], [0, 1])]
    )
    def test_what_is_no_array(self, x):
        with pytest.raises(TypeError, match=r"TensorDesc\.from_array\.array: got"):
            TensorDesc.from_array(x)


class TestNumPy:
    def test_strides_that_are_no_whole_elements(self):
        memory = np.zeros((5, 4, 7), "u1")
        x = memory[..., :4].view("float32")[..., 0]  # 7 bytes from one float to the next
        x[...] = sample("float32", (5, 4), "bytes")
        assert x.strides[1] % 4
        assert_same(dmlops.top_k(x, 2).values, reference.top_k(x, 2)[0])

    def test_subclasses_come_back_as_plain_arrays(self):
        class Sub(np.ndarray):
            pass

        result = dmlops.diagonal_matrix(np.ones((2, 2)).view(Sub), value=0)
        assert type(result) is np.ndarray
        assert_same(result, np.array([[0.0, 1.0], [1.0, 0.0]]))

    def test_sixty_four_dimensions(self):
        x = sample("float32", (1,) * 30 + (2, 3) + (1,) * 31 + (4,), "64")
        values, indices = dmlops.top_k(x, 2, axis=31)
        expected = reference.top_k(x.reshape(2, 3, 4), 2, axis=1)
        assert values.shape == indices.shape == (1,) * 30 + (2, 2) + (1,) * 31 + (4,)
        assert_same(values.reshape(2, 2, 4), expected[0])
        assert_same(indices.reshape(2, 2, 4), expected[1])
        coordinates, _ = dmlops.nonzero_coordinates(x)
        assert coordinates.shape[1] == 64
        found = reference.nonzero_coordinates(x.reshape(2, 3, 4))[0]
        np.testing.assert_array_equal(coordinates[:, [30, 31, 63]], found)
        assert coordinates.sum() == found.sum()

    @pytest.mark.parametrize(
        "x", [3, 2.5, True, np.int8(3), [1, 2], (1.0, 2.0), [[True, False]], [], array.array("i", [4, 0])]
    )
    def test_scalars_and_sequences(self, x):
        as_array = np.asarray(x)
        coordinates, count = dmlops.nonzero_coordinates(x)
        np.testing.assert_array_equal(coordinates, np.argwhere(np.atleast_1d(as_array))[:, : as_array.ndim])
        assert int(count) == np.count_nonzero(as_array)

    def test_array_protocol(self):
        class Wrapped:
            def __array__(self, dtype=None, copy=None):
                return np.array([5, 9, 7], dtype)

        assert_same(dmlops.top_k(Wrapped(), 1).values, np.array([9]))


class HostDLPack(DLPack):
    """One in host memory."""


def test_host_dlpack_gives_numpy():
    x = sample("float32", (5, 40), "dlpack")
    for operand in (HostDLPack(x), HostDLPack(x[:, ::2])):
        result = dmlops.top_k(operand, 3)
        assert_same(result.values, reference.top_k(operand.array, 3)[0])


def test_host_dlpack_is_written_to():
    x, out = sample("float32", (5, 40), "dlpack"), np.zeros((5, 40), "float32")
    given = HostDLPack(out)
    for _ in range(3):
        out[...] = 77
        assert dmlops.diagonal_matrix(HostDLPack(x), value=0, out=given) is given
        assert_same(out, reference.diagonal_matrix(x, value=0))


@pytest.mark.parametrize("method", ["__dlpack__", "__dlpack_device__"])
@pytest.mark.parametrize("error", [BufferError, TypeError, RuntimeError, KeyError, AttributeError])
def test_an_exchange_that_fails_is_refused_by_name(error, method, monkeypatch):
    def fail(self, **options):
        message = "not today"
        raise error(message)

    x, given = np.arange(5.0), HostDLPack(np.zeros(5))
    swapped = HostDLPack(x.astype(x.dtype.newbyteorder()))
    for _ in range(3):
        with pytest.raises(TypeError, match=r"^top_k\.x: got a HostDLPack, but DLPack .* native byte order"):
            dmlops.top_k(swapped, 3)
    monkeypatch.setattr(HostDLPack, method, fail)
    calls = {
        "top_k.x": lambda: dmlops.top_k(given, 3),
        "gather_nd.indices": lambda: dmlops.gather_nd(x, given),
        "diagonal_matrix.out": lambda: dmlops.diagonal_matrix(np.zeros((5, 5)), out=given),
    }
    for where, call in calls.items():
        text = rf"^{where}: got a HostDLPack, but DLPack does not pass it on \({error.__name__}: .*not today"
        with pytest.raises(TypeError, match=text):
            call()


@pytest.mark.parametrize("device", [1, 3, 11])
def test_every_kind_of_host_memory(device, monkeypatch):
    x = sample("float32", (5, 40), "dlpack")
    monkeypatch.setattr(HostDLPack, "__dlpack_device__", lambda self: (device, 0))
    assert_same(dmlops.top_k(HostDLPack(x), 3).values, reference.top_k(x, 3)[0])


def test_strides_of_dimensions_without_neighbours():
    """They mean nothing, and no feature level objects to them."""
    x = sample("float32", (5, 1, 7), "single")
    for odd in (x[:, ::-1], as_strided(x, x.shape, (7, -(2**40), 1)), as_strided(x, x.shape, (7, 2**40, 1))):
        for level in (FeatureLevel.DML_6_4, FeatureLevel.EXTENDED):
            with dmlops.feature_level(level):
                for _ in range(3):
                    assert_same(dmlops.top_k(odd, 3).values, reference.top_k(x, 3)[0])
                    assert_same(dmlops.diagonal_matrix(odd), reference.diagonal_matrix(x))


class TestTorch:
    def test_index_with_the_result(self, torch):
        x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        coordinates, count = dmlops.nonzero_coordinates(x)
        assert x[coordinates[:, 0], coordinates[:, 1]].tolist() == [3.0, 4.0]
        for _ in range(3):  # however it is made, no memory of more rows stays behind it
            coordinates, _ = dmlops.nonzero_coordinates(x)
            assert coordinates.untyped_storage().nbytes() == 2 * 2 * 8
        assert count.dtype == torch.int64

    def test_negative_bit(self, torch):
        x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        assert x.is_neg()
        assert dmlops.top_k(x, 2).values.tolist() == [4.0, -2.0]
        odd = torch.frombuffer(bytearray(17), dtype=torch.complex64, offset=1).conj().imag
        with pytest.raises(
            dmlops.InvalidDescriptorError, match=r"^top_k\.x: got an unaligned tensor with the"
        ):
            dmlops.top_k(odd, 2)

    def test_descriptions(self, torch):
        with pytest.raises(TypeError, match=r"array: got a tensor on meta, but no back-end serves"):
            TensorDesc.from_array(torch.zeros(0, 3, device="meta"))
        with pytest.raises(TypeError, match=r"array: got a tensor without storage"):
            torch.vmap(TensorDesc.from_array)(torch.zeros(2))

    def test_mixed_with_numpy(self, torch):
        x = torch.arange(6.0).reshape(3, 2)
        for _ in range(4):
            result = dmlops.gather_nd(x, np.array([[2], [0]]))
            assert torch.equal(result, x[[2, 0]])
            result = dmlops.gather_nd(x.numpy(), torch.tensor([[2], [0]]))
            assert type(result) is np.ndarray
            np.testing.assert_array_equal(result, x[[2, 0]].numpy())
            out = np.zeros((3, 1), "float32"), torch.zeros((3, 1), dtype=torch.int64)
            dmlops.top_k(x, 1, out=out)
            assert [array.tolist() for array in out] == [[[1], [3], [5]], [[1], [1], [1]]]


@pytest.fixture
def jax():
    """Return JAX, if it is installed."""
    return pytest.importorskip("jax")


class TestJax:
    def test_every_function(self, jax):
        x = sample("float32", (6, 7), "jax")
        operand = jax.numpy.asarray(x)
        values, indices = dmlops.top_k(operand, 3)
        expected = reference.top_k(x, 3)
        coordinates, count = dmlops.nonzero_coordinates(operand)
        picked = dmlops.gather_nd(operand, jax.numpy.asarray([[1], [5]], "int32"))
        filled = dmlops.diagonal_matrix(operand)
        for result in (values, indices, coordinates, count, picked, filled):
            assert isinstance(result, jax.Array)
        assert_same(np.asarray(values), expected[0])
        # JAX uses 32 bits unless 64-bit types are enabled.
        assert_same(np.asarray(indices), expected[1].astype("int32"))
        np.testing.assert_array_equal(coordinates, np.argwhere(x))
        assert int(count) == np.count_nonzero(x)
        assert_same(np.asarray(picked), x[[1, 5]])
        assert_same(np.asarray(filled), reference.diagonal_matrix(x))

    def test_arrays_without_numbers_or_memory(self, jax):
        x = jax.numpy.ones((2, 2))
        x.delete()
        with pytest.raises(
            dmlops.InvalidDescriptorError, match=r"^gather_nd\.x: got an array without memory"
        ):
            dmlops.gather_nd(x, [[0]])
        keys = jax.random.split(jax.random.key(0), 3)
        with pytest.raises(TypeError, match=r"^gather_nd\.x: got key<fry>, but no operator takes that type"):
            dmlops.gather_nd(keys, [[0]])

    def test_out_cannot_be_immutable(self, jax):
        x = jax.numpy.ones((2, 2))
        with pytest.raises(dmlops.InvalidDescriptorError, match=r"^diagonal_matrix\.out: got .*, but .*; "):
            dmlops.diagonal_matrix(x, out=jax.numpy.zeros((2, 2)))
        assert x.tolist() == [[1, 1], [1, 1]]

    def test_traced_arrays_are_refused(self, jax):
        x = jax.numpy.arange(6.0).reshape(2, 3)
        for transformation in (jax.jit, jax.vmap, jax.grad):
            with pytest.raises(TypeError, match=r"^top_k\.x: got a traced .*dmlops\.integrations\.jax"):
                transformation(lambda x: dmlops.top_k(x, 1).values.sum())(x)

    def test_types_that_jax_would_change_are_refused(self, jax):
        if jax.config.jax_enable_x64:
            pytest.skip("JAX has 64-bit types here")
        x = jax.numpy.asarray([3.0, 1.0, 2.0])
        for k in (0, 2):
            with pytest.raises(TypeError, match=r"^top_k\.index_dtype: got int64, but jax_enable_x64 is off"):
                dmlops.top_k(x, k, index_dtype="int64")
        with pytest.raises(TypeError, match=r"^nonzero_coordinates\.index_dtype: got uint64, but "):
            dmlops.nonzero_coordinates(x[:0], size=0, index_dtype="uint64")
        with pytest.raises(TypeError, match=r"^diagonal_matrix\.dtype: got float64, but "):
            dmlops.diagonal_matrix(shape=(2, 2), dtype="float64", like=x)
