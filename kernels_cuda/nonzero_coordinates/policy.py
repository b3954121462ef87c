"""What may be tuned: the thresholds between algorithms, as one value."""

from dataclasses import dataclass

from kernels_cuda.nonzero_coordinates.parameters import SMALL_LIMIT
from kernels_cuda.tables import NARROW_LIMIT


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds; tests plan with others to force an algorithm."""

    # Inputs that one block does everything for, and coordinates that it may fill.
    small_elements: int = SMALL_LIMIT
    small_fill: int = 1 << 16
    # Counts that every block of `expand` may read: 32 KiB from L2.
    direct_granules: int = 8192
    most_granules_per_tile: int = 4
    fill_rows_per_block: int = 1 << 13
    # Transposed matrices of fewer rows waste most of what is loaded.
    transposed_rows: int = 16
    # Inputs, and outputs, of more elements are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT
    narrow_rows: int = NARROW_LIMIT
