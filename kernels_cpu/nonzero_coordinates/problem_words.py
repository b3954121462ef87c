"""The words of the problem of listing non-zero elements, which plans of both devices read.

After the header come the merged dimensions of x, the slowest first (size and stride in elements), and then
the sizes whose coordinates are columns. A residue is that of an address modulo 16. `STEP` tells what is
planned: the whole (`WHOLE`), or the count, or the rows after it.
"""

from typing import Any

from kernels_cpu.integers import signed

ELEMENT_SIZE, MAGNITUDE, X_OFFSET, CAPACITY, ROW_STEP, COLUMN_STEP, COORDINATE_SIZE, COUNT_SIZE = range(8)
FILLS, FILL, STEP, X_RESIDUE, COORDINATE_RESIDUE, N_DIMS, N_SIZES = range(8, 15)
DIMS, DIMENSION = 15, 2
WHOLE, COUNT, EXPAND = range(3)
RESIDUES: tuple[int, ...] = (X_RESIDUE, COORDINATE_RESIDUE)
"""For each array, the word of its residue."""


def problem_words(problem: Any) -> list[int]:
    """Return the words of a `Problem`, whose arrays are aligned; the whole of it is planned."""
    words = [problem.element_size, signed(problem.magnitude), problem.x_offset, problem.capacity]
    words += [*problem.coordinate_strides, problem.coordinate_size, problem.count_size]
    words += [problem.fill is not None, signed(problem.fill or 0), WHOLE, 0, 0]
    words += [len(problem.dims), len(problem.sizes)]
    for dimension in problem.dims:
        words += dimension
    return [*words, *problem.sizes]
