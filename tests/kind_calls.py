"""Random calls of few kinds and many sizes: the name of the kind, the call, and what NumPy finds."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dmlops

Call = tuple[str, Callable[[], Any], Any]
Put = Callable[[np.ndarray[Any, Any]], Any]
"""Turns an array of NumPy into one of the library that is tested, of the same strides where these exist."""

SIZES = [0, 1, 2, 3, 5, 8, 17, 64, 100, 257]


def _array(rng: random.Random, rank: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return an array of random sizes and strides, with many zeros and ties."""
    shape = [rng.choice(SIZES[: 10 // max(rank, 1)]) for _ in range(rank)]
    steps = [rng.choice([1, 1, 2, -1]) for _ in shape]
    whole = [size * abs(step) for size, step in zip(shape, steps, strict=True)]
    numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 4, whole)
    x = numbers.astype(dtype)[tuple(slice(None, None, step) for step in steps)]
    return x.transpose(rng.sample(range(rank), rank))


def _top_k(rng: random.Random, put: Put) -> Call:
    dtype, rank, axis = rng.choice(["float32", "int8", "int64"]), rng.choice([1, 2, 3]), -1
    x = _array(rng, rank, dtype)
    largest, k = rng.random() < 0.5, rng.randrange(x.shape[axis] + 1)
    order = np.argsort(-x.astype(float) if largest else x, axis=axis, kind="stable")[..., :k]
    kind = f"top_k {dtype} {rank} {largest}"
    given = put(x)
    return kind, lambda: dmlops.top_k(given, k, largest=largest), (np.take_along_axis(x, order, axis), order)


def _nonzero(rng: random.Random, put: Put) -> Call:
    dtype, rank = rng.choice(["float64", "uint8", "bool"]), rng.choice([0, 1, 2, 4])
    x = _array(rng, rank, dtype)
    expected = np.argwhere(x)
    kind = f"nonzero {dtype} {rank}"
    given = put(x)
    return kind, lambda: dmlops.nonzero_coordinates(given), (expected, np.array(len(expected)))


def _nonzero_of_size(rng: random.Random, put: Put) -> Call:
    rank, size = rng.choice([1, 2]), rng.randrange(40)
    x = _array(rng, rank, "int16")
    one, many = rng.randrange(-3, 3), tuple([rng.randrange(-3, 3) for _ in range(rank)])
    fill = rng.choice([one, many])
    found = np.argwhere(x)
    rows = np.full((size, rank), fill)
    rows[: len(found)] = found[:size]
    given = put(x)
    call = lambda: dmlops.nonzero_coordinates(given, size=size, fill_value=fill)  # noqa: E731
    # Other values for each column are another kind.
    kind = f"nonzero of a size {rank} {fill if isinstance(fill, tuple) else ''}"
    return kind, call, (rows, np.array(len(found)))


def _gather(rng: random.Random, put: Put) -> Call:
    dtype, n_coordinates = rng.choice(["float32", "int64"]), rng.choice([1, 2])
    x = _array(rng, 3, dtype)
    bounds = x.shape[:n_coordinates]
    n_tuples = rng.choice(SIZES) if all(bounds) else 0
    pick = np.random.default_rng(rng.randrange(1 << 30))
    indices = pick.integers([-b for b in bounds], [max(b, 1) for b in bounds], (n_tuples, n_coordinates))
    expected = x[tuple(indices.T)]
    given, tuples = put(x), put(indices)
    # The number of coordinates decides the rank of the result.
    return f"gather {dtype} {n_coordinates}", lambda: (dmlops.gather_nd(given, tuples),), (expected,)


def _band(rng: random.Random, put: Put) -> Call:
    dtype, rank = rng.choice(["float32", "uint8"]), rng.choice([2, 3])
    x = _array(rng, rank, dtype)
    begin, end, value = rng.randrange(-9, 9), rng.randrange(-9, 9), rng.randrange(9)
    height, width = x.shape[-2:]
    distance = np.arange(width) - np.arange(height)[:, None]
    first, last = sorted((begin, end))
    is_inside = (first <= distance) & (distance < last)
    expected = np.where(is_inside != (begin > end), np.array(value, dtype), x)
    given = put(x)
    call = lambda: (dmlops.diagonal_matrix(given, value=value, begin=begin, end=end),)  # noqa: E731
    return f"band {dtype} {rank}", call, (expected,)


def _eye(rng: random.Random, put: Put) -> Call:
    height, width, k = rng.choice(SIZES), rng.choice(SIZES), rng.randrange(-9, 9)
    like = put(np.zeros(1))
    return "eye", lambda: (dmlops.eye(height, width, k, like=like),), (np.eye(height, width, k),)


MAKERS = [_top_k, _nonzero, _nonzero_of_size, _gather, _band, _eye]


def random_calls(seed: int, n_calls: int, put: Put = lambda x: x) -> Iterator[Call]:
    """Yield calls of random kinds and sizes, on arrays of a library."""
    rng = random.Random(seed)
    for _ in range(n_calls):
        yield rng.choice(MAKERS)(rng, put)
