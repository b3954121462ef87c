"""The plan of DIAGONAL_MATRIX1: fill a band of diagonals (or everything else) of matrices, copy the rest."""

import math
from collections.abc import Iterator
from functools import cache
from itertools import chain, product
from typing import Any

from kernels_cpu import processor
from kernels_cpu.kernel import BYTES, ELEMENT_SIZES, INTEGER, INTEGERS, Kernel, Table, pointer
from kernels_cpu.plan import Plan, Target
from kernels_cpu.threads import launcher, split

# The layout of the output's columns. Each has its own kernel.
CONTIGUOUS, STREAMED, STRIDED = range(3)
KINDS = ("contiguous", "streamed", "strided")

# Fields of the table that describes a problem to the kernel; each row's band begins STEP after the last.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES = range(7)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN = range(7, 11)
STEP, VALUE, N_BATCH, BATCH = range(11, 15)
# Then (size, x_stride, output_stride) for every batch dimension.

PART_BYTES = 1 << 20  # per part: some 100 us of work, worth handing to another thread
TILE_COLUMNS = 256  # if columns of the input are far apart: their lines then serve the next rows too


@cache
def _band_kernel(kind: int, x_is_contiguous: bool, element_size: int) -> Kernel:
    elements = pointer("u", element_size)
    return Kernel(
        "diagonal_matrix",
        "kernels_cpu.diagonal_matrix.kernels:band_kernel",
        (INTEGERS, INTEGER, INTEGER, elements, elements, BYTES),
        (kind, x_is_contiguous),
    )


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    for kind, x_is_contiguous, element_size in product(range(len(KINDS)), (False, True), ELEMENT_SIZES):
        yield _band_kernel(kind, x_is_contiguous, element_size)


def plan(problem: Any, target: Target) -> Plan:
    """Plan ``out[y, x] = value if (begin <= x - y < end) != inverted else input[y, x]``."""
    element_size, has_input, batch = problem.element_size, problem.has_input, problem.batch
    height, width, begin, end = problem.height, problem.width, problem.begin, problem.end
    x_strides, output_strides = problem.x_strides, problem.output_strides
    if abs(output_strides[0]) < abs(output_strides[1]) and height > 1:
        # The transposed problem: x - y in [begin, end) is y - x in [1 - end, 1 - begin).
        height, width = width, height
        begin, end = 1 - end, 1 - begin
        x_strides = x_strides[::-1]
        output_strides = output_strides[::-1]
    step = output_strides[1]
    if (step, 1, 1) in batch and x_strides[1] == step:
        # The parts of wide elements, or channels that come last: a row of them all is contiguous.
        batch = [dimension for dimension in batch if dimension != (step, 1, 1)]
        width, begin, end = width * step, begin * step, end * step
        x_strides, output_strides = (x_strides[0], 1), (output_strides[0], 1)
    else:
        step = 1
    n_rows = height * math.prod([size for size, _, _ in batch])
    n_bytes = n_rows * width * element_size
    kind = CONTIGUOUS if output_strides[1] == 1 else STRIDED
    if kind == CONTIGUOUS and processor.WIDTH and n_bytes >= processor.streaming_bytes():
        kind = STREAMED
    tile = width if not has_input or x_strides[1] in (0, 1) else min(width, TILE_COLUMNS)
    fields = [height, width, tile, begin, end, problem.inverted, has_input, *x_strides, *output_strides]
    fields += [step, problem.value, len(batch), *chain(*batch)]
    n_parts = 1
    if target.threads > 1 and n_bytes >= 2 * PART_BYTES:
        # More parts than threads, as rows that are filled take less time than rows that are copied.
        n_parts = min(4 * target.threads, n_bytes // PART_BYTES)
    kernel = target.load(_band_kernel(kind, not has_input or x_strides[1] == 1, element_size))
    table = Table(fields)
    parts = [(table, *part) for part in split(n_rows, n_parts)] if width else []
    launch = launcher(kernel, parts, 3, target.threads)
    return Plan(f"row segments, {KINDS[kind]}", 0, {"launch": lambda: launch})
