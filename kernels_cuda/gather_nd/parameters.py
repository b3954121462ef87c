"""What launches and kernels agree on: the kernels there are, sizes, and the integers that kernels take.

Strides are in bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.kernel_keys import KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import TABLE_WRITERS, WRITE_TABLE, Column, Divisor
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
_MODULE = "kernels_cuda.gather_nd"
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("gather_units", f"{_MODULE}.units:units_kernel", (int, int, bool)),
    KernelFamily("gather_planar", f"{_MODULE}.planar:planar_kernel", (int, int, int)),
    KernelFamily("gather_unaligned", f"{_MODULE}.unaligned:unaligned_kernel", (int,)),
    KernelFamily("gather_strided", f"{_MODULE}.strided:strided_kernel", (int,)),
    KernelFamily("gather_check", f"{_MODULE}.check:check_kernel", (int, bool)),
    KernelFamily("gather_clear", f"{_MODULE}.check:clear_kernel"),
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
    """How index tuples are read.

    Attributes
    ----------
    n_coordinates, coordinate_bytes : int
        Indices of a tuple, and bytes from one to the next.
    least_index : int
        The least index that does not count from the end. The lowest integer of a register stands for indices
        without a sign, and the one above it for those that are out of range if they are negative.
    clips : int
        Whether an index out of range is brought into it, or its slice filled.
    fill : int
        The eight bytes that slices are filled with, again and again.
    """

    n_coordinates: int
    coordinate_bytes: int
    least_index: int
    clips: int
    fill: int


class UnitsParameters(NamedTuple):
    """Parameters of `units.gather_units`."""

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
    """Parameters of `planar.gather_planar`."""

    n_units: int
    units_per_run: Divisor
    runs: PlanarRuns


class UnalignedParameters(NamedTuple):
    """Parameters of `unaligned.gather_unaligned`."""

    n_vectors: int
    vectors_per_run: Divisor
    run_bytes: int
    runs: PlanarRuns


class StridedParameters(NamedTuple):
    """Parameters of `strided.gather_strided`: the elements of a run are `step` bytes apart in the input."""

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
    """Parameters of `check.gather_check`: the first of `n_tuples` has position `first_position` among all."""

    first_position: int
    n_tuples: int
    tuples: TupleParameters
