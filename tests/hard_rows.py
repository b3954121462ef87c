"""Rows of which it is hard to select the largest, for CUDA's algorithms on a GPU and in the interpreter."""

import numpy as np
from ml_dtypes import finfo, iinfo

from tests.data import random, sample

GOLDEN_RATIO = 0x9E3779B1
SECTOR_BYTES = 32
SAMPLE_SIZE = 4096


def sample_positions(sample_size, n_elements, element_size):
    """Return the positions of a sample of a row that begins at a multiple of 32 bytes, by `sampled`."""
    of_piece = SECTOR_BYTES // element_size
    n_pieces, n_parts = n_elements // of_piece, sample_size // of_piece
    part = np.arange(n_parts, dtype=np.uint64)
    bounds = np.arange(n_parts + 1, dtype=np.uint64) * n_pieces // n_parts
    steps = part * GOLDEN_RATIO % (1 << 32)
    pieces = bounds[:-1] + (steps * np.diff(bounds) >> np.uint64(32))
    return (pieces[:, None] * of_piece + np.arange(of_piece, dtype=np.uint64)).ravel()


def _misleading(rows):
    """Return rows whose largest elements are the sample of `sampled`, or the others, by turns."""
    n_elements = rows.shape[1]
    is_sampled = np.zeros(n_elements, bool)
    is_sampled[sample_positions(SAMPLE_SIZE, n_elements, rows.itemsize)] = True
    ordered = -np.sort(-rows, axis=1)
    found = np.empty_like(rows)
    for number, row in enumerate(ordered):
        is_first = is_sampled ^ bool(number % 2)
        found[number, is_first], found[number, ~is_first] = np.split(row, [np.count_nonzero(is_first)])
    return found


def equal_elements(dtype, kind, shape):
    """Return elements that are equal and differ in their bits: zeros of both signs, or all sorts of NaNs."""
    rng, bits = np.random.default_rng(12), 8 * np.dtype(dtype).itemsize
    unsigned = np.dtype(f"u{bits // 8}").type
    patterns = rng.integers(0, 2, shape).astype(unsigned) << unsigned(bits - 1)
    if kind == "NaNs":
        patterns |= rng.integers(1, 1 << finfo(dtype).nmant, shape).astype(unsigned)
        patterns |= np.array(np.inf, dtype).view(unsigned)
    return patterns.view(dtype)


def _special_thresholds(dtype, shape):
    """Return rows of which half the elements equal one special number each, and few come before it."""
    rng, limits = np.random.default_rng(20), finfo(dtype)
    tiny = limits.smallest_subnormal
    numbers = np.array(
        [-np.inf, limits.min, -1, -tiny, -0.0, 0.0, tiny, 1, limits.max, np.inf, np.nan, -np.nan][::-1], dtype
    )
    places = np.arange(shape[0])[:, None] * 5 % numbers.size
    before, after = rng.integers(0, places + 1, shape), rng.integers(places, numbers.size, shape)
    share = rng.random(shape)
    return numbers[np.where(share < 0.02, before, np.where(share < 0.5, places, after))]


def _some(rows, share, value):
    return np.where(np.random.default_rng(6).random(rows.shape) < share, value, rows)


def _places(rows):
    return np.broadcast_to(np.arange(rows.shape[1]), rows.shape)


def _ranges(rows):
    """Return parts of rows of ever other magnitudes."""
    n = rows.shape[1]
    return rows * np.repeat(10.0 ** np.random.default_rng(7).permutation(8), -(-n // 8))[:n]


# Functions of rows of normally distributed numbers.
KINDS = {
    "distinct": lambda rows: rows,
    "codes": lambda rows: np.floor(rows * 40),
    "few": lambda rows: np.floor(rows * 2),
    "two": lambda rows: rows > 0,
    "constant": np.ones_like,
    "one_above_the_lowest": lambda rows: np.where(_places(rows) == 30, 5, -np.inf),
    "mostly_zeros": lambda rows: rows * (rows > 1.9),
    "equal_largest": lambda rows: _some(rows, 0.01, 100),
    "some_NaNs": lambda rows: _some(rows, 0.01, np.nan),
    "equal_smallest": lambda rows: _some(rows, 0.97, 0),
    "clamped": lambda rows: rows.clip(-1, 1),
    "clamped_few": lambda rows: rows.clip(-1.9, 1.9),
    "equal_together": lambda rows: np.where(_places(rows) // 3000 % 9 == 4, 7, rows),
    "close": lambda rows: 1 + np.floor(abs(rows) * 500) / (1 << 23),
    "close_and_far": lambda rows: np.where(rows > 1.5, 3 + np.floor(rows * 99) / (1 << 21), rows),
    "ascending": np.sort,
    "descending": lambda rows: -np.sort(rows),
    "noisy_ascending": lambda rows: _places(rows) / rows.shape[1] * 100 + rows / 100,
    "steps": lambda rows: _places(rows) * 8 // rows.shape[1],
    "plateau": lambda rows: np.where(_places(rows) % 211 == 3, 8 + _places(rows) // 211 % 90, 7),
    "ranges": _ranges,
    # The largest are so far apart that few groups have them, or one: more than a block has room for.
    "one_of_64": lambda rows: np.where(_places(rows) % 64 == 5, rows + 10, rows),
    "one_of_512": lambda rows: np.where(_places(rows) % 512 == 5, rows + 10, rows),
    "together": lambda rows: np.where(_places(rows) % 4096 < 40, rows + 10, rows),
    "last_of_vectors": lambda rows: np.where(_places(rows) % 4 == 3, 9, rows),
    # The first element, and one of each of many vectors that lie together, of a later step.
    "late": lambda rows: np.where(
        (_places(rows) == 0) | ((_places(rows) // 512 == 16) & (_places(rows) % 4 == 0)), 9, rows
    ),
    "misleading": _misleading,
    "misleading_equal": lambda rows: _misleading(np.minimum(rows, np.quantile(rows, 0.15))),
}
# Others are made of bits.
OF_BITS = ("specials", "set_bytes", "zeros", "NaNs", "special_thresholds")


def hard_rows(kind, dtype, shape):
    """Return rows of a kind, along the last axis of two; None if the type has none of that kind."""
    dtype, name = np.dtype(dtype), ("hard rows", kind, shape)
    is_bool, is_float = dtype.kind == "b", dtype.kind not in "biu"
    if kind == "specials":
        return sample(dtype, shape, name)
    if is_bool and kind == "set_bytes":
        numbers = random(name).integers(-255, 256, shape)
        return numbers.clip(0).astype(np.uint8).view(bool)
    if is_bool or (kind in OF_BITS and not is_float) or kind == "set_bytes":
        return None
    if kind in ("zeros", "NaNs"):
        return equal_elements(dtype, kind, shape)
    if kind == "special_thresholds":
        return _special_thresholds(dtype, shape)
    rows = random(name).standard_normal(shape)
    if kind.startswith("misleading"):  # the sample depends on the type
        rows = rows.astype(dtype) if is_float else (rows * 100).astype(dtype)
    rows = KINDS[kind](rows)
    with np.errstate(over="ignore"):
        if is_float:
            return rows.astype(dtype)
        info = iinfo(dtype)
        step = 100 if dtype.itemsize > 1 else 10
        numbers = np.nan_to_num(rows.astype(float) * step, nan=50 * step)
        return numbers.clip(max(info.min, -(2**62)), min(info.max, 2**62)).astype(dtype)
