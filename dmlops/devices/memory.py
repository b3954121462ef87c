"""Memory as kernels see it: a device, and the bytes around the first element that a layout covers."""

import ctypes
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from dmlops.types.tensor import TensorDesc

# The alignment of a workspace that kernels may rely on, on both devices.
ALIGNMENT = 256

# Steps that the exact test for common addresses may take; after that, the answer is yes.
_OVERLAP_WORK: Any = 100_000
# Scratch up to this size is kept between calls: fresh pages cost more than the work done in them.
_KEPT_SCRATCH = 1 << 26


class Device(NamedTuple):
    """The device that has an array."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


CPU = Device("cpu")


def aligned(address: int) -> int:
    """Return the first address from this one on at which a workspace may begin."""
    return -(-address // ALIGNMENT) * ALIGNMENT


class ByteExtent(NamedTuple):
    """The first and the last byte of a layout, relative to its element [0, ..., 0]."""

    begin: int
    end: int
    desc: TensorDesc

    @classmethod
    def of(cls, desc: TensorDesc) -> "ByteExtent":
        """Return the extent of arrays of this description."""
        size = desc.data_type.bytes
        return cls(-desc.offset * size, (desc.extent - desc.offset) * size, desc)


class OverlapCandidate(NamedTuple):
    """The distances between two operands at which they may share memory."""

    first: int
    second: int
    above: int
    below: int


def overlap_candidate(i: int, a: ByteExtent, j: int, b: ByteExtent) -> OverlapCandidate:
    """Return between which distances the extents of operands number `i` and `j` overlap."""
    return OverlapCandidate(i, j, a.begin - b.end, a.end - b.begin)


def share_memory(a: int, a_extent: ByteExtent, b: int, b_extent: ByteExtent) -> bool:
    """Return whether two operands, given by the addresses of their first elements, have one in common."""
    if not a_extent.begin - b_extent.end < b - a < a_extent.end - b_extent.begin:
        return False
    try:
        return np.shares_memory(
            _stand_in(a, a_extent.desc), _stand_in(b, b_extent.desc), max_work=_OVERLAP_WORK
        )
    except np.exceptions.TooHardError:
        return True


def read_integer(address: int, dtype: "np.dtype[Any]") -> int:
    """Return the integer at an address in host memory."""
    return int.from_bytes(ctypes.string_at(address, dtype.itemsize), sys.byteorder, signed=dtype.kind == "i")


class _StandIn:
    """An array of which NumPy compares the addresses, and never reads the elements."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _stand_in(address: int, desc: TensorDesc) -> "np.ndarray[Any, Any]":
    size = desc.data_type.bytes
    interface = {
        "version": 3,
        "data": (address, True),
        "shape": desc.sizes,
        "strides": tuple(stride * size for stride in desc.effective_strides),
        "typestr": f"|V{size}",
    }
    return np.asarray(_StandIn(interface))


class Scratch(NamedTuple):
    """Host memory for one call: where it begins, how large it is, and what keeps it."""

    address: int
    size: int
    owner: Any

    def __enter__(self) -> int:
        """Return where the memory begins."""
        return self.address

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Keep the memory for the thread's next call."""
        if self.size <= _KEPT_SCRATCH and not _idle.kept:
            _idle.kept.append(self)


class _Idle(threading.local):
    """Each thread's scratch that no call uses."""

    def __init__(self) -> None:
        self.kept: list[Scratch] = []


_idle = _Idle()


def take_scratch(size: int) -> Scratch:
    """Return at least `size` bytes of aligned scratch that nothing else uses inside a ``with`` block.

    A signal handler or a finalizer may call dmlops in between, on the same thread.
    """
    kept = _idle.kept
    if kept:
        scratch = kept.pop()
        if scratch.size >= size:
            return scratch
    owner = np.empty(size + ALIGNMENT, np.uint8)
    return Scratch(aligned(owner.ctypes.data), size, owner)
