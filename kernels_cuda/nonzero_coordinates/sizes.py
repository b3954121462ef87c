"""The sizes that plan and kernels agree on."""

GRANULE = 16384  # elements that share a count; their positions fill 32 KiB of shared memory
CHUNK = 1024  # elements of a warp's 32 mask words
GENERAL_COLUMNS = 8  # columns that one launch writes when no kernel is made for their number

MASK_THREADS = 256
TURNED_THREADS = 256
FILLED_WORDS = 4  # words of a row that a lane of the turned kernel fills
SCAN_THREADS = 1024
EXPAND_THREADS = 512
SMALL_THREADS = 1024
SMALL_FEWER_THREADS = 512
SMALL_IN_FLIGHT = 4  # elements that a thread of the small kernel loads, at most
SMALL_LIMIT = SMALL_THREADS * SMALL_IN_FLIGHT


def block_elements(element_size: int) -> int:
    """Return how many elements a block reads of contiguous input: 64 KiB, but a granule at least."""
    return max(GRANULE, 65536 // element_size)


def small_threads(n_elements: int) -> int:
    """Return the threads of the small kernel for so many elements: one an element, as far as a block goes.

    Half a block has less to wait for, and is enough where its threads take in the elements all at once.
    """
    most = SMALL_FEWER_THREADS if n_elements <= SMALL_FEWER_THREADS * SMALL_IN_FLIGHT else SMALL_THREADS
    return min(-(-n_elements // 32) * 32, most)


def column_depth(n_columns: int) -> int:
    """Return how many divisions a row takes: the last of up to four columns is what the others leave."""
    return GENERAL_COLUMNS if n_columns == GENERAL_COLUMNS else max(1, n_columns - 1)
