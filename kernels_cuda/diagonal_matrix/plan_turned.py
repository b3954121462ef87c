"""The launch for matrices of which rows lie side by side in the input, columns in the output (`turned`)."""

from math import prod

from kernels_cuda.diagonal_matrix.band import Band, Part
from kernels_cuda.diagonal_matrix.sizes import THREADS, TILE_ROW_BYTES, TILE_ROWS
from kernels_cuda.layout import NARROW_DEPTH, NARROW_LIMIT, dimension_columns, divisor, make_table
from kernels_cuda.runtime.launch import load
from kernels_cuda.runtime.variant import Target, Variant

# Matrices of fewer rows waste most of what is loaded.
LEAST_ROWS = 16
_MOST_ROWS = 1 << 29  # rows and diagonals are counted in 31 bits


def turned_variant(element_size: int) -> Variant:
    """Return the kernel."""
    return Variant("diagonal_turned", "kernels_cuda.diagonal_matrix.turned:turned_source", (element_size,))


def _tiles(element_size: int, height: int, width: int) -> tuple[int, int]:
    """Return how many tiles a row and a column of them has."""
    return -(-width * element_size // TILE_ROW_BYTES), -(-height // TILE_ROWS)


def serves(
    element_size: int,
    batch: tuple[tuple[int, int, int], ...],
    height: int,
    width: int,
    x_strides: tuple[int, int],
) -> bool:
    """Tell whether neighbours of the input are in the same column, and there are enough of them."""
    x_row, x_column = (abs(stride) for stride in x_strides)
    n_tiles = prod((*(size for size, *_ in batch), *_tiles(element_size, height, width)))
    return (
        0 < x_row < x_column
        and LEAST_ROWS <= height <= _MOST_ROWS
        and len(batch) <= NARROW_DEPTH
        and n_tiles < NARROW_LIMIT
    )


def turned_part(
    element_size: int,
    batch: tuple[tuple[int, int, int], ...],
    height: int,
    width: int,
    x_strides: tuple[int, int],
    output_row: int,
    band: Band,
    target: Target,
) -> Part:
    """Make the launch; strides are in elements."""
    tiles_a_row, rows_of_tiles = _tiles(element_size, height, width)
    table = make_table(dimension_columns(batch, False, (element_size, element_size)), False, target)
    launch = load(turned_variant(element_size), target).prepare(
        prod(size for size, *_ in batch) * tiles_a_row * rows_of_tiles,
        THREADS,
        0,
        2,
        tiles_a_row,
        *divisor(tiles_a_row, wide=False),
        rows_of_tiles,
        *divisor(rows_of_tiles, wide=False),
        height,
        width,
        *(stride * element_size for stride in (*x_strides, output_row)),
        *band.numbers(element_size),
        max(len(batch), 1),
        *table.arguments(None, 0),
    )
    return Part(0, 0, launch)
