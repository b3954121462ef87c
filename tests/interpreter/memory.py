"""The memory of the interpreted GPU: every access is checked."""

import numpy as np

from tests.interpreter.program import SHARED_BEGIN
from tests.random_cases import SEED

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
# An address of shared memory in another block of the cluster has that block's rank, plus 1, above these bits.
RANK_BITS = 24


class FaultError(Exception):
    """What a GPU would not do, or do in an order that nothing determines."""


def check_alignment(addresses, n_bytes):
    """Raise a fault if an address is no multiple of the bytes that are accessed."""
    wrong = addresses & np.uint64(n_bytes - 1) != 0
    if wrong.any():
        msg = f"address {int(addresses[wrong][0]):#x} is no multiple of {n_bytes}"
        raise FaultError(msg)


class GlobalMemory:
    """Arrays of the host that kernels may access, at the addresses that they have."""

    def __init__(self):
        self._arrays = []
        self._begins = np.empty(0, np.uint64)

    def add(self, array):
        """Make all bytes of a contiguous array accessible; return its address."""
        self._arrays.append(array.reshape(-1).view(np.uint8))
        self._arrays.sort(key=_address)
        self._begins = np.array([_address(array) for array in self._arrays], np.uint64)
        return _address(array)

    def _pieces(self, addresses, n_bytes):
        """Yield, for each array that is accessed: it, which of the addresses, and the offsets in it."""
        check_alignment(addresses, n_bytes)
        owners = np.searchsorted(self._begins, addresses, side="right") - 1
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            offsets = (addresses[places] - self._begins[owner]).astype(np.int64)
            if owner < 0:
                msg = f"no array is at {int(addresses[places[0]]):#x}"
                raise FaultError(msg)
            array = self._arrays[owner]
            outside = offsets + n_bytes > array.size
            if outside.any():
                msg = f"byte {int(offsets[outside][0])} of an array of {array.size} bytes"
                raise FaultError(msg)
            yield array, places, offsets

    def load(self, addresses, bits):
        """Return what the addresses hold."""
        found = np.empty(addresses.size, UNSIGNED[bits])
        for array, places, offsets in self._pieces(addresses, bits // 8):
            rows = array[offsets[:, None] + np.arange(bits // 8)]
            found[places] = np.ascontiguousarray(rows).view(UNSIGNED[bits]).ravel()
        return found

    def store(self, addresses, values, bits):
        """Write values; of several to the same address the last one stays."""
        for array, places, offsets in self._pieces(addresses, bits // 8):
            rows = np.ascontiguousarray(values[places]).view(np.uint8).reshape(places.size, -1)
            array[offsets[:, None] + np.arange(bits // 8)] = rows

    def update(self, addresses, bits, change):
        """Replace one element after the other by what `change(place, old)` returns."""
        for array, places, offsets in self._pieces(addresses, bits // 8):
            for place, offset in zip(places, offsets, strict=True):
                element = array[offset : offset + bits // 8].view(UNSIGNED[bits])
                element[0] = change(place, element[0])


def _address(array):
    return array.__array_interface__["data"][0]


class Clocks:
    """What warps know of each other: a clock each, and up to when a warp knows what another one did.

    That grows at barriers, and with messages.
    """

    def __init__(self, n_warps):
        self._known = np.eye(n_warps, dtype=np.int32)

    def of(self, warps):
        """Return the clocks of some warps."""
        return self._known[warps, warps]

    def knows(self, warps, others, clocks):
        """Tell of which others a warp knows what they did at a time."""
        return self._known[warps, others] >= clocks

    def meet(self, warps):
        """Let warps know all that any of them knows."""
        self._known[warps] = self._known[warps].max(axis=0)
        self._known[warps, warps] += 1

    def tell(self, warps):
        """Return what warps know, all together; what they do from now on is later."""
        told = self._known[warps].max(axis=0)
        self._known[warps, warps] += 1
        return told

    def learn(self, warps, told):
        """Let warps know what others have told."""
        self._known[warps] = np.maximum(self._known[warps], told)


class SharedMemory:
    """The shared memory of clusters of blocks, and who accessed it when.

    Attributes
    ----------
    block_bytes : int
        Bytes of each block.
    clocks : Clocks
        What warps know of each other.
    races : set of str
        Pairs of accesses whose order is left to chance.
    """

    def __init__(self, n_blocks, n_cluster, n_bytes, block_of_warp):
        self._n_cluster, self.block_bytes = n_cluster, n_bytes
        self._block_of_warp = block_of_warp
        self._bytes = np.random.default_rng(SEED).integers(0, 256, n_blocks * n_bytes, np.uint8)
        n_words = self._bytes.size // 4
        self._accesses = {kind: _Accesses(n_words) for kind in ("load", "store", "atomic")}
        self.clocks = Clocks(block_of_warp.size)
        self.races = set()

    def places(self, addresses, bits, blocks):
        """Return the blocks whose memory is accessed, and the bytes in the memory of all of them."""
        check_alignment(addresses, bits // 8)
        ranks = (addresses >> np.uint64(RANK_BITS)).astype(np.int64)
        first = blocks // self._n_cluster * self._n_cluster
        owners = np.where(ranks == 0, blocks, first + ranks - 1)
        offsets = (addresses & np.uint64((1 << RANK_BITS) - 1)).astype(np.int64)
        outside = (
            (ranks > self._n_cluster) | (offsets < SHARED_BEGIN) | (offsets + bits // 8 > self.block_bytes)
        )
        if outside.any():
            at, size = int(offsets[outside][0]) - SHARED_BEGIN, self.block_bytes - SHARED_BEGIN
            block = f"block {int(ranks[outside][0]) - 1} of the cluster"
            msg = f"byte {at} of {size} bytes of shared memory, {block}"
            raise FaultError(msg)
        return owners * self.block_bytes + offsets

    def load(self, addresses, bits, warps, text):
        """Return what the addresses hold; `warps` are those of the threads, `text` is the instruction."""
        places = self.places(addresses, bits, self._block_of_warp[warps])
        self._note("load", places >> 2, warps, text, None)
        return self._bytes.view(UNSIGNED[bits])[places // (bits // 8)]

    def store(self, addresses, values, bits, warps, text):
        """Write values."""
        places = self.places(addresses, bits, self._block_of_warp[warps])
        cells = self._bytes.view(UNSIGNED[bits])
        at = places // (bits // 8)
        # Writing what is there already is no race, nor is a write beside another in the same word.
        changes = (cells[at] != values) & (bits >= 32)
        if bits >= 32:
            self._note("store", places >> 2, warps, text, changes)
        cells[at] = values
        if (cells[at] != values).any():
            self.races.add(f"several values at one place: {text}")

    def update(self, addresses, bits, warps, text, change):
        """Replace one element after the other by what `change(place, old)` returns."""
        places = self.places(addresses, bits, self._block_of_warp[warps])
        self._note("atomic", places >> 2, warps, text, None)
        cells = self._bytes.view(UNSIGNED[bits])
        for number, at in enumerate(places // (bits // 8)):
            cells[at] = change(number, cells[at])

    def _note(self, kind, words, warps, text, changes):
        for earlier in _CONFLICTS[kind]:
            accesses = self._accesses[earlier]
            conflicts = self._is_concurrent(accesses, words, warps)
            if kind == "store" and earlier != "atomic":
                conflicts &= changes
            for first in set(accesses.texts[words[conflicts]]):
                self.races.add(f"{first}  /  {text}")
        self._accesses[kind].note(words, warps, self.clocks.of(warps), text)

    def _is_concurrent(self, accesses, words, warps):
        """Tell which words another warp accessed that this one knows nothing of."""
        earlier = accesses.warps[words]
        is_known = self.clocks.knows(warps, earlier, accesses.clocks[words])
        return (earlier >= 0) & (earlier != warps) & ~is_known


_CONFLICTS = {"load": ("store", "atomic"), "store": ("load", "store", "atomic"), "atomic": ("load", "store")}


class _Accesses:
    """The last access of one kind to each word."""

    def __init__(self, n_words):
        self.warps = np.full(n_words, -1)
        self.clocks = np.zeros(n_words, np.int32)
        self.texts = np.empty(n_words, object)

    def note(self, words, warps, clocks, text):
        self.warps[words] = warps
        self.clocks[words] = clocks
        self.texts[words] = text
