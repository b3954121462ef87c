"""What the plan of GATHER_ND1 reads of a problem, and what may be tuned.

Batch dimensions, those of tuples and those of slices are dimensions 0, 1, ... here, the slowest first. A
*run* is the elements of the last one, if they lie side by side in input and output, and else one element.
"""

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
from kernels_cuda.gather_nd.parameters import LEAST_LONG, LEAST_SHORT, TupleParameters
from kernels_cuda.layout import NARROW_LIMIT

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
