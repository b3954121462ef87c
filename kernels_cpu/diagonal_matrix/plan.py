"""The plan of DIAGONAL_MATRIX1: fill a band of diagonals (or everything else) of matrices, copy the rest.

The addresses of a run are those of x (0 where there is none) and the output. Its units are rows. It has no
result.
"""

from typing import NamedTuple

from kernels_cpu import processor
from kernels_cpu.diagonal_matrix import CONTIGUOUS, STREAMED, STRIDED, kernel_key
from kernels_cpu.diagonal_matrix import problem_words as given
from kernels_cpu.host_words import STREAMING_BYTES, THREADS
from kernels_cpu.integers import product
from kernels_cpu.plan_words import Words, begin_plan, begin_tasks, put_pointer, put_value, put_values

# Fields of the table that describes a problem to the kernel; each row's band begins STEP after the last.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES = range(7)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN = range(7, 11)
STEP, VALUE, N_BATCH, BATCH = range(11, 15)
# Then (size, x_stride, output_stride) for every batch dimension.

PART_BYTES = 1 << 20  # per part: some 100 us of work, worth handing to another thread
TILE_COLUMNS = 256  # if columns of the input are far apart: their lines then serve the next rows too


class Band(NamedTuple):
    """The matrices and their band as the kernel walks them: row by row of the output."""

    height: int
    width: int
    begin: int
    end: int
    x_row: int
    x_column: int
    output_row: int
    output_column: int
    step: int
    """Elements of a row that the band moves by from row to row."""


def _along_rows(problem: Words) -> Band:
    """Return the band, of the transposed matrices if the elements of a column are nearer to each other."""
    height, width = problem[given.HEIGHT], problem[given.WIDTH]
    begin, end = problem[given.BEGIN], problem[given.END]
    x_row, x_column = problem[given.X_ROW], problem[given.X_COLUMN]
    output_row, output_column = problem[given.OUTPUT_ROW], problem[given.OUTPUT_COLUMN]
    if abs(output_row) < abs(output_column) and height > 1:
        # x - y in [begin, end) is y - x in [1 - end, 1 - begin).
        return Band(width, height, 1 - end, 1 - begin, x_column, x_row, output_column, output_row, 1)
    return Band(height, width, begin, end, x_row, x_column, output_row, output_column, 1)


def _is_of_parts(problem: Words, d: int, n_parts: int) -> bool:
    """Return whether a batch dimension has the `n_parts` adjacent parts of each element."""
    at = given.DIMS + given.DIMENSION * d
    return bool(problem[at] == n_parts and problem[at + 1] == 1 and problem[at + 2] == 1)


def _with_parts(problem: Words, band: Band) -> Band:
    """Return the band with the parts of wide elements, or channels that come last, as a part of each row.

    A row of them all is contiguous.
    """
    step = band.output_column
    if band.x_column != step:
        return band
    for d in range(problem[given.N_BATCH_DIMS]):
        if _is_of_parts(problem, d, step):
            begin, end = band.begin * step, band.end * step
            return Band(band.height, band.width * step, begin, end, band.x_row, 1, band.output_row, 1, step)
    return band


def plan(problem: Words, host: Words, out: Words) -> int:
    """Plan ``out[y, x] = value if (begin <= x - y < end) != inverted else input[y, x]``."""
    begin_plan(out, CONTIGUOUS)
    element_size, has_input = problem[given.ELEMENT_SIZE], problem[given.HAS_INPUT]
    n_dims = problem[given.N_BATCH_DIMS]
    n_matrices = 1
    for d in range(n_dims):
        n_matrices = product(n_matrices, problem[given.DIMS + given.DIMENSION * d])
    n_elements = product(product(problem[given.HEIGHT], problem[given.WIDTH]), n_matrices)
    if n_elements == 0:
        return 0
    band = _with_parts(problem, _along_rows(problem))
    n_bytes = product(n_elements, element_size)
    kind = CONTIGUOUS if band.output_column == 1 else STRIDED
    if kind == CONTIGUOUS and processor.WIDTH > 0 and n_bytes >= host[STREAMING_BYTES]:
        kind = STREAMED
    is_near = has_input == 0 or band.x_column in (0, 1)
    tile = band.width if is_near else min(band.width, TILE_COLUMNS)
    n_parts = 1
    if host[THREADS] > 1 and n_bytes >= 2 * PART_BYTES:
        # More parts than threads, as rows that are filled take less time than rows that are copied.
        n_parts = min(4 * host[THREADS], n_bytes // PART_BYTES)
    begin_plan(out, kind)
    x_is_contiguous = 1 if has_input == 0 or band.x_column == 1 else 0
    begin_tasks(out, kernel_key(kind, x_is_contiguous, element_size), n_elements // band.width, n_parts, 2)
    put_pointer(out, 0, 0)
    put_pointer(out, 1, 0)
    put_values(out, (band.height, band.width, tile, band.begin, band.end, problem[given.INVERTED], has_input))
    put_values(out, (band.x_row, band.x_column, band.output_row, band.output_column))
    n_others = n_dims - 1 if band.step > 1 else n_dims
    put_values(out, (band.step, problem[given.VALUE], n_others))
    for d in range(n_dims):
        if band.step == 1 or not _is_of_parts(problem, d, band.step):
            for at in range(given.DIMENSION):
                put_value(out, problem[given.DIMS + given.DIMENSION * d + at])
    return 0
