"""A GPU call refuses bad arrays before it launches anything, so the next call works.

torch tensors without memory of their own are in `tests/test_plain_tensors.py`.
"""

import ctypes
import functools
import importlib
from collections import OrderedDict
from contextlib import ExitStack
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest

import dmlops
from dmlops.calls.call_cache import CALLS
from tests import reference
from tests.data import assert_same

torch = pytest.importorskip("torch")

SHAPE = (6, 8)
X = np.arange(48, dtype="float32").reshape(SHAPE)
PICKS = np.array([[1], [5], [-6]])
# There are 47 coordinates, as one element is zero.
OUTPUTS = {
    "values": np.zeros((6, 2), "float32"),
    "places": np.zeros((6, 2), "int64"),
    "picked": np.zeros((3, 8), "float32"),
    "band": np.zeros(SHAPE, "float32"),
    "coordinates": np.zeros((47, 2), "int64"),
    "count": np.zeros((), "int64"),
}
MODES = ("raise", "clip", "fill")


class Interface:
    """An array that is known by its CUDA array interface, whose entries may be changed."""

    def __init__(self, tensor, **changes):
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, **changes}


def at_odd_address(host):
    """Return the elements as bytes on the GPU, from the second byte of an allocation on, and all bytes."""
    content = np.concatenate([np.zeros(1, np.uint8), np.ascontiguousarray(host).reshape(-1).view(np.uint8)])
    return torch.from_numpy(np.concatenate([content, np.zeros(15, np.uint8)])).cuda()


def odd_interface(host):
    """Return an array whose first element is at an odd address."""
    memory = at_odd_address(host)
    data = memory.data_ptr() + 1, False
    return Interface(memory, data=data, shape=host.shape, typestr=host.dtype.str, strides=None)


def odd_torch(host):
    """Return a tensor whose first element is at an odd address."""
    tensor = torch.as_tensor(odd_interface(host), device="cuda")
    if tensor.data_ptr() % 2 == 0:
        pytest.skip("torch has moved the tensor to an even address")
    return tensor


def odd_cupy(host):
    """Return a CuPy array whose first element is at an odd address."""
    cupy = importlib.import_module("cupy")
    memory = cupy.asarray(at_odd_address(host).cpu().numpy())
    return cupy.ndarray(host.shape, host.dtype, memory.data + 1)


def good_cupy(host):
    return importlib.import_module("cupy").asarray(host)


def cupy_without_memory(host):
    cuda_module = importlib.import_module("cupy").cuda
    memory = cuda_module.UnownedMemory(0, host.nbytes, None, 0)
    return importlib.import_module("cupy").ndarray(
        host.shape, host.dtype, cuda_module.MemoryPointer(memory, 0)
    )


def odd_strides(host):
    return tuple(stride + 2 for stride in host.strides)


def cupy_with_odd_strides(host):
    cupy = importlib.import_module("cupy")
    return cupy.ndarray(host.shape, host.dtype, cupy.zeros(4096, "uint8").data, odd_strides(host))


def at_host_address(host):
    array = Interface(torch.from_numpy(host).cuda(), data=(host.ctypes.data, False))
    array.host = host
    return array


class OnDevice:
    """An object that says it is on a GPU, and would copy itself to the host if it were asked."""

    def __init__(self, host):
        self.shape, self.dtype, self.device = host.shape, host.dtype, torch.device("cuda:0")

    def __array__(self, dtype=None, copy=None):
        pytest.fail("the array was copied to the host")


class OnMetal:
    """An object whose memory no back-end reaches."""

    number = 8

    def __init__(self, host):
        self.shape, self.dtype = host.shape, host.dtype

    def __dlpack_device__(self):
        return self.number, 0

    def __dlpack__(self, **options):
        pytest.fail("the memory was asked for")


class OnROCm(OnMetal):
    number = 10


class OnUnknown(OnMetal):
    number = 99


def lazy(host):
    """Return a Dask array of CuPy's."""
    array = pytest.importorskip("dask.array")
    return array.from_array(good_cupy(host), asarray=False, name=False)


GOOD = {
    "torch": lambda host: torch.from_numpy(host).cuda(),
    "interface": lambda host: Interface(torch.from_numpy(host).cuda()),
}
BAD = {
    "interface-address_0": lambda host: Interface(GOOD["torch"](host), data=(0, False)),
    "interface-address_none": lambda host: Interface(GOOD["torch"](host), data=(None, False)),
    "interface-no_data": lambda host: Interface(GOOD["torch"](host), data=None),
    "interface-host": at_host_address,
    "interface-masked": lambda host: Interface(GOOD["torch"](host), mask=GOOD["torch"](host)),
    "interface-unaligned": odd_interface,
    "interface-strides": lambda host: Interface(GOOD["torch"](host), strides=odd_strides(host)),
    "interface-bytes_swapped": lambda host: Interface(
        GOOD["torch"](host), typestr=host.dtype.newbyteorder().str
    ),
    "torch-device_with_array": OnDevice,
    "torch-metal": OnMetal,
    "torch-rocm": OnROCm,
    "torch-unknown": OnUnknown,
}
# These are copied as inputs.
BAD_OUTPUTS = {
    "interface-read_only": lambda host: Interface(
        tensor := GOOD["torch"](host), data=(tensor.data_ptr(), True)
    ),
    "torch-unaligned": odd_torch,
    "torch-list": lambda host: host.tolist(),
}
if find_spec("cupy"):
    GOOD["cupy"] = good_cupy
    BAD |= {
        "cupy-address_0": cupy_without_memory,
        "cupy-strides": cupy_with_odd_strides,
        "cupy-lazy": lazy,
    }
    BAD_OUTPUTS["cupy-unaligned"] = odd_cupy


def reading(x, indices):
    """Go through calls that read these arrays: what errors call the first one, and a function."""
    yield "top_k.x", lambda: dmlops.top_k(x, 2)
    yield "nonzero_coordinates.x", lambda: dmlops.nonzero_coordinates(x)
    yield "nonzero_coordinates.x", lambda: dmlops.nonzero_coordinates(x, size=47)
    for mode in MODES:
        yield "gather_nd.x", lambda mode=mode: dmlops.gather_nd(x, indices, mode=mode)
    yield "diagonal_matrix.x", lambda: dmlops.diagonal_matrix(x, value=3)


def writing(x, indices, outputs, name):
    """Go through calls that write the output of this name: what errors call it, and a function."""
    values, places, picked, band, coordinates, count = (outputs[key] for key in OUTPUTS)
    if name in ("values", "places"):
        field = f"top_k.out[{int(name == 'places')}]"
        yield field, lambda: dmlops.top_k(x, 2, out=(values, places))
    elif name == "picked":
        for mode in MODES:
            yield "gather_nd.out", lambda mode=mode: dmlops.gather_nd(x, indices, mode=mode, out=picked)
    elif name == "band":
        yield "diagonal_matrix.out", lambda: dmlops.diagonal_matrix(x, value=3, out=band)
        yield "diagonal_matrix.out", lambda: dmlops.diagonal_matrix(value=3, out=band)
    else:
        field = f"nonzero_coordinates.out[{int(name == 'count')}]"
        yield field, lambda: dmlops.nonzero_coordinates(x, out=(coordinates, count))


def call_all(make):
    """Make every call on good arrays, some times, so that later ones are known."""
    x, indices = make(X), make(PICKS)
    outputs = {name: make(host) for name, host in OUTPUTS.items()}
    for _ in range(3):
        for _, call in reading(x, indices):
            call()
        for name in OUTPUTS:
            for _, call in writing(x, indices, outputs, name):
                call()


def check_all(make):
    """Check that good arrays are served."""
    x, indices = make(X), make(PICKS)
    outputs = {name: torch.from_numpy(host.copy()).cuda() for name, host in OUTPUTS.items()}
    for name in OUTPUTS:
        for _, call in writing(x, indices, outputs, name):
            call()
            if name == "band":
                expected = reference.diagonal_matrix(X, value=3)
                assert_same(outputs["band"].cpu().numpy(), expected)
                break
    torch.cuda.synchronize()
    found = {name: tensor.cpu().numpy() for name, tensor in outputs.items()}
    values, places = reference.top_k(X, 2)
    assert_same(found["values"], values)
    assert_same(found["places"], places.astype("int64"))
    assert_same(found["picked"], X[PICKS[:, 0]])
    assert_same(found["coordinates"], reference.nonzero_coordinates(X)[0].astype("int64"))
    assert found["count"] == 47


@functools.cache
def counting_entry():
    """Return a launch entry that counts, and its list; calls that are kept use it in later tests, too."""
    real, counted = importlib.import_module("kernels_cuda.runtime.launch").launch_entry(), []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def entry(*arguments):
        counted.append(arguments)
        return real(*arguments)

    return entry, counted


@pytest.fixture
def launches(monkeypatch):
    """Count what is launched."""
    entry, counted = counting_entry()
    launch = importlib.import_module("kernels_cuda.runtime.launch")
    monkeypatch.setattr(launch, "launch_entry", lambda: entry)
    return counted


def check_refused(field, call, launches, text=""):
    """Check that a call is refused with a text that names the argument and a rule, and launches nothing."""
    n_launched = len(launches)
    with pytest.raises((TypeError, dmlops.DmlError)) as error:
        call()
    assert str(error.value).startswith(f"{field}: got "), error.value
    assert "; " in str(error.value)
    assert text in str(error.value)
    assert len(launches) == n_launched


def unknown_calls():
    """Return a context in which no call is known."""
    known = ExitStack()
    known.enter_context(mock.patch.multiple(CALLS, _calls=OrderedDict(), _latest=OrderedDict()))
    return known


def same_library(kind):
    return GOOD[kind.partition("-")[0]]


@pytest.mark.parametrize("is_warm", [False, True], ids=["first", "warm"])
@pytest.mark.parametrize("kind", BAD)
def test_inputs(kind, is_warm, launches):
    make = same_library(kind)
    with unknown_calls():
        if is_warm:
            call_all(make)
        bad, indices = BAD[kind](X), make(PICKS)
        for _ in range(2):
            for field, call in reading(bad, indices):
                check_refused(field, call, launches)
        x, bad = make(X), BAD[kind](PICKS)
        for mode in MODES:
            check_refused(
                "gather_nd.indices", lambda mode=mode: dmlops.gather_nd(x, bad, mode=mode), launches
            )
        check_all(make)


@pytest.mark.parametrize("is_warm", [False, True], ids=["first", "warm"])
@pytest.mark.parametrize("kind", [*BAD, *BAD_OUTPUTS])
def test_outputs(kind, is_warm, launches):
    make = same_library(kind)
    with unknown_calls():
        if is_warm:
            call_all(make)
        x, indices = make(X), make(PICKS)
        outputs = {name: make(host) for name, host in OUTPUTS.items()}
        for name, host in OUTPUTS.items():
            if host.ndim == 0 and kind.endswith("-strides"):
                continue  # it has none
            bad = outputs | {name: (BAD | BAD_OUTPUTS)[kind](host)}
            for field, call in writing(x, indices, bad, name):
                check_refused(field, call, launches)
        check_all(make)


@pytest.mark.parametrize("kind", ["interface-address_0", "interface-host", "interface-unaligned"])
def test_workspaces(kind, launches):
    descriptors = importlib.import_module("tests.compiled").DESCRIPTORS
    bound = importlib.import_module("tests.gpu.bound").Bound(torch, descriptors["top_k-long_row"])
    bound.execute()
    host = np.zeros(bound.operator.workspace_size, np.uint8)
    arrays = bound.inputs | bound.outputs
    if kind == "interface-unaligned":  # bytes are aligned anywhere
        bound.operator.execute(arrays, workspace=BAD[kind](np.zeros(host.size + 8, np.uint8)))
        return
    bad = BAD[kind](host)
    for _ in range(2):
        check_refused(
            "TopK1.workspace",
            lambda: bound.operator.execute(arrays, workspace=bad),
            launches,
            "not in the memory of a CUDA device",
        )
    bound.execute()
    torch.cuda.synchronize()


VIEWS = {
    "whole": lambda array: array,
    "every_other_column": lambda array: array[:, ::2],
    "columns_from_1": lambda array: array[:, 1:],
    "transposed": lambda array: array.T,
    "one_row": lambda array: array[2:3],
}
ODD = {"torch": odd_torch, "cupy": odd_cupy} if find_spec("cupy") else {"torch": odd_torch}


@pytest.mark.parametrize("given", [False, True], ids=["current_stream", "given_stream"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("library", ODD)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_unaligned_inputs_are_copied(dtype, library, view, given):
    host = VIEWS[view](X.astype(dtype))
    x, indices = VIEWS[view](ODD[library](X.astype(dtype))), ODD[library](np.array([[0], [-1]]))
    options = {"stream": torch.cuda.Stream().cuda_stream} if given else {}
    torch.cuda.synchronize()
    values, places = dmlops.top_k(x, 2, **options)
    coordinates, count = dmlops.nonzero_coordinates(x, **options)
    band = dmlops.diagonal_matrix(x, value=3, **options)
    picked = dmlops.gather_nd(x, indices, **options)
    torch.cuda.synchronize()
    found = [
        torch.as_tensor(array).cpu().numpy() for array in (values, places, coordinates, count, band, picked)
    ]
    wanted = [
        *reference.top_k(host, 2),
        *reference.nonzero_coordinates(host),
        reference.diagonal_matrix(host, value=3),
        host[[0, -1]],
    ]
    for actual, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("library", ODD)
def test_unaligned_inputs_are_copied_on_the_stream_of_the_call(library):
    host = X + 1
    x = ODD[library](np.zeros_like(X))
    late, stream = ODD[library](host), torch.cuda.Stream()
    address = x.data_ptr() if library == "torch" else x.data.ptr
    source = late.data_ptr() if library == "torch" else late.data.ptr
    # Whatever is loaded for the first call waits for the device.
    dmlops.diagonal_matrix(x, value=3, stream=stream)
    driver = importlib.import_module("cuda.bindings.driver")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    (status,) = driver.cuMemcpyDtoDAsync(address, source, host.nbytes, stream.cuda_stream)
    assert status == driver.CUresult.CUDA_SUCCESS
    result = dmlops.diagonal_matrix(x, value=3, stream=stream)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(
        torch.as_tensor(result).cpu().numpy(), reference.diagonal_matrix(host, value=3)
    )


@pytest.mark.two_gpus
def test_unaligned_arrays_stay_on_their_device():
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Device(1):
        memory = cupy.asarray(at_odd_address(X).cpu().numpy())
        x = cupy.ndarray(SHAPE, "float32", memory.data + 1)
    for array, host in ((x, X), (x[:, ::2], X[:, ::2])):
        result = dmlops.diagonal_matrix(array, value=3)
        assert result.device.id == 1
        with cupy.cuda.Device(1):
            assert_same(cupy.asnumpy(result), reference.diagonal_matrix(host, value=3))
    assert cupy.cuda.Device().id == 0


@pytest.mark.two_gpus
@pytest.mark.parametrize("is_warm", [False, True], ids=["first", "warm"])
@pytest.mark.parametrize("first", GOOD)
@pytest.mark.parametrize("second", GOOD)
def test_arrays_on_two_devices(first, second, is_warm, launches):
    def on_second_device(host):
        if second == "cupy":
            with importlib.import_module("cupy").cuda.Device(1):
                return good_cupy(host)
        tensor = torch.from_numpy(host).to("cuda:1")
        return tensor if second == "torch" else Interface(tensor)

    with unknown_calls():
        if is_warm:
            call_all(GOOD[first])
            call_all(GOOD[second])
        x, indices = GOOD[first](X), GOOD[first](PICKS)
        bad = on_second_device(PICKS)
        for mode in MODES:
            check_refused(
                "gather_nd.indices", lambda mode=mode: dmlops.gather_nd(x, bad, mode=mode), launches, "cuda:1"
            )
        outputs = {name: GOOD[first](host) for name, host in OUTPUTS.items()}
        for name, host in OUTPUTS.items():
            mixed = outputs | {name: on_second_device(host)}
            calls = list(writing(x, indices, mixed, name))
            # The last matrix has no input, and is on its own device.
            for field, call in calls[:1] if name == "band" else calls:
                check_refused(field, call, launches, "cuda:1")
        check_all(GOOD[first])


class Either:
    """A class whose objects live on either device."""

    def __init__(self, host, tensor):
        self.host, self.tensor = host, tensor

    @property
    def __cuda_array_interface__(self):
        if self.tensor is None:
            raise AttributeError
        return self.tensor.__cuda_array_interface__

    def __array__(self, dtype=None, copy=None):
        assert self.tensor is None, "the array was copied to the host"
        return self.host


class EitherByDLPack:
    """A class whose objects live on either device, and tell it by DLPack."""

    def __init__(self, host, tensor):
        self.array = torch.from_numpy(host) if tensor is None else tensor

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [Either, EitherByDLPack])
@pytest.mark.parametrize("order", ["host_first", "device_first"])
def test_a_class_whose_objects_live_on_either_device(kind, order):
    for turn in range(6):
        host = X + turn
        is_on_host = turn % 2 == (order != "host_first")
        tensor = None if is_on_host else torch.from_numpy(host).cuda()
        torch.cuda.synchronize()
        x = kind(host, tensor)
        expected = [reference.top_k(host, 3)[0], reference.diagonal_matrix(host, value=3)]
        for found, wanted in zip(
            (dmlops.top_k(x, 3).values, dmlops.diagonal_matrix(x, value=3)), expected, strict=True
        ):
            assert isinstance(found, np.ndarray) == is_on_host
            np.testing.assert_array_equal(torch.as_tensor(found).cpu().numpy(), wanted)


def test_a_deleted_array_of_jax():
    jax = pytest.importorskip("jax")
    for _ in range(2):
        x = jax.device_put(X)
        np.testing.assert_array_equal(dmlops.top_k(x, 2).values, reference.top_k(X, 2)[0])
        x.delete()
        with pytest.raises(dmlops.InvalidDescriptorError, match=r"^top_k\.x: got .* deleted"):
            dmlops.top_k(x, 2)


def test_elements_that_are_not_there_need_no_memory():
    # Address 0 is what many libraries give arrays without elements.
    empty = Interface(torch.zeros((0, 4), device="cuda"), data=(0, False))
    assert dmlops.top_k(empty, 2).values.shape == (0, 2)
    assert dmlops.nonzero_coordinates(empty).coordinates.shape == (0, 2)
    assert dmlops.diagonal_matrix(empty).shape == (0, 4)
    if find_spec("cupy"):
        cupy = importlib.import_module("cupy")
        assert dmlops.top_k(cupy.zeros((0, 4), "float32"), 2).values.shape == (0, 2)
