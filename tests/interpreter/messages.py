"""Barriers in shared memory that wait for messages: for stores of other blocks, by the bytes announced."""

import numpy as np

from tests.interpreter.memory import fault_if

_BARRIER_BITS = 64


class _Barrier:
    def __init__(self, n_arrivals, maker):
        self.n_arrivals = self.n_missing = n_arrivals
        self.n_bytes, self.n_phases = 0, 0
        # The warp that made it, with its clocks; the clocks of arrived warps; the clocks of complete phases.
        self.maker, self.told, self.complete = maker, 0, 0


class Messages:
    """The barriers of all blocks, and the messages that are under way.

    Parameters
    ----------
    shared : SharedMemory
        Where messages go.
    block_of_warp : array
        The block of each warp.
    """

    def __init__(self, shared, block_of_warp):
        self._shared, self._block_of_warp = shared, block_of_warp
        self._barriers, self._under_way = {}, []

    def make(self, addresses, warps, n_arrivals):
        """Make barriers, each of which waits for so many arrivals."""
        made = zip(warps, self._shared.clocks.of(warps), self._shared.order.of(warps), strict=True)
        for place, maker, count in zip(self._places(addresses, warps), made, n_arrivals, strict=True):
            fault_if(place in self._barriers, "a barrier where there is one")
            self._barriers[place] = _Barrier(int(count), maker)

    def announce(self, addresses, warps, n_bytes):
        """Arrive at barriers, which have to wait for so many bytes more."""
        for barrier, warp, count in zip(self._made(addresses, warps), warps, n_bytes, strict=True):
            fault_if(barrier.n_missing == 0, "more arrivals than a barrier waits for")
            barrier.n_missing -= 1
            self._count(barrier, self._shared.clocks.tell(np.array([warp])), int(count))

    def send(self, at, parts, warps, text):
        """Send messages, which come later: their parts as (addresses, values, bits), to the barriers `at`."""
        known = self._shared.clocks.all_of(warps)
        self._made(at, warps)
        for warp in np.unique(warps):
            own = warps == warp
            sent = [(addresses[own], values[own], bits) for addresses, values, bits in parts]
            self._under_way.append((at[own], sent, warps[own], known[own], text))
        self._shared.clocks.tell(np.unique(warps))

    def deliver(self, rng, living):
        """Let the messages of one warp come that are under way, if there are any; tell whether there were."""
        if not self._under_way:
            return False
        at, parts, warps, known, text = self._under_way.pop(rng.integers(len(self._under_way)))
        owners = self._places(at, warps) // self._shared.block_bytes
        for addresses, values, bits in parts:
            places = self._shared.places(addresses, bits, self._block_of_warp[warps])
            fault_if(
                (owners != places // self._shared.block_bytes).any(),
                "a message to one block, and its barrier in another",
            )
            self._shared.store(addresses, values, bits, warps, text, known)
        fault_if(not np.isin(owners, living).all(), "a message to a block that has left")
        n_bytes = sum(bits // 8 for _, _, bits in parts)
        for barrier in self._found(at, warps):
            self._count(barrier, known[0], -n_bytes)
        return True

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
            fault_if(barrier.n_bytes > 0, f"{barrier.n_bytes} bytes that were announced have not come")
            fault_if(barrier.n_bytes < 0, f"{-barrier.n_bytes} bytes have come that nobody announced")

    def _count(self, barrier, known, n_bytes):
        """Count bytes that a warp announces or sends; `known` is what it knew then."""
        barrier.told = np.maximum(barrier.told, known)
        barrier.n_bytes += n_bytes
        if barrier.n_missing == 0 and barrier.n_bytes == 0:
            barrier.n_missing, barrier.n_phases = barrier.n_arrivals, barrier.n_phases + 1
            barrier.complete = barrier.told

    def _made(self, addresses, warps):
        """Return barriers, of which the warps have to know that they were made."""
        barriers = self._found(addresses, warps)
        for barrier, warp in zip(barriers, warps, strict=True):
            maker, clock, order = barrier.maker
            if not (
                self._shared.clocks.knows(warp, maker, clock) or self._shared.order.knows(warp, maker, order)
            ):
                self._shared.races.add("a message to a barrier that may not have been made")
        return barriers

    def _found(self, addresses, warps):
        places = self._places(addresses, warps)
        fault_if(not all(place in self._barriers for place in places), "no barrier is there")
        return [self._barriers[place] for place in places]

    def _places(self, addresses, warps):
        return self._shared.places(addresses, _BARRIER_BITS, self._block_of_warp[warps])
