"""How much of a row a lane of the warp kernel holds, in registers, and a warp, in shared memory."""

from kernels_cuda.top_k.elements import VECTOR_BYTES

N_THREADS = 256
WARPS_A_BLOCK = N_THREADS // 32
# Keys that reach the threshold for which a warp has room; and a row of which it has room for all.
FEW_SLOTS = 64
MANY_SLOTS = 256
# The most maxima that are taken away, half of all.
LARGEST_K = 32


def vectors_a_lane(element_size: int, n_elements: int) -> int:
    """Return how many vectors a lane needs for rows of up to `n_elements`."""
    per_pass = 32 * VECTOR_BYTES // element_size
    return -(-n_elements // per_pass)


def slot_bytes(element_size: int, n_slots: int) -> int:
    """Return the shared memory of a block whose warps have room for `n_slots` keys each."""
    return WARPS_A_BLOCK * n_slots * (12 if element_size == 8 else 8)
