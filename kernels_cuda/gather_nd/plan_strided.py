"""The launches for slices whose elements lie apart in the input, side by side in the output (`strided`)."""

from math import gcd, prod
from typing import NamedTuple

from kernels_cuda.gather_nd.sizes import STRIDED_THREADS, VECTOR
from kernels_cuda.launch import Launches, load
from kernels_cuda.layout import dimension_columns, divisor, is_wide, make_table
from kernels_cuda.variant import Target, Variant

LEAST_RUN_BYTES = 64  # shorter runs are mostly ends
_MOST_RUN_BYTES = 1 << 30  # elements of a run are counted in 31 bits


def strided_variant(element_size: int) -> Variant:
    """Return the kernel."""
    return Variant("gather_strided", "kernels_cuda.gather_nd.strided:strided_source", (element_size,))


class Strided(NamedTuple):
    """The launches for outputs that begin on a 16-byte boundary, and for any."""

    aligned: Launches
    anywhere: Launches


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
    """Make the launches, or return None where another kernel is for it.

    `outer` are the dimensions of runs, with the strides of input, indices and output; `run` is the one along
    a run: its size, and the strides of input and output.
    """
    size, x_stride, output_stride = run
    n_runs = prod(size for size, *_ in outer)
    serves = (
        output_stride == 1
        and x_stride != 1
        and LEAST_RUN_BYTES <= size * element_size <= _MOST_RUN_BYTES
        and n_runs > 0
    )
    most_vectors = n_runs * (size * element_size // VECTOR + 2)
    if not serves or is_wide(most_vectors, len(outer), len(bounds)):
        return None
    kernel = load(strided_variant(element_size), target)
    columns = dimension_columns(outer, False, (element_size, index_size, element_size))
    bound_columns = [[size for size, _ in bounds], [x_stride * element_size for _, x_stride in bounds]]
    table = make_table([*columns, *bound_columns], False, target)

    def launches(head: int) -> Launches:
        vectors_a_run = -(-(size * element_size + head) // VECTOR)
        n_vectors = n_runs * vectors_a_run
        return kernel.prepare(
            -(-n_vectors // STRIDED_THREADS),
            STRIDED_THREADS,
            0,
            3,
            n_vectors,
            vectors_a_run,
            *divisor(vectors_a_run, wide=False),
            size,
            x_stride * element_size,
            len(bounds),
            coordinate_stride * index_size,
            index_size,
            int(index_signed),
            int(mode == "clip"),
            max(len(outer), 1),
            *table.arguments(None, 0),
        )

    anywhere = launches(VECTOR - element_size)
    is_aligned = gcd(VECTOR, *(stride * element_size for *_, stride in outer)) == VECTOR
    return Strided(launches(0) if is_aligned else anywhere, anywhere)
