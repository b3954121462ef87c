"""The sizes that plan and kernels agree on."""

THREADS = 128
UNITS = 4  # of 16 bytes that a thread moves; wide kernels, which loop over dimensions, move one
SCALAR_UNITS = 2  # of fewer bytes
VECTOR = 16
CHECKED_TUPLES = 8  # of a thread at a time
SHORT_BOUND = (1 << 32) - 1  # the largest that 32-bit registers compare with

PLAIN_DIMS = 2
PLAIN_COORDINATES = 3
PLAIN_UNITS = 4  # of a thread, where there are many
STRIDED_THREADS = 256


def units_a_thread(unit: int, wide: bool) -> int:
    """Return how many units a thread moves."""
    return 1 if wide else UNITS if unit == VECTOR else SCALAR_UNITS
