"""How blocks of the column kernel use their shared memory, for the candidates of each lane."""

from typing import NamedTuple

LANES = 32
POSITION_BYTES = 2
# From a slot to the lane's next.
POSITION_STEP = LANES * POSITION_BYTES
# Positions are those in a part.
LONGEST_PART = 1 << 8 * POSITION_BYTES
# Rows of a chunk; two chunks are loaded ahead, enough for the memory's latency.
CHUNK_ROWS = {1: 16, 2: 16, 4: 16, 8: 8}
# Candidates beyond the winners that a lane has room for before it must drop some, at least.
_LEAST_ROOM = 12
# Shared memory that 16 warps of a multiprocessor may use each, and what a block may.
_WARP_BYTES = 14080
LARGEST_SHARED_BYTES = 56 * 1024


def key_bytes(element_size: int) -> int:
    """Return the bytes of a key in shared memory."""
    return max(element_size, 2)


def spare_candidates(k: int) -> int:
    """Return how many more than k candidates may stay, to find a threshold soon."""
    return max(2, k // 4)


class ColumnShape(NamedTuple):
    """How a block uses its shared memory: warps, a power of two, and candidates a lane holds."""

    n_warps: int
    n_slots: int
    first_position: int
    shared_bytes: int


def column_shape(element_size: int, k: int, axis_size: int) -> ColumnShape | None:
    """Return the shape of blocks, or None if a warp's winners do not fit."""
    slot_bytes = LANES * (key_bytes(element_size) + POSITION_BYTES)
    least = k + spare_candidates(k) + CHUNK_ROWS[element_size] + max(_LEAST_ROOM, k // 2)
    # Candidates are counted in eights. Several warps merge their winners, and look one beyond two lists.
    n_slots = max(_ceil_to_eight(least), _WARP_BYTES // slot_bytes // 8 * 8)
    n_slots = min(n_slots, _ceil_to_eight(max(axis_size, k)))
    for n_warps in (4, 2):
        n_merging = max(n_slots, _ceil_to_eight(2 * k + 1))
        if n_warps * n_merging * slot_bytes <= LARGEST_SHARED_BYTES:
            return _column_shape(element_size, n_warps, n_merging)
    return _column_shape(element_size, 1, n_slots) if n_slots * slot_bytes <= LARGEST_SHARED_BYTES else None


def _column_shape(element_size: int, n_warps: int, n_slots: int) -> ColumnShape:
    first_position = n_warps * n_slots * LANES * key_bytes(element_size)
    return ColumnShape(n_warps, n_slots, first_position, first_position + n_warps * n_slots * POSITION_STEP)


def _ceil_to_eight(count: int) -> int:
    return (count + 7) // 8 * 8
