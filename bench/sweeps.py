"""The table of sweeps, which look for cliffs: sizes or kinds of data for which an operator is much slower.

`Steps` go through sizes, numbers of rows or values of k, and compare neighbouring points. `Kinds` are one
problem with different data, types, axes or layouts, and compare each with the first.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from bench.data import LAYOUTS
from bench.workloads import (
    CPU,
    CUDA,
    LENGTHS,
    DiagonalMatrix,
    GatherND,
    NonzeroCoordinates,
    TopK,
    Workload,
)

STEP_LIMIT = 2.0
# The largest ratio of a kind's time to that of the first kind: per element on the CPU, per byte on a GPU.
ON_BOTH = {"data": 1.15, "hostile data": 1.5, "lengths": 1.5, "end": 1.25}
LIMITS = {
    CPU: {**ON_BOTH, "type": 3.0, "axis": 3.0, "layout": 3.0},
    CUDA: {**ON_BOTH, "type": 1 / 0.8, "axis": 1.5, "layout": 2.0},
}
# Applications have quantised and clamped scores, masks, padding, sorted input.
DATA = (
    "normal",
    "equal",
    "one_equal_row",
    "rounded",
    "codes",
    "ties",
    "two_valued",
    "clamped",
    "relu",
    "mostly_zeros",
    "one_hot",
    "constant",
    "signed_zeros",
    "few_nan",
    "nan",
    "all_nan",
    "ascending",
    "descending",
    "narrow",
    "probabilities",
)
# These are hard to select from by samples, by histograms of the leading bits, or with buffers per thread.
HOSTILE_DATA = ("normal", "close", "two_scales", "periodic", "clustered")
TYPES = ("float32", "uint8", "int16", "float16", "bfloat16", "int32", "float64", "int64")
ODD_EXPONENTS = range(4, 23, 3)
EVERYTHING = 2**31  # the end of a band that reaches the right edge of any matrix


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Problems that differ in one property.

    Attributes
    ----------
    name : str
        Unique within a device.
    points : tuple of Workload
        In the order in which they are measured. Their names begin with the name of the sweep.
    limit : float
        The largest allowed ratio of a point's time to the time expected from another point.
    has_peers : bool
        Whether torch is timed as well.
    """

    name: str
    points: tuple[Workload, ...]
    limit: float = STEP_LIMIT
    has_peers: bool = False

    word: ClassVar[str]

    @property
    def operator(self) -> str:
        """The operator of all points."""
        return self.points[0].operator

    def pairs(self) -> Iterator[tuple[Workload, Workload]]:
        """Yield each point with the point that predicts its time."""
        raise NotImplementedError

    def expected(self, point: Workload, other: Workload) -> float:
        """Return how many times as long as `other` a point should take."""
        raise NotImplementedError


class Steps(Sweep):
    """Compares neighbours in both directions: more work takes its share, and less work takes no longer."""

    word = "step"

    def pairs(self) -> Iterator[tuple[Workload, Workload]]:
        """Yield each point with the point that predicts its time."""
        for before, after in pairwise(self.points):
            yield after, before
            yield before, after

    def expected(self, point: Workload, other: Workload) -> float:
        """Return how many times as long as `other` a point should take."""
        return max(1.0, point.bytes_moved / other.bytes_moved)


@dataclass(frozen=True, kw_only=True)
class Kinds(Sweep):
    """Compares all points with the first one, by time per byte or per element of the input."""

    word = "kind"
    per_byte: bool

    def pairs(self) -> Iterator[tuple[Workload, Workload]]:
        """Yield each point with the point that predicts its time."""
        first, *others = self.points
        return ((point, first) for point in others)

    def expected(self, point: Workload, other: Workload) -> float:
        """Return how many times as long as `other` a point should take."""
        return point.bytes_moved / other.bytes_moved if self.per_byte else point.size / other.size


def sweeps(device: str) -> list[Sweep]:
    """Return the table for one device, in the order in which it is measured."""
    return [*_Steps(device).table(), *_Kinds(device).table()]


def powers(last: int) -> list[int]:
    """Return the powers of two up to 2**last, and some other sizes next to them and between them."""
    sizes = {1 << exponent for exponent in range(last + 1)}
    for exponent in ODD_EXPONENTS:
        if exponent < last:
            size = 1 << exponent
            sizes |= {size - 1, size + 1, size * 3 // 2}
    return sorted(sizes)


def counts(size: int) -> list[int]:
    """Return values of k for rows of a size: the powers of two, just over half of it, and all but one."""
    return sorted({*(1 << exponent for exponent in range(size.bit_length())), size // 2 + 1, size - 1})


class _Table:
    """Makes the workloads of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_host = device == CPU

    def top_k(self, shape: tuple[int, ...], k: int, **other: Any) -> TopK:
        return TopK(name="", reason="", device=self.device, shape=shape, k=k, **other)

    def nonzero(self, shape: tuple[int, ...], density: float, **other: Any) -> NonzeroCoordinates:
        return NonzeroCoordinates(
            name="", reason="", device=self.device, shape=shape, density=density, **other
        )

    def gather(self, tuples: int, length: int, **other: Any) -> GatherND:
        return GatherND(
            name="",
            reason="",
            device=self.device,
            shape=(max(tuples, 16), length),
            tuples=tuples,
            coordinates=1,
            batch_dims=0,
            **other,
        )

    def triangle(self, side: int, **other: Any) -> DiagonalMatrix:
        return DiagonalMatrix(
            name="", reason="", device=self.device, shape=(side, side), begin=1, end=EVERYTHING, **other
        )


class _Steps(_Table):
    """Makes the sweeps through sizes, numbers of rows and values of k."""

    def table(self) -> Iterator[Sweep]:
        last = 26 if self.is_host else 28
        rows = [*powers(18)] if self.is_host else [*powers(20), 1_000_000]
        yield self._steps("top_k by n, k 100", lambda n: self.top_k((1, n), min(n, 100)), powers(last))
        yield self._steps("top_k by n, k = n", lambda n: self.top_k((1, n), n), powers(last))
        yield self._steps("top_k by k, 1 x 2^20", lambda k: self.top_k((1, 1 << 20), k), counts(1 << 20))
        yield self._steps("top_k by k, 256 x 2^14", lambda k: self.top_k((256, 1 << 14), k), counts(1 << 14))
        yield self._steps("top_k by rows of 256, k 8", lambda m: self.top_k((m, 256), 8), sorted(rows))
        yield self._steps("nonzero by n, 10 %", lambda n: self.nonzero((n,), 0.1), powers(last))
        yield self._steps("gather_nd by tuples of 16", lambda n: self.gather(n, 16), powers(last - 4))
        yield self._steps("diagonal by side, causal mask", self.triangle, powers(last // 2))

    def _steps(self, name: str, make: Callable[[int], Workload], at: Iterable[int]) -> Steps:
        points = tuple(
            replace(make(value), name=f"{name}: {value}", reason="a step of a sweep", series=name, at=value)
            for value in at
        )
        return Steps(name=name, points=points, has_peers=True)


class _Kinds(_Table):
    """Makes the sweeps through data, types, axes, layouts, and largest and smallest elements."""

    def table(self) -> Iterator[Sweep]:
        logits = self.top_k((256, 50257), 50)
        attention = self.top_k((16 if self.is_host else 64, 131072), 2048)
        retrieval = self.top_k((1, 1 << 20), 100)
        yield from self._of_data(retrieval, logits, attention)
        yield from self._of_lengths()
        yield from self._of_types()
        yield from self._of_layouts(logits)
        for workload in (retrieval, logits, attention):
            yield self._kinds("end", workload, ({"largest": largest} for largest in (True, False)))

    def _of_data(self, *several: TopK) -> Iterator[Sweep]:
        if self.is_host:
            several += (self.top_k((4096, 256), 8),)
        else:
            several += (
                self.top_k((8192, 256), 8),
                self.top_k((65536, 64), 8),
                self.top_k((128, 16384), 1000),
                self.top_k((512, 16384), 2048),
                self.top_k((1, 131072), 2048),
            )
        sort = self.top_k((1, 1 << 20), 1 << 20)
        for workload in (*several, *(replace(each, is_sorted=False) for each in several), sort):
            yield self._kinds("data", workload, ({"data": data} for data in DATA))
            yield self._kinds("hostile data", workload, ({"data": data} for data in HOSTILE_DATA))

    def _of_lengths(self) -> Iterator[Sweep]:
        # The work is that of the elements that count, not that of rows times the longest.
        indexer = self.top_k((64 if self.is_host else 1024, 131072), 2048)
        for workload in (indexer, replace(indexer, is_sorted=False)):
            yield self._kinds("lengths", workload, ({"lengths": lengths} for lengths in ("", *LENGTHS)))

    def _of_types(self) -> Iterator[Sweep]:
        # Problems large enough that their time depends on the bytes and not on the launch.
        if self.is_host:
            several = (self.top_k((1, 1 << 22), 100), self.top_k((256, 50257), 50))
            side, rows = 4096, 1 << 16
        else:
            several = (self.top_k((1, 1 << 26), 100), self.top_k((2048, 50257), 50))
            side, rows = 16384, 1 << 20
        for workload in (*several, self.nonzero((side, side), 0.01), self.gather(rows, 128)):
            yield self._kinds("type", workload, ({"dtype": dtype} for dtype in TYPES))
        yield self._kinds("type", self.triangle(side), ({"dtype": dtype} for dtype in TYPES))

    def _of_layouts(self, logits: TopK) -> Iterator[Sweep]:
        rows, size = (1024, 4096) if self.is_host else (65536, 4096)
        axes: tuple[dict[str, Any], ...] = (
            {"shape": (rows, size), "axis": -1},
            {"shape": (size, rows), "axis": 0},
            {"shape": (rows // 64, size, 64), "axis": 1},
        )
        yield self._kinds("axis", self.top_k((rows, size), 16), axes)
        side = 4096 if self.is_host else 8192
        for workload in (logits, self.nonzero((side, side), 0.01), self.triangle(side)):
            yield self._kinds("layout", workload, ({"layout": layout} for layout in LAYOUTS))
        gather = self.gather(1 << 16 if self.is_host else 1 << 20, 128)
        yield self._kinds("layout", gather, ({"layout": layout} for layout in LAYOUTS[:2]))

    def _kinds(self, what: str, workload: Workload, changes: Iterable[dict[str, Any]]) -> Kinds:
        name = f"{_short(workload)} by {what}"
        points = tuple(
            replace(workload, name=f"{name}: {_told(change)}", reason="a kind of a sweep", **change)
            for change in changes
        )
        limit = LIMITS[self.device][what]
        per_byte = what == "lengths" or not self.is_host
        return Kinds(name=name, points=points, limit=limit, per_byte=per_byte)


def _short(workload: Workload) -> str:
    operator = workload.operator.removesuffix("_coordinates").removesuffix("_matrix")
    shape = " x ".join(map(str, workload.shape))
    if not isinstance(workload, TopK):
        return f"{operator} {shape}"
    return f"{operator} {shape}, k {workload.k}{'' if workload.is_sorted else ', by index,'}"


def _told(change: dict[str, Any]) -> str:
    if "largest" in change:
        return "largest" if change["largest"] else "smallest"
    if "axis" in change:
        return f"axis {change['axis']} of {' x '.join(map(str, change['shape']))}"
    return str(next(iter(change.values()))) or "none"
