"""The launch for units of runs along up to two dimensions (`plain`)."""

from kernels_cuda.gather_nd.problem import Problem
from kernels_cuda.gather_nd.sizes import PLAIN_COORDINATES, PLAIN_DIMS, PLAIN_UNITS, THREADS
from kernels_cuda.layout import NARROW_LIMIT, divisor
from kernels_cuda.runtime.launch import LaunchList, load
from kernels_cuda.runtime.variant import Target, Variant

FEW_UNITS = 1 << 20  # up to so many, a thread has one
LARGEST_STRIDE = (1 << 31) - 1  # in bytes; positions and strides are multiplied as 32-bit integers
_LARGEST_BOUND = 1 << 31


def plain_variant(unit: int, index_size: int, units_a_thread: int) -> Variant:
    """Return the kernel for units of some bytes."""
    factory = "kernels_cuda.gather_nd.plain:plain_source"
    return Variant("gather_plain", factory, (unit, index_size, units_a_thread))


def plain_places(problem: Problem) -> tuple[int, ...] | None:
    """Return the parameters that tell a kernel where runs are, or None where another must find them."""
    n_bytes, index_bytes = problem.element_size, problem.index_size
    outer, bounds = problem.outer, problem.bounds
    padding = ((1, 0, 0, 0),) * (PLAIN_DIMS - len(outer))
    dims = [
        (x_stride * n_bytes, index_stride * index_bytes, output_stride * n_bytes)
        for _, x_stride, index_stride, output_stride in (*padding, *outer)
    ]
    bound_sizes, coordinate_strides = problem.bound_columns
    strides = [*coordinate_strides, *(stride for dim in dims for stride in dim)]
    serves = (
        len(outer) <= PLAIN_DIMS
        and 1 <= len(bounds) <= PLAIN_COORDINATES
        and max(bound_sizes) <= _LARGEST_BOUND
        and max(map(abs, strides)) <= LARGEST_STRIDE
    )
    if not serves:
        return None
    inner_size = outer[-1][0] if len(outer) > 1 else 0
    unused = (0,) * (PLAIN_COORDINATES - len(bounds))
    return (
        inner_size,
        # One dimension is the inner one, and the quotient 0.
        *(divisor(inner_size, wide=False) if inner_size else (0, 0)),
        len(bounds),
        problem.coordinate_bytes,
        problem.least_index(is_long=index_bytes == 8),
        int(problem.clips),
        *(stride for tensor in zip(*dims, strict=True) for stride in tensor),
        *bound_sizes,
        *unused,
        *coordinate_strides,
        *unused,
    )


def plain_launch(problem: Problem, places: tuple[int, ...], unit: int, target: Target) -> LaunchList | None:
    """Make the launch for units of some bytes, or return None where another kernel is for it.

    `places` are from `plain_places`. Threads of several units write an output in one piece.
    """
    units_a_run = problem.run * problem.element_size // unit
    n_units = problem.n_runs * units_a_run
    n_units_a_thread = 1 if n_units <= FEW_UNITS else PLAIN_UNITS
    if n_units > NARROW_LIMIT or (problem.has_gaps and n_units_a_thread > 1):
        return None
    return load(plain_variant(unit, problem.index_size, n_units_a_thread), target).prepare(
        -(-n_units // (THREADS * n_units_a_thread)),
        THREADS,
        0,
        3,
        n_units,
        units_a_run,
        *divisor(units_a_run, wide=False),
        *places,
    )
