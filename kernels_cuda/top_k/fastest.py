"""Which algorithm is the fastest for a problem: a table of what was measured on one device.

``python -m bench choices`` times all algorithms, and writes the table (``fastest.json``). Each number of
rows, length and k in it stands for those below, down to the next smaller one in the table. Most lengths and k
are powers of two: so are the limits of most algorithms.
"""

import functools
import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from kernels_cuda.layout import ceil_div

TABLE = Path(__file__).with_name("tables") / "sm_90.json"
# For elements of one byte, what holds for those of two comes closest.
_SMALLEST_ELEMENT = 2

Value = TypeVar("Value")


class Kind(NamedTuple):
    """What parts of the table tell apart: bytes of an element, where rows lie, and the order of results."""

    element_size: int
    is_transposed: bool
    is_sorted: bool

    def __str__(self) -> str:
        where = "side by side" if self.is_transposed else "one after the other"
        return f"{self.element_size} bytes, rows {where}, by {'value' if self.is_sorted else 'index'}"


class _Steps(NamedTuple, Generic[Value]):
    """Values up to some limits; the last one holds beyond its limit."""

    limits: tuple[int, ...]
    values: tuple[Value, ...]

    def at(self, amount: int) -> Value:
        return self.values[min(bisect_left(self.limits, amount), len(self.values) - 1)]


@functools.cache
def _steps(kind: Kind) -> _Steps[_Steps[_Steps[tuple[str, ...]]]]:
    """Return a part of the table by k, number of rows and length."""
    by_k: Mapping[str, Mapping[str, str]] = _table()["fastest"][str(kind)]
    values = []
    for by_rows in by_k.values():
        lines = tuple(_lengths(line) for line in by_rows.values())
        values.append(_Steps(tuple(map(int, by_rows)), lines))
    return _Steps(tuple(map(int, by_k)), tuple(values))


@functools.cache
def _table() -> Mapping[str, Any]:
    return json.loads(TABLE.read_text())


def _lengths(line: str) -> _Steps[tuple[str, ...]]:
    *parts, last = [part.split() for part in line.split(", ")]
    limits = tuple(int(length) for length, *_ in parts)
    return _Steps(limits, (*(tuple(names) for _, *names in parts), tuple(last)))


def fastest(kind: Kind, n_rows: int, axis_size: int, k: int, multiprocessors: int) -> tuple[str, ...]:
    """Return the names of algorithms, the fastest first; not all of them may serve the problem.

    The number of rows counts in proportion to the multiprocessors of the device that was measured.
    """
    kind = kind._replace(element_size=max(kind.element_size, _SMALLEST_ELEMENT))
    n_rows = ceil_div(n_rows * _table()["multiprocessors"], multiprocessors)
    return _steps(kind).at(k).at(n_rows).at(axis_size)
