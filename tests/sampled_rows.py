"""The samples of the sampled algorithm of top_k, in NumPy; rows that mislead it, or have few numbers."""

import numpy as np
from ml_dtypes import finfo

GOLDEN_RATIO = 0x9E3779B1
SECTOR_BYTES = 32


def sample_positions(sample_size, n_elements, element_size):
    """Return the positions of a sample of a row that begins at a multiple of 32 bytes."""
    of_piece = SECTOR_BYTES // element_size
    n_pieces, n_parts = n_elements // of_piece, sample_size // of_piece
    part = np.arange(n_parts, dtype=np.uint64)
    bounds = np.arange(n_parts + 1, dtype=np.uint64) * n_pieces // n_parts
    steps = part * GOLDEN_RATIO % (1 << 32)
    pieces = bounds[:-1] + (steps * np.diff(bounds) >> np.uint64(32))
    return (pieces[:, None] * of_piece + np.arange(of_piece, dtype=np.uint64)).ravel()


def misleading_rows(x, sample_size):
    """Return rows with the elements of x in another order: the largest in the sample, or all others there."""
    n_rows, n_elements = x.shape
    sampled = np.unique(sample_positions(sample_size, n_elements, x.itemsize))
    others = np.setdiff1d(np.arange(n_elements), sampled)
    x = -np.sort(-x, axis=1)
    rows = np.empty((2, *x.shape), x.dtype)
    rows[0][:, sampled], rows[0][:, others] = x[:, : sampled.size], x[:, sampled.size :]
    rows[1][:, others], rows[1][:, sampled] = x[:, : others.size], x[:, others.size :]
    return rows.reshape(2 * n_rows, n_elements)


def equal_elements(dtype, kind, shape):
    """Return elements that are equal and differ in their bits: zeros of both signs, or all sorts of NaNs."""
    rng, bits = np.random.default_rng(12), 8 * np.dtype(dtype).itemsize
    unsigned = np.dtype(f"u{bits // 8}").type
    patterns = rng.integers(0, 2, shape).astype(unsigned) << unsigned(bits - 1)
    if kind == "NaNs":
        mantissa = np.finfo(dtype).nmant
        patterns |= rng.integers(1, 1 << mantissa, shape).astype(unsigned)
        patterns |= np.array(np.inf, dtype).view(unsigned)
    return patterns.view(dtype)


def rows_of_special_numbers(dtype, n_elements, largest, rng):
    """Return a row for each of some numbers: half of its elements equal it, and few come before it."""
    limits = finfo(dtype)
    tiny = limits.smallest_subnormal
    ascending = [-np.inf, limits.min, -1, -tiny, -0.0, 0.0, tiny, 1, limits.max, np.inf, np.nan, -np.nan]
    numbers = np.array(ascending[::-1] if largest else ascending, dtype)
    places = np.arange(numbers.size)[:, None]
    shape = (numbers.size, n_elements)
    before, after = rng.integers(0, places + 1, shape), rng.integers(places, numbers.size, shape)
    share = rng.random(shape)
    return numbers[np.where(share < 0.02, before, np.where(share < 0.5, places, after))]
