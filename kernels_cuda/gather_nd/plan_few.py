"""The launch for few units of runs that are all a stride apart (`few`)."""

from kernels_cuda.gather_nd.sizes import MOST_FEW_COORDINATES, SHORT_BOUND, THREADS
from kernels_cuda.launch import Launches, load
from kernels_cuda.layout import divisor
from kernels_cuda.variant import Target, Variant

MOST_UNITS = 1 << 14


def few_variant(unit: int, index_size: int) -> Variant:
    """Return the kernel for units of some bytes."""
    return Variant("gather_few", "kernels_cuda.gather_nd.few:few_source", (unit, index_size))


def few_launch(
    *,
    unit: int,
    element_size: int,
    index_size: int,
    index_signed: bool,
    outer: list[tuple[int, int, int, int]],
    n_units: int,
    units_a_run: int,
    coordinate_stride: int,
    bounds: tuple[tuple[int, int], ...],
    mode: str,
    target: Target,
) -> Launches | None:
    """Make the launch, or return None where another kernel is for it; `outer` are the dimensions of runs."""
    is_short = index_size == 8 or all(size <= SHORT_BOUND for size, _ in bounds)
    if n_units > MOST_UNITS or len(outer) > 1 or len(bounds) > MOST_FEW_COORDINATES or not is_short:
        return None
    _, x_stride, index_stride, output_stride = outer[0] if outer else (1, 0, 0, 0)
    padding = (0,) * (MOST_FEW_COORDINATES - len(bounds))
    return load(few_variant(unit, index_size), target).prepare(
        -(-n_units // THREADS),
        THREADS,
        0,
        3,
        n_units,
        units_a_run,
        *divisor(units_a_run, wide=False),
        x_stride * element_size,
        index_stride * index_size,
        output_stride * element_size,
        len(bounds),
        coordinate_stride * index_size,
        int(index_signed),
        int(mode == "clip"),
        *(size for size, _ in bounds),
        *padding,
        *(stride * element_size for _, stride in bounds),
        *padding,
    )
