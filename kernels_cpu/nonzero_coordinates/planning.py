"""The plan of NONZERO_COORDINATES: one pass or two, and the parts of each; `kernels` describes the passes."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from kernels_cpu import processor
from kernels_cpu.cached import cached_property
from kernels_cpu.kernel import (
    BYTES,
    ELEMENT_SIZES,
    INDEX_SIZES,
    INTEGER,
    INTEGERS,
    Kernel,
    LoadedKernel,
    Table,
    pointer,
)
from kernels_cpu.nonzero_coordinates.table import CAPACITY, COLUMN_STRIDE, ROW_STRIDE
from kernels_cpu.target import Target
from kernels_cpu.threads import launcher
from kernels_cpu.workspace import lay_out

PART_BYTES = 1 << 20  # input and full output per part: some 100 us of work
UNIFORM_COLUMNS = 64  # logical rows of at least this length are written one by one
PACKED_COLUMNS = 4  # at most, for that


@dataclass(frozen=True)
class Plan:
    """A nonzero-coordinates problem, ready to run any number of times from any thread.

    `launch`, and `count` with `expand`, are two ways to run it. Each loads its kernels when it is first asked
    for.
    """

    variant: str
    workspace_size: int
    in_one_pass: bool
    """Whether `launch` reads the input once, and needs no workspace."""
    _element_size: int
    _coordinate_size: int
    _count_size: int
    _packed_columns: tuple[int, int]
    _n_columns: int
    _n_parts: int
    _table: Table
    _target: Target

    @cached_property
    def launch(self) -> Callable[[int, int, int, int], int]:
        """Write the first rows up to the capacity, and write and return the full count.

        Called as ``launch(x, coordinates, count, workspace)``, all by address.
        """
        as_given, _ = self._packed_columns
        kernel = self._expand_kernel(self.in_one_pass, as_given)
        write: Any = launcher(kernel, self._parts(self._table), 4, self._target.threads)
        if self.in_one_pass:
            return write  # type: ignore[no-any-return]
        count = self.count

        def count_and_write(x: int, coordinates: int, counted: int, workspace: int) -> int:
            found = count(x, counted, workspace)
            write(x, coordinates, counted, workspace)
            return found

        return count_and_write

    @cached_property
    def count(self) -> Callable[[int, int, int], int]:
        """Write and return the full count, and leave in the workspace the words that `expand` reads.

        Called as ``count(x, count, workspace)``.
        """
        load, threads = self._target.load, self._target.threads
        mark = launcher(load(_mark_kernel(self._element_size)), self._parts(self._table), 2, threads)
        total = load(_total_kernel(self._count_size)).bind((self._table,), 2)

        def count(x: int, counted: int, workspace: int) -> int:
            mark(x, workspace)
            return total(counted, workspace)

        return count

    @cached_property
    def expand(self) -> Callable[[int, int, int, int], None]:
        """Write the first rows, packed, after `count` with the same workspace.

        Called as ``expand(x, coordinates, n_rows, workspace)``.
        """
        _, packed = self._packed_columns
        kernel = self._expand_kernel(False, packed)

        def expand(x: int, coordinates: int, n_rows: int, workspace: int) -> None:
            fields = {int(CAPACITY): n_rows, int(ROW_STRIDE): self._n_columns, int(COLUMN_STRIDE): 1}
            parts = self._parts(self._table.replaced(fields))
            launcher(kernel, parts, 4, self._target.threads)(x, coordinates, 0, workspace)

        return expand

    def _parts(self, table: Table) -> list[tuple[Table, int]]:
        return [(table, part) for part in range(self._n_parts)]

    def _expand_kernel(self, from_elements: bool, columns: int) -> LoadedKernel:
        sizes = self._element_size, self._coordinate_size, self._count_size
        return self._target.load(_expand_kernel(from_elements, columns, *sizes))


@cache
def _mark_kernel(element_size: int) -> Kernel:
    source = "kernels_cpu.nonzero_coordinates.kernels:mark"
    return Kernel("nonzero_mark", source, (INTEGERS, INTEGER, pointer("u", element_size), BYTES))


@cache
def _total_kernel(count_size: int) -> Kernel:
    source = "kernels_cpu.nonzero_coordinates.kernels:total_count"
    return Kernel("nonzero_total", source, (INTEGERS, pointer("u", count_size), BYTES))


@cache
def _expand_kernel(
    from_elements: bool, columns: int, element_size: int, coordinate_size: int, count_size: int
) -> Kernel:
    operands = pointer("u", element_size), pointer("u", coordinate_size), pointer("u", count_size)
    return Kernel(
        "nonzero_expand",
        "kernels_cpu.nonzero_coordinates.kernels:expand_kernel",
        (INTEGERS, INTEGER, *operands, BYTES),
        (from_elements, columns),
    )


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    yield from map(_mark_kernel, ELEMENT_SIZES)
    yield from map(_total_kernel, INDEX_SIZES)
    sizes = product((False, True), range(PACKED_COLUMNS + 1), ELEMENT_SIZES, INDEX_SIZES)
    for from_elements, columns, element_size, index_size in sizes:
        yield _expand_kernel(from_elements, columns, element_size, index_size, index_size)


def _packed_columns(sizes: Sequence[int], row_stride: int, column_stride: int) -> int:
    """Return how many columns there are, if rows are packed, and long ones differ in the last column only."""
    packed = row_stride == len(sizes) and column_stride == 1
    return len(sizes) if packed and 0 < len(sizes) <= PACKED_COLUMNS and sizes[-1] >= UNIFORM_COLUMNS else 0


def plan(problem: Any, target: Target) -> Plan:
    """Prepare listing the coordinates of all elements with ``bits & magnitude != 0``.

    Parameters
    ----------
    problem : Problem
        Of `dmlops.operators.nonzero_coordinates`.
    target : Target
        How many threads the work may be spread over, and where kernels come from.

    Returns
    -------
    Plan
        Its workspace holds one bit per element and one word per part.
    """
    sizes, fill, coordinate_strides = problem.sizes, problem.fill, problem.coordinate_strides
    coordinate_size = problem.coordinate_size
    n_elements = math.prod(sizes)
    n_words = -(-n_elements // 64)
    n_bytes = n_elements * (problem.element_size + len(sizes) * coordinate_size)
    n_parts = 1
    if target.threads > 1:
        # More parts than threads, as parts with more non-zero elements take longer.
        n_parts = max(min(4 * target.threads, n_bytes // PART_BYTES, n_words), 1)
    part_words = -(-n_words // n_parts)
    layout = problem.dims or ((1, 1),)
    fields = [n_elements, n_parts, part_words, problem.magnitude, len(layout), len(sizes)]
    fields += [problem.x_offset, problem.capacity, *coordinate_strides, fill is not None, fill or 0]
    # Kernels count in words.
    offsets, workspace_size = lay_out({"words": 8 * part_words * n_parts, "counts": 8 * n_parts})
    fields += [processor.streaming_bytes() // max(len(sizes) * coordinate_size, 1), offsets["counts"] // 8]
    for entry in layout:
        fields += entry
    fields += sizes
    contiguous = len(layout) == 1 and layout[0][1] == 1
    in_one_pass = contiguous and n_parts == 1
    table = Table(fields)
    return Plan(
        variant="one pass" if in_one_pass else f"two passes, parts: {n_parts}",
        workspace_size=workspace_size,
        in_one_pass=in_one_pass,
        _element_size=problem.element_size,
        _coordinate_size=coordinate_size,
        _count_size=problem.count_size,
        _packed_columns=(_packed_columns(sizes, *coordinate_strides), _packed_columns(sizes, len(sizes), 1)),
        _n_columns=len(sizes),
        _n_parts=n_parts,
        _table=table,
        _target=target,
    )
