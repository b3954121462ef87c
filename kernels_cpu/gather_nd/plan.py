"""The plan of GATHER_ND1: copy the slice that each index tuple points at.

The addresses of a run are those of x, the indices and the output. Its units are tuples. The
result of a gather is 0 only if all tuples were in range; tasks that work side by side do not tell (-1). The
result of a check is the position of the first tuple that is out of range, or -1.
"""

from typing import NamedTuple

from kernels_cpu import processor
from kernels_cpu.gather_nd import CHECK, LONG, SHORT, STREAMED, STRIDED, kernel_key
from kernels_cpu.gather_nd import problem_words as given
from kernels_cpu.host_words import STREAMING_BYTES, THREADS
from kernels_cpu.integers import MAX_INTEGER, product, total
from kernels_cpu.plan_words import (
    GRID,
    LAUNCHES,
    RESULT,
    Words,
    begin_plan,
    begin_tasks,
    put_pointer,
    put_value,
    put_values,
)
from kernels_cpu.processor import LINE_BYTES

HALF = (1 << 32) - 1  # the low half of a word: vectors multiply such numbers fast
# The most coordinates per tuple for which the bounds of several tuples are laid out next to each other.
CHECKED_COORDINATES = 4

LEAST_INTEGER = -(1 << 63)

# Fields of the table of integers that describes a problem to the kernels.
SLICE, SLICE_BYTES, CLIPS, MODULUS, HIGHEST, PACKED = range(6)
N_BOUNDS, N_TUPLES, N_SLICES, COORDINATE = range(6, 10)
X_OFFSET, NARROW, FAR, FILL, DIMENSIONS = range(10, 15)
# Then the dimensions as the problem has them; at least one of tuples.

STREAM_SLICE_BYTES = 256  # shorter slices leave too few whole lines
PART_BYTES = 1 << 19  # indices and slices per part: some 100 us of work


def _n_positions(problem: Words, at: int, n_dims: int, step: int) -> int:
    """Return the product of the sizes of dimensions, each of which has `step` words from `at` on."""
    n = 1
    for d in range(n_dims):
        n = product(n, problem[at + step * d])
    return n


def _extent(problem: Words, at: int, n_dims: int, step: int) -> int:
    """Return the distance in elements of x between the ends of dimensions."""
    extent = 0
    for d in range(n_dims):
        size, x_stride = problem[at + step * d], problem[at + step * d + 1]
        if size > 1:
            extent = total(extent, product(size - 1, abs(x_stride)))
    return extent


class Walk(NamedTuple):
    """Where the words of a problem are, and how many tuples and elements of a slice it has."""

    n_dims: int
    """Dimensions of batches and tuples."""
    bounds_at: int
    slices_at: int
    end: int
    n_tuples: int
    n_slice: int
    index_stride: int
    """From one tuple to the next."""
    output_stride: int


def _walk(problem: Words) -> Walk:
    n_dims = problem[given.N_BATCH_DIMS] + problem[given.N_TUPLE_DIMS]
    n_slices = problem[given.N_SLICE_DIMS]
    bounds_at = given.DIMS + given.TUPLE_DIMENSION * n_dims
    slices_at = bounds_at + given.BOUND * problem[given.N_BOUNDS]
    index_stride, output_stride = 0, 0
    if n_dims > 0:
        index_stride, output_stride = problem[bounds_at - 2], problem[bounds_at - 1]
    return Walk(
        n_dims,
        bounds_at,
        slices_at,
        slices_at + given.SLICE_DIMENSION * n_slices,
        _n_positions(problem, given.DIMS, n_dims, given.TUPLE_DIMENSION),
        _n_positions(problem, slices_at, n_slices, given.SLICE_DIMENSION),
        index_stride,
        output_stride,
    )


def _kind(problem: Words, host: Words, walk: Walk) -> int:
    """Return how slices are copied."""
    n_slices, element_size = problem[given.N_SLICE_DIMS], problem[given.ELEMENT_SIZE]
    is_contiguous = n_slices == 0
    if n_slices == 1:
        is_contiguous = problem[walk.slices_at + 1] == 1 and problem[walk.slices_at + 2] == 1
    slice_bytes = product(walk.n_slice, element_size)
    if not is_contiguous or (slice_bytes != element_size and processor.WIDTH == 0):
        return STRIDED
    if slice_bytes <= LINE_BYTES:
        return SHORT
    is_large = product(walk.n_tuples, slice_bytes) >= host[STREAMING_BYTES]
    are_adjacent = walk.output_stride == walk.n_slice
    return STREAMED if is_large and slice_bytes >= STREAM_SLICE_BYTES and are_adjacent else LONG


def _put_table(problem: Words, host: Words, out: Words, walk: Walk) -> None:
    """Put the table that describes the problem to the kernels."""
    element_size, index_size = problem[given.ELEMENT_SIZE], problem[given.INDEX_SIZE]
    n_bounds, n_slices = problem[given.N_BOUNDS], problem[given.N_SLICE_DIMS]
    modulus, highest = 0, -1  # all ones
    largest_packed = HALF
    if problem[given.INDEX_SIGNED] != 0:
        highest = (1 << 31) - 1 if index_size == 4 else MAX_INTEGER
        # The bits of a negative index i are 2^32 + i or 2^64 + i; 2^64 is 0 in a word. If negative indices do
        # not wrap, half of that is the modulus: they become the size of the dimension or more.
        modulus = 1 << 32 if index_size == 4 else 0
        if problem[given.WRAPS] == 0:
            modulus = 1 << 31 if index_size == 4 else LEAST_INTEGER
            largest_packed = 1 << 31
    # A dimension of one coordinate may have any stride, depending on the library.
    step = 1 if n_bounds == 1 else problem[given.COORDINATE_STEP]
    clips = problem[given.CLIPS] != 0 and problem[given.CHECKS] == 0
    is_adjacent = step == 1 and walk.index_stride == n_bounds
    is_packed = is_adjacent and n_bounds <= CHECKED_COORDINATES
    is_narrow = is_adjacent and 1 <= n_bounds <= 2
    for at in range(walk.bounds_at, walk.slices_at, given.BOUND):
        size, x_stride = problem[at], problem[at + 1]
        if size == 0:
            clips = False
        if index_size == 4 and size > largest_packed:
            is_packed = False
        if size > HALF or x_stride < 0 or x_stride > HALF:
            is_narrow = False
    # Elements of an input of this size are more often in memory than in a cache.
    extent = _extent(problem, given.DIMS, walk.n_dims, given.TUPLE_DIMENSION)
    extent = total(extent, _extent(problem, walk.bounds_at, n_bounds, given.BOUND))
    extent = total(extent, _extent(problem, walk.slices_at, n_slices, given.SLICE_DIMENSION))
    is_far = product(extent, element_size) >= host[STREAMING_BYTES]
    slice_bytes = product(walk.n_slice, element_size)
    put_values(out, (walk.n_slice, slice_bytes, int(clips), modulus, highest, int(is_packed)))
    put_values(out, (n_bounds, max(walk.n_dims, 1), n_slices, step))
    put_values(out, (problem[given.X_OFFSET], int(is_narrow), int(is_far), problem[given.FILL]))
    if walk.n_dims == 0:
        put_values(out, (1, 0, 0, 0))
    for at in range(given.DIMS, walk.end):
        put_value(out, problem[at])


def plan(problem: Words, host: Words, out: Words) -> int:
    """Plan the copy, for every index tuple, of the slice that it points at; or, with `CHECKS`, the check."""
    element_size, index_size = problem[given.ELEMENT_SIZE], problem[given.INDEX_SIZE]
    checks = problem[given.CHECKS] != 0
    walk = _walk(problem)
    kind = _kind(problem, host, walk)
    begin_plan(out, kind)
    n_read = problem[given.N_BOUNDS] if checks else walk.n_slice
    if walk.n_tuples == 0 or n_read == 0:
        return 0
    n_bytes = product(product(walk.n_tuples, problem[given.N_BOUNDS]), index_size)
    if checks:
        kind = CHECK
    else:
        n_bytes = total(n_bytes, product(walk.n_tuples, product(walk.n_slice, element_size)))
    n_parts = min(2 * host[THREADS], n_bytes // PART_BYTES) if host[THREADS] > 1 else 1
    begin_tasks(out, kernel_key(kind, element_size, index_size), walk.n_tuples, n_parts, 2)
    if checks:
        put_pointer(out, 1, 0)
    else:
        for slot in range(3):
            put_pointer(out, slot, 0)
    if checks or out[LAUNCHES + GRID] == 1:
        out[RESULT] = 0
    _put_table(problem, host, out, walk)
    return 0
