"""How a row falls into chunks and groups, and what the maxima of groups take."""

VECTORS_A_LANE = 8
CHUNK_VECTORS = 32 * VECTORS_A_LANE
LARGEST_LANE_BITS = 3

# Levels: of elements, and of the two group maxima of long rows.
ELEMENTS, FINE, COARSE = range(3)
# Vectors of a fine group are 1 << FINE_BITS.
FINE_BITS = 3
FINE_A_CHUNK = CHUNK_VECTORS >> FINE_BITS
# Of rows that lie side by side they are fewer: an element that is read again takes a sector of its own.
TURNED_FINE_BITS = {1: 1, 2: 1, 4: 1, 8: 2}
# Vectors that a thread of a block loads before it looks at the first, when groups are looked at again.
VECTORS_AHEAD = 4
MAXIMA_THREADS = 256
MAXIMA_WARPS = MAXIMA_THREADS // 32
# Rows of a block that finds the maxima of rows which lie side by side.
TURNED_ROWS = 32


def key_bytes(element_size: int) -> int:
    """Return the bytes of a key in the workspace."""
    return max(4, element_size)


def fine_bits(element_size: int, is_turned: bool) -> int:
    """Return the bits of the number of vectors of a fine group."""
    return TURNED_FINE_BITS[element_size] if is_turned else FINE_BITS
