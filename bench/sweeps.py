"""The suites of sweeps: problems for which a small change may make a call much slower.

A sweep goes through sizes, or is one problem with different data, types, axes, layouts or rows. `compared`
finds how much longer a point takes than the time of another point suggests.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from bench.data import LAYOUTS
from bench.operators import EVERYTHING
from bench.workloads import (
    CPU,
    CUDA,
    SEGMENT,
    DiagonalMatrix,
    GatherND,
    NonzeroCoordinates,
    TopK,
    TopKOfRows,
    Workload,
)

STEP_LIMIT = 2.0
# The largest ratio of a point's time to that of the first: per element on the CPU, per byte on a GPU.
ON_BOTH = {"data": 1.15, "hostile data": 1.5, "end": 1.25}
LIMITS = {
    CPU: {**ON_BOTH, "type": 3.0, "axis": 3.0, "layout": 3.0},
    CUDA: {**ON_BOTH, "type": 1 / 0.8, "axis": 1.5, "layout": 2.0},
}
# The same of the suite `rows`, per byte.
WINDOWS, SEGMENTS, NUMBERS = 1.1, 1.5, 2.0
# Applications have quantised and clamped scores, masks, padding, sorted input.
DATA = (
    *("normal", "equal", "one_equal_row", "rounded", "codes", "ties", "two_valued", "clamped", "relu"),
    *("mostly_zeros", "one_hot", "constant", "signed_zeros", "few_nan", "nan", "all_nan"),
    *("ascending", "descending", "narrow", "probabilities"),
)
# These are hard to select from by samples, by histograms of the leading bits, or with buffers per thread.
HOSTILE_DATA = ("normal", "close", "two_scales", "periodic", "clustered")
TYPES = ("float32", "uint8", "int16", "float16", "bfloat16", "int32", "float64", "int64")
ODD_EXPONENTS = range(4, 23, 3)


@dataclass(frozen=True)
class Sweep:
    """Problems that differ in one property."""

    name: str
    """Unique within a device; the names of the points begin with it."""
    points: tuple[Workload, ...]
    """In the order in which they are measured."""
    limit: float = STEP_LIMIT
    """The largest allowed ratio of a point's time to the time expected from another point."""
    has_steps: bool = False
    """Whether each point is compared with its neighbours, and not with the first point."""
    per_byte: bool = True
    """Whether the expected time grows with the bytes that are moved, and not with the elements."""

    def pairs(self) -> Iterator[tuple[Workload, Workload]]:
        """Yield each point with the point that predicts its time: of steps, both neighbours."""
        if not self.has_steps:
            first, *others = self.points
            yield from ((point, first) for point in others)
            return
        for before, after in pairwise(self.points):
            yield after, before
            yield before, after

    def expected(self, point: Workload, other: Workload) -> float:
        """Return how many times as long as `other` a point should take."""
        factor = point.bytes_moved / other.bytes_moved if self.per_byte else point.size / other.size
        return max(factor, 1.0) if self.has_steps else factor


def compared(sweeps: Iterable[Any], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Compare the points of sweeps that have times, by name; return all comparisons, the worst first.

    Each has the names and the seconds of a point and of the other one, the ratio to the expected time, and
    its limit. What is no sweep is compared with nothing.
    """
    found = []
    for sweep in (each for each in sweeps if isinstance(each, Sweep)):
        for point, other in sweep.pairs():
            if point.name in times and other.name in times:
                seconds, other_seconds = times[point.name], times[other.name]
                found.append(
                    {
                        "point": point.name,
                        "other": other.name,
                        "seconds": seconds,
                        "other_seconds": other_seconds,
                        "factor": seconds / other_seconds / sweep.expected(point, other),
                        "limit": sweep.limit,
                    }
                )
    return sorted(found, key=lambda each: -each["factor"] / each["limit"])


def beyond(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the comparisons that exceed their limits."""
    return [each for each in found if each["factor"] > each["limit"]]


def powers(last: int) -> list[int]:
    """Return the powers of two up to 2**last, and some other sizes next to them and between them."""
    sizes = {1 << exponent for exponent in range(last + 1)}
    for size in (1 << exponent for exponent in ODD_EXPONENTS if exponent < last):
        sizes |= {size - 1, size + 1, size * 3 // 2}
    return sorted(sizes)


def counts(size: int) -> list[int]:
    """Return values of k for rows of a size: the powers of two, just over half of it, and all but one."""
    return sorted({*(1 << exponent for exponent in range(size.bit_length())), size // 2 + 1, size - 1})


class _Problems:
    """Makes the problems of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_host = device == CPU
        self.about: dict[str, Any] = {"name": "", "device": device, "reason": "a point of a sweep"}

    def top_k(self, shape: tuple[int, ...], k: int, **other: Any) -> TopK:
        return TopK(shape=shape, k=k, **self.about, **other)

    def of_rows(self, kinds: Iterable[str], like: TopK, shape: tuple[int, ...]) -> dict[str, Workload]:
        """Return the problems of several kinds of rows that otherwise are like one of plain rows."""
        names = ("k", "dtype", "data", "is_sorted", "quick")
        about = self.about | {name: getattr(like, name) for name in names}
        return {kind: TopKOfRows(shape=shape, rows=kind, **about) for kind in kinds}

    def nonzero(self, shape: tuple[int, ...], density: float) -> NonzeroCoordinates:
        return NonzeroCoordinates(shape=shape, density=density, **self.about)

    def gather(self, tuples: int, length: int) -> GatherND:
        shape = (max(tuples, 16), length)
        return GatherND(shape=shape, tuples=tuples, coordinates=1, batch_dims=0, **self.about)

    def triangle(self, side: int) -> DiagonalMatrix:
        return DiagonalMatrix(shape=(side, side), begin=1, end=EVERYTHING, **self.about)

    def kinds(self, what: str, workload: Workload, changes: Iterable[dict[str, Any]]) -> Sweep:
        points = {_words(change): replace(workload, **change) for change in changes}
        limit = LIMITS[self.device][what]
        return _sweep(f"{_short(workload)} by {what}", points, limit, per_byte=not self.is_host)


def _sweep(name: str, points: Mapping[str, Workload], limit: float, **options: bool) -> Sweep:
    """Return a sweep of points, which get their names and the sweep's."""
    named = (replace(point, name=f"{name}: {word}", series=name) for word, point in points.items())
    return Sweep(name, tuple(named), limit, **options)


def sizes(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through sizes, numbers of rows and values of k."""
    of = _Problems(device)
    last = 26 if of.is_host else 28
    row_counts = powers(18) if of.is_host else sorted([*powers(20), 1_000_000])
    for name, make, values in (
        ("top_k by n, k 100", lambda n: of.top_k((1, n), min(n, 100)), powers(last)),
        ("top_k by n, k = n", lambda n: of.top_k((1, n), n), powers(last)),
        ("top_k by k, 1 x 2^20", lambda k: of.top_k((1, 1 << 20), k), counts(1 << 20)),
        ("top_k by k, 256 x 2^14", lambda k: of.top_k((256, 1 << 14), k), counts(1 << 14)),
        ("top_k by rows of 256, k 8", lambda m: of.top_k((m, 256), 8), row_counts),
        ("nonzero by n, 10 %", lambda n: of.nonzero((n,), 0.1), powers(last)),
        ("gather_nd by tuples of 16", lambda n: of.gather(n, 16), powers(last - 4)),
        ("diagonal by side, causal mask", of.triangle, powers(last // 2)),
    ):
        yield _sweep(name, {str(value): make(value) for value in values}, STEP_LIMIT, has_steps=True)


def _selections(of: _Problems) -> tuple[TopK, TopK, TopK]:
    attention = of.top_k((16 if of.is_host else 64, 131072), 2048)
    return of.top_k((1, 1 << 20), 100), of.top_k((256, 50257), 50), attention


def kinds_of_data(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through data, of applications and hostile ones."""
    of = _Problems(device)
    others = [of.top_k((4096, 256), 8)]
    if not of.is_host:
        others = [of.top_k((8192, 256), 8), of.top_k((65536, 64), 8), of.top_k((128, 16384), 1000)]
        others += [of.top_k((512, 16384), 2048), of.top_k((1, 131072), 2048)]
    several = (*_selections(of), *others)
    sort = of.top_k((1, 1 << 20), 1 << 20)
    for workload in (*several, *(replace(each, is_sorted=False) for each in several), sort):
        yield of.kinds("data", workload, ({"data": data} for data in DATA))
        yield of.kinds("hostile data", workload, ({"data": data} for data in HOSTILE_DATA))


def layouts(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through types, axes, layouts, and largest or smallest elements."""
    of = _Problems(device)
    # Problems large enough that their time depends on the bytes and not on the launch.
    large = of.top_k((1, 1 << 22 if of.is_host else 1 << 26), 100)
    logits = of.top_k((256 if of.is_host else 2048, 50257), 50)
    side, rows = (4096, 1 << 16) if of.is_host else (16384, 1 << 20)
    for typed in (large, logits, of.nonzero((side, side), 0.01), of.gather(rows, 128), of.triangle(side)):
        yield of.kinds("type", typed, ({"dtype": dtype} for dtype in TYPES))
    rows, size = (1024, 4096) if of.is_host else (65536, 4096)
    axes: tuple[dict[str, Any], ...] = (
        {"shape": (rows, size), "axis": -1},
        {"shape": (size, rows), "axis": 0},
        {"shape": (rows // 64, size, 64), "axis": 1},
    )
    yield of.kinds("axis", of.top_k((rows, size), 16), axes)
    side = 4096 if of.is_host else 8192
    for strided in (_selections(of)[1], of.nonzero((side, side), 0.01), of.triangle(side)):
        yield of.kinds("layout", strided, ({"layout": layout} for layout in LAYOUTS))
    gather = of.gather(1 << 16 if of.is_host else 1 << 20, 128)
    yield of.kinds("layout", gather, ({"layout": layout} for layout in LAYOUTS[:2]))
    for workload in _selections(of):
        yield of.kinds("end", workload, ({"largest": largest} for largest in (True, False)))


def rows(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through rows: windows, segments of one long array, and the caller's numbers."""
    of = _Problems(device)
    # Sparse attention: a query's keys lie anywhere in a buffer.
    for shape, k, dtype in (((2000, 3000), 64, "bfloat16"), ((2000, 900), 10, "float32")):
        like = of.top_k(shape, k, dtype=dtype)
        points = of.of_rows(("lengths", "windows"), like, shape)
        yield _sweep(f"top_k windows of {_typed(like)}", points, WINDOWS)
    # Sparse matrices and groups: a row's entries lie side by side.
    equal = of.top_k((20_000, SEGMENT), 10, quick=True)
    segments = of.of_rows(("equal", "long_tail"), equal, (equal.size,))
    yield _sweep(f"top_k segments, {_typed(equal)}", {"plain": equal, **segments}, SEGMENTS)
    # Candidates of 64 shards are merged by their numbers.
    shape = (4 if of.is_host else 256, 64 * 2048)
    kinds = product(("float32", "bfloat16"), (True, False), ("normal", "constant"))
    for dtype, is_sorted, data in kinds:
        plain = of.top_k(shape, 2048, dtype=dtype, is_sorted=is_sorted, data=data)
        order = "" if is_sorted else ", by index"
        points = {"plain": plain, **of.of_rows(("numbers",), plain, shape)}
        yield _sweep(f"top_k numbers of {_typed(plain)}{order}, {data}", points, NUMBERS)


def _typed(workload: TopK) -> str:
    return f"{' x '.join(map(str, workload.shape))} {workload.dtype}, k {workload.k}"


def _short(workload: Workload) -> str:
    operator = workload.operator.removesuffix("_coordinates").removesuffix("_matrix")
    shape = " x ".join(map(str, workload.shape))
    if not isinstance(workload, TopK):
        return f"{operator} {shape}"
    return f"{operator} {shape}, k {workload.k}{'' if workload.is_sorted else ', by index,'}"


def _words(change: dict[str, Any]) -> str:
    if "largest" in change:
        return "largest" if change["largest"] else "smallest"
    if "axis" in change:
        return f"axis {change['axis']} of {' x '.join(map(str, change['shape']))}"
    return str(next(iter(change.values())))
