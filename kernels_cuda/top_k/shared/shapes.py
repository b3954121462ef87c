"""Sizes that several families of kernels, and their launches, agree on."""

KIB = 1 << 10
ELEMENT_SIZES = (1, 2, 4, 8)
# The most shared memory that blocks may have on any device.
MOST_SHARED_BYTES = 227 * KIB
WARP_LANES = 32
# Rows are read in vectors of this size, whatever the elements.
VECTOR_BYTES = 16
# Vectors that a thread loads before it uses the first, in filter passes.
VECTORS_AHEAD = 4

# Groups of vectors (`groups`).
VECTORS_PER_LANE = 8
CHUNK_VECTORS = WARP_LANES * VECTORS_PER_LANE
# A fine group has 1 << FINE_BITS vectors.
FINE_BITS = 3
MAXIMA_THREADS = 256
MAXIMA_WARPS = MAXIMA_THREADS // WARP_LANES


def bits_for(count: int) -> int:
    """Return the bits of the least power of two that is not below a count of at least 1.

    Examples
    --------
    >>> [bits_for(count) for count in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    bits = 0
    while count > 1 << bits:
        bits += 1
    return bits


def group_key_bytes(element_size: int) -> int:
    """Return the bytes of a group maximum in memory."""
    return max(4, element_size)


# A block orders up to 2 k plus so many candidates before it filters once more.
SPARE_CANDIDATES = 64
# Bins that candidates are ordered by.
BINS_PER_THREAD = 4

# Radix sorts.
DIGIT_BITS = 8
N_DIGITS = 1 << DIGIT_BITS
# The most pairs that a block sorts, except for `partition`; and bytes of a warp's counters (`pair_sort`).
SORTED_PAIRS = 4096
WARP_COUNTER_BYTES = 2 * N_DIGITS


def pair_bytes(element_size: int, position_size: int = 4) -> int:
    """Return the bytes of a pair of a key and a position: a word of 8 bytes for both, or one for each."""
    return 8 if max(element_size, position_size) <= 4 else 16


def slot_bytes(element_size: int) -> int:
    """Return the shared memory of a key and a position of 4 bytes (`short_rows.slots`)."""
    return max(4, element_size) + 4


def pair_counters_offset(element_size: int, k: int, n_threads: int) -> int:
    """Return where the counters of a block that sorts k pairs begin: behind as many pairs for each thread."""
    return -(-k // n_threads) * n_threads * pair_bytes(element_size)


def pair_sort_bytes(element_size: int, k: int, n_threads: int) -> int:
    """Return the shared memory of a block that sorts what it selects: pairs, and counters of each warp."""
    counter_bytes = n_threads // WARP_LANES * WARP_COUNTER_BYTES
    return pair_counters_offset(element_size, k, n_threads) + counter_bytes
