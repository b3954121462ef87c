"""The words that plans read, thresholds, and the sizes and integers that launches and kernels agree on.

Batch dimensions, those of tuples and those of slices are dimensions 0, 1, ... here, the slowest first. A
*run* is the elements of the last one, if they lie side by side in input and output, and else one element.
Strides are in bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.gather_nd.problem_words import (
    BOUND,
    CLIPS,
    COORDINATE_STEP,
    DIMS,
    ELEMENT_SIZE,
    FILL,
    INDEX_SIGNED,
    INDEX_SIZE,
    N_BATCH_DIMS,
    N_BOUNDS,
    N_TUPLE_DIMS,
    SLICE_DIMENSION,
    TUPLE_DIMENSION,
    WRAPS,
)
from kernels_cpu.integers import product
from kernels_cpu.plan_words import Words
from kernels_cuda.device_words import OWN_WORDS
from kernels_cuda.kernel_keys import KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import NARROW_LIMIT, TABLE_WRITERS, WRITE_TABLE, Column, Divisor
from kernels_cuda.runtime.variant import Variant

THREADS = 128
STRIDED_THREADS = 256
VECTOR = 16
# Units of 16 bytes, and of fewer, that a thread moves; wide kernels, which loop over dimensions, move one.
UNITS = 4
SCALAR_UNITS = 2
# Units of a thread of the planar kernel, where there are many.
PLANAR_UNITS = 4
PLANAR_DIMS = 2
PLANAR_COORDINATES = 3
# Index tuples that a thread checks at a time.
CHECKED_TUPLES = 8
LEAST_SHORT, LEAST_LONG = -(1 << 31), -(1 << 63)


# The parameters of kernels: the bytes of a unit, or for `strided` of an element; the bytes of an index; and
# the units of a thread (`planar`), whether the kernel is wide (`units`), or its registers long (`check`).
UNITS_KERNEL, PLANAR_KERNEL, UNALIGNED_KERNEL, STRIDED_KERNEL, CHECK_KERNEL, CLEAR_KERNEL = range(1, 7)
_UNITS, _VECTORS = "kernels_cuda.gather_nd.units", "kernels_cuda.gather_nd.vectors"
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("gather_units", f"{_UNITS}:units_kernel", (int, int, bool)),
    KernelFamily("gather_planar", f"{_UNITS}:planar_kernel", (int, int, int)),
    KernelFamily("gather_unaligned", f"{_VECTORS}:unaligned_kernel", (int,)),
    KernelFamily("gather_strided", f"{_VECTORS}:strided_kernel", (int,)),
    KernelFamily("gather_check", f"{_UNITS}:check_kernel", (int, bool)),
    KernelFamily("gather_clear", f"{_UNITS}:clear_kernel"),
)


def _kernel_keys() -> Iterator[int]:
    yield WRITE_TABLE
    yield kernel_key(CLEAR_KERNEL)
    for element_size in (1, 2, 4, 8):
        yield kernel_key(STRIDED_KERNEL, element_size)
    for index_size in (4, 8):
        yield kernel_key(UNALIGNED_KERNEL, index_size)
        for is_long in (True,) if index_size == 8 else (False, True):
            yield kernel_key(CHECK_KERNEL, index_size, is_long)
        for unit in (1, 2, 4, 8, VECTOR):
            for per_thread in (1, PLANAR_UNITS):
                yield kernel_key(PLANAR_KERNEL, unit, index_size, per_thread)
            for wide in (False, True):
                yield kernel_key(UNITS_KERNEL, unit, index_size, wide)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    for key in _kernel_keys():
        yield variant_of(key, FAMILIES)


def units_per_thread(unit: int, wide: bool) -> int:
    """Return how many units a thread moves."""
    return 1 if wide else UNITS if unit == VECTOR else SCALAR_UNITS


class Dims(NamedTuple):
    """The dimensions of runs, and those that the coordinates of an index tuple index."""

    n_dims: int
    multipliers: Column
    shifts: Column
    sizes: Column
    x_strides: Column
    index_strides: Column
    output_strides: Column
    bounds: Column
    coordinate_strides: Column


class TupleParameters(NamedTuple):
    """How index tuples are read."""

    n_coordinates: int
    coordinate_bytes: int
    """Indices of a tuple, and bytes from one to the next."""
    least_index: int
    """The least index that does not count from the end. The lowest integer of a register stands for indices
    without a sign, and the one above it for those that are out of range if they are negative."""
    clips: int
    """Whether an index out of range is brought into it, or its slice filled."""
    fill: int
    """The eight bytes that slices are filled with, again and again."""


class UnitsParameters(NamedTuple):
    """Parameters of `gather_units`."""

    n_units: int
    units_per_run: Divisor
    tuples: TupleParameters


class PlanarRuns(NamedTuple):
    """Runs along up to two dimensions, all of whose strides fit 32 bits."""

    inner_size: Divisor
    tuples: TupleParameters
    x_strides: tuple[int, int]
    index_strides: tuple[int, int]
    output_strides: tuple[int, int]
    bounds: tuple[int, int, int]
    coordinate_strides: tuple[int, int, int]


class PlanarParameters(NamedTuple):
    """Parameters of `gather_planar`."""

    n_units: int
    units_per_run: Divisor
    runs: PlanarRuns


class UnalignedParameters(NamedTuple):
    """Parameters of `gather_unaligned`."""

    n_vectors: int
    vectors_per_run: Divisor
    run_bytes: int
    runs: PlanarRuns


class StridedParameters(NamedTuple):
    """Parameters of `gather_strided`: the elements of a run are `step` bytes apart in the input."""

    n_vectors: int
    vectors_per_run: Divisor
    run_elements: int
    step: int
    index_size: int
    tuples: TupleParameters


class CheckDims(NamedTuple):
    """The dimensions of index tuples, and the sizes that coordinates are compared with."""

    n_dims: int
    multipliers: Column
    shifts: Column
    sizes: Column
    index_strides: Column
    bounds: Column


class CheckParameters(NamedTuple):
    """Parameters of `gather_check`: the first of `n_tuples` has position `first_position` among all."""

    first_position: int
    n_tuples: int
    tuples: TupleParameters


NEVER = 1 << 62
LARGEST_SHORT = (1 << 32) - 1


class Policy(NamedTuple):
    """Thresholds, which follow the words of the device; tests plan with others to force an algorithm."""

    # Up to so many units, a thread of the planar kernel has one.
    single_units: int = 1 << 20
    # The planar kernel multiplies positions and strides in bytes as 32-bit integers.
    planar_stride: int = (1 << 31) - 1
    # Shorter strided runs are mostly unaligned ends.
    strided_run_bytes: int = 64
    # The units of an unaligned run, by their bytes, from which on it is covered by vectors, and all units
    # together: a vector takes as long as some units do, those at the ends longer, and the code of few units
    # is shorter. Larger units are fast.
    unaligned_units_of_1: int = 32
    unaligned_units_of_2: int = 64
    unaligned_units_of_4: int = NEVER
    unaligned_units_of_8: int = NEVER
    unaligned_units: int = 1 << 14
    # The largest bound that indices are compared with in registers of 32 bits.
    short_bound: int = LARGEST_SHORT
    # Larger problems are counted in 63 bits.
    narrow_elements: int = NARROW_LIMIT
    check_blocks_per_multiprocessor: int = 16


def policy_of(device: Words) -> Policy:
    """Return the policy in the words of a device."""
    return Policy(
        single_units=device[OWN_WORDS],
        planar_stride=device[OWN_WORDS + 1],
        strided_run_bytes=device[OWN_WORDS + 2],
        unaligned_units_of_1=device[OWN_WORDS + 3],
        unaligned_units_of_2=device[OWN_WORDS + 4],
        unaligned_units_of_4=device[OWN_WORDS + 5],
        unaligned_units_of_8=device[OWN_WORDS + 6],
        unaligned_units=device[OWN_WORDS + 7],
        short_bound=device[OWN_WORDS + 8],
        narrow_elements=device[OWN_WORDS + 9],
        check_blocks_per_multiprocessor=device[OWN_WORDS + 10],
    )


class Dimension(NamedTuple):
    """A dimension of slices, and its strides in bytes; 0 in a tensor whose dimension it is not."""

    size: int
    x: int
    indices: int
    output: int


def dimension_of(problem: Words, i: int) -> Dimension:
    """Return dimension number `i`."""
    element_size = problem[ELEMENT_SIZE]
    n_tuple_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]
    at = DIMS + TUPLE_DIMENSION * min(i, n_tuple_dims)
    if i < n_tuple_dims:
        return Dimension(
            size=problem[at],
            x=problem[at + 1] * element_size,
            indices=problem[at + 2] * problem[INDEX_SIZE],
            output=problem[at + 3] * element_size,
        )
    at += BOUND * problem[N_BOUNDS] + SLICE_DIMENSION * (i - n_tuple_dims)
    return Dimension(
        size=problem[at], x=problem[at + 1] * element_size, indices=0, output=problem[at + 2] * element_size
    )


class Bound(NamedTuple):
    """The dimension that a coordinate indexes, and its stride in bytes."""

    size: int
    stride: int


def bound_of(problem: Words, c: int) -> Bound:
    """Return what coordinate number `c` indexes; zeros if there is no such coordinate."""
    if c >= problem[N_BOUNDS]:
        return Bound(0, 0)
    at = DIMS + TUPLE_DIMENSION * (problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]) + BOUND * c
    return Bound(problem[at], problem[at + 1] * problem[ELEMENT_SIZE])


class Runs(NamedTuple):
    """The dimensions of runs (the first `n_dims`), the elements of a run, and how many runs there are."""

    n_dims: int
    size: int
    number: int


def runs_along(problem: Words, n_dims: int, size: int) -> Runs:
    """Return the runs of `size` elements along the first dimensions."""
    number = 1
    for i in range(n_dims):
        number = product(number, dimension_of(problem, i).size)
    return Runs(n_dims, size, number)


def tuples_of(problem: Words, n_coordinates: int, is_long: bool) -> TupleParameters:
    """Return how kernels read index tuples in registers of 32 bits, or of 64."""
    least_index = 0
    if not problem[INDEX_SIGNED] or not problem[WRAPS]:
        least_index = LEAST_LONG if is_long else LEAST_SHORT
        least_index += problem[INDEX_SIGNED]
    return TupleParameters(
        n_coordinates=n_coordinates,
        coordinate_bytes=problem[COORDINATE_STEP] * problem[INDEX_SIZE],
        least_index=least_index,
        clips=problem[CLIPS],
        fill=problem[FILL],
    )


def has_long_indices(problem: Words, policy: Policy) -> bool:
    """Return whether registers of 32 bits are too short for indices, or to compare them with a bound."""
    if problem[INDEX_SIZE] == 8:
        return True
    largest = 0
    for c in range(problem[N_BOUNDS]):
        largest = max(largest, bound_of(problem, c).size)
    return largest > min(policy.short_bound, largest_short_bound(problem))


def largest_short_bound(problem: Words) -> int:
    """Return the largest bound that indices may be compared with in registers of 32 bits.

    Negative ones that do not count from the end are large ones there, which are beyond it.
    """
    return LARGEST_SHORT if problem[WRAPS] else (1 << 31) - 1
