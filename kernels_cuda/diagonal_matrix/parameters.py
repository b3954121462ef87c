"""What launches and kernels agree on: sizes, and the integers that kernels take besides addresses."""

from typing import NamedTuple

from kernels_cuda.layout import Column, Divisor

THREADS = 256
VECTOR = 16
# A thread of the element kernel writes this many elements, a block apart.
ELEMENTS = 4
TILE_ROWS = 128
TILE_ROW_BYTES = 128


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
    """Parameters of `rows.diagonal_rows`."""

    n_vectors: int
    vectors_per_row: Divisor
    height: Divisor
    width: int
    matrix: MatrixParameters


class TransposedParameters(NamedTuple):
    """Parameters of `transposed.diagonal_transposed`."""

    tiles_per_row: Divisor
    rows_of_tiles: Divisor
    height: int
    width: int
    matrix: MatrixParameters


class ElementsParameters(NamedTuple):
    """Parameters of `elements.diagonal_elements`."""

    n_elements: int
    width: Divisor
    height: Divisor
    matrix: MatrixParameters
