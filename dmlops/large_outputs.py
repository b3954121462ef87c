"""Host memory of large outputs, which the next large output takes over once nothing refers to it.

The C library gives blocks of this size back to the system as soon as they are freed. The next array then
waits for its pages to be cleared, which takes longer than the gather or the copy that fills them.
"""

import math
import weakref
from collections import deque
from typing import Any

import numpy as np

MIN_SIZE = 1 << 25  # the C library keeps smaller blocks itself
MAX_SIZE = 1 << 26
KEPT = 2  # blocks that wait for their next use: top_k has as many outputs


class _Block:
    """What the arrays in a block of memory are based on: it lives as long as any of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_end")

    def __init__(self, memory: "np.ndarray[Any, Any]", sizes: tuple[int, ...], item_size: int) -> None:
        address, _ = memory.__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": sizes,
            "typestr": f"|V{item_size}",
        }
        self._end = _End(self, _left.append)
        self._end.memory = memory


class _End(weakref.ref[_Block]):
    """Hears of the end of a block, and has its memory.

    The callback is a function of C: one of Python could meet an interrupt, which would be lost.
    """

    __slots__ = ("memory",)

    memory: "np.ndarray[Any, Any]"


_left: "deque[_End]" = deque(maxlen=KEPT)


def empty(sizes: tuple[int, ...], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """Return a new array, perhaps in memory that an earlier one has left."""
    size = math.prod(sizes) * dtype.itemsize
    if not MIN_SIZE <= size <= MAX_SIZE:
        return np.empty(sizes, dtype)
    return np.asarray(_Block(_memory_of(size), sizes, dtype.itemsize)).view(dtype)


def _memory_of(size: int) -> "np.ndarray[Any, Any]":
    for _ in range(len(_left)):
        try:
            end = _left.popleft()
        except IndexError:  # another thread was faster
            break
        if end.memory.nbytes == size:
            return end.memory
        _left.append(end)
    return np.empty(size, np.uint8)
