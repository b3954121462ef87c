"""The launches for slices that are covered by vectors of the output (`strided`, `shifted`)."""

from math import gcd, prod
from typing import NamedTuple

from kernels_cuda.gather_nd.sizes import STRIDED_THREADS, VECTOR, least_index
from kernels_cuda.launch import Kernel, Launches, load
from kernels_cuda.layout import NARROW_DEPTH, dimension_columns, divisor, is_wide, make_table
from kernels_cuda.variant import Target, Variant

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

    aligned: Launches
    anywhere: Launches


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

    def _launch(self, kernel: Kernel, head: int, numbers: tuple[int, ...]) -> Launches:
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


def _runs(element_size: int, outer: list[tuple[int, int, int, int]], size: int) -> _Runs | None:
    """Return the runs of `size` elements, or None where their vectors are too many or none."""
    n_runs = prod(size for size, *_ in outer)
    run_bytes = size * element_size
    most_vectors = n_runs * (run_bytes // VECTOR + 2)
    if n_runs == 0 or run_bytes > _MOST_RUN_BYTES or is_wide(most_vectors, len(outer)):
        return None
    is_aligned = gcd(VECTOR, *(stride * element_size for *_, stride in outer)) == VECTOR
    return _Runs(n_runs, run_bytes, element_size, is_aligned)


def shifted_launches(
    places: tuple[int, ...],
    *,
    unit: int,
    element_size: int,
    index_size: int,
    outer: list[tuple[int, int, int, int]],
    size: int,
    target: Target,
) -> Strided | None:
    """Make the launches for runs without gaps, or return None where to move them by units is as well.

    `places` are from `plain_places`; the units would have `unit` bytes.
    """
    units_a_run = size * element_size // unit
    runs = _runs(element_size, outer, size)
    if (
        runs is None
        or runs.run_bytes < 2 * VECTOR
        or not any(unit == small and units_a_run >= least for small, least in LEAST_SHIFTED_UNITS)
        or runs.n_runs * units_a_run < LEAST_SHIFTED_UNITS_ALL
    ):
        return None
    return runs.launches(load(shifted_variant(index_size), target), runs.run_bytes, *places)


def strided_launches(
    *,
    element_size: int,
    index_size: int,
    index_signed: bool,
    outer: list[tuple[int, int, int, int]],
    run: tuple[int, int, int],
    coordinate_stride: int,
    bounds: tuple[tuple[int, int], ...],
    mode: str,
    target: Target,
) -> Strided | None:
    """Make the launches for runs with gaps in the input, or return None where another kernel is for it.

    `outer` are the dimensions of runs, with the strides of input, indices and output; `run` is the one along
    a run: its size, and the strides of input and output.
    """
    size, x_stride, output_stride = run
    runs = _runs(element_size, outer, size)
    if (
        runs is None
        or output_stride != 1
        or x_stride == 1
        or runs.run_bytes < LEAST_RUN_BYTES
        or len(bounds) > NARROW_DEPTH
    ):
        return None
    columns = dimension_columns(outer, False, (element_size, index_size, element_size))
    bound_columns = [[size for size, _ in bounds], [x_stride * element_size for _, x_stride in bounds]]
    table = make_table([*columns, *bound_columns], False, target)
    return runs.launches(
        load(strided_variant(element_size), target),
        size,
        x_stride * element_size,
        len(bounds),
        coordinate_stride * index_size,
        index_size,
        least_index(index_signed, is_long=True),
        int(mode == "clip"),
        max(len(outer), 1),
        *table.arguments(None, 0),
    )
