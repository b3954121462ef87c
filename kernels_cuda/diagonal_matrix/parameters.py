"""The kernels there are, and the sizes and integers that launches and kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.kernel_keys import KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import TABLE_WRITERS, WRITE_TABLE, Column, Divisor
from kernels_cuda.runtime.variant import Variant

THREADS = 256
VECTOR = 16
# A thread of the element kernel writes this many elements, a block apart.
ELEMENTS = 4
TILE_ROWS = 128
TILE_ROW_BYTES = 128


# Kernels are made for an element size; those of rows for whether the input is strided, those of elements for
# whether they are wide.
ROWS_KERNEL, TRANSPOSED_KERNEL, ELEMENTS_KERNEL = range(1, 4)
_MODULE = "kernels_cuda.diagonal_matrix.kernels"
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("diagonal_rows", f"{_MODULE}:rows_kernel", (int, bool)),
    KernelFamily("diagonal_transposed", f"{_MODULE}:transposed_kernel", (int,)),
    KernelFamily("diagonal_elements", f"{_MODULE}:elements_kernel", (int, bool)),
)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield variant_of(WRITE_TABLE, FAMILIES)
    for element_size in (1, 2, 4, 8):
        yield variant_of(kernel_key(TRANSPOSED_KERNEL, element_size), FAMILIES)
        for flag in (False, True):
            yield variant_of(kernel_key(ROWS_KERNEL, element_size, flag), FAMILIES)
            yield variant_of(kernel_key(ELEMENTS_KERNEL, element_size, flag), FAMILIES)


def elements_per_thread(wide: bool) -> int:
    """Return how many elements a thread of the element kernel writes; wide ones loop over dimensions."""
    return 1 if wide else ELEMENTS


class Dims(NamedTuple):
    """The batch dimensions, with strides in bytes."""

    n_dims: int
    multipliers: Column
    shifts: Column
    sizes: Column
    x_strides: Column
    output_strides: Column


class BandParameters(NamedTuple):
    """A band of diagonals, and the value to set as the two words of eight bytes."""

    begin: int
    end: int
    inverted: int
    has_input: int
    low_value: int
    high_value: int


class MatrixParameters(NamedTuple):
    """The layout of a matrix, with strides in bytes, and its band."""

    x_row: int
    x_column: int
    output_row: int
    output_column: int
    band: BandParameters


class RowsParameters(NamedTuple):
    """Parameters of `diagonal_rows`."""

    n_vectors: int
    vectors_per_row: Divisor
    height: Divisor
    width: int
    matrix: MatrixParameters


class TransposedParameters(NamedTuple):
    """Parameters of `diagonal_transposed`."""

    tiles_per_row: Divisor
    rows_of_tiles: Divisor
    height: int
    width: int
    matrix: MatrixParameters


class ElementsParameters(NamedTuple):
    """Parameters of `diagonal_elements`."""

    n_elements: int
    width: Divisor
    height: Divisor
    matrix: MatrixParameters
