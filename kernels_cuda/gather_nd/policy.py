"""What may be tuned: the thresholds between algorithms, as one value."""

from dataclasses import dataclass

from kernels_cuda.tables import NARROW_LIMIT


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds; tests plan with others to force an algorithm."""

    # Up to so many units, a thread of the planar kernel has one.
    single_units: int = 1 << 20
    # The planar kernel multiplies positions and strides in bytes as 32-bit integers.
    planar_stride: int = (1 << 31) - 1
    # Shorter strided runs are mostly unaligned ends.
    strided_run_bytes: int = 64
    # The units of an unaligned run, by their bytes, from which on it is covered by vectors, and all units
    # together: a vector takes as long as some units do, those at the ends longer, and the code of few units
    # is shorter. Larger units are fast.
    unaligned_run_units: tuple[tuple[int, int], ...] = ((1, 32), (2, 64))
    unaligned_units: int = 1 << 14
    # The largest bound that indices are compared with in registers of 32 bits.
    short_bound: int = (1 << 32) - 1
    # Larger problems are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT
    check_blocks_per_multiprocessor: int = 16
