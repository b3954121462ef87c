"""The sizes that the steps agree on."""

GRANULE = 16384  # elements that share a count; their positions fill 32 KiB of shared memory
CHUNK = 1024  # elements of a warp's 32 mask words
GENERAL_COLUMNS = 8  # columns that one launch writes when no kernel is made for their number
