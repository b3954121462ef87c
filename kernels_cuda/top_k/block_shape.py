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

    @property
    def all_shared_bytes(self) -> int:
        """Shared memory of a block, with what the kernel has of its own."""
        return self.shared_bytes + static_bytes(self.n_threads)


def static_bytes(n_threads: int) -> int:
    """Return what the kernel of blocks of `n_threads` has of its own, at most."""
    return 4 * n_threads + 1024


def largest_shape(element_size: int, n_threads: int, block_shared_bytes: int) -> BlockShape:
    """Return the most that blocks hold; those of 512 and 1024 threads need more than 48 KiB.

    Where a block may have no more than 99 KiB, as with compute capability 8.6, 8.9 and 12.0, those of 1024
    threads hold a little less.
    """
    n_bytes = key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    large, less = (
        BlockShape(n_threads, size // (n_bytes + 4) // 512 * 512, size // n_bytes, n_listed, n_bytes)
        for size, n_listed in ((65536, 6144), (57344, 5632))
    )
    return large if large.all_shared_bytes <= block_shared_bytes else less
