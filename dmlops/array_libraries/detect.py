"""Find the library that an array belongs to."""

import importlib
import sys
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from dmlops.array_libraries import frameworks
from dmlops.array_libraries.base import ArrayLibrary, Operand, dlpack_device
from dmlops.array_libraries.numpy import NUMPY
from dmlops.store import once
from dmlops.types.errors import error_text, instance_of
from dmlops.types.tensor import TensorDesc, describe_arrays_by

# The types whose objects all belong to one library; objects of other types are examined one by one.
_BY_TYPE: dict[type, ArrayLibrary] = {np.ndarray: NUMPY, list: NUMPY, float: NUMPY, int: NUMPY}

KIND_SIGNATURES: dict[type, Callable[[Any], Hashable]] = {np.ndarray: NUMPY.kind_signature}
"""Tells the kind of an array that nobody has vouched for, by the types that native calls can read.

No array of another library has an equal one."""

# DLDeviceType, of dlpack.h.
_HOST_DEVICES = {1, 3, 11}  # page-locked memory of CUDA and ROCm included
_CUDA_DEVICES = {2, 13}  # managed memory included
_OTHER_DEVICES = {7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}


def as_plain(array: object, where: str) -> Any:
    """Return an input as its library converts it; see `ArrayLibrary.as_plain`."""
    return array if type(array) in KIND_SIGNATURES else find_library(array, where).as_plain(array, where)


def as_pattern(array: object, where: str) -> tuple[ArrayLibrary, object]:
    """Return the library of an array, and the array as the library describes it without reading elements."""
    library = _BY_TYPE.get(type(array)) or find_library(array, where)
    return library, library.as_pattern(array, where)


def as_input(array: object, where: str, stream: int | None = None) -> Operand:
    """Return an input that its library has vouched for; see `ArrayLibrary.as_input`."""
    library = _BY_TYPE.get(type(array)) or find_library(array, where)
    return library.as_input(array, where, stream)


def as_output(array: object, where: str) -> Operand:
    """Return an output that its library has vouched for; see `ArrayLibrary.as_output`."""
    library = _BY_TYPE.get(type(array)) or find_library(array, where)
    return library.as_output(array, where)


def _described(array: object, where: str) -> TensorDesc:
    library, pattern = as_pattern(array, where)
    return library.describe(pattern, where)


describe_arrays_by(_described)


def compiling_framework() -> Any:
    """Return the functions of the framework whose compiler traces this code, or None; see `takes_over`.

    The compiler must be given operators: it cannot trace the code that finds the library of an array.
    """
    # Another thread may be importing torch at the moment.
    ask = getattr(sys.modules.get("torch.compiler"), "is_dynamo_compiling", None)
    if ask is None or not ask():
        return None
    return frameworks.torch_compiler.functions


def find_library(array: object, where: str) -> ArrayLibrary:
    """Return the library of an array; scalars, lists and everything else that NumPy converts belong to NumPy.

    Raises
    ------
    TypeError
        If it lives on a device that no back-end serves.
    """
    kind = type(array)
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if isinstance(array, np.ndarray):
        return NUMPY
    for module, attribute, *served_by in _KNOWN:
        base = getattr(sys.modules.get(module), attribute, None)
        if base is not None and isinstance(array, base):
            library = _instance(*served_by)
            if library.owns(kind):
                _BY_TYPE[kind] = library
            if library.native_type is not None and library.owns(kind):
                KIND_SIGNATURES[kind] = library.kind_signature
            return library
    if isinstance(array, getattr(sys.modules.get("torch.fx"), "Proxy", ())):
        reason = "it has no elements, and torch.fx.symbolic_trace sees calls of torch only"
        remedy = "use torch.export or make_fx, or call this in a function that torch.fx.wrap names"
        raise TypeError(error_text(where, "a torch.fx.Proxy", reason, remedy))
    if hasattr(array, "__cuda_array_interface__"):
        return _instance("cuda_array_interface", "CudaArrayInterface")
    if hasattr(array, "__dlpack_device__") and hasattr(array, "__dlpack__"):
        return _dlpack_library(array, where)
    return NUMPY


def _dlpack_library(array: object, where: str) -> ArrayLibrary:
    number, _ = dlpack_device(array, where)
    if number in _CUDA_DEVICES:
        return _instance("dlpack", "DLPack")
    if number in _HOST_DEVICES:
        return NUMPY
    device = _OTHER_DEVICES.get(number, f"DLPack device {number}")
    reason, remedy = "no back-end serves that device", "copy it to the CPU or to a CUDA device first"
    raise TypeError(error_text(where, f"{instance_of(array)} on {device}", reason, remedy))


# A type, by module and name, and the class here that serves its instances, by module and name.
_KNOWN = (
    ("torch", "Tensor", "torch", "Torch"),
    ("cupy", "ndarray", "cupy", "CuPy"),
    ("jax", "Array", "jax", "Jax"),
    ("numba.cuda.cudadrv.devicearray", "DeviceNDArray", "numba", "Numba"),
)


def _instance(module: str, name: str) -> ArrayLibrary:
    return once.once(("array library", name), partial(_make, module, name))


def _make(module: str, name: str) -> ArrayLibrary:
    library = getattr(importlib.import_module(f"dmlops.array_libraries.{module}"), name)
    return library()  # type: ignore[no-any-return]
