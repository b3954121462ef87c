"""The launch for units of runs along up to two dimensions (`plain`)."""

from kernels_cuda.gather_nd.sizes import PLAIN_COORDINATES, PLAIN_DIMS, PLAIN_UNITS, THREADS, least_index
from kernels_cuda.launch import Launches, load
from kernels_cuda.layout import NARROW_LIMIT, divisor
from kernels_cuda.variant import Target, Variant

FEW_UNITS = 1 << 20  # up to so many, a thread has one
LARGEST_STRIDE = (1 << 31) - 1  # in bytes; positions and strides are multiplied as 32-bit integers
_LARGEST_BOUND = 1 << 31


def plain_variant(unit: int, index_size: int, units_a_thread: int) -> Variant:
    """Return the kernel for units of some bytes."""
    factory = "kernels_cuda.gather_nd.plain:plain_source"
    return Variant("gather_plain", factory, (unit, index_size, units_a_thread))


def plain_launch(
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
    padding = ((1, 0, 0, 0),) * (PLAIN_DIMS - len(outer))
    dims = [
        (x_stride * element_size, index_stride * index_size, output_stride * element_size)
        for _, x_stride, index_stride, output_stride in (*padding, *outer)
    ]
    coordinate_strides = [stride * element_size for _, stride in bounds]
    strides = [*coordinate_strides, *(stride for dim in dims for stride in dim)]
    inner_size = outer[-1][0] if len(outer) > 1 else 0
    run_bytes = units_a_run * unit
    gapless = (inner_size * run_bytes, run_bytes)[PLAIN_DIMS - len(outer) :]
    has_gaps = tuple(dim[2] for dim in dims[PLAIN_DIMS - len(outer) :]) != gapless
    n_units_a_thread = 1 if n_units <= FEW_UNITS else PLAIN_UNITS
    serves = (
        n_units <= NARROW_LIMIT
        and len(outer) <= PLAIN_DIMS
        and len(bounds) <= PLAIN_COORDINATES
        and not (has_gaps and n_units_a_thread > 1)
        and max(size for size, _ in bounds) <= _LARGEST_BOUND
        and max(map(abs, strides)) <= LARGEST_STRIDE
    )
    if not serves:
        return None
    unused = (0,) * (PLAIN_COORDINATES - len(bounds))
    return load(plain_variant(unit, index_size, n_units_a_thread), target).prepare(
        -(-n_units // (THREADS * n_units_a_thread)),
        THREADS,
        0,
        3,
        n_units,
        units_a_run,
        *divisor(units_a_run, wide=False),
        inner_size,
        # One dimension is the inner one, and the quotient 0.
        *(divisor(inner_size, wide=False) if inner_size else (0, 0)),
        len(bounds),
        coordinate_stride * index_size,
        least_index(index_signed, is_long=index_size == 8),
        int(mode == "clip"),
        *(stride for tensor in zip(*dims, strict=True) for stride in tensor),
        *(size for size, _ in bounds),
        *unused,
        *coordinate_strides,
        *unused,
    )
