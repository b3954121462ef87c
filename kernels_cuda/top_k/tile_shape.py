"""How much of a row a block of the tile kernel sorts, and what it needs for that."""

# Threads, and elements of each, for rows of up to their product.
TILE_SHAPES = {
    1: ((256, 8), (384, 16)),
    2: ((256, 8), (384, 16)),
    4: ((256, 8), (384, 16)),
    8: ((256, 8), (512, 8)),
}


def exchange_bytes(element_size: int, n_elements: int) -> int:
    """Return the shared memory that a block of `n_elements` exchanges keys, then positions, in."""
    return n_elements * max(4, element_size)
