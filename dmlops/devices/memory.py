"""Devices by name, and memory of the host: the alignment of workspaces, and scratch."""

import ctypes
import mmap
import sys
import threading
from typing import NamedTuple

import numpy as np

# The alignment of a workspace that kernels may rely on, on both devices.
ALIGNMENT = 256

# Scratch up to this size is kept between calls: fresh pages cost more than the work done in them.
_KEPT_SCRATCH = 1 << 26

# New host memory of this size or more is asked for in huge pages, as NumPy does.
LARGE = 1 << 22
_madvise = ctypes.CDLL(None).madvise if hasattr(mmap, "MADV_HUGEPAGE") else None


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


def ask_for_huge_pages(address: int, size: int) -> None:
    """Let the system back large new memory by huge pages, where it offers them: a page fault takes long."""
    if size >= LARGE and _madvise is not None:
        begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(ctypes.c_void_p(begin), ctypes.c_size_t(address + size - begin), mmap.MADV_HUGEPAGE)


def read_integer(address: int, dtype: np.dtype) -> int:
    """Return the integer at an address in host memory."""
    return int.from_bytes(ctypes.string_at(address, dtype.itemsize), sys.byteorder, signed=dtype.kind == "i")


class Scratch(NamedTuple):
    """Host memory for one call: where it begins, how large it is, and what keeps it."""

    address: int
    size: int
    owner: object

    def __enter__(self) -> int:
        """Return where the memory begins."""
        return self.address

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Keep the memory for the thread's next call."""
        if self.size <= _KEPT_SCRATCH and not _idle.kept:
            _idle.kept.append(self)


# Each thread's scratch that no call uses.
_idle = threading.local()


def take_scratch(size: int) -> Scratch:
    """Return at least `size` bytes of aligned scratch that nothing else uses inside a ``with`` block.

    A signal handler or a finalizer may call dmlops in between, on the same thread.
    """
    kept: list[Scratch] = vars(_idle).setdefault("kept", [])
    if kept:
        scratch = kept.pop()
        if scratch.size >= size:
            return scratch
    owner = np.empty(size + ALIGNMENT, np.uint8)
    return Scratch(aligned(owner.ctypes.data), size, owner)
