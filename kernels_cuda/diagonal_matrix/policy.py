"""What may be tuned: the thresholds between algorithms, as one value."""

from dataclasses import dataclass

from kernels_cuda.diagonal_matrix.parameters import THREADS
from kernels_cuda.layout import NARROW_LIMIT


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds; tests plan with others to force an algorithm."""

    # Shorter rows are mostly unaligned ends.
    vector_row_bytes: int = 64
    # Kernels of vectors count columns and diagonals in 31 bits.
    longest_row_bytes: int = 1 << 30
    # Transposed matrices of fewer rows waste most of what is loaded.
    transposed_rows: int = 16
    # Vectors of one launch.
    launch_vectors: int = NARROW_LIMIT - THREADS
    # Larger problems are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT
