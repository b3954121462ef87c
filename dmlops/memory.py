"""Memory as kernels see it: a device, an element width, and how far a layout reaches."""

from typing import Any, NamedTuple

import numpy as np

from dmlops.tensor import TensorDesc

_UNSIGNED: dict[int, Any] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
# Steps that the exact test for common addresses may take; beyond it the answer is yes.
_OVERLAP_WORK: Any = 100_000


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


class _Memory:
    """A stretch of memory that NumPy may view, and the array that keeps it alive."""

    def __init__(self, address: int, extent: int, dtype: "np.dtype[Any]", owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (extent,),
            "typestr": dtype.str,
        }


def memory_view(address: int, slot: Slot, owner: object) -> "np.ndarray[Any, Any]":
    """Return the elements that a layout reaches from `address`, that of element [0, ..., 0].

    The view is writable also where the array is not: kernels write to outputs only, and a
    read-only flag would be one more type to compile for.
    """
    if slot.extent == 0:
        return np.empty(0, slot.unsigned)
    return np.asarray(_Memory(address - slot.offset_in_bytes, slot.extent, slot.unsigned, owner))


def share_memory(a: Any, a_slot: Any, b: Any, b_slot: Any) -> bool:
    """Return whether two operands, viewed as kernels take them, have an address in common."""
    if isinstance(a, np.ndarray):
        if not np.may_share_memory(a, b):
            return False
        low_a, low_b = (view.__array_interface__["data"][0] for view in (a, b))
    else:
        low_a, low_b = a - a_slot.offset_in_bytes, b - b_slot.offset_in_bytes
        if low_a >= low_b + b_slot.size_in_bytes or low_b >= low_a + a_slot.size_in_bytes:
            return False
    try:
        return np.shares_memory(_phantom(low_a, a_slot), _phantom(low_b, b_slot), max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


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
