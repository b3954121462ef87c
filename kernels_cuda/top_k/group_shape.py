"""How a row falls into chunks and groups, and what the maxima of groups take."""

VECTORS_A_LANE = 8
CHUNK_VECTORS = 32 * VECTORS_A_LANE
LARGEST_LANE_BITS = 3

# Levels: of elements, and of the two group maxima of long rows.
ELEMENTS, FINE, COARSE = range(3)
# Vectors of a fine group are 1 << FINE_BITS.
FINE_BITS = 3
FINE_A_CHUNK = CHUNK_VECTORS >> FINE_BITS
MAXIMA_THREADS = 256
MAXIMA_WARPS = MAXIMA_THREADS // 32
# Rows of a block that finds the maxima of rows which lie side by side.
TURNED_ROWS = 32


def key_bytes(element_size: int) -> int:
    """Return the bytes of a key in the workspace."""
    return max(4, element_size)
