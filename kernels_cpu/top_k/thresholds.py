"""Find a threshold that the k greatest elements of an array reach, by counting.

Two bounds close in on the k-th element. Every count moves one of them to an element of the array, so arrays
with few distinct values need few counts. The next candidate is interpolated from the counts at the bounds;
every other time it is the mean of the bounds instead, which works for all data.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.top_k.table import SAMPLE_OF

Array = NDArray[Any]

MIN_SAMPLED = 4096  # elements; the sample of fewer tells too little
DEVIATIONS = 2  # standard deviations by which the rank of the k-th element in the sample may be off


class Bounds(NamedTuple):
    """Two elements: the k-th greatest is neither greater than `high` nor less than `low`."""

    high: int
    n_greater: int
    """Elements that are greater than `high`; fewer than k."""
    low: int
    n_at_least: int
    """Elements that are at least `low`; k or more."""


@inline
def midpoint(low: int, high: int) -> int:
    """Return the mean of two 64-bit integers, rounded up, where their sum may overflow."""
    return (low | high) - ((low ^ high) >> 1)


@njit
def count_at_least(array: Array, n: int, threshold: int) -> int:
    """Return how many of the first `n` elements are at least `threshold`; `n` is a multiple of the lanes."""
    total = 0
    lanes = simd.lanes_of(array)
    limit = simd.fill(simd.load(array, 0), threshold)
    for i in range(0, n, lanes):
        total += bitops.set_bits(simd.mask_at_most(limit, simd.load(array, i)))
    return total


@njit
def tightened(array: Array, padded: int, k: int, bounds: Bounds, middle: int) -> Bounds:
    """Move one of the bounds to the element next to `middle`, which is from more than `low` to `high`."""
    high, n_greater, low, n_at_least = bounds
    count = 0
    lanes = simd.lanes_of(array)
    limit = simd.fill(simd.load(array, 0), middle)
    lows, highs = simd.fill(limit, low), simd.fill(limit, high)
    below, above = lows, highs
    for i in range(0, padded, lanes):
        values = simd.load(array, i)
        count += bitops.set_bits(simd.mask_at_most(limit, values))
        above = simd.minimum(above, simd.where_at_most(limit, values, values, highs))
        below = simd.maximum(below, simd.where_at_most(limit, values, lows, values))
    if count < k:
        return Bounds(int64(simd.greatest(below)), count, low, n_at_least)
    return Bounds(high, n_greater, int64(simd.least(above)), count)


@njit
def narrowed(array: Array, padded: int, k: int, slack: int, bounds: Bounds) -> Bounds:
    """Narrow the bounds until they meet, or at most ``k + slack`` elements are at least the lower one."""
    guesses = True
    while bounds.low < bounds.high and bounds.n_at_least > k + slack:
        middle = midpoint(bounds.low, bounds.high)
        if guesses:
            share = (k + 0.5 * slack - bounds.n_greater) / (bounds.n_at_least - bounds.n_greater)
            width = np.float64(np.uint64(bounds.high - bounds.low))
            middle = bounds.high - int64(np.uint64(max(min(share, 0.99), 0.0) * width))
        guesses = not guesses
        bounds = tightened(array, padded, k, bounds, middle)
    return bounds


@njit
def threshold_of(array: Array, n: int, padded: int, k: int, slack: int) -> int:
    """Return a threshold that `k` to ``k + slack`` of the first `n` elements reach.

    Where ties make that impossible it is the greatest threshold that at least `k` elements reach. From `n` to
    `padded`, a multiple of the lanes, the array holds its type's least integer.
    """
    lanes = simd.lanes_of(array)
    low: int = int64(array[0])
    high = low
    whole = n & -lanes
    if whole:
        lows = highs = simd.load(array, 0)
        for i in range(lanes, whole, lanes):
            values = simd.load(array, i)
            lows, highs = simd.minimum(lows, values), simd.maximum(highs, values)
        low, high = int64(simd.least(lows)), int64(simd.greatest(highs))
    for i in range(whole, n):
        value: int = int64(array[i])
        low, high = min(low, value), max(high, value)
    return narrowed(array, padded, k, slack, Bounds(high, int64(0), low, n)).low


@njit
def bounds_of(array: Array, n: int, padded: int, k: int, slack: int, highest: int, sample: Array) -> Bounds:
    """Return bounds that have met, or whose lower one `k` to ``k + slack`` elements reach.

    Those of a long array start at two elements of a sample. `sample` has room for 1/32 of the array, which is
    padded as for `threshold_of`.
    """
    bounds = Bounds(highest, int64(0), ~highest, n)
    if n >= MIN_SAMPLED:
        lanes = simd.lanes_of(array)
        size = 0
        for i in range(0, n & -(SAMPLE_OF * lanes), SAMPLE_OF * lanes):
            simd.store(sample, size, simd.load(array, i))
            size += lanes
        rank = size * (k / n)
        variance = rank * (1 - k / n)
        spread = 1
        while spread * spread < DEVIATIONS * DEVIATIONS * variance:
            spread += 1
        guess = threshold_of(sample, size, size, min(int64(rank + spread), size), 0)
        if guess > bounds.low:
            bounds = tightened(array, padded, k, bounds, guess)
        if rank > spread:
            guess = threshold_of(sample, size, size, int64(rank - spread) + 1, 0) + 1
            if bounds.low < guess <= bounds.high:
                bounds = tightened(array, padded, k, bounds, guess)
    return narrowed(array, padded, k, slack, bounds)
