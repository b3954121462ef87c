"""Arrays surrounded by inaccessible pages, which also lie between their rows."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
CANARY = 0xA5
_NONE, _READ, _READ_WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """An array of some layout in memory of its own.

    The inner dimensions, packed, are one block. Blocks lie on pages of their own, at one end of them, and
    between blocks there is always a page that cannot be touched. What is left of a block's pages holds
    canaries.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    dtype : dtype
        Of its elements.
    n_outer : int
        How many leading dimensions do not belong to a block.
    at_end : bool
        Whether blocks end where their pages do, or begin there.
    order : sequence of int
        The dimensions as they follow each other in memory, slowest first.
    backwards : sequence of int
        Dimensions that are walked from their end.
    """

    def __init__(self, shape, dtype, *, n_outer=0, at_end=True, order=None, backwards=()):
        self.dtype = np.dtype(dtype)
        order = range(len(shape)) if order is None else order
        sizes = [shape[d] for d in order]
        outer, inner = sizes[:n_outer], sizes[n_outer:]
        self.n_blocks = int(np.prod(outer, dtype=np.int64)) if outer else 1
        self.block_bytes = (int(np.prod(inner, dtype=np.int64)) if inner else 1) * self.dtype.itemsize
        self._pages = max(-(-self.block_bytes // PAGE), 1)
        self._pitch = (self._pages + 1) * PAGE
        total = PAGE + self.n_blocks * self._pitch if 0 not in outer else 2 * PAGE
        self._memory = mmap.mmap(-1, total)
        whole = np.frombuffer(self._memory, np.uint8)
        self._address = whole.ctypes.data
        whole[...] = CANARY
        self._lead = self._pages * PAGE - self.block_bytes if at_end else 0
        start = PAGE + self._lead
        strides = _packed(inner, self.dtype.itemsize)
        strides = [stride * self._pitch for stride in _packed(outer, 1)] + strides
        if 0 not in shape:
            for place, d in enumerate(order):
                if d in backwards:
                    start += (sizes[place] - 1) * strides[place]
                    strides[place] = -strides[place]
        by_dimension = dict(zip(order, strides, strict=True))
        strides = [by_dimension[d] for d in range(len(shape))]
        first = whole[min(start, total - self.dtype.itemsize) :][: self.dtype.itemsize].view(self.dtype)
        self.array = np.lib.stride_tricks.as_strided(first, shape, strides)
        self._whole = whole
        self._protect(_READ_WRITE)

    def fill(self, values, *, read_only=False):
        """Write the elements; return the array, whose memory may then not be written to any more."""
        self.array[...] = values
        if read_only:
            self._protect(_READ)
            self.array.flags.writeable = False
        return self.array

    def check(self, name):
        """Check the canaries."""
        if not self.block_bytes:
            return
        for number in range(self.n_blocks if self.array.size else 0):
            start = PAGE + number * self._pitch
            block = self._whole[start : start + self._pages * PAGE]
            around = np.concatenate([block[: self._lead], block[self._lead + self.block_bytes :]])
            assert (around == CANARY).all(), f"the memory around {name} was written to"

    def _protect(self, protection):
        for address in range(self._address, self._address + len(self._memory), PAGE):
            place = (address - self._address - PAGE) % self._pitch
            is_block = address != self._address and place < self._pages * PAGE
            allowed = protection if is_block else _NONE
            if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), allowed):
                raise OSError(ctypes.get_errno(), "mprotect")


def _packed(sizes, item):
    strides = [item]
    for size in reversed(sizes[1:]):
        strides.append(strides[-1] * max(size, 1))
    return strides[::-1] if sizes else []
