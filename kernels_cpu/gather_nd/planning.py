"""The plan of GATHER_ND1: copy the slice that each index tuple points at."""

import math
from collections.abc import Callable, Iterator
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
    WORD_MASK,
    Kernel,
    Table,
    pointer,
)
from kernels_cpu.plan import Plan, Target
from kernels_cpu.processor import LINE_BYTES
from kernels_cpu.threads import launcher, run, split

HALF = (1 << 32) - 1  # the low half of a word: vectors multiply such numbers fast
# The most coordinates per tuple for which the bounds of several tuples are laid out next to each other.
CHECKED_COORDINATES = 4

# A slice is a few bytes in one or two pieces, whole lines, or anything else. Each has its own kernel.
SHORT, LONG, STREAMED, STRIDED = range(4)
KINDS = ("short", "long", "streamed", "strided")

# Fields of the table of integers that describes a problem to the kernels.
SLICE, SLICE_BYTES, CLIPS, MODULUS, HIGHEST, PACKED = range(6)
N_BOUNDS, N_TUPLES, N_SLICES, COORDINATE = range(6, 10)
X_OFFSET, NARROW, FAR, DIMENSIONS = range(10, 14)
# Then (size, x_stride, index_stride, output_stride) for each batch and tuple dimension, (size, x_stride) for
# each coordinate, (size, x_stride, output_stride) for each slice dimension.

STREAM_SLICE_BYTES = 256  # shorter slices leave too few whole lines
PART_BYTES = 1 << 19  # indices and slices per part: some 100 us of work


@cache
def _gather_kernel(kind: int, element_size: int, index_size: int) -> Kernel:
    elements, indices = pointer("u", element_size), pointer("u", index_size)
    return Kernel(
        "gather_nd",
        "kernels_cpu.gather_nd.kernels:gather_kernel",
        (INTEGERS, INTEGER, INTEGER, elements, indices, elements, BYTES),
        (kind,),
    )


@cache
def _check_kernel(index_size: int) -> Kernel:
    source = "kernels_cpu.gather_nd.index_tuples:find_outside"
    return Kernel("gather_nd_check", source, (INTEGERS, INTEGER, INTEGER, pointer("u", index_size)))


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    for index_size in INDEX_SIZES:
        yield _check_kernel(index_size)
        for kind, element_size in product(range(len(KINDS)), ELEMENT_SIZES):
            yield _gather_kernel(kind, element_size, index_size)


def plan(problem: Any, target: Target) -> Plan:
    """Plan the copy, for every index tuple, of the slice that it points at."""
    element_size, index_size, x_offset = problem.element_size, problem.index_size, problem.x_offset
    bounds, slices, coordinate_stride = problem.bounds, problem.slices, problem.coordinate_stride
    tuples = [(size, 0, index, output) for size, index, output in problem.tuples]
    dimensions = [*problem.batch, *tuples] or [(1, 0, 0, 0)]
    n_tuples = math.prod(size for size, *_ in dimensions)
    n_slice = math.prod(size for size, *_ in slices)
    slice_bytes = n_slice * element_size
    contiguous = not slices or (len(slices) == 1 and slices[0][1:] == (1, 1))
    kind = STRIDED
    if contiguous and (slice_bytes == element_size or processor.WIDTH):
        kind = SHORT if slice_bytes <= LINE_BYTES else LONG
        is_large = slice_bytes >= STREAM_SLICE_BYTES and n_tuples * slice_bytes >= processor.streaming_bytes()
        if is_large and dimensions[-1][3] == n_slice:
            kind = STREAMED
    clips = problem.mode == "clip" and all(size for size, _ in bounds)
    modulus = 1 << 8 * index_size if problem.index_signed else 0
    highest = modulus // 2 - 1  # all ones for unsigned integers
    # A dimension of one coordinate may have any stride, depending on the library.
    coordinate_stride = 1 if len(bounds) == 1 else coordinate_stride
    adjacent = coordinate_stride == 1 and dimensions[-1][2] == len(bounds)
    packed = (
        adjacent
        and len(bounds) <= CHECKED_COORDINATES
        and all(size >> 8 * index_size == 0 for size, _ in bounds)
    )
    narrow = (
        adjacent
        and len(bounds) in {1, 2}
        and all(size <= HALF and 0 <= stride <= HALF for size, stride in bounds)
    )
    fields = [n_slice, slice_bytes, clips, modulus & WORD_MASK, highest, packed, len(bounds), len(dimensions)]
    # Elements of an input of this size are more often in memory than in a cache.
    x_dimensions = [entry[:2] for entry in (*dimensions, *bounds, *slices)]
    x_bytes = sum((size - 1) * abs(stride) for size, stride in x_dimensions) * element_size
    far = x_bytes >= processor.streaming_bytes()
    fields += [len(slices), coordinate_stride, x_offset, narrow, far]
    for entry in (*dimensions, *bounds, *slices):
        fields += entry
    table = Table(fields)
    index_bytes = n_tuples * len(bounds) * index_size
    gather = target.load(_gather_kernel(kind, element_size, index_size))
    ranges = _parts(n_tuples, index_bytes + n_tuples * slice_bytes, target.threads) if n_slice else []
    launch = launcher(gather, [(table, *part) for part in ranges], 4, target.threads)

    def load_check() -> Callable[[int], int]:
        kernel, exact = target.load(_check_kernel(index_size)), table.replaced({int(CLIPS): 0})
        check_ranges = _parts(n_tuples, index_bytes, target.threads) if bounds else []
        checks = [kernel.bind((exact, *part), 1) for part in check_ranges]
        if len(checks) == 1:
            return checks[0]

        def check(indices: int) -> int:
            found: list[int] = []
            run(lambda bound: found.append(bound(indices)), checks, target.threads)
            return min((position for position in found if position >= 0), default=-1)

        return check

    return Plan(f"{KINDS[kind]} slices", 0, {"launch": lambda: launch, "check": load_check})


def _parts(n_tuples: int, n_bytes: int, threads: int) -> list[tuple[int, int]]:
    n_parts = min(2 * threads, n_bytes // PART_BYTES) if threads > 1 else 1
    return split(n_tuples, max(n_parts, 1))
