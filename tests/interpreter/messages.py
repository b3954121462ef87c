"""Barriers in shared memory that wait for messages: for stores of other blocks, by the bytes announced."""

import numpy as np

from tests.interpreter.memory import FaultError

_BARRIER_BITS = 64


class _Barrier:
    def __init__(self, n_arrivals, maker):
        self.n_arrivals = self.n_missing = n_arrivals
        self.n_bytes, self.n_phases = 0, 0
        # The warp and the clock of who made it; what those told that arrived; and those of complete phases.
        self.maker, self.told, self.complete = maker, 0, 0


class Messages:
    """The barriers of all blocks.

    Parameters
    ----------
    shared : SharedMemory
        Where messages go.
    block_of_warp : array
        The block of each warp.
    """

    def __init__(self, shared, block_of_warp):
        self._shared, self._block_of_warp = shared, block_of_warp
        self._barriers = {}

    def make(self, addresses, warps, n_arrivals):
        """Make barriers, each of which waits for so many arrivals."""
        clocks = self._shared.clocks.of(warps)
        for place, warp, clock, count in zip(
            self._places(addresses, warps), warps, clocks, n_arrivals, strict=True
        ):
            if place in self._barriers:
                msg = "a barrier where there is one"
                raise FaultError(msg)
            self._barriers[place] = _Barrier(int(count), (warp, clock))

    def announce(self, addresses, warps, n_bytes):
        """Arrive at barriers, which have to wait for so many bytes more."""
        for barrier, warp, count in zip(self._found(addresses, warps), warps, n_bytes, strict=True):
            if barrier.n_missing == 0:
                msg = "more arrivals than a barrier waits for"
                raise FaultError(msg)
            barrier.n_missing -= 1
            self._count(barrier, warp, int(count))

    def send(self, at, addresses, warps, n_bytes):
        """Tell barriers that so many bytes have come; return the blocks that got them.

        The bytes were stored at other addresses.
        """
        owners = self._places(at, warps) // self._shared.block_bytes
        places = self._shared.places(addresses, 8 * n_bytes, self._block_of_warp[warps])
        if (owners != places // self._shared.block_bytes).any():
            msg = "a message to one block, and its barrier in another"
            raise FaultError(msg)
        for barrier, warp in zip(self._found(at, warps), warps, strict=True):
            self._count(barrier, warp, -n_bytes)
        return owners

    def is_complete(self, addresses, warps, parities):
        """Tell which barriers have completed a phase; who waited knows what those told that arrived."""
        barriers = self._found(addresses, warps)
        found = np.array(
            [barrier.n_phases % 2 != parity for barrier, parity in zip(barriers, parities, strict=True)]
        )
        for warp, barrier in {*zip(warps[found], np.array(barriers, object)[found], strict=True)}:
            self._shared.clocks.learn(warp, barrier.complete)
        return found

    def check_end(self):
        """Raise a fault if there are messages that nobody announced, or that never came."""
        for barrier in self._barriers.values():
            if barrier.n_bytes > 0:
                msg = f"{barrier.n_bytes} bytes that were announced have not come"
                raise FaultError(msg)
            if barrier.n_bytes < 0:
                msg = f"{-barrier.n_bytes} bytes have come that nobody announced"
                raise FaultError(msg)

    def _count(self, barrier, warp, n_bytes):
        clocks = self._shared.clocks
        if not clocks.knows(warp, *barrier.maker):
            self._shared.races.add("a message to a barrier that may not have been made")
        barrier.told = np.maximum(barrier.told, clocks.tell(np.array([warp])))
        barrier.n_bytes += n_bytes
        if barrier.n_missing == 0 and barrier.n_bytes == 0:
            barrier.n_missing, barrier.n_phases = barrier.n_arrivals, barrier.n_phases + 1
            barrier.complete = barrier.told

    def _found(self, addresses, warps):
        places = self._places(addresses, warps)
        if not all(place in self._barriers for place in places):
            msg = "no barrier is there"
            raise FaultError(msg)
        return [self._barriers[place] for place in places]

    def _places(self, addresses, warps):
        return self._shared.places(addresses, _BARRIER_BITS, self._block_of_warp[warps])
