"""The words of the problem of listing non-zero elements, which plans of both devices read.

After the header come the merged dimensions of x, the slowest first (size and stride in elements), and then
the sizes whose coordinates are columns. A residue is that of an address modulo 16. `STEP` tells what is
planned: the whole (`WHOLE`), or the count, or the rows after it. `FILLS` tells what fills the rows from the
count on: nothing, the first of the words from `FILL` on, or one of these for each column.
"""

from kernels_cpu.call_words import MAX_DIMS
from kernels_cpu.integers import signed
from kernels_cpu.plan_words import Words
from kernels_cpu.problems import NonzeroProblem

ELEMENT_SIZE, MAGNITUDE, X_OFFSET, CAPACITY, ROW_STEP, COLUMN_STEP, COORDINATE_SIZE, COUNT_SIZE = range(8)
FILLS, STEP, X_RESIDUE, COORDINATE_RESIDUE, N_DIMS, N_SIZES, FILL = range(8, 15)
DIMS, DIMENSION = FILL + MAX_DIMS, 2
WHOLE, COUNT, EXPAND = range(3)
NO_FILL, ONE_FILL, COLUMN_FILLS = range(3)
RESIDUES: tuple[int, ...] = (X_RESIDUE, COORDINATE_RESIDUE)
"""For each array, the word of its residue."""


def problem_words(problem: NonzeroProblem) -> list[int]:
    """Return the words of a problem, whose arrays are aligned; the whole of it is planned."""
    words = [problem.element_size, signed(problem.magnitude), problem.x_offset, problem.capacity]
    words += [*problem.coordinate_strides, problem.coordinate_size, problem.count_size]
    fills = COLUMN_FILLS if problem.fills_columns else ONE_FILL if problem.fill else NO_FILL
    words += [fills, WHOLE, 0, 0, len(problem.dims), len(problem.sizes)]
    words += [*map(signed, problem.fill), *[0] * (MAX_DIMS - len(problem.fill))]
    for dimension in problem.dims:
        words += dimension
    return [*words, *problem.sizes]


def fill_of(problem: Words, column: int) -> int:
    """Return what fills a column of the rows from the count on."""
    fill: int = problem[FILL + (column if problem[FILLS] == COLUMN_FILLS else 0)]
    return fill
