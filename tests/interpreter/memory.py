"""The memory of the interpreted GPU: every access is checked."""

import numpy as np

from tests.interpreter.program import SHARED_BEGIN
from tests.random_cases import SEED

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
# An address of shared memory in another block of the cluster has that block's rank, plus 1, above these bits.
RANK_BITS = 24


class FaultError(Exception):
    """An access that a GPU would refuse, or make in an order that nothing determines."""


def fault_if(is_wrong, text):
    """Raise a fault if something is wrong."""
    if is_wrong:
        raise FaultError(text)


def check_alignment(addresses, n_bytes):
    """Raise a fault if an address is no multiple of the bytes that are accessed."""
    wrong = addresses & np.uint64(n_bytes - 1) != 0
    if wrong.any():
        msg = f"address {int(addresses[wrong][0]):#x} is no multiple of {n_bytes}"
        raise FaultError(msg)


# The writer of what was stored by blocks that have left.
_EARLIER = 1 << 30


class GlobalMemory:
    """Arrays of the host that kernels may access, at the addresses that they have.

    What a warp stores is seen late: by warps that know of it by a barrier, and by others when the launch has
    ended. Only atomic and relaxed stores are seen at once.
    """

    is_stable = True

    def __init__(self):
        self._arrays = []
        self._begins = np.empty(0, np.uint64)
        # By the address of an array: for each byte what was stored last, by which warp (-1: none) and when.
        self._late, self._clocks = {}, None

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

    def begin_blocks(self, clocks):
        """Begin blocks whose warps know of each other by their clocks; the blocks before them have left."""
        self._clocks = clocks
        for _, writers, _ in self._late.values():
            writers[writers >= 0] = _EARLIER

    def settle(self):
        """Let everybody see what was stored: another launch has ended."""
        for array in self._arrays:
            values, writers, _ = self._late.pop(_address(array), (array, np.full(array.size, -1), None))
            np.copyto(array, values, where=writers >= 0)

    def load(self, addresses, bits, warps):
        """Return what the addresses hold for the warps of some threads."""
        found = np.empty(addresses.size, UNSIGNED[bits])
        for array, places, offsets in self._pieces(addresses, bits // 8):
            at = offsets[:, None] + np.arange(bits // 8)
            rows = array[at]
            if _address(array) in self._late:
                is_known = self._is_known(array, at, warps[places])
                rows = np.where(is_known, self._late[_address(array)][0][at], rows)
            found[places] = np.ascontiguousarray(rows).view(UNSIGNED[bits]).ravel()
        return found

    def store(self, addresses, values, bits, warps, is_relaxed=False):
        """Write values; of several to the same address the last one stays."""
        for array, places, offsets in self._pieces(addresses, bits // 8):
            at = offsets[:, None] + np.arange(bits // 8)
            rows = np.ascontiguousarray(values[places]).view(np.uint8).reshape(places.size, -1)
            if is_relaxed:
                self._settle(array, at)
                array[at] = rows
                continue
            late = self._late.get(_address(array))
            if late is None:
                late = array.copy(), np.full(array.size, -1, np.int32), np.zeros(array.size, np.int32)
                self._late[_address(array)] = late
            # Of two stores in no order, the first is seen when the second is made.
            self._settle(array, at[~self._is_known(array, at, warps[places]) & (late[1][at] >= 0)])
            late[0][at], late[1][at] = rows, warps[places][:, None]
            late[2][at] = self._clocks.of(warps[places])[:, None]

    def update(self, addresses, bits, change):
        """Replace one element after the other by what `change(place, old)` returns."""
        for array, places, offsets in self._pieces(addresses, bits // 8):
            self._settle(array, offsets[:, None] + np.arange(bits // 8))
            for place, offset in zip(places, offsets, strict=True):
                element = array[offset : offset + bits // 8].view(UNSIGNED[bits])
                element[0] = change(place, element[0])

    def _is_known(self, array, at, warps):
        """Tell which bytes a warp has stored itself, or knows that another one has."""
        _, writers, clocks = self._late[_address(array)]
        found = (writers[at] >= 0) & (writers[at] != _EARLIER)
        warps, others = np.broadcast_to(warps[:, None], at.shape)[found], writers[at][found]
        found[found] = (warps == others) | self._clocks.knows(warps, others, clocks[at][found])
        return found

    def _settle(self, array, at):
        """Let everybody see what was stored in some bytes of an array."""
        if _address(array) in self._late:
            values, writers, _ = self._late[_address(array)]
            at = at[writers[at] >= 0]
            array[at], writers[at] = values[at], -1


def _address(array):
    return array.__array_interface__["data"][0]


class Clocks:
    """The clocks of warps, and up to which time each warp has seen what every other one did.

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

    def all_of(self, warps):
        """Return what warps know now."""
        return self._known[warps]

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
    clocks, order : Clocks, Clocks
        What warps know of each other; and of the barriers for messages that they have made, of which relaxed
        arrivals at the barrier of a cluster tell, too.
    races : set of str
        Pairs of accesses whose order is left to chance.
    have_met : array
        Which clusters have met, so that all of their blocks run.
    """

    def __init__(self, n_blocks, n_cluster, n_bytes, block_of_warp):
        self._n_cluster, self.block_bytes = n_cluster, n_bytes
        self._block_of_warp = block_of_warp
        self._bytes = np.random.default_rng(SEED).integers(0, 256, n_blocks * n_bytes, np.uint8)
        n_words = self._bytes.size // 4
        self._accesses = {kind: _Accesses(n_words) for kind in ("load", "store", "atomic")}
        self.clocks, self.order = Clocks(block_of_warp.size), Clocks(block_of_warp.size)
        self.races = set()
        self.have_met = np.zeros(n_blocks // n_cluster, bool)

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
        fault_if(
            ((owners != blocks) & ~self.have_met[blocks // self._n_cluster]).any(),
            "the memory of another block, before all of the cluster run",
        )
        return owners * self.block_bytes + offsets

    def load(self, addresses, bits, warps, text):
        """Return what the addresses hold; `warps` are those of the threads, `text` is the instruction."""
        places = self.places(addresses, bits, self._block_of_warp[warps])
        self._note("load", places >> 2, warps, text, None)
        return self._bytes.view(UNSIGNED[bits])[places // (bits // 8)]

    def store(self, addresses, values, bits, warps, text, known=None):
        """Write values; `known` is what the warps knew when they began to."""
        places = self.places(addresses, bits, self._block_of_warp[warps])
        cells = self._bytes.view(UNSIGNED[bits])
        at = places // (bits // 8)
        # Writing the value that is there already is no race, nor is a write to other bytes of the same word.
        changes = (cells[at] != values) & (bits >= 32)
        if bits >= 32:
            self._note("store", places >> 2, warps, text, changes, known)
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

    def _note(self, kind, words, warps, text, changes, known=None):
        known = self.clocks.all_of(warps) if known is None else known
        for earlier in _CONFLICTS[kind]:
            accesses = self._accesses[earlier]
            conflicts = self._is_concurrent(accesses, words, warps, known)
            if kind == "store" and earlier != "atomic":
                conflicts &= changes
            for first in set(accesses.texts[words[conflicts]]):
                self.races.add(f"{first}  /  {text}")
        clocks = known[np.arange(warps.size), warps]
        self._accesses[kind].note(words, warps, clocks, text)

    def _is_concurrent(self, accesses, words, warps, known):
        """Tell which words another warp accessed of which this one knows nothing."""
        earlier = accesses.warps[words]
        is_known = known[np.arange(warps.size), earlier] >= accesses.clocks[words]
        return (earlier >= 0) & (earlier != warps) & ~is_known


_CONFLICTS = {"load": ("store", "atomic"), "store": ("load", "store", "atomic"), "atomic": ("load", "store")}


class _Accesses:
    """The last access of one kind to each word."""

    def __init__(self, n_words):
        self.warps = np.full(n_words, -1)
        self.clocks = np.zeros(n_words, np.int32)
        self.texts = np.empty(n_words, object)

    def note(self, words, warps, clocks, text):
        self.warps[words], self.clocks[words], self.texts[words] = warps, clocks, text
