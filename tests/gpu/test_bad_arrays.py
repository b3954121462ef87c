"""A GPU call refuses bad arrays before it launches anything, so the next call works.

Faults that arrays in host memory have too, and tensors without memory, are in `tests/test_refusals.py`.
"""

import ctypes
import functools
import importlib
from importlib.util import find_spec

import numpy as np
import pytest

import dmlops
from tests import inside, reference
from tests.data import assert_same
from tests.gpu.arrays import Interface, of_cupy, of_interface, to_numpy
from tests.kept_calls import nothing_known
from tests.libraries import DLPack

torch = pytest.importorskip("torch")

X = np.arange(48, dtype="float32").reshape(6, 8)
PICKS = np.array([[1], [5], [-6]])
LENGTHS = np.array([8, 0, 3, 9, 1, 2])
VALUES, PLACES = reference.top_k(X, 2, lengths=LENGTHS)
COORDINATES, COUNT = reference.nonzero_coordinates(X)
ARRAYS = {
    "x": X,
    "picks": PICKS,
    "lengths": LENGTHS,
    "values": VALUES,
    "places": PLACES.astype("int64"),
    "picked": X[PICKS[:, 0]],
    "band": reference.diagonal_matrix(X, value=3),
    "coordinates": COORDINATES.astype("int64"),
    "count": COUNT.astype("int64"),
}
INPUTS = ("x", "picks", "lengths")


def top_k(arrays, **options):
    return dmlops.top_k(arrays["x"], 2, lengths=arrays["lengths"], **options)


def gather(arrays, mode, **options):
    return dmlops.gather_nd(arrays["x"], arrays["picks"], mode=mode, **options)


# A call on arrays by name, and what errors call each of its arrays.
CALLS = {
    "top_k": (top_k, {"x": "x", "lengths": "lengths", "values": "out[0]", "places": "out[1]"}),
    "nonzero_coordinates": (
        lambda arrays, **options: dmlops.nonzero_coordinates(arrays["x"], **options),
        {"x": "x", "coordinates": "out[0]", "count": "out[1]"},
    ),
    **{
        f"gather_nd-{mode}": (
            functools.partial(gather, mode=mode),
            {"x": "x", "picks": "indices", "picked": "out"},
        )
        for mode in ("raise", "clip", "fill")
    },
    "diagonal_matrix": (
        lambda arrays, **options: dmlops.diagonal_matrix(arrays["x"], value=3, **options),
        {"x": "x", "band": "out"},
    ),
}


def at_odd_address(host):
    """Return the elements as bytes on the GPU, from the second byte of an allocation on."""
    content = np.concatenate([np.zeros(1, np.uint8), np.ascontiguousarray(host).reshape(-1).view(np.uint8)])
    return torch.from_numpy(np.concatenate([content, np.zeros(15, np.uint8)])).cuda()


def odd_interface(host):
    memory = at_odd_address(host)
    data = memory.data_ptr() + 1, False
    return Interface(memory, data=data, shape=host.shape, typestr=host.dtype.str, strides=None)


def odd_torch(host):
    tensor = torch.as_tensor(odd_interface(host), device="cuda")
    if tensor.data_ptr() % 2 == 0:
        pytest.skip("torch has moved the tensor to an even address")
    return tensor


def odd_cupy(host):
    memory = of_cupy(at_odd_address(host))
    return importlib.import_module("cupy").ndarray(host.shape, host.dtype, memory.data + 1)


def cupy_without_memory(host):
    cupy = importlib.import_module("cupy")
    memory = cupy.cuda.UnownedMemory(0, host.nbytes, None, 0)
    return cupy.ndarray(host.shape, host.dtype, cupy.cuda.MemoryPointer(memory, 0))


def odd_strides(host):
    return tuple(stride + 2 for stride in host.strides)


def cupy_with_odd_strides(host):
    cupy = importlib.import_module("cupy")
    return cupy.ndarray(host.shape, host.dtype, cupy.zeros(4096, "uint8").data, odd_strides(host))


class OnDevice:
    """An object that says it is on a GPU, and would copy itself to the host if it were asked."""

    def __init__(self, host):
        self.shape, self.dtype, self.device = host.shape, host.dtype, torch.device("cuda:0")

    def __array__(self, dtype=None, copy=None):
        pytest.fail("the array was copied to the host")


def on_gpu(host):
    return torch.from_numpy(host).cuda()


def changed(**changes):
    """Return what makes an array whose interface has other entries."""
    return lambda host: Interface(on_gpu(host), **changes)


GOOD = {"torch": on_gpu, "interface": lambda host: of_interface(on_gpu(host))}
# By the library that all other arrays are of.
BAD = {
    "interface-address_0": changed(data=(0, False)),
    "interface-address_none": changed(data=(None, False)),
    "interface-no_data": changed(data=None),
    "interface-host": lambda host: Interface(on_gpu(host), data=(host.ctypes.data, False)),
    "interface-masked": lambda host: Interface(on_gpu(host), mask=on_gpu(host)),
    "interface-unaligned": odd_interface,
    "interface-strides": lambda host: Interface(on_gpu(host), strides=odd_strides(host)),
    "interface-bytes_swapped": lambda host: Interface(on_gpu(host), typestr=host.dtype.newbyteorder().str),
    "torch-device_with_array": OnDevice,
    "torch-numpy": np.copy,
}
# These are copied as inputs.
BAD_OUTPUTS = {
    "interface-read_only": lambda host: Interface(tensor := on_gpu(host), data=(tensor.data_ptr(), True)),
    "torch-unaligned": odd_torch,
    "torch-list": np.ndarray.tolist,
}
ODD = {"torch": odd_torch}
if find_spec("cupy"):
    GOOD["cupy"] = lambda host: of_cupy(on_gpu(host))
    BAD |= {"cupy-address_0": cupy_without_memory, "cupy-strides": cupy_with_odd_strides}
    ODD["cupy"] = BAD_OUTPUTS["cupy-unaligned"] = odd_cupy
KINDS = [
    *(BAD | BAD_OUTPUTS),
    *(
        pytest.param(f"{first}-{second}-elsewhere", marks=pytest.mark.two_gpus)
        for first in GOOD
        for second in GOOD
    ),
]


def spoiled(kind, host):
    """Return an array of a kind."""
    if not kind.endswith("-elsewhere"):
        return (BAD | BAD_OUTPUTS)[kind](host)
    tensor, library = torch.from_numpy(host).to("cuda:1"), kind.split("-")[1]
    return {"torch": lambda it: it, "interface": of_interface, "cupy": of_cupy}[library](tensor)


@functools.cache
def counting_entry():
    """Return a launch entry that counts, and its list; calls that are kept use it in later tests, too."""
    real, counted = inside.launch.launch_entry(), []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def entry(*arguments):
        counted.append(arguments)
        return real(*arguments)

    return entry, counted


@pytest.fixture
def launches(monkeypatch):
    """Count launches, with no known calls or kinds at first."""
    entry, counted = counting_entry()
    launch = inside.launch
    monkeypatch.setattr(launch, "launch_entry", lambda: entry)
    # Compiled code would launch without this entry.
    with nothing_known(are_native=False):
        yield counted


def check_refused(field, call, launches, text=""):
    """Check that a call is refused with a text that names the argument and a rule, and launches nothing."""
    n_launched = len(launches)
    with pytest.raises((TypeError, dmlops.DmlError)) as error:
        call()
    assert str(error.value).startswith(f"{field}: got "), error.value
    assert "; " in str(error.value)
    assert text in str(error.value)
    assert len(launches) == n_launched


def check(name, make, *, outputs):
    """Make a good call, with outputs given or without, and compare the answers."""
    call, fields = CALLS[name]
    arrays = {key: make(ARRAYS[key]) for key in fields if key in INPUTS}
    given = {key: torch.zeros_like(on_gpu(ARRAYS[key])) for key in fields if key not in INPUTS}
    options = {"out": tuple(given.values()) if len(given) > 1 else next(iter(given.values()))}
    results = call(arrays, **options) if outputs else call(arrays)
    torch.cuda.synchronize()
    results = results if isinstance(results, tuple) else (results,)
    for result, key in zip(results, given, strict=True):
        assert_same(to_numpy(result), ARRAYS[key])


@pytest.mark.parametrize("n_calls", [0, 3], ids=["first", "repeated"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_refusals(name, kind, n_calls, launches):
    make, (call, fields) = GOOD[kind.partition("-")[0]], CALLS[name]
    device = {"elsewhere": "cuda:1", "numpy": "cpu"}.get(kind.rpartition("-")[2], "")
    good = {key: make(ARRAYS[key]) for key in fields}
    outputs = [key for key in fields if key not in INPUTS]
    for place, field in fields.items():
        if place == "count" and kind.endswith("-strides"):
            continue  # it has none
        if place in INPUTS and (kind in BAD_OUTPUTS or (device and place == "x")):
            continue  # it is copied, or a call runs where x is
        arrays = good | {place: spoiled(kind, ARRAYS[place])}
        given = tuple(arrays[key] for key in outputs)
        out = {"out": given if len(given) > 1 else given[0]}
        for options in ({}, out) if place in INPUTS else (out,):
            for _ in range(n_calls):
                check(name, make, outputs=bool(options))
            for _ in range(2):
                refused = functools.partial(call, arrays, **options)
                check_refused(f"{name.partition('-')[0]}.{field}", refused, launches, device)
            check(name, make, outputs=bool(options))


@pytest.mark.parametrize(
    "kind", ["interface-address_0", "interface-host", "interface-unaligned", "torch-numpy"]
)
def test_workspaces(kind, launches):
    descriptors = importlib.import_module("tests.compiled").DESCRIPTORS
    bound = importlib.import_module("tests.gpu.bound").Bound(torch, descriptors["top_k-long_row"])
    bound.execute()
    execute = functools.partial(bound.operator.execute, bound.inputs | bound.outputs)
    bad = BAD[kind](np.zeros(bound.operator.workspace_size + 8, np.uint8))
    if kind == "interface-unaligned":  # bytes are aligned anywhere
        execute(workspace=bad)
        return
    for _ in range(2):
        check_refused("TopK1.workspace", lambda: execute(workspace=bad), launches)
    bound.execute()
    torch.cuda.synchronize()


VIEWS = {
    "whole": lambda array: array,
    "every_other_column": lambda array: array[:, ::2],
    "columns_from_1": lambda array: array[:, 1:],
    "transposed": lambda array: array.T,
    "one_row": lambda array: array[2:3],
}


@pytest.mark.parametrize("given", [False, True], ids=["current_stream", "given_stream"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("library", ODD)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_unaligned_inputs_are_copied(dtype, library, view, given):
    host = VIEWS[view](X.astype(dtype))
    x, indices = VIEWS[view](ODD[library](X.astype(dtype))), ODD[library](np.array([[0], [-1]]))
    options = {"stream": torch.cuda.Stream().cuda_stream} if given else {}
    torch.cuda.synchronize()
    found = (
        *dmlops.top_k(x, 2, **options),
        *dmlops.nonzero_coordinates(x, **options),
        dmlops.diagonal_matrix(x, value=3, **options),
        dmlops.gather_nd(x, indices, **options),
    )
    torch.cuda.synchronize()
    wanted = (
        *reference.top_k(host, 2),
        *reference.nonzero_coordinates(host),
        reference.diagonal_matrix(host, value=3),
        host[[0, -1]],
    )
    for actual, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(to_numpy(actual), expected)


@pytest.mark.parametrize("library", [*ODD, "negative"])
def test_inputs_are_copied_on_the_stream_of_the_call(library):
    """Those that are not aligned, and torch's negated views."""
    stream, source = torch.cuda.Stream(), on_gpu(-X - 1 if library == "negative" else X + 1)
    if library == "negative":
        memory = torch.zeros(X.shape, device="cuda")
        x = torch._neg_view(memory)
    else:
        memory = x = ODD[library](np.zeros_like(X))
    # Whatever is loaded for the first call waits for the device.
    dmlops.diagonal_matrix(x, value=3, stream=stream)
    address = memory.data.ptr if library == "cupy" else memory.data_ptr()
    driver = importlib.import_module("cuda.bindings.driver")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    (status,) = driver.cuMemcpyDtoDAsync(address, source.data_ptr(), X.nbytes, stream.cuda_stream)
    assert status == driver.CUresult.CUDA_SUCCESS
    result = dmlops.diagonal_matrix(x, value=3, stream=stream)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(to_numpy(result), reference.diagonal_matrix(X + 1, value=3))


class Either:
    """A class whose objects live on either device."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__

    def __array__(self, dtype=None, copy=None):
        assert self.array.device.type == "cpu", "the array was copied to the host"
        return self.array.numpy()


@pytest.mark.parametrize("kind", [Either, DLPack])
@pytest.mark.parametrize("first", [0, 1])
def test_a_class_whose_objects_live_on_either_device(kind, first):
    for turn in range(6):
        host = X + turn
        is_on_host = turn % 2 == first
        x = kind(torch.from_numpy(host) if is_on_host else on_gpu(host))
        torch.cuda.synchronize()
        found = dmlops.top_k(x, 3).values, dmlops.diagonal_matrix(x, value=3)
        expected = reference.top_k(host, 3)[0], reference.diagonal_matrix(host, value=3)
        for result, wanted in zip(found, expected, strict=True):
            assert isinstance(result, np.ndarray) == is_on_host
            np.testing.assert_array_equal(to_numpy(result), wanted)


@pytest.mark.parametrize("library", GOOD)
def test_elements_that_are_not_there_need_no_memory(library):
    empty = GOOD[library](np.zeros((0, 4), "float32"))
    if library == "interface":  # address 0 is what many libraries give arrays without elements
        empty = Interface(empty.tensor, data=(0, False))
    assert dmlops.top_k(empty, 2).values.shape == (0, 2)
    assert dmlops.nonzero_coordinates(empty).coordinates.shape == (0, 2)
    assert dmlops.diagonal_matrix(empty).shape == (0, 4)
