"""How much of a row a block of the tile kernel sorts, and what it needs for that."""

from kernels_cuda.top_k.sort_shape import N_DIGITS

# Threads, and elements of each, for rows of up to their product; positions are counted in 16 bits.
TILE_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((256, 8), (384, 16), (512, 16), (1024, 16))),
    8: ((256, 8), (512, 8), (1024, 8)),
}
# The sums of a block's warps.
SUMS = 64


def exchange_bytes(element_size: int, n_threads: int, n_items: int) -> int:
    """Return the dynamic shared memory that a block exchanges keys, then positions, in."""
    return n_threads * n_items * max(4, element_size)


def shared_bytes(element_size: int, n_threads: int, n_items: int) -> int:
    """Return all shared memory of a block: it also counts digits in each warp, in 16 bits."""
    counts_bytes = n_threads // 32 * N_DIGITS * 2
    return exchange_bytes(element_size, n_threads, n_items) + counts_bytes + SUMS * 4
