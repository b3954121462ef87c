"""How much of a row a block of the block kernel can hold, in shared memory."""

from typing import NamedTuple

from kernels_cuda.top_k.elements import VECTOR_BYTES
from kernels_cuda.top_k.group_shape import key_bytes

# So many more than twice k candidates are still ordered, or groups read, rather than told apart first.
SPARE = 64
# Of those that candidates are ordered by.
BINS_A_THREAD = 4


class BlockShape(NamedTuple):
    """How much a block holds: candidates, group maxima in their place, listed groups."""

    n_threads: int
    n_slots: int
    n_groups: int
    n_listed: int
    key_bytes: int

    @property
    def list_offset(self) -> int:
        """Where the list lies in dynamic shared memory; it is also the order of the candidates."""
        offset = max(self.n_slots * (self.key_bytes + 4), self.n_groups * self.key_bytes)
        return -(-offset // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def bins_offset(self) -> int:
        """Where the bins lie that the candidates are ordered by."""
        size = max(4 * self.n_listed, 2 * self.n_slots)
        return self.list_offset + -(-size // VECTOR_BYTES) * VECTOR_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        return self.bins_offset + 4 * BINS_A_THREAD * self.n_threads


def largest_shape(element_size: int, n_threads: int) -> BlockShape:
    """Return the most that blocks hold; those of 512 and 1024 threads need more than 48 KiB."""
    n_bytes = key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    return BlockShape(n_threads, 8192 if n_bytes == 4 else 5120, 65536 // n_bytes, 6144, n_bytes)
