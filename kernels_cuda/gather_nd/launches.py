"""The launches of each algorithm, and of the check."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from kernels_cuda.gather_nd.kernels import clear, kernel
from kernels_cuda.gather_nd.parameters import (
    CHECKED_TUPLES,
    PLANAR_COORDINATES,
    PLANAR_DIMS,
    PLANAR_UNITS,
    STRIDED_THREADS,
    THREADS,
    VECTOR,
    CheckDims,
    CheckParameters,
    Dims,
    PlanarParameters,
    PlanarRuns,
    StridedParameters,
    UnalignedParameters,
    UnitsParameters,
    units_per_thread,
)
from kernels_cuda.gather_nd.policy import Policy
from kernels_cuda.gather_nd.problem import Dimension, Problem
from kernels_cuda.runtime.launch import Launch, LaunchList, Pointer, load
from kernels_cuda.runtime.variant import Target
from kernels_cuda.tables import (
    NARROW_DEPTH,
    NARROW_LIMIT,
    Divisor,
    WideLaunch,
    ceil_div,
    divisor,
    is_wide,
    make_table,
)

# Elements of a run that is covered by vectors are counted in 31 bits.
_MOST_RUN_BYTES = 1 << 30
_LARGEST_PLANAR_BOUND = 1 << 31


class UnitLaunch(NamedTuple):
    """The launch for units of some bytes: in one piece, or wide."""

    unit: int
    launch: LaunchList | None
    wide: WideLaunch | None


def unit_launch(problem: Problem, policy: Policy, unit: int, target: Target) -> UnitLaunch:
    """Make the launch for units of some bytes."""
    runs = planar_runs(problem, policy)
    planar = None if runs is None else _planar_launch(problem, policy, runs, unit, target)
    if planar is not None:
        return UnitLaunch(unit, planar, None)
    n_bytes, index_bytes, outer = problem.element_size, problem.index_size, problem.outer
    units_per_run = problem.run * n_bytes // unit
    n_units = problem.n_runs * units_per_run
    # Indices of 32 bits are dealt with in registers of 32 bits, unless a dimension is too large for these.
    wide = is_wide(n_units, len(outer), len(problem.bounds), limit=policy.narrow_elements)
    wide = wide or (has_long_indices(problem, policy) and index_bytes == 4)
    # The others read a first coordinate in any case.
    wide = wide or not problem.bounds
    loaded = load(kernel("units", unit, index_bytes, wide), target)
    table = make_table(Dims, outer, (n_bytes, index_bytes, n_bytes), wide, target, *problem.bound_columns)
    grid = ceil_div(n_units, THREADS * units_per_thread(unit, wide))
    parameters = UnitsParameters(
        n_units=n_units,
        units_per_run=divisor(units_per_run, wide),
        tuples=problem.tuple_parameters(wide or index_bytes == 8),
    )
    if wide:
        return UnitLaunch(unit, None, WideLaunch(loaded, grid, THREADS, parameters, table))
    return UnitLaunch(unit, loaded.prepare(grid, THREADS, 0, 3, parameters, table.parameters()), None)


def has_long_indices(problem: Problem, policy: Policy) -> bool:
    """Return whether registers of 32 bits are too short for indices, or to compare them with a bound."""
    return problem.index_size == 8 or any(size > policy.short_bound for size, _ in problem.bounds)


def planar_runs(problem: Problem, policy: Policy) -> PlanarRuns | None:
    """Return the runs as the planar kernels take them, or None where those cannot."""
    n_bytes, index_bytes = problem.element_size, problem.index_size
    outer, bounds = problem.outer, problem.bounds
    padding = ((1, 0, 0, 0),) * (PLANAR_DIMS - len(outer))
    dims = [
        (x_stride * n_bytes, index_stride * index_bytes, output_stride * n_bytes)
        for _, x_stride, index_stride, output_stride in (*padding, *outer)
    ]
    bound_sizes, coordinate_strides = problem.bound_columns
    strides = [*coordinate_strides, *(stride for dim in dims for stride in dim)]
    is_planar = (
        len(outer) <= PLANAR_DIMS
        and 1 <= len(bounds) <= PLANAR_COORDINATES
        and max(bound_sizes) <= _LARGEST_PLANAR_BOUND
        and max(map(abs, strides)) <= policy.planar_stride
    )
    if not is_planar:
        return None
    x_strides, index_strides, output_strides = zip(*dims, strict=True)
    inner_size = outer[-1][0] if len(outer) > 1 else 0
    unused = (0,) * (PLANAR_COORDINATES - len(bounds))
    return PlanarRuns(
        # One dimension is the inner one, and the quotient 0.
        inner_size=divisor(inner_size, wide=False) if inner_size else Divisor(0, 0, 0),
        tuples=problem.tuple_parameters(is_long=index_bytes == 8),
        x_strides=x_strides,
        index_strides=index_strides,
        output_strides=output_strides,
        bounds=(*bound_sizes, *unused),  # type: ignore[arg-type]
        coordinate_strides=(*coordinate_strides, *unused),  # type: ignore[arg-type]
    )


def _planar_launch(
    problem: Problem, policy: Policy, runs: PlanarRuns, unit: int, target: Target
) -> LaunchList | None:
    """Make the launch of the planar kernel, or return None where there are too many units for it.

    Threads of several units write an output in one piece.
    """
    units_per_run = problem.run * problem.element_size // unit
    n_units = problem.n_runs * units_per_run
    per_thread = 1 if n_units <= policy.single_units else PLANAR_UNITS
    if n_units > NARROW_LIMIT or (problem.has_gaps and per_thread > 1):
        return None
    parameters = PlanarParameters(
        n_units=n_units, units_per_run=divisor(units_per_run, wide=False), runs=runs
    )
    loaded = load(kernel("planar", unit, problem.index_size, per_thread), target)
    return loaded.prepare(ceil_div(n_units, THREADS * per_thread), THREADS, 0, 3, parameters)


class VectorLaunches(NamedTuple):
    """The launches of runs covered by vectors, for outputs on a 16-byte boundary, and for any."""

    aligned: LaunchList
    anywhere: LaunchList

    def serving(self, output: int) -> LaunchList:
        """Return the launch for an output at this address."""
        return self.anywhere if output % VECTOR else self.aligned


@dataclass(frozen=True)
class CoveredRuns:
    """Runs of the output that 16-byte vectors cover."""

    n_runs: int
    run_bytes: int
    element_size: int
    is_aligned: bool

    @property
    def residues(self) -> tuple[int, int]:
        """How far from a 16-byte boundary a run may begin, if the output begins on one, and if anywhere."""
        latest = VECTOR - self.element_size
        return 0 if self.is_aligned else latest, latest

    def vectors(self, residue: int) -> tuple[int, int]:
        """Return how many vectors there are, and how many cover a run."""
        per_run = ceil_div(self.run_bytes + residue, VECTOR)
        return self.n_runs * per_run, per_run


def covered_runs(
    element_size: int, outer: Sequence[Dimension], size: int, policy: Policy
) -> CoveredRuns | None:
    """Return the runs of `size` elements, or None where their vectors are too many or none."""
    n_runs = prod(size for size, *_ in outer)
    run_bytes = size * element_size
    most_vectors = n_runs * (run_bytes // VECTOR + 2)
    is_too_large = is_wide(most_vectors, len(outer), limit=policy.narrow_elements)
    if n_runs == 0 or run_bytes > _MOST_RUN_BYTES or is_too_large:
        return None
    is_aligned = gcd(VECTOR, *(stride * element_size for *_, stride in outer)) == VECTOR
    return CoveredRuns(n_runs, run_bytes, element_size, is_aligned)


def unaligned_launches(problem: Problem, policy: Policy, target: Target) -> VectorLaunches | None:
    """Make the launches for contiguous runs, or return None where to move them by units is as well."""
    runs = planar_runs(problem, policy)
    covered = covered_runs(problem.element_size, problem.outer, problem.run, policy)
    # Addresses may be those of elements only.
    unit = problem.largest_unit if problem.largest_unit < VECTOR else problem.element_size
    units_per_run = problem.run * problem.element_size // unit
    if (
        runs is None
        or covered is None
        or covered.run_bytes < 2 * VECTOR
        or not any(unit == small and units_per_run >= least for small, least in policy.unaligned_run_units)
        or covered.n_runs * units_per_run < policy.unaligned_units
    ):
        return None
    loaded = load(kernel("unaligned", problem.index_size), target)

    def launch(residue: int) -> LaunchList:
        n_vectors, per_run = covered.vectors(residue)
        parameters = UnalignedParameters(
            n_vectors=n_vectors,
            vectors_per_run=divisor(per_run, wide=False),
            run_bytes=covered.run_bytes,
            runs=runs,
        )
        return loaded.prepare(ceil_div(n_vectors, STRIDED_THREADS), STRIDED_THREADS, 0, 3, parameters)

    return VectorLaunches(*map(launch, covered.residues))


def strided_launches(problem: Problem, policy: Policy, target: Target) -> VectorLaunches | None:
    """Make the launches for slices with gaps in the input, or return None where units serve them."""
    *outer, (size, x_stride, _, output_stride) = problem.dims
    n_bytes, index_bytes = problem.element_size, problem.index_size
    covered = covered_runs(n_bytes, outer, size, policy)
    if (
        covered is None
        or output_stride != 1
        or x_stride == 1
        or covered.run_bytes < policy.strided_run_bytes
        or len(problem.bounds) > NARROW_DEPTH
    ):
        return None
    table = make_table(Dims, outer, (n_bytes, index_bytes, n_bytes), False, target, *problem.bound_columns)
    loaded = load(kernel("strided", n_bytes), target)

    def launch(residue: int) -> LaunchList:
        n_vectors, per_run = covered.vectors(residue)
        parameters = StridedParameters(
            n_vectors=n_vectors,
            vectors_per_run=divisor(per_run, wide=False),
            run_elements=size,
            step=x_stride * n_bytes,
            index_size=index_bytes,
            tuples=problem.tuple_parameters(is_long=True),
        )
        n_blocks = ceil_div(n_vectors, STRIDED_THREADS)
        return loaded.prepare(n_blocks, STRIDED_THREADS, 0, 3, parameters, table.parameters())

    return VectorLaunches(*map(launch, covered.residues))


def check_launches(problem: Problem, policy: Policy, target: Target) -> Iterator[Launch]:
    """Yield what looks for index tuples out of range, for the addresses of indices and of its answer."""
    yield Launch(load(clear(), target), 1, 1, 0, (Pointer(1),), ())
    is_long = has_long_indices(problem, policy)
    most_blocks = policy.check_blocks_per_multiprocessor * target.multiprocessors
    loaded = load(kernel("check", problem.index_size, is_long), target)
    for first in range(0, len(problem.bounds), NARROW_DEPTH):
        checked = [size for size, _ in problem.bounds[first : first + NARROW_DEPTH]]
        for position, offset, dims in narrow_parts(problem.tuple_dims, policy.narrow_elements):
            n_tuples = prod(size for size, _ in dims)
            tuples = problem.tuple_parameters(is_long)._replace(n_coordinates=len(checked))
            parameters = CheckParameters(first_position=position, n_tuples=n_tuples, tuples=tuples)
            table = make_table(CheckDims, dims, (1,), False, target, checked)
            n_blocks = min(ceil_div(n_tuples, THREADS * CHECKED_TUPLES), most_blocks)
            pointers = Pointer(0, offset + first * problem.coordinate_bytes), Pointer(1)
            yield Launch(loaded, n_blocks, THREADS, 0, pointers, (parameters, table.parameters()))


def narrow_parts(
    dims: Sequence[tuple[int, int]], limit: int
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Split (size, stride) dimensions into parts for narrow kernels: first position, offset, dimensions."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    n_positions = prod(size for size, _ in merged)
    if n_positions == 0:
        return
    if not is_wide(n_positions, len(merged), limit=limit):
        yield 0, 0, merged
        return
    (size, stride), *inner = merged
    n_inner = n_positions // size
    # One dimension alone is cut into ranges; of several the outermost is walked.
    step = 1 if inner else limit
    for start in range(0, size, step):
        rest = inner or [(min(step, size - start), stride)]
        for position, offset, part in narrow_parts(rest, limit):
            yield start * n_inner + position, start * stride + offset, part
