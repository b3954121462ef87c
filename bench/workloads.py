"""Workloads: problems of the operators with the data that they are measured on."""

from dataclasses import dataclass, fields
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

import numpy as np

CPU, CUDA = "cpu", "cuda"
INDEX_BYTES = 4
_NOT_OF_PROBLEM = ("name", "shape", "device", "quick", "series")
# How the text of a problem of `TopK` ends if results are in order of index, and its name in applications.
UNSORTED, BY_INDEX = ", is_sorted False", ", by index"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One problem: an operator, its sizes and types, and the distribution of its data."""

    name: str
    """Unique within a device."""
    shape: tuple[int, ...]
    device: str = CPU
    dtype: str = "float32"
    data: str = "normal"
    """The distribution of the input, by its name in `bench.data`."""
    quick: bool = False
    given: bool = True
    """Whether contenders that can write to given outputs get them; otherwise all make new outputs."""
    series: str = ""
    """The problems among which it is shown: an application, or a sweep."""

    operator: ClassVar[str]

    @property
    def problem(self) -> str:
        """The problem without its name and device, as text: all fields that differ from their defaults."""
        words = [f"{self.operator} {' x '.join(map(str, self.shape))}"]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _NOT_OF_PROBLEM and value != each.default:
                words.append(f"{each.name} {value}")
        return ", ".join(words)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def item(self) -> int:
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def bytes_moved(self) -> int:
        """The least that must be read and written, with 4-byte indices."""
        raise NotImplementedError

    def inputs(self, source: Any) -> tuple[Any, ...]:
        """Make the arrays, of which the input is the first."""
        return (source.make(self.data, self.shape, self.dtype),)


SEGMENT = 92  # the average number of elements of a segment
NARROWED = 32  # by so many elements, windows are shorter than their rows
# The arguments beside the input, for each kind of rows.
_ROWS: dict[str, tuple[str, ...]] = {
    "": (),
    "lengths": ("lengths",),
    "windows": ("starts", "lengths"),
    "equal": ("starts", "lengths"),
    "long_tail": ("starts", "lengths"),
    "numbers": ("indices",),
}


def segment_lengths(kind: str, size: int) -> list[int]:
    """Return the lengths of the segments of an array: equal, or by Zipf's law in no order.

    Examples
    --------
    >>> segment_lengths("equal", 276), segment_lengths("long_tail", 276)
    ([92, 92, 92], [144, 53, 77])
    """
    n_segments = size // SEGMENT
    if kind == "equal":
        return [SEGMENT] * n_segments
    ranks = [1 + 7919 * segment % n_segments for segment in range(n_segments)]
    shares = [rank**-0.9 for rank in ranks]
    total = sum(shares)
    return [int(size * share / total) for share in shares]


@dataclass(frozen=True, kw_only=True)
class TopK(Workload):
    """Select the `k` largest or smallest elements along an axis, in order of value or of index."""

    operator = "top_k"
    k: int
    rows: str = ""
    """Windows that begin with their rows ("lengths") or anywhere ("windows"), segments that are "equal" or
    have a "long_tail", or "numbers" of the elements; "" for plain rows."""
    axis: int = -1
    largest: bool = True
    is_sorted: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments beside the input."""
        return _ROWS[self.rows]

    @property
    def windows(self) -> tuple[list[int], list[int]]:
        """Where windows begin, and how long they are."""
        if len(self.shape) == 1:
            lengths = segment_lengths(self.rows, self.size)
            return [0, *accumulate(lengths[:-1])], lengths
        n_rows, size = self.shape
        if self.rows == "numbers":
            return [0] * n_rows, [size] * n_rows
        starts = [7 * row % NARROWED if self.rows == "windows" else 0 for row in range(n_rows)]
        return starts, [size - NARROWED] * n_rows

    @property
    def bytes_moved(self) -> int:
        n_rows, n_elements = self.size // self.shape[self.axis], self.size
        if self.rows:
            lengths = self.windows[1]
            n_rows, n_elements = len(lengths), sum(lengths)
        return n_elements * self.item + n_rows * self.k * (self.item + INDEX_BYTES)

    def inputs(self, source: Any) -> tuple[Any, ...]:
        if self.rows == "numbers":
            return *super().inputs(source), source.indices(self.shape, (1 << 30,), "int64")[..., 0]
        others = dict(zip(("starts", "lengths"), self.windows, strict=True)) if self.rows else {}
        return *super().inputs(source), *(source.integers(others[name]) for name in self.names)


@dataclass(frozen=True, kw_only=True)
class NonzeroCoordinates(Workload):
    """List the coordinates of the non-zero elements, whose share of all elements is `density`."""

    operator = "nonzero_coordinates"
    density: float

    @property
    def bytes_moved(self) -> int:
        return self.size * self.item + round(self.size * self.density) * len(self.shape) * INDEX_BYTES

    def inputs(self, source: Any) -> tuple[Any, ...]:
        return (source.sparse(self.shape, self.dtype, self.density),)


@dataclass(frozen=True, kw_only=True)
class Sample(Workload):
    """Draw a token per row, of the first `k` elements (0: all) and the share `top_p` of their weights."""

    operator = "sample"
    k: int = 0
    top_p: float = 1.0

    @property
    def bytes_moved(self) -> int:
        return self.size * self.item + self.shape[0] * (8 + INDEX_BYTES)

    def inputs(self, source: Any) -> tuple[Any, ...]:
        return *super().inputs(source), source.integers(range(self.shape[0]))  # a seed per row


@dataclass(frozen=True, kw_only=True)
class GatherND(Workload):
    """Gather by `tuples` random index tuples in each batch, of `coordinates` indices each."""

    operator = "gather_nd"
    tuples: int
    coordinates: int
    batch_dims: int
    index_dtype: str = "uint32"
    mode: str = "clip"
    """dmlops' treatment of indices out of range; "raise" checks all of them before the first write."""

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        batch = self.batch_dims
        return (*self.shape[:batch], self.tuples, *self.shape[batch + self.coordinates :])

    @property
    def bytes_moved(self) -> int:
        count = prod(self.shape[: self.batch_dims]) * self.tuples
        return count * self.coordinates * INDEX_BYTES + 2 * prod(self.gathered_shape) * self.item

    def inputs(self, source: Any) -> tuple[Any, ...]:
        batch = self.batch_dims
        bounds = self.shape[batch : batch + self.coordinates]
        indices = source.indices((*self.shape[:batch], self.tuples), bounds, self.index_dtype)
        return *super().inputs(source), indices


@dataclass(frozen=True, kw_only=True)
class DiagonalMatrix(Workload):
    operator = "diagonal_matrix"
    begin: int
    end: int
    value: float = 0.0

    @property
    def bytes_moved(self) -> int:
        height, width = self.shape[-2:]
        filled = sum(
            max(0, min(row + self.end, width) - min(max(row + self.begin, 0), width)) for row in range(height)
        )
        matrices = self.size // (height * width)
        return matrices * (2 * height * width - filled) * self.item
