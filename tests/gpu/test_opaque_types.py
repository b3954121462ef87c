"""Complex, float8, date and duration elements on a GPU, of which kernels only move the bits."""

import importlib

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.gpu.arrays import Interface, to_numpy
from tests.gpu.numba_cuda import numba_cuda
from tests.libraries import DLPack
from tests.opaque_data import FLOAT8_OF_TORCH, filled, is_nonzero, numpy_type, raw, sample

SHAPES = ((5, 7), (3, 4, 6), (129, 257), (2, 1000, 33))
INDICES = np.array([[2], [-1], [0], [2]])


def tensor(host):
    """Return a torch tensor of the same bits."""
    torch = importlib.import_module("torch")
    plain = host.view("uint8") if "float8" in host.dtype.name else host
    return torch.tensor(plain, device="cuda").view(getattr(torch, host.dtype.name))


def to_bytes(array):
    """Return the bytes of each element."""
    torch = importlib.import_module("torch")
    if isinstance(array, torch.Tensor):
        return array.contiguous().unsqueeze(-1).view(torch.uint8).cpu().numpy()
    return raw(np.array(to_numpy(array)))


# By library, what makes an array, and the types that it has.
LIBRARIES = {
    "torch": (tensor, ("complex64", "complex128", *FLOAT8_OF_TORCH)),
    "interface": (lambda host: Interface(tensor(host)), ("complex64", "complex128")),
    "dlpack": (lambda host: DLPack(tensor(host)), ("complex64", "complex128")),
    "cupy": (lambda host: pytest.importorskip("cupy").asarray(host), ("complex64", "complex128")),
    "jax": (
        lambda host: pytest.importorskip("jax").device_put(host),
        ("complex64", "float8_e4m3fn", "float8_e5m2"),
    ),
    "numba": (lambda host: numba_cuda().to_device(host), ("complex64", "datetime64[s]", "timedelta64[D]")),
    "dmlops": (dmlops.DeviceArray.from_numpy, ("datetime64[s]",)),
}


def check(x, host, indices):
    """Check the operators that move elements, on the device array `x` that equals `host`, and repeat them."""
    found = np.argwhere(is_nonzero(host))
    for _ in range(3):
        if host.shape[0] > 2:
            assert (to_bytes(dmlops.gather_nd(x, indices)) == reference.gather_nd(raw(host), INDICES)).all()
        for begin, end in ((0, 1), (-1, 3), (1, 10**9)):
            for value in (0, 1):
                answer = filled(host, value, begin, end)
                assert (
                    to_bytes(dmlops.diagonal_matrix(x, value=value, begin=begin, end=end)) == answer
                ).all()
        for size in (None, 7):
            fill = {} if size is None else {"size": size, "fill_value": -1}
            coordinates, count = dmlops.nonzero_coordinates(x, **fill)
            np.testing.assert_array_equal(to_numpy(coordinates)[: len(found)], found[:size])
            assert int(to_numpy(count)) == len(found)


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, (_, names) in LIBRARIES.items() for name in names]
)
def test_types(library, name, torch):
    make, _ = LIBRARIES[library]
    indices = make(INDICES)
    for shape in SHAPES:
        host = sample(numpy_type(name), shape)
        if name == "complex128" and library in ("interface", "dlpack"):
            made = to_bytes(dmlops.diagonal_matrix(make(host), value=1))
            assert (made == filled(host, 1)).all()
            with pytest.raises(TypeError, match=r"got complex128, but .*; pass bools: x != 0"):
                dmlops.nonzero_coordinates(make(host))
            continue
        x = make(host)
        check(x, host, indices)
        if library in ("torch", "cupy"):
            check(x.swapaxes(-1, -2), np.swapaxes(host, -1, -2), indices)
            check(x[..., 1:], host[..., 1:], indices)


@pytest.mark.parametrize("name", LIBRARIES["torch"][1])
def test_fills(name, torch):
    host = sample(numpy_type(name), (9, 50))
    filled_row = np.ones_like(host[:1])
    indices = torch.tensor([[2], [-1], [8], [9]], device="cuda")
    for x, rows in ((host, filled_row), (host[:, 1:], filled_row[:, 1:]), (host[:, 0], filled_row[:, 0])):
        made = tensor(host)[:, 1:] if x.ndim > 1 and x.shape[1] < 50 else tensor(np.ascontiguousarray(x))
        found = dmlops.gather_nd(made, indices, mode="fill", fill_value=1, wrap_negative=False)
        assert (to_bytes(found) == raw(np.concatenate([x[2:3], rows, x[8:9], rows]))).all()


def test_jax_complex128(torch):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        host = sample(np.dtype("complex128"), (9, 50))
        check(jax.device_put(host), host, jax.numpy.asarray(INDICES))
