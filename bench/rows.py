"""The suite `rows`: windows, segments of one long array, and the caller's numbers, beside plain rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.sweeps import Sweep
from bench.workloads import CPU, SEGMENT, TopK, TopKOfRows

# How much longer per byte a point may take than the first one of its sweep.
WINDOWS, SEGMENTS, NUMBERS = 1.1, 1.5, 2.0


def rows(device: str) -> Iterator[Sweep]:
    """Yield the sweeps of a device; the other points of a sweep are compared with its first one."""
    about: dict[str, Any] = {"name": "", "device": device}
    reason = "sparse attention: a query's keys lie anywhere in a buffer"
    for shape, k, dtype in (((2000, 3000), 64, "bfloat16"), ((2000, 900), 10, "float32")):
        window = TopKOfRows(shape=shape, k=k, dtype=dtype, rows="lengths", reason=reason, **about)
        yield _sweep(f"windows of {_words(window)}", WINDOWS, window, replace(window, rows="windows"))
    reason = "sparse matrices and groups: a row's entries lie side by side"
    equal = TopK(shape=(20_000, SEGMENT), k=10, reason=reason, quick=True, **about)
    of_one = TopKOfRows(shape=(equal.size,), k=10, rows="equal", reason=reason, quick=True, **about)
    yield _sweep(f"segments, {_words(equal)}", SEGMENTS, equal, of_one, replace(of_one, rows="long_tail"))
    reason = "candidates of 64 shards are merged by their numbers"
    n_rows = 4 if device == CPU else 256
    for dtype in ("float32", "bfloat16"):
        for is_sorted in (True, False):
            for data in ("normal", "constant"):
                options: dict[str, Any] = {
                    "dtype": dtype,
                    "data": data,
                    "is_sorted": is_sorted,
                    "reason": reason,
                }
                plain = TopK(shape=(n_rows, 64 * 2048), k=2048, **options, **about)
                by_number = TopKOfRows(shape=plain.shape, k=plain.k, rows="numbers", **options, **about)
                order = "" if is_sorted else ", by index"
                yield _sweep(f"numbers of {_words(plain)}{order}, {data}", NUMBERS, plain, by_number)


def _words(workload: TopK | TopKOfRows) -> str:
    return f"{' x '.join(map(str, workload.shape))} {workload.dtype}, k {workload.k}"


def _sweep(what: str, limit: float, *points: TopK | TopKOfRows) -> Sweep:
    name = f"top_k {what}"
    named = [
        replace(point, name=f"{name}: {getattr(point, 'rows', 'plain')}", series=name) for point in points
    ]
    return Sweep(name, tuple(named), limit)
