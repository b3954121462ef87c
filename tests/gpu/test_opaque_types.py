"""Complex, float8, date and duration elements on a GPU, of which kernels only move the bits."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.gpu.numba_cuda import numba_cuda
from tests.gpu.test_gpu_arrays import DLPack, Interface
from tests.opaque_data import FLOAT8_OF_TORCH, filled, is_nonzero, numpy_type, raw, sample

SHAPES = ((5, 7), (3, 4, 6), (129, 257), (2, 1000, 33))
INDICES = np.array([[2], [-1], [0], [2]])


def check_moves(x, host, indices, to_bytes):
    """Check the operators that move elements, on the device array `x` that equals `host`."""
    for _ in range(3):
        assert (to_bytes(dmlops.gather_nd(x, indices)) == reference.gather_nd(raw(host), INDICES)).all()
        for begin, end in ((0, 1), (-1, 3), (1, 10**9)):
            band = {"begin": begin, "end": end}
            assert (to_bytes(dmlops.diagonal_matrix(x, value=0, **band)) == filled(host, 0, **band)).all()
            assert (to_bytes(dmlops.diagonal_matrix(x, value=1, **band)) == filled(host, 1, **band)).all()


def check_coordinates(x, host, to_numpy):
    """Check coordinates and count, trimmed and not."""
    expected = np.argwhere(is_nonzero(host))
    for _ in range(3):
        coordinates, count = dmlops.nonzero_coordinates(x)
        np.testing.assert_array_equal(to_numpy(coordinates), expected)
        assert int(to_numpy(count)) == len(expected)
        coordinates, count = dmlops.nonzero_coordinates(x, size=7, fill_value=-1)
        np.testing.assert_array_equal(to_numpy(coordinates)[: len(expected)], expected[:7])
        assert int(to_numpy(count)) == len(expected)


class TestTorch:
    torch = None

    @pytest.fixture(autouse=True)
    def _torch(self, torch):
        self.torch = torch

    def tensor(self, host):
        """Return a tensor of the same bits on the GPU."""
        plain = host.view("uint8") if "float8" in host.dtype.name else host
        return self.torch.tensor(plain, device="cuda").view(getattr(self.torch, host.dtype.name))

    def to_bytes(self, tensor):
        """Return the bytes of each element."""
        return tensor.contiguous().unsqueeze(-1).view(self.torch.uint8).cpu().numpy()

    @pytest.mark.parametrize("name", ["complex64", "complex128", *FLOAT8_OF_TORCH])
    def test_types(self, name):
        indices = self.torch.tensor(INDICES, device="cuda")
        for shape in SHAPES:
            host = sample(numpy_type(name), shape)
            x = self.tensor(host)
            views = [(x, host), (x.transpose(-1, -2), np.swapaxes(host, -1, -2)), (x[..., 1:], host[..., 1:])]
            for view, expected in views:
                if expected.shape[0] > 2:
                    check_moves(view, expected, indices, self.to_bytes)
                check_coordinates(view, expected, lambda array: array.cpu().numpy())

    @pytest.mark.parametrize("name", ["complex64", "complex128"])
    def test_conjugate_bit(self, name):
        host = np.array([[1 + 2j, 3j], [4, complex(5, -0.0)]], name)
        for _ in range(3):
            lazy = self.tensor(host).conj()
            found = dmlops.gather_nd(lazy, self.torch.tensor([[1]], device="cuda"))
            assert (self.to_bytes(found) == raw(host.conj()[[1]])).all()
            assert (self.to_bytes(dmlops.tril(lazy)) == filled(host.conj(), 0, 1, 9)).all()

    def test_outputs_and_streams(self):
        host = sample(np.dtype("complex128"), (40, 50))
        x, stream = self.tensor(host), self.torch.cuda.Stream()
        out = self.torch.zeros_like(x)
        self.torch.cuda.synchronize()
        for value in (0, 1 - 2j):
            dmlops.diagonal_matrix(x, value=value, out=out, stream=stream)
            coordinates = dmlops.nonzero_coordinates(x, stream=stream).coordinates
            stream.synchronize()
            assert (self.to_bytes(out) == filled(host, value)).all()
            np.testing.assert_array_equal(coordinates.cpu(), np.argwhere(is_nonzero(host)))

    def test_graphs(self):
        host = sample(np.dtype("complex128"), (40, 50))
        x, graph = self.tensor(host), self.torch.cuda.CUDAGraph()
        indices = self.torch.tensor(INDICES, device="cuda")

        def run():
            return (
                dmlops.gather_nd(x, indices, mode="clip"),
                dmlops.diagonal_matrix(x, value=1j),
                dmlops.nonzero_coordinates(x, size=2000, fill_value=0).count,
            )

        run()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph):
            gathered, filled_matrix, count = run()
        changed = host[::-1].copy()
        x.copy_(self.tensor(changed))
        graph.replay()
        assert (self.to_bytes(gathered) == raw(changed)[INDICES[:, 0]]).all()
        assert (self.to_bytes(filled_matrix) == filled(changed, 1j)).all()
        assert count.item() == is_nonzero(changed).sum()

    @pytest.mark.parametrize("name", ["complex64", "complex128"])
    def test_protocols(self, name):
        host = sample(np.dtype(name), (9, 50))
        x = self.tensor(host)
        self.torch.cuda.synchronize()
        for wrap in (Interface, DLPack):
            found = dmlops.diagonal_matrix(wrap(x), value=1)
            assert type(found) is dmlops.DeviceArray
            assert (raw(found.to_numpy()) == filled(host, 1)).all()
            if name == "complex64":
                check_coordinates(wrap(x), host, lambda array: array.to_numpy())
                continue
            with pytest.raises(TypeError, match=r"got complex128, but .*; pass bools: x != 0"):
                dmlops.nonzero_coordinates(wrap(x))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_cupy(name):
    cupy = pytest.importorskip("cupy")
    indices = cupy.asarray(INDICES)
    for shape in SHAPES:
        host = sample(np.dtype(name), shape)
        x = cupy.asarray(host)
        for view, expected in ((x, host), (x[..., ::-2], host[..., ::-2]), (x.T, host.T)):
            if expected.shape[0] > 2:
                check_moves(view, expected, indices, lambda array: raw(cupy.asnumpy(array)))
            check_coordinates(view, expected, cupy.asnumpy)
    made = dmlops.eye(3, 4, 1, name, like=indices)
    assert isinstance(made, cupy.ndarray)
    assert (cupy.asnumpy(made) == np.eye(3, 4, 1, name)).all()
    with pytest.raises(TypeError, match=r"^eye\.dtype: got datetime64\[D\], but CuPy has no such type; "):
        dmlops.eye(3, dtype="datetime64[D]", like=indices)


@pytest.mark.parametrize("name", ["complex64", "float8_e4m3fn", "float8_e5m2"])
def test_jax(name):
    jax = pytest.importorskip("jax")
    host = sample(numpy_type(name), (9, 50))
    x = jax.device_put(host)
    check_moves(x, host, jax.numpy.asarray(INDICES), lambda array: raw(np.array(array)))
    check_coordinates(x, host, np.asarray)


def test_jax_complex128():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        host = sample(np.dtype("complex128"), (9, 50))
        x = jax.device_put(host)
        check_moves(x, host, jax.numpy.asarray(INDICES), lambda array: raw(np.array(array)))
        check_coordinates(x, host, np.asarray)


@pytest.mark.parametrize("name", ["complex64", "datetime64[s]", "timedelta64[D]"])
def test_numba(name):
    cuda = numba_cuda()
    host = sample(np.dtype(name), (9, 50))
    x = cuda.to_device(host)
    check_moves(x, host, cuda.to_device(INDICES), lambda array: raw(array.copy_to_host()))
    check_coordinates(x, host, lambda array: array.copy_to_host())
    with pytest.raises(TypeError, match=r"^top_k\.x: got "):
        dmlops.top_k(x, 1)


def test_device_arrays():
    host = sample(np.dtype("datetime64[s]"), (9, 50))
    x = dmlops.DeviceArray.from_numpy(host)
    found = dmlops.triu(x, -2).to_numpy()
    assert found.dtype == host.dtype
    assert (raw(found) == filled(host, 0, -99, -2)).all()
