"""Tables of calls of `top_k` with all arguments but the plainest, for the tests of both devices."""

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


def windows(x, axis, dtype="int64"):
    """Return starts and lengths of windows of the rows of `x`: within them, across their ends, far off."""
    n, shape, info = x.shape[axis], np.delete(x.shape, axis), np.iinfo(dtype)
    rng = random(("windows", x.shape, axis, dtype))
    starts = rng.integers(-n // 4 - 2, n + 2, shape, endpoint=True)
    lengths = rng.integers(-2, n + 2, shape, endpoint=True)
    # No sum of these overflows.
    edges = [(info.min, info.max), (info.max, info.max), (info.min, 1), (0, info.max), (-1, 2), (n - 1, 5)]
    starts, lengths = (np.asarray(np.clip(each, info.min, info.max), dtype) for each in (starts, lengths))
    for number, edge in enumerate(edges if starts.size > 2 * len(edges) else ()):
        pair = [min(max(int(each), info.min), info.max) for each in edge]
        starts.flat[number], lengths.flat[number] = pair
    return {"starts": starts, "lengths": lengths}


def numbers(x, axis, kind, dtype="int64"):
    """Return numbers of the elements of `x`: distinct or with many ties, along the axis alone or not."""
    rng, n = random(("numbers", x.shape, axis, kind)), x.shape[axis]
    if kind == "along":
        return rng.permutation(n).astype(dtype)
    found = rng.integers(0, 5 if kind == "tied" else 2**31 - 1, x.shape).astype(dtype)
    if kind == "few":  # a few elements take part
        found = np.where(rng.random(x.shape) < 0.9, np.array(-1).astype(dtype), found)
    return found


def _of_windows():
    for number, dtype in enumerate(DTYPES):
        x = sample(dtype, (23, 37), "windows")
        for largest in (True, False):
            options = {
                "largest": largest,
                "sorted": number % 2 == 0,
                **windows(x, 1, INDEX_DTYPES[number % 4]),
            }
            yield _case(f"windows-{dtype}-{largest}", x, 9, **options)
    for number, (shape, axis, k) in enumerate(SHAPES):
        x = distinct(shape, "windows")
        for is_sorted in (True, False):
            options = {"axis": axis, "largest": number % 2 == 1, "sorted": is_sorted}
            given = windows(x, axis, INDEX_DTYPES[number % len(INDEX_DTYPES)])
            yield _case(f"windows-{shape}-{axis}-{k}-{is_sorted}", x, k, **given, **options)
        yield _case(f"starts-{shape}-{axis}-{k}", x, k, axis=axis, starts=given["starts"])
    for name, row in hard_rows(300).items():
        x = np.tile(np.float32(row), (20, 1))
        yield _case(f"windows-{name}", x, 17, **windows(x, 1))
        yield _case(f"windows-{name}-longest", x, 17, max_length=40, largest=False, **windows(x, 1))
    segments = random("segments").integers(0, 90, 200)
    ends = np.cumsum(segments)
    x = distinct((int(ends[-1]),), "segments")
    for k in (1, 10, 100):  # the last of these is more than any segment has
        options = {"starts": ends - segments, "lengths": segments}
        yield _case(f"segments-{k}", x, k, **options)
        yield _case(f"segments-{k}-longest", x, k, max_length=90, **options)
        yield _case(f"segments-{k}-strided", np.repeat(x, 3)[::3], k, sorted=False, **options)
    x = distinct((3, 1, 200), "broadcast")
    starts, lengths = np.arange(4)[:, None, None] * 50 - 20, np.array([3, 70])
    yield _case("windows-broadcast", x, 9, starts=starts, lengths=np.int32(lengths))
    yield _case("windows-one", x, 9, starts=np.array(150), lengths=np.array(40, "int32"))
    yield _case("windows-columns", x.swapaxes(1, 2), 5, axis=1, starts=np.array([[7], [150], [190]]))
    for shape, axis, k in (*EMPTY, ((3, 4), 1, 9), ((3, 0), 1, 4), ((0, 4), 1, 9)):
        yield _case(
            f"windows-empty-{shape}-{k}", np.zeros(shape, "float32"), k, axis=axis, starts=np.array(1)
        )
    for dtype in DTYPES:
        x = sample(dtype, (3, 8), "beyond")
        yield _case(f"beyond-{dtype}", x, 11, lengths=np.array([8, 0, 3]), largest=dtype != "int8")


def _of_numbers():
    for number, dtype in enumerate(DTYPES):
        x = sample(dtype, (5, 41), "numbers")
        for kind in ("along", "tied", "few", "far"):
            given = numbers(x, 1, kind, INDEX_DTYPES[number % 4])
            options = {"largest": number % 3 == 0, "sorted": kind != "far"}
            yield _case(f"numbers-{dtype}-{kind}", x, 9, indices=given, **options)
    for number, (shape, axis, k) in enumerate(SHAPES):
        dtype = INDEX_DTYPES[number % len(INDEX_DTYPES)]
        x, tied = distinct(shape, "numbers"), np.float32(random(shape).integers(0, 3, shape))
        for kind in ("along", "tied", "few"):
            for is_sorted in (True, False):
                name = f"{shape}-{axis}-{k}-{kind}-{is_sorted}"
                options = {"axis": axis, "indices": numbers(x, axis, kind, dtype), "sorted": is_sorted}
                yield _case(f"numbers-{name}", x, k, **options)
                yield _case(f"numbers-ties-{name}", tied, k, largest=False, **options)
    for name, row in hard_rows(3000).items():
        x = np.tile(np.float32(row), (3, 1))
        for k in (17, 1000):
            yield _case(f"numbers-{name}-{k}", x, k, indices=numbers(x, 1, "tied"))
    x = distinct((9, 70), "both")
    given = {**windows(x, 1, "int32"), "indices": numbers(x, 1, "few", "uint64")}
    for is_sorted in (True, False):
        yield _case(f"numbers-windows-{is_sorted}", x, 80, sorted=is_sorted, **given)
        yield _case(f"numbers-longest-{is_sorted}", x, 5, sorted=is_sorted, max_length=30, **given)
    negative = np.array([[-3], [2**63 - 1], [-(2**63)]])
    yield _case("numbers-broadcast", np.zeros((3, 6)), 4, indices=negative)
    yield _case("numbers-columns", np.zeros((3, 6)), 2, axis=0, indices=negative)
    yield _case(
        "numbers-high", np.zeros((4,)), 4, indices=np.array([2**64 - 2, 2**63, 2**64 - 1, 5], "uint64")
    )
    yield _case("numbers-zero_dimensions", np.array(2.5), 2, axis=0, indices=np.array(7, "uint32"))


def _with_nan_last():
    for number, dtype in enumerate(DTYPES):
        x = sample(dtype, (7, 300), "nan last")
        for k in (2, 40, 300):
            for largest in (True, False):
                options = {"largest": largest, "nan_last": True, "sorted": k != 40 or number % 2 == 0}
                yield _case(f"nan_last-{dtype}-{k}-{largest}", x, k, **options)
        yield _case(
            f"nan_last-{dtype}-specials", special_values(dtype), len(special_values(dtype)), nan_last=True
        )
        yield _case(f"nan_last-{dtype}-lengths", x, 9, lengths=row_lengths(x, 1, 9), nan_last=True)
        yield _case(f"nan_last-{dtype}-columns", x, 3, axis=0, nan_last=True)


UNSORTED = tuple(_unsorted())
OF_LENGTHS = tuple(_of_lengths())
OF_WINDOWS = tuple(_of_windows())
OF_NUMBERS = tuple(_of_numbers())
WITH_NAN_LAST = tuple(_with_nan_last())
OF_ROWS = (*OF_WINDOWS, *OF_NUMBERS, *WITH_NAN_LAST)
