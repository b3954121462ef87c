"""CuPy arrays."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from dmlops.array_libraries.base import ArrayLibrary, Operand, are_nonzero, refuse_type, refuse_unaligned
from dmlops.devices.memory import Device
from dmlops.types.data_types import numpy_dtype
from dmlops.types.opaque_types import ElementType, OpaqueType
from dmlops.types.tensor import TensorDesc

if TYPE_CHECKING:
    from cupy import ndarray


class CuPy(ArrayLibrary):
    """CuPy, for its arrays on any CUDA device."""

    name = "cupy"
    allocates_on_streams = True

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]

    def owns(self, kind: type) -> bool:
        return kind is self._cupy.ndarray

    def as_pattern(self, array: "ndarray", where: str) -> "ndarray":
        return array

    def as_input(self, array: "ndarray", where: str, stream: int | None) -> Operand:
        array = array if type(array) is self._cupy.ndarray else array.view(self._cupy.ndarray)
        if array.data.ptr % array.itemsize:
            device = self.device(array)
            with (
                self._cupy.cuda.Device(device.number),
                nullcontext() if stream is None else self.on_stream(stream, device),
            ):
                array = self._aligned_copy(array)
        return self._operand(array)

    def _aligned_copy(self, array: "ndarray") -> "ndarray":
        # As bytes, because CuPy's own kernels also read elements only at multiples of their size.
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        contents = self._cupy.ndarray(shape, "uint8", array.data, strides).copy()
        return contents.view(array.dtype).reshape(array.shape)

    def as_output(self, array: "ndarray", where: str) -> Operand:
        array = array if type(array) is self._cupy.ndarray else array.view(self._cupy.ndarray)
        if array.data.ptr % array.itemsize:
            refuse_unaligned("array", where)
        return self._operand(array)

    def _operand(self, array: "ndarray") -> Operand:
        memory = array.data
        signature = self, array.dtype, array.shape, array.strides, memory.device_id
        return Operand(self, array, signature, memory.ptr)

    def device(self, array: "ndarray") -> Device:
        return Device("cuda", array.data.device_id)

    def address(self, array: "ndarray") -> int:
        return array.data.ptr  # type: ignore[no-any-return]

    def as_bools(self, operand: Operand, stream: int | None) -> Operand:
        device = self.device(operand.array)
        with (
            self._cupy.cuda.Device(device.number),
            nullcontext() if stream is None else self.on_stream(stream, device),
        ):
            return self._operand(are_nonzero(operand.array, self._cupy.int64))

    def check_representable(self, data_type: ElementType, where: str) -> None:
        if isinstance(data_type, OpaqueType) and data_type.is_time:
            refuse_type(data_type, "CuPy", where)

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> "ndarray":
        with self._cupy.cuda.Device(device.number):
            return self._cupy.empty(sizes, numpy_dtype(data_type))

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], "ndarray"]:
        # The device is current while a call runs.
        return partial(self._cupy.empty, desc.sizes, numpy_dtype(desc.data_type))

    def maker(self, data_type: ElementType, device: Device) -> Callable[[tuple[int, ...]], "ndarray"]:
        return partial(self._cupy.empty, dtype=numpy_dtype(data_type))

    def current_stream(self, device: Device) -> int:
        return self._cupy.cuda.get_current_stream(device.number).ptr  # type: ignore[no-any-return]

    def on_stream(self, stream: int, device: Device, given: object = None) -> AbstractContextManager[object]:
        streams = self._cupy.cuda
        if hasattr(streams.Stream, "from_external"):
            return streams.Stream.from_external(_Handle(stream))  # type: ignore[no-any-return]
        return streams.ExternalStream(stream, device.number)  # type: ignore[no-any-return]


class _Handle:
    """A stream in the form of the protocol by which libraries exchange streams."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle
