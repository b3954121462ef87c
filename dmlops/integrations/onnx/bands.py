"""The bands of diagonals that Trilu and EyeLike fill."""

INT32_LIMITS = -(2**31), 2**31 - 1
INT64_LIMITS = -(2**63), 2**63 - 1


def zeroed(k: int, upper: int, limits: tuple[int, int]) -> tuple[int, int]:
    """Return the band of diagonals that Trilu clears: those below `k`, or those above it."""
    lowest, highest = limits
    edge = clamped(k if upper else k + 1, limits)
    return (lowest, edge) if upper else (edge, highest)


def clamped(k: int, limits: tuple[int, int]) -> int:
    """Return the diagonal that is nearest to `k` within the limits."""
    lowest, highest = limits
    return min(max(k, lowest), highest)
