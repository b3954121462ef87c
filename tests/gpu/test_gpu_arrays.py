"""GPU arrays of every library and kind: which are accepted, and which are returned."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, sample
from tests.gpu.numba_cuda import numba_cuda


class Interface:
    """An array of no known library, known by its CUDA array interface."""

    def __init__(self, array, stream=None):
        self.array = array
        self.__cuda_array_interface__ = dict(array.__cuda_array_interface__)
        if stream is not None:
            self.__cuda_array_interface__ |= {"version": 3, "stream": stream}


class DLPack:
    """An array of no known library, known by its DLPack capsule."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def check_every_function(x, host, to_numpy):
    """Check all functions on the device array `x` that equals `host`."""
    values, indices = dmlops.top_k(x, 3)
    expected = reference.top_k(host, 3)
    assert_same(to_numpy(values), expected[0])
    np.testing.assert_array_equal(to_numpy(indices), expected[1])
    coordinates, count = dmlops.nonzero_coordinates(x)
    np.testing.assert_array_equal(to_numpy(coordinates), reference.nonzero_coordinates(host)[0])
    assert to_numpy(count).tolist() == np.count_nonzero(host)
    assert_same(to_numpy(dmlops.diagonal_matrix(x, begin=-1)), reference.diagonal_matrix(host, begin=-1))


def test_numba_arrays():
    cuda = numba_cuda()
    host = sample("float32", (9, 50), "numba")
    x = cuda.to_device(host)
    check_every_function(x, host, lambda array: array.copy_to_host())
    picked = dmlops.gather_nd(x, cuda.to_device(np.array([[8], [0]])))
    assert_same(picked.copy_to_host(), host[[8, 0]])
    check_every_function(x[::2, ::3], host[::2, ::3], lambda array: array.copy_to_host())


def test_cuda_array_interface(torch):
    host = sample("float32", (9, 50), "interface")
    tensor = torch.from_numpy(host).cuda()
    torch.cuda.synchronize()

    def to_numpy(array):
        assert type(array) is dmlops.DeviceArray
        return torch.as_tensor(array, device="cuda").cpu().numpy()

    check_every_function(Interface(tensor), host, to_numpy)
    check_every_function(Interface(tensor[:, ::2]), host[:, ::2], to_numpy)


def test_stream_of_a_cuda_array_interface_is_waited_for(torch):
    # The producer's stream is still at work when the array is handed over.
    x, late = torch.zeros((5, 100), device="cuda"), torch.rand((5, 100), device="cuda")
    # The first calls load and prepare things, which takes its time and is no wait.
    for _ in range(3):
        dmlops.top_k(Interface(x), 3)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.copy_(late)
    result = dmlops.top_k(Interface(x, stream.cuda_stream), 3)
    assert not stream.query(), "the call held the host"
    torch.cuda.synchronize()
    values = torch.as_tensor(result.values, device="cuda")
    assert torch.equal(values, late.topk(3).values)


def test_dlpack(torch):
    host = sample("float32", (9, 50), "dlpack")
    tensor = torch.from_numpy(host).cuda()
    torch.cuda.synchronize()

    def to_numpy(array):
        assert type(array) is dmlops.DeviceArray
        return torch.from_dlpack(array).cpu().numpy()

    check_every_function(DLPack(tensor), host, to_numpy)
    check_every_function(DLPack(tensor[:, ::2]), host[:, ::2], to_numpy)


def test_cupy_negative_strides():
    cupy = pytest.importorskip("cupy")
    host = sample("float32", (9, 50), "negative")
    check_every_function(cupy.asarray(host)[::-1, ::-2], host[::-1, ::-2], cupy.asnumpy)


def test_torch_views(torch):
    host = sample("int16", (9, 8, 7), "views")
    x = torch.from_numpy(host).cuda()
    for view, expected in (
        (x.permute(2, 0, 1), host.transpose(2, 0, 1)),
        (x[1:, :, 2:], host[1:, :, 2:]),
        (x[:1].expand(4, 8, 7), np.broadcast_to(host[:1], (4, 8, 7))),
    ):
        check_every_function(view, expected, lambda tensor: tensor.cpu().numpy())


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("width", [61, 64, 257])
def test_rows_at_any_alignment(offset, width, torch):
    # Vector loads need 16 bytes of alignment; arrays promise that of an element only.
    for dtype in ("uint8", "float16", "float32"):
        host = sample(dtype, 40 * width + 8, (dtype, width))
        x = torch.from_numpy(host).cuda()[offset : offset + 40 * width].reshape(40, width)
        check_every_function(
            x, host[offset : offset + 40 * width].reshape(40, width), lambda t: t.cpu().numpy()
        )


def test_outputs_at_any_alignment(torch):
    host = sample("float32", (40, 61), "outputs")
    x = torch.from_numpy(host).cuda()
    for offset in range(4):
        memory = torch.full((40 * 61 + 8,), 77.0, device="cuda")
        out = memory[offset : offset + 40 * 61].reshape(40, 61)
        dmlops.diagonal_matrix(x, out=out)
        assert_same(out.cpu().numpy(), reference.diagonal_matrix(host))
        assert (memory[:offset] == 77).all()
        assert (memory[offset + 40 * 61 :] == 77).all()


def test_like(torch):
    result = dmlops.diagonal_matrix(shape=(2, 3), like=torch.zeros(1, dtype=torch.float16, device="cuda"))
    assert result.device.type == "cuda"
    assert result.dtype == torch.float16
    assert result.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_jax():
    jax = pytest.importorskip("jax")
    host = sample("float32", (9, 50), "jax")
    x = jax.device_put(host)
    check_every_function(x, host, np.asarray)
    assert isinstance(dmlops.top_k(x, 1).values, jax.Array)
