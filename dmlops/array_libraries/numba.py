"""Numba's device arrays."""

import sys
from typing import Any

from dmlops.array_libraries.cuda_array_interface import CudaArray, CudaArrayInterface
from dmlops.devices.memory import Device
from dmlops.types.data_types import numpy_dtype
from dmlops.types.opaque_types import ElementType


class Numba(CudaArrayInterface):
    """Numba, for its arrays on any CUDA device."""

    name = "numba"

    def __init__(self) -> None:
        self._cuda = sys.modules["numba.cuda"]

    def owns(self, kind: type) -> bool:
        return True

    def address(self, array: Any) -> int:
        # The results of a call are Numba's own.
        return array.pointer if isinstance(array, CudaArray) else array.device_ctypes_pointer.value or 0

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> object:
        with self._cuda.gpus[device.number]:
            return self._cuda.device_array(sizes, numpy_dtype(data_type))
