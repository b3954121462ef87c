"""Arrays of CuPy, Numba and unknown libraries that share the memory of a torch tensor."""

import importlib
from importlib.util import find_spec

import numpy as np

from tests.gpu.numba_cuda import numba_cuda


class Interface:
    """An array of no known library, known by its CUDA array interface, whose entries may be changed."""

    def __init__(self, tensor, **changes):
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, **changes}


def of_interface(tensor, handle=None):
    """Return an array that names a stream, if it is given one."""
    return Interface(tensor, **({} if handle is None else {"version": 3, "stream": handle}))


def of_numba(tensor, handle=None):
    """Return an array of Numba, which names a stream in the same way."""
    cuda = numba_cuda()
    with cuda.gpus[tensor.device.index]:
        return cuda.as_cuda_array(of_interface(tensor, handle), sync=False)


def of_cupy(tensor, handle=None):
    """Return an array of CuPy, which knows no stream."""
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Device(tensor.device.index):
        return cupy.asarray(tensor)


# By library, functions of a tensor and of a stream's handle.
KINDS = {"torch": lambda tensor, handle=None: tensor, "interface": of_interface, "numba": of_numba}
if find_spec("cupy"):
    KINDS["cupy"] = of_cupy


def to_numpy(array):
    """Return the elements of an array of any library."""
    for method in ("to_numpy", "copy_to_host", "get"):
        if hasattr(array, method):
            return getattr(array, method)()
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)
