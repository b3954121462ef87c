"""The launches for slices that are covered by vectors of the output (`strided`, `shifted`)."""

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

from kernels_cuda.gather_nd.problem import Dimension, Problem
from kernels_cuda.gather_nd.sizes import STRIDED_THREADS, VECTOR
from kernels_cuda.layout import NARROW_DEPTH, dimension_columns, divisor, is_wide, make_table
from kernels_cuda.runtime.launch import Kernel, LaunchList, load
from kernels_cuda.runtime.variant import Target, Variant

LEAST_RUN_BYTES = 64  # shorter runs are mostly ends
# The units of a run, by their bytes, from which on it is shifted, and all of them: a vector of it takes as
# long as some units do, those at the ends longer, and the code of few units is shorter. Larger ones are fast.
LEAST_SHIFTED_UNITS = ((1, 32), (2, 64))
LEAST_SHIFTED_UNITS_ALL = 1 << 14
_MOST_RUN_BYTES = 1 << 30  # elements of a run are counted in 31 bits


def strided_variant(element_size: int) -> Variant:
    """Return the kernel."""
    return Variant("gather_strided", "kernels_cuda.gather_nd.strided:strided_source", (element_size,))


def shifted_variant(index_size: int) -> Variant:
    """Return the kernel for slices without gaps."""
    return Variant("gather_shifted", "kernels_cuda.gather_nd.shifted:shifted_source", (index_size,))


class Strided(NamedTuple):
    """The launches for outputs that begin on a 16-byte boundary, and for any."""

    aligned: LaunchList
    anywhere: LaunchList

    def serving(self, output: int) -> LaunchList:
        """Return the launch for an output at this address."""
        return self.anywhere if output % VECTOR else self.aligned


class _Runs(NamedTuple):
    """What the launches of both kernels are made from."""

    n_runs: int
    run_bytes: int
    element_size: int
    is_aligned: bool

    def launches(self, kernel: Kernel, *numbers: int) -> Strided:
        """Make them, with the parameters after those that vectors are counted by."""
        anywhere = self._launch(kernel, VECTOR - self.element_size, numbers)
        return Strided(self._launch(kernel, 0, numbers) if self.is_aligned else anywhere, anywhere)

    def _launch(self, kernel: Kernel, head: int, numbers: tuple[int, ...]) -> LaunchList:
        vectors_a_run = -(-(self.run_bytes + head) // VECTOR)
        n_vectors = self.n_runs * vectors_a_run
        return kernel.prepare(
            -(-n_vectors // STRIDED_THREADS),
            STRIDED_THREADS,
            0,
            3,
            n_vectors,
            vectors_a_run,
            *divisor(vectors_a_run, wide=False),
            *numbers,
        )


def _runs(element_size: int, outer: Sequence[Dimension], size: int) -> _Runs | None:
    """Return the runs of `size` elements, or None where their vectors are too many or none."""
    n_runs = prod(size for size, *_ in outer)
    run_bytes = size * element_size
    most_vectors = n_runs * (run_bytes // VECTOR + 2)
    if n_runs == 0 or run_bytes > _MOST_RUN_BYTES or is_wide(most_vectors, len(outer)):
        return None
    is_aligned = gcd(VECTOR, *(stride * element_size for *_, stride in outer)) == VECTOR
    return _Runs(n_runs, run_bytes, element_size, is_aligned)


def shifted_launches(problem: Problem, places: tuple[int, ...], target: Target) -> Strided | None:
    """Make the launches for runs without gaps, or return None where to move them by units is as well.

    `places` are from `plain_places`.
    """
    # Addresses may be those of elements only.
    unit = problem.largest_unit if problem.largest_unit < VECTOR else problem.element_size
    units_a_run = problem.run * problem.element_size // unit
    runs = _runs(problem.element_size, problem.outer, problem.run)
    if (
        runs is None
        or runs.run_bytes < 2 * VECTOR
        or not any(unit == small and units_a_run >= least for small, least in LEAST_SHIFTED_UNITS)
        or runs.n_runs * units_a_run < LEAST_SHIFTED_UNITS_ALL
    ):
        return None
    return runs.launches(load(shifted_variant(problem.index_size), target), runs.run_bytes, *places)


def strided_launches(problem: Problem, target: Target) -> Strided | None:
    """Make the launches for slices with gaps in the input, or return None where another kernel is for it."""
    *outer, (size, x_stride, _, output_stride) = problem.dims
    n_bytes, index_bytes = problem.element_size, problem.index_size
    runs = _runs(n_bytes, outer, size)
    if (
        runs is None
        or output_stride != 1
        or x_stride == 1
        or runs.run_bytes < LEAST_RUN_BYTES
        or len(problem.bounds) > NARROW_DEPTH
    ):
        return None
    columns = dimension_columns(outer, False, (n_bytes, index_bytes, n_bytes))
    table = make_table([*columns, *problem.bound_columns], False, target)
    return runs.launches(
        load(strided_variant(n_bytes), target),
        size,
        x_stride * n_bytes,
        len(problem.bounds),
        problem.coordinate_bytes,
        index_bytes,
        problem.least_index(is_long=True),
        int(problem.clips),
        max(len(outer), 1),
        *table.arguments(None, 0),
    )
