"""The plan of NONZERO_COORDINATES: one pass or two, and the parts of each; `kernels` describes the passes."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

from kernels_cpu import processor
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
from kernels_cpu.plan import Plan, Target, lay_out
from kernels_cpu.threads import launcher

# Fields of the table of integers that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, MAGNITUDE, N_DIMS, N_SIZES = range(6)
X_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE = range(6, 10)
FILLS, FILL, STREAM_ROWS, COUNTS, TABLES = range(10, 15)
# Then (size, x_stride) for each dimension of the input, then the logical sizes.

PART_BYTES = 1 << 20  # input and full output per part: some 100 us of work
UNIFORM_COLUMNS = 64  # logical rows of at least this length are written one by one
PACKED_COLUMNS = 4  # at most, for that


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
    """Plan the list of the coordinates of all elements with ``bits & magnitude != 0``.

    The workspace holds one bit per element and one word per part.
    """
    sizes, fill, coordinate_strides = problem.sizes, problem.fill, problem.coordinate_strides
    element_size, coordinate_size = problem.element_size, problem.coordinate_size
    n_elements = math.prod(sizes)
    n_words = -(-n_elements // 64)
    n_bytes = n_elements * (element_size + len(sizes) * coordinate_size)
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
    in_one_pass = len(layout) == 1 and layout[0][1] == 1 and n_parts == 1
    table = Table(fields)

    def parts(table: Table) -> list[tuple[Table, int]]:
        return [(table, part) for part in range(n_parts)]

    def expand_kernel(from_elements: bool, row_stride: int, column_stride: int) -> LoadedKernel:
        columns = _packed_columns(sizes, row_stride, column_stride)
        sizes_in_bytes = element_size, coordinate_size, problem.count_size
        return target.load(_expand_kernel(from_elements, columns, *sizes_in_bytes))

    def load_launch() -> Callable[[int, int, int, int], int]:
        kernel = expand_kernel(in_one_pass, *coordinate_strides)
        write: Any = launcher(kernel, parts(table), 4, target.threads)
        if in_one_pass:
            return write  # type: ignore[no-any-return]
        count = load_count()

        def count_and_write(x: int, coordinates: int, counted: int, workspace: int) -> int:
            found = count(x, counted, workspace)
            write(x, coordinates, counted, workspace)
            return found

        return count_and_write

    def load_count() -> Callable[[int, int, int], int]:
        mark = launcher(target.load(_mark_kernel(element_size)), parts(table), 2, target.threads)
        total = target.load(_total_kernel(problem.count_size)).bind((table,), 2)

        def count(x: int, counted: int, workspace: int) -> int:
            mark(x, workspace)
            return total(counted, workspace)

        return count

    def load_expand() -> Callable[[int, int, int, int], None]:
        kernel = expand_kernel(False, len(sizes), 1)

        def expand(x: int, coordinates: int, n_rows: int, workspace: int) -> None:
            fields = {int(CAPACITY): n_rows, int(ROW_STRIDE): len(sizes), int(COLUMN_STRIDE): 1}
            launch = launcher(kernel, parts(table.replaced(fields)), 4, target.threads)
            launch(x, coordinates, 0, workspace)

        return expand

    variant = "one pass" if in_one_pass else f"two passes, parts: {n_parts}"
    loaders: dict[str, Callable[[], Callable[..., Any]]]
    loaders = {"launch": load_launch, "count": load_count, "expand": load_expand}
    return Plan(variant, workspace_size, loaders, in_one_pass)
