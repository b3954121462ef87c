"""The suites of sweeps: problems for which a small change may make a call much slower.

A sweep is one problem with different data or rows; its points have the name of the sweep as their series.
`compared` finds how much longer a point takes than the time of the first one suggests.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from bench.workloads import CPU, SEGMENT, TopK, Workload

# The largest ratio of a point's time per byte to that of the first point, by what the name of its sweep has.
LIMITS = {"hostile data": 1.5, "data": 1.15, "windows": 1.1, "segments": 1.5, "numbers": 2.0}
# Applications have quantised scores, masks, padding, sorted input.
DATA = (
    *("normal", "equal", "one_equal_row", "rounded", "ties", "relu", "mostly_zeros", "one_hot", "constant"),
    *("signed_zeros", "few_nan", "nan", "ascending", "descending", "probabilities"),
)
# These are hard to select from by samples, by histograms of the leading bits, or with buffers per thread.
HOSTILE_DATA = ("normal", "close", "two_scales", "periodic", "clustered")


def compared(points: Iterable[Workload], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Compare the points of sweeps that have times, by name; return all comparisons, the worst first.

    Each has the names and the seconds of a point and of the first one, the ratio to the expected time, and
    its limit.
    """
    firsts: dict[str, Workload] = {}
    found = []
    for point in points:
        first = firsts.setdefault(point.series, point)
        if point is not first and point.name in times and first.name in times:
            seconds, other_seconds = times[point.name], times[first.name]
            comparison = {
                "point": point.name,
                "other": first.name,
                "seconds": seconds,
                "other_seconds": other_seconds,
                "factor": seconds / other_seconds * first.bytes_moved / point.bytes_moved,
                "limit": next(limit for words, limit in LIMITS.items() if words in point.series),
            }
            found.append(comparison)
    return sorted(found, key=lambda each: -each["factor"] / each["limit"])


def beyond(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each["factor"] > each["limit"]]


def _sweep(series: str, points: Mapping[str, Workload]) -> list[Workload]:
    return [replace(point, name=f"{series}: {word}", series=series) for word, point in points.items()]


def kinds_of_data(device: str) -> Iterator[Workload]:
    """Yield problems with data of applications, and with hostile ones."""
    # Retrieval, logits, sparse attention, routing, detection, and a sort.
    shapes = [(1, 1 << 20, 100), (256, 50257, 50), (16 if device == CPU else 64, 131072, 2048)]
    if device == CPU:
        shapes += [(4096, 256, 8)]
    else:
        shapes += [(8192, 256, 8), (65536, 64, 8), (128, 16384, 1000), (512, 16384, 2048), (1, 131072, 2048)]
    by_order = [(shape, is_sorted) for is_sorted in (True, False) for shape in shapes]
    for (rows, size, k), is_sorted in (*by_order, ((1, 1 << 20, 1 << 20), True)):
        workload = TopK(name="", device=device, shape=(rows, size), k=k, is_sorted=is_sorted)
        name = f"top_k {rows} x {size}, k {k}{'' if is_sorted else ', by index,'}"
        for what, kinds in (("data", DATA), ("hostile data", HOSTILE_DATA)):
            yield from _sweep(f"{name} by {what}", {data: replace(workload, data=data) for data in kinds})


def rows(device: str) -> Iterator[Workload]:
    """Yield problems of windows, of segments of one long array, and of the caller's numbers."""

    def sweep(what: str, kinds: tuple[str, ...], like: TopK, words: str = "") -> list[Workload]:
        """Return a sweep through kinds of rows, of which one may be plain ones."""
        shape = (like.size,) if what == "segments" else like.shape
        points = {"plain": like} if what != "windows" else {}
        points |= {kind: replace(like, shape=shape, rows=kind) for kind in kinds}
        name = f"{' x '.join(map(str, like.shape))} {like.dtype}, k {like.k}{words}"
        return _sweep(f"top_k {what}{', ' if what == 'segments' else ' of '}{name}", points)

    of: dict[str, Any] = {"name": "", "device": device}
    # Sparse attention: a query's keys lie anywhere in a buffer.
    windows = ("lengths", "windows")
    yield from sweep("windows", windows, TopK(shape=(2000, 3000), k=64, dtype="bfloat16", **of))
    yield from sweep("windows", windows, TopK(shape=(2000, 900), k=10, **of))
    # Sparse matrices and groups: a row's entries lie side by side.
    equal = TopK(shape=(20_000, SEGMENT), k=10, quick=True, **of)
    yield from sweep("segments", ("equal", "long_tail"), equal)
    # Candidates of 64 shards are merged by their numbers.
    shape = (4 if device == CPU else 256, 64 * 2048)
    for dtype, is_sorted, data in product(("float32", "bfloat16"), (True, False), ("normal", "constant")):
        plain = TopK(shape=shape, k=2048, dtype=dtype, is_sorted=is_sorted, data=data, **of)
        yield from sweep("numbers", ("numbers",), plain, f"{'' if is_sorted else ', by index'}, {data}")
