"""The sizes that plan and kernels agree on."""

THREADS = 256
ELEMENTS = 4  # of a thread of `elements`, a block apart
VECTOR = 16

TILE_ROWS = 128
TILE_ROW_BYTES = 128


def elements_a_thread(wide: bool) -> int:
    """Return how many elements a thread of `elements` writes; wide kernels loop over dimensions instead."""
    return 1 if wide else ELEMENTS
