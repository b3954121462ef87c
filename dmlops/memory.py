"""Memory as kernels see it: a device, an element width, and how far a layout reaches."""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from dmlops.tensor import TensorDesc

_UNSIGNED: dict[int, Any] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
# Steps that the exact test for common addresses may take; beyond it the answer is yes.
_OVERLAP_WORK: Any = 100_000


# An array object is Python's header of every object, and then the pointer to its data.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address


def address_of(array: "np.ndarray[Any, Any]") -> int:
    """Return where element [0, ..., 0] of an array is."""
    return _pointer_at(id(array) + _DATA).value


def _asked_address_of(array: "np.ndarray[Any, Any]") -> int:
    address: int = array.ctypes.data
    return address


_probe = np.empty(1, np.uint8)
if address_of(_probe) != _probe.ctypes.data:  # another layout than that of every NumPy so far: the slow way
    address_of = _asked_address_of


class Device(NamedTuple):
    """Where an array lives."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


CPU = Device("cpu")


class Slot(NamedTuple):
    """How one operand of a kernel is viewed: its element width, and the reach of its layout."""

    unsigned: Any
    extent: int
    offset_in_bytes: int
    size_in_bytes: int
    desc: TensorDesc

    @classmethod
    def of(cls, desc: TensorDesc) -> "Slot":
        """Return the slot for arrays of this description."""
        size = desc.data_type.bytes
        return cls(_UNSIGNED[size], desc.extent, desc.offset * size, desc.extent * size, desc)


def share_memory(low_a: int, a_slot: Slot, low_b: int, b_slot: Slot) -> bool:
    """Return whether two operands, given by their lowest addresses, have an address in common."""
    if low_a >= low_b + b_slot.size_in_bytes or low_b >= low_a + a_slot.size_in_bytes:
        return False
    try:
        return np.shares_memory(_phantom(low_a, a_slot), _phantom(low_b, b_slot), max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def read_integer(address: int, dtype: "np.dtype[Any]") -> int:
    """Return the integer at an address in host memory."""
    return int(np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0])


class _Phantom:
    """An array that NumPy may compare addresses with, and must never read."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _phantom(low: int, slot: Slot) -> "np.ndarray[Any, Any]":
    interface = {
        "version": 3,
        "data": (low + slot.offset_in_bytes, True),
        "shape": slot.desc.sizes,
        "strides": tuple(stride * slot.unsigned.itemsize for stride in slot.desc.effective_strides),
        "typestr": slot.unsigned.str,
    }
    return np.asarray(_Phantom(interface))
