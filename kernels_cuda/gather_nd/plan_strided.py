"""The launches for slices that are covered by vectors of the output (`strided`, `shifted`)."""

from math import gcd, prod
from typing import NamedTuple

from kernels_cuda.gather_nd.sizes import STRIDED_THREADS, VECTOR, least_index
from kernels_cuda.launch import Launches, load
from kernels_cuda.layout import dimension_columns, divisor, is_wide, make_table
from kernels_cuda.variant import Target, Variant

LEAST_RUN_BYTES = 64  # shorter runs are mostly ends
# Units of less than 16 bytes that a shifted run replaces, and all of them: a vector of it takes as long as
# some units do, those at the ends longer, and the code of few units is shorter.
LEAST_SHIFTED_UNITS = 32
LEAST_SHIFTED_UNITS_ALL = 1 << 14
_MOST_RUN_BYTES = 1 << 30  # elements of a run are counted in 31 bits


def strided_variant(element_size: int) -> Variant:
    """Return the kernel."""
    return Variant("gather_strided", "kernels_cuda.gather_nd.strided:strided_source", (element_size,))


def shifted_variant() -> Variant:
    """Return the kernel for slices without gaps."""
    return Variant("gather_shifted", "kernels_cuda.gather_nd.shifted:shifted_source")


class Strided(NamedTuple):
    """The launches for outputs that begin on a 16-byte boundary, and for any."""

    aligned: Launches
    anywhere: Launches


def strided_launches(
    *,
    unit: int,
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
    """Make the launches, or return None where another kernel is for it.

    `outer` are the dimensions of runs, with the strides of input, indices and output; `run` is the one along
    a run: its size, and the strides of input and output. Without gaps, it could be moved by units of `unit`
    bytes.
    """
    size, x_stride, output_stride = run
    run_bytes = size * element_size
    n_runs = prod(size for size, *_ in outer)
    is_shifted = x_stride == 1
    units_a_run = run_bytes // unit
    if is_shifted:
        pays = units_a_run >= LEAST_SHIFTED_UNITS and n_runs * units_a_run >= LEAST_SHIFTED_UNITS_ALL
        pays = pays and run_bytes >= 2 * VECTOR
    else:
        pays = run_bytes >= LEAST_RUN_BYTES
    serves = output_stride == 1 and pays and run_bytes <= _MOST_RUN_BYTES and n_runs > 0
    most_vectors = n_runs * (run_bytes // VECTOR + 2)
    if not serves or is_wide(most_vectors, len(outer), len(bounds)):
        return None
    kernel = load(shifted_variant() if is_shifted else strided_variant(element_size), target)
    columns = dimension_columns(outer, False, (element_size, index_size, element_size))
    bound_columns = [[size for size, _ in bounds], [x_stride * element_size for _, x_stride in bounds]]
    table = make_table([*columns, *bound_columns], False, target)

    def launches(head: int) -> Launches:
        vectors_a_run = -(-(run_bytes + head) // VECTOR)
        n_vectors = n_runs * vectors_a_run
        return kernel.prepare(
            -(-n_vectors // STRIDED_THREADS),
            STRIDED_THREADS,
            0,
            3,
            n_vectors,
            vectors_a_run,
            *divisor(vectors_a_run, wide=False),
            *((run_bytes,) if is_shifted else (size, x_stride * element_size)),
            len(bounds),
            coordinate_stride * index_size,
            index_size,
            least_index(index_signed, is_long=True),
            int(mode == "clip"),
            max(len(outer), 1),
            *table.arguments(None, 0),
        )

    anywhere = launches(VECTOR - element_size)
    is_aligned = gcd(VECTOR, *(stride * element_size for *_, stride in outer)) == VECTOR
    return Strided(launches(0) if is_aligned else anywhere, anywhere)
