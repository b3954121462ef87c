"""The sizes of a radix sort: its digits, and what blocks of each of its kernels take."""

DIGIT_BITS = 8
N_DIGITS = 1 << DIGIT_BITS
# Of an entry of a row's histogram.
COUNT_BYTES = 8
CLEARING_THREADS = 256
CLEARED_BYTES = 16 * CLEARING_THREADS
# Large blocks, for each adds its counts to those of the whole row.
COUNTING_THREADS = 1024
# Elements that a thread counts at a time.
COUNTED = 8
COUNTED_ELEMENTS = COUNTING_THREADS * COUNTED
# Beyond this size of a row, counts with two bits of state do not fit into 32.
LARGEST_NARROW_ROW = 1 << 30


def tile_shape(element_size: int, position_size: int) -> tuple[int, int, int]:
    """Return the threads of a tile, the elements of each, and the limit on registers."""
    return (384, 14, 80) if element_size + position_size <= 8 else (512, 8, 64)


def tile_elements(element_size: int, position_size: int) -> int:
    """Return the elements of a tile."""
    n_threads, n_items, _ = tile_shape(element_size, position_size)
    return n_threads * n_items


def exchange_bytes(element_size: int, position_size: int) -> int:
    """Return the shared memory that a tile exchanges its keys, then its positions, in."""
    return tile_elements(element_size, position_size) * max(4, element_size, position_size)
