"""Tables of calls of `top_k` with ``sorted=False`` and with ``lengths``, for the tests of both devices."""

import numpy as np

from tests.cases import Case, patterns
from tests.data import DTYPES, INDEX_DTYPES, random, sample, special_values

# (shape, axis, k): rows and columns, short and long, few and many; selections of few and of all elements.
SHAPES = (
    ((1,), 0, 1),
    ((9, 100), 1, 7),
    ((2, 200), -1, 200),
    ((5, 3000), 1, 60),
    ((1, 5000), 1, 5000),
    ((70_000,), 0, 50),
    ((2, 20_000), 1, 9000),
    ((300, 70), 0, 9),
    ((2, 3, 50, 4), 2, 6),
    ((2, 3, 2, 1, 17, 2, 3), 4, 5),
    ((6, 700), 1, 200),
    ((200_000,), 0, 5000),
)
EMPTY = (((0,), 0, 0), ((0, 5), 1, 2), ((5, 0), -1, 0), ((3, 4), 0, 0), ((2, 0, 3), 2, 3))


def row_lengths(x, axis, k, dtype="int64"):
    """Return lengths of the rows of `x`: around `k` and the size of the axis, in between, far from both."""
    axis_size, shape = x.shape[axis], np.delete(x.shape, axis)
    rng, info = random(("lengths", x.shape, axis)), np.iinfo(dtype)
    edges = (0, 1, k - 1, k, k + 1, axis_size - 1, axis_size, axis_size + 1, -1, info.min, info.max)
    edges = np.array([min(max(length, info.min), info.max) for length in edges], dtype)
    between = rng.integers(0, axis_size, shape, endpoint=True).astype(dtype)
    lengths = np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), between)
    if lengths.size > edges.size:
        lengths.flat[: edges.size] = edges
    return lengths


def distinct(shape, name):
    """Return elements of which hardly any tie: those selected are not in the order of their indices."""
    return np.float32(random((name, shape)).standard_normal(shape))


def hard_rows(n):
    """Return rows that are hard to select from; in two, the last elements of the row are selected first."""
    late = np.where(np.arange(n) >= n - 5, 1.0, 0.0)
    return patterns(n) | {"late_ones": late, "late_minus_ones": -late}


def _case(name, x, k, **options):
    return Case("top_k", name, lambda: (x,), (k,), options)


def _unsorted():
    for number, dtype in enumerate(DTYPES):
        options = {"largest": number % 2 == 0, "sorted": False}
        yield _case(f"{dtype}", sample(dtype, (3, 37), "unsorted"), 9, **options)
        yield _case(f"{dtype}-specials", special_values(dtype), 2, **options)
    for number, (shape, axis, k) in enumerate(SHAPES):
        x, name = distinct(shape, "unsorted"), f"{shape}-{axis}-{k}"
        yield _case(name, x, k, axis=axis, largest=number % 2 == 0, sorted=False)
    for name, row in hard_rows(3000).items():
        for largest in (True, False):
            yield _case(f"{name}-{largest}", np.float32(row)[np.newaxis], 17, largest=largest, sorted=False)
    for dtype in INDEX_DTYPES:
        x = sample("float32", (5, 300), "index")
        yield _case(f"index_{dtype}", x, 20, index_dtype=dtype, sorted=False)
    for shape, axis, k in EMPTY:
        yield _case(f"empty-{shape}-{k}", np.zeros(shape, "float32"), k, axis=axis, sorted=False)
    yield _case("zero_dimensions", np.array(2.5, "float32"), 1, axis=0, sorted=False)


def _of_lengths():
    for number, dtype in enumerate(DTYPES):
        x = sample(dtype, (13, 37), "lengths")
        for largest in (True, False):
            options = {"largest": largest, "sorted": number % 2 == 0}
            yield _case(f"lengths-{dtype}-{largest}", x, 9, lengths=row_lengths(x, 1, 9), **options)
    for number, (shape, axis, k) in enumerate(SHAPES):
        x = distinct(shape, "lengths")
        lengths = row_lengths(x, axis, k, INDEX_DTYPES[number % len(INDEX_DTYPES)])
        for is_sorted in (True, False):
            options = {"axis": axis, "largest": number % 2 == 1, "sorted": is_sorted}
            yield _case(f"lengths-{shape}-{axis}-{k}-{is_sorted}", x, k, lengths=lengths, **options)
    for name, row in hard_rows(300).items():
        x = np.tile(np.float32(row), (20, 1))
        for largest in (True, False):
            yield _case(f"lengths-{name}-{largest}", x, 17, lengths=row_lengths(x, 1, 17), largest=largest)
    for dtype in INDEX_DTYPES:
        x = sample("float32", (15, 300), "index")
        lengths = row_lengths(x, 1, 20, dtype)
        yield _case(f"lengths-index_{dtype}", x, 20, lengths=lengths, index_dtype=dtype)
    for shape, axis, k in EMPTY:
        lengths = np.ones(np.delete(shape, axis), "int64")
        yield _case(f"lengths-empty-{shape}-{k}", np.zeros(shape, "float32"), k, axis=axis, lengths=lengths)
    for length in (-1, 0, 1, 2):
        yield _case(f"lengths-zero_dimensions-{length}", np.array(2.5), 1, axis=0, lengths=np.array(length))


UNSORTED = tuple(_unsorted())
OF_LENGTHS = tuple(_of_lengths())
