"""The suites of sweeps: problems for which a small change may make a call much slower.

A sweep goes through sizes, or is one problem with different data or rows. `compared` finds how much longer a
point takes than the time of another point suggests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from bench.operators import EVERYTHING
from bench.workloads import (
    CPU,
    SEGMENT,
    DiagonalMatrix,
    GatherND,
    NonzeroCoordinates,
    TopK,
    Workload,
)

# The largest ratio of a point's time per byte to that of the first point of its sweep, or of its neighbours
# where sizes go in steps.
LIMITS = {"data": 1.15, "hostile data": 1.5, "windows": 1.1, "segments": 1.5, "numbers": 2.0, "steps": 2.0}
# Applications have quantised and clamped scores, masks, padding, sorted input.
DATA = (
    *("normal", "equal", "one_equal_row", "rounded", "codes", "ties", "two_valued", "clamped", "relu"),
    *("mostly_zeros", "one_hot", "constant", "signed_zeros", "few_nan", "nan", "all_nan"),
    *("ascending", "descending", "narrow", "probabilities"),
)
# These are hard to select from by samples, by histograms of the leading bits, or with buffers per thread.
HOSTILE_DATA = ("normal", "close", "two_scales", "periodic", "clustered")
ODD_EXPONENTS = range(4, 23, 3)


@dataclass(frozen=True)
class Sweep:
    """Problems that differ in one property, in the order in which they are measured."""

    name: str
    """Unique within a device; the names of the points begin with it."""
    points: tuple[Workload, ...]
    limit: float
    """The largest allowed ratio of a point's time to the time expected from another point."""
    has_steps: bool = False
    """Whether each point is compared with its neighbours, and not with the first point."""

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
        factor = point.bytes_moved / other.bytes_moved
        return max(factor, 1.0) if self.has_steps else factor


def compared(sweeps: Iterable[Any], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Compare the points of sweeps that have times, by name; return all comparisons, the worst first.

    Each has the names and the seconds of a point and of the other one, the ratio to the expected time, and
    its limit. What is no sweep is compared with nothing.
    """
    found = [
        {
            "point": point.name,
            "other": other.name,
            "seconds": times[point.name],
            "other_seconds": times[other.name],
            "factor": times[point.name] / times[other.name] / sweep.expected(point, other),
            "limit": sweep.limit,
        }
        for sweep in sweeps
        if isinstance(sweep, Sweep)
        for point, other in sweep.pairs()
        if point.name in times and other.name in times
    ]
    return sorted(found, key=lambda each: -each["factor"] / each["limit"])


def beyond(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _sweep(name: str, points: Mapping[Any, Workload], limit: str, *, has_steps: bool = False) -> Sweep:
    """Return a sweep of points, which get their names and the sweep's."""
    named = (replace(point, name=f"{name}: {word}", series=name) for word, point in points.items())
    return Sweep(name, tuple(named), LIMITS[limit], has_steps)


def sizes(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through sizes, numbers of rows and values of k."""
    last = 26 if device == CPU else 28
    row_counts = powers(18) if device == CPU else sorted([*powers(20), 1_000_000])
    of: dict[str, Any] = {"name": "", "device": device}
    flat: dict[str, Any] = {"coordinates": 1, "batch_dims": 0, **of}
    mask: dict[str, Any] = {"begin": 1, "end": EVERYTHING, **of}
    table: tuple[tuple[str, Callable[[int], Workload], list[int]], ...] = (
        ("top_k by n, k 100", lambda n: TopK(shape=(1, n), k=min(n, 100), **of), powers(last)),
        ("top_k by n, k = n", lambda n: TopK(shape=(1, n), k=n, **of), powers(last)),
        ("top_k by k, 1 x 2^20", lambda k: TopK(shape=(1, 1 << 20), k=k, **of), counts(1 << 20)),
        ("top_k by k, 256 x 2^14", lambda k: TopK(shape=(256, 1 << 14), k=k, **of), counts(1 << 14)),
        ("top_k by rows of 256, k 8", lambda m: TopK(shape=(m, 256), k=8, **of), row_counts),
        ("nonzero by n, 10 %", lambda n: NonzeroCoordinates(shape=(n,), density=0.1, **of), powers(last)),
        (
            "gather_nd by tuples of 16",
            lambda n: GatherND(shape=(max(n, 16), 16), tuples=n, **flat),
            powers(last - 4),
        ),
        ("diagonal by side, causal mask", lambda n: DiagonalMatrix(shape=(n, n), **mask), powers(last // 2)),
    )
    for name, make, values in table:
        yield _sweep(name, {value: make(value) for value in values}, "steps", has_steps=True)


def kinds_of_data(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through data, of applications and hostile ones."""
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
            points = {data: replace(workload, data=data) for data in kinds}
            yield _sweep(f"{name} by {what}", points, what)


def rows(device: str) -> Iterator[Sweep]:
    """Yield the sweeps through rows: windows, segments of one long array, and the caller's numbers."""

    def sweep(what: str, kinds: tuple[str, ...], like: TopK, words: str = "") -> Sweep:
        """Return a sweep through kinds of rows, of which one may be plain ones."""
        shape = (like.size,) if what == "segments" else like.shape
        points = {"plain": like} if what != "windows" else {}
        points |= {kind: replace(like, shape=shape, rows=kind) for kind in kinds}
        name = f"{' x '.join(map(str, like.shape))} {like.dtype}, k {like.k}{words}"
        return _sweep(f"top_k {what}{', ' if what == 'segments' else ' of '}{name}", points, what)

    of: dict[str, Any] = {"name": "", "device": device}
    # Sparse attention: a query's keys lie anywhere in a buffer.
    windows = ("lengths", "windows")
    yield sweep("windows", windows, TopK(shape=(2000, 3000), k=64, dtype="bfloat16", **of))
    yield sweep("windows", windows, TopK(shape=(2000, 900), k=10, **of))
    # Sparse matrices and groups: a row's entries lie side by side.
    yield sweep("segments", ("equal", "long_tail"), TopK(shape=(20_000, SEGMENT), k=10, quick=True, **of))
    # Candidates of 64 shards are merged by their numbers.
    shape = (4 if device == CPU else 256, 64 * 2048)
    for dtype, is_sorted, data in product(("float32", "bfloat16"), (True, False), ("normal", "constant")):
        plain = TopK(shape=shape, k=2048, dtype=dtype, is_sorted=is_sorted, data=data, **of)
        yield sweep("numbers", ("numbers",), plain, f"{'' if is_sorted else ', by index'}, {data}")
