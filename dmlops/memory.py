"""Memory as kernels see it: a device, and how far a layout reaches from the address of its first element."""

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

from dmlops.tensor import TensorDesc

# What kernels may rely on where their workspace begins, on either device.
ALIGNMENT = 256

# Steps that the exact test for common addresses may take; beyond it the answer is yes.
_OVERLAP_WORK: Any = 100_000


class Device(NamedTuple):
    """Where an array lives."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


CPU = Device("cpu")


def aligned(address: int) -> int:
    """Return the first address from this one on where a workspace may begin."""
    return -(-address // ALIGNMENT) * ALIGNMENT


class Reach(NamedTuple):
    """Where a layout begins and ends, in bytes from its element [0, ..., 0]."""

    begin: int
    end: int
    desc: TensorDesc

    @classmethod
    def of(cls, desc: TensorDesc) -> "Reach":
        """Return the reach of arrays of this description."""
        size = desc.data_type.bytes
        return cls(-desc.offset * size, (desc.extent - desc.offset) * size, desc)


class Clash(NamedTuple):
    """When two operands must be looked at closely: if the second begins so far from the first."""

    first: int
    second: int
    above: int
    below: int


def clash_of(i: int, a: Reach, j: int, b: Reach) -> Clash:
    """Return between which distances the bounds of operands number `i` and `j` overlap."""
    return Clash(i, j, a.begin - b.end, a.end - b.begin)


def share_memory(a: int, a_reach: Reach, b: int, b_reach: Reach) -> bool:
    """Return whether two operands, given by the addresses of their first elements, have one in common."""
    if not a_reach.begin - b_reach.end < b - a < a_reach.end - b_reach.begin:
        return False
    try:
        return np.shares_memory(_phantom(a, a_reach.desc), _phantom(b, b_reach.desc), max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def read_integer(address: int, dtype: "np.dtype[Any]") -> int:
    """Return the integer at an address in host memory."""
    return int.from_bytes(ctypes.string_at(address, dtype.itemsize), sys.byteorder, signed=dtype.kind == "i")


class _Phantom:
    """An array that NumPy may compare addresses with, and must never read."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _phantom(address: int, desc: TensorDesc) -> "np.ndarray[Any, Any]":
    size = desc.data_type.bytes
    interface = {
        "version": 3,
        "data": (address, True),
        "shape": desc.sizes,
        "strides": tuple(stride * size for stride in desc.effective_strides),
        "typestr": np.dtype(f"u{size}").str,
    }
    return np.asarray(_Phantom(interface))
