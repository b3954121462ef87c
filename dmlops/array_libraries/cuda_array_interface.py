"""Other arrays with ``__cuda_array_interface__``: results are instances of `DeviceArray`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from dmlops.array_libraries.base import ArrayLibrary, Operand, refuse_unaligned
from dmlops.array_libraries.device_array import DeviceArray
from dmlops.devices import cuda_driver
from dmlops.devices.memory import Device
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import error_text, instance_of, refuse
from dmlops.types.opaque_types import ElementType
from dmlops.types.tensor import packed_strides

_ADDRESSES = 1 << 64
# The stream on which results are allocated: that of the caller, or None.
_given_stream: ContextVar[object] = ContextVar("dmlops_given_stream", default=None)


class CudaArray:
    """The description of an array by a protocol, and the object that keeps its memory alive."""

    __slots__ = ("device_number", "dtype", "is_read_only", "owner", "pointer", "shape", "stream", "strides")

    def __init__(self, interface: Mapping[str, Any], owner: object, device_number: int | None) -> None:
        self.owner = owner
        self.pointer, self.is_read_only = int(interface["data"][0] or 0), bool(interface["data"][1])
        self.shape = tuple(interface["shape"])
        self.dtype = np.dtype(interface["typestr"])
        packed = tuple(stride * self.dtype.itemsize for stride in packed_strides(self.shape))
        self.strides = tuple(interface.get("strides") or packed)
        # A stream that must be waited for; None if the producer orders its work itself.
        self.stream: int | None = interface.get("stream")
        # None for an address in host memory.
        self.device_number = device_number


class CudaArrayInterface(ArrayLibrary):
    """Arrays of any other library that supports the protocol."""

    name = "cuda_array_interface"
    needs_ordering = True

    def as_input(self, array: Any, where: str, stream: int | None) -> Operand:
        interface = array.__cuda_array_interface__
        try:
            is_masked = interface.get("mask") is not None
            view = CudaArray(interface, array, None)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            got = instance_of(array)
            reason = f"its __cuda_array_interface__ cannot be read ({error!r})"
            raise TypeError(
                error_text(where, got, reason, "it must follow the protocol's version 3")
            ) from None
        if is_masked:
            reason, remedy = "the mask would be lost", "fill it first"
            raise TypeError(error_text(where, "a masked array", reason, remedy))
        if 0 < view.pointer < _ADDRESSES:
            view.device_number = cuda_driver.pointer_device(view.pointer, where)
        return self._operand(view, where)

    def as_output(self, array: object, where: str) -> Operand:
        operand = self.as_input(array, where, None)
        if operand.array.is_read_only:
            refuse(where, "a read-only array", "it is written to", "an output must be writable")
        return operand

    def _operand(self, view: CudaArray, where: str) -> Operand:
        """Return an array whose elements are in the memory of a device, and aligned there."""
        if 0 not in view.shape:
            if not view.pointer or view.device_number is None:
                got = f"{instance_of(view.owner)} at address {view.pointer:#x}"
                remedy = "pass an array that holds its data on a device"
                raise TypeError(error_text(where, got, "it is not in the memory of a CUDA device", remedy))
            if view.pointer % (view.dtype.itemsize or 1):
                refuse_unaligned("array", where)
        signature = self, view.dtype, view.shape, view.strides, view.device_number
        return Operand(self, view, signature, view.pointer)

    def device(self, array: CudaArray) -> Device:
        return Device("cuda", array.device_number or 0)

    def address(self, array: CudaArray) -> int:
        return array.pointer

    def producer_stream(self, array: CudaArray) -> int | None:
        return array.stream

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> object:
        return DeviceArray(sizes, numpy_dtype(data_type), device.number, _given_stream.get())

    @contextmanager
    def on_stream(self, stream: int, device: Device, given: object = None) -> Iterator[None]:
        # The object keeps the stream alive; its handle does not.
        token = _given_stream.set(stream if given is None else given)
        try:
            yield
        finally:
            _given_stream.reset(token)
