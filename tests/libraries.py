"""One interface for all array libraries, so that every test can use each of them."""

import importlib

import numpy as np

import dmlops
from dmlops import FeatureLevel
from tests import reference
from tests.data import DTYPES, assert_same, storage


class DLPack:
    """An array of no known library, known by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class NumPy:
    """NumPy arrays are what the tables of cases hold."""

    name = "numpy"
    index_dtype = np.dtype("int64")

    def dtype(self, dtype):
        """Return the library's name for a NumPy type."""
        return np.dtype(dtype)

    def from_numpy(self, array):
        """Return an array of the library with the same elements in the same layout."""
        return array

    def to_numpy(self, array):
        """Return the elements as a NumPy array; scalars and subclasses are not arrays of the library."""
        assert type(array) is np.ndarray
        return array


class Torch:
    """torch tensors on one device."""

    index_dtype = np.dtype("int64")

    def __init__(self, device):
        self.torch = importlib.import_module("torch")
        self.device = self.torch.device(device)
        self.name = f"torch:{device}"

    @property
    def host(self):
        """The library that gives the same answers in host memory."""
        return Torch("cpu")

    def supports(self, case):
        """Return whether the library has arrays as the case wants them."""
        return True

    def dtype(self, dtype):
        """Return the library's name for a NumPy type."""
        return getattr(self.torch, np.dtype(dtype).name)

    def from_numpy(self, array):
        """Return a tensor of the same layout; packed where that has negative strides, which torch lacks."""
        if any(stride < 0 for stride in array.strides):
            array = array.copy()
        buffer, strides, offset = storage(array)
        tensor = self.torch.from_numpy(buffer.view(np.uint8)).to(self.device)
        return tensor.view(self.dtype(array.dtype)).as_strided(array.shape, strides, offset)

    def to_numpy(self, array):
        """Return the elements as a NumPy array."""
        assert type(array) is self.torch.Tensor
        assert array.device.type == self.device.type
        name = str(array.dtype).removeprefix("torch.")
        dtype = next(dtype for dtype in DTYPES if dtype.name == name)
        raw = array.cpu().contiguous().reshape(-1).view(self.torch.uint8).numpy()
        return raw.view(dtype).reshape(tuple(array.shape))


class CuPy:
    """CuPy arrays on the current device."""

    name = "cupy"
    index_dtype = np.dtype("int64")

    def __init__(self):
        self.cupy = importlib.import_module("cupy")

    @property
    def host(self):
        """The library that gives the same answers in host memory."""
        return NUMPY

    def supports(self, case):
        """Return whether the library has arrays as the case wants them."""
        return "bfloat16" not in case.name

    def dtype(self, dtype):
        """Return the library's name for a NumPy type."""
        return np.dtype(dtype)

    def from_numpy(self, array):
        """Return an array of the library with the same elements in the same layout."""
        buffer, strides, offset = storage(array)
        buffer = self.cupy.asarray(buffer)
        steps = [stride * array.itemsize for stride in strides]
        return self.cupy.ndarray(array.shape, array.dtype, buffer.data + offset * array.itemsize, steps)

    def to_numpy(self, array):
        """Return the elements as a NumPy array."""
        assert type(array) is self.cupy.ndarray
        return self.cupy.asnumpy(array)


NUMPY = NumPy()


def call(library, case):
    """Call the case's function on arrays of `library`; return NumPy arrays."""
    options = {name: _option(library, name, value) for name, value in case.options.items()}
    operands = [library.from_numpy(array) for array in case.operands()]
    if not operands:
        options["like"] = library.from_numpy(np.zeros(1))
    results = getattr(dmlops, case.operator)(*operands, *case.arguments, **options)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(library.to_numpy(result) for result in results)


def _option(library, name, value):
    """Return an option as the library has it."""
    if name in ("dtype", "index_dtype"):
        return library.dtype(value)
    return library.from_numpy(value) if isinstance(value, np.ndarray) else value


def expected(library, case):
    """Return what the case's oracle answers, its indices in the type that `library` gets them in."""
    options = dict(case.options)
    index_dtype = options.pop("index_dtype", library.index_dtype)
    results = getattr(reference, case.operator)(*case.operands(), *case.arguments, **options)
    if case.operator == "top_k":
        values, indices = results
        return values, indices if "indices" in options else indices.astype(index_dtype)
    if case.operator == "nonzero_coordinates":
        return tuple(result.astype(index_dtype) for result in results)
    return (results.astype(index_dtype) if case.operator == "sample" else results,)


def check(library, case):
    """Check every bit of what the case's function answers."""
    for actual, oracle in zip(call(library, case), expected(library, case), strict=True):
        assert_same(actual, oracle)


def execute(descriptor, level=FeatureLevel.DML_6_4, **inputs):
    """Compile a descriptor for the CPU and execute it on NumPy arrays; return the outputs by field."""
    operator = dmlops.compile(descriptor, device="cpu", feature_level=level)
    outputs = {
        name: np.full(tensor.sizes, 77, tensor.data_type.name.lower())
        for name, tensor in operator.outputs.items()
    }
    operator.execute(inputs | outputs, workspace=np.full(operator.workspace_size, 0xA5, np.uint8))
    return outputs
