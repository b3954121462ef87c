"""The words of a diagonal matrix's problem, which plans of both devices read.

After `N_BATCH_DIMS` comes each dimension of matrices, the slowest first: its size, and the strides of x and
output along it, in elements. A residue is that of an address modulo 16.
"""

from kernels_cpu.integers import signed
from kernels_cpu.problems import DiagonalProblem

ELEMENT_SIZE, HAS_INPUT, VALUE, HEIGHT, WIDTH, BEGIN, END, INVERTED = range(8)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN, X_RESIDUE, OUTPUT_RESIDUE, N_BATCH_DIMS = range(8, 15)
DIMS, DIMENSION = 15, 3
RESIDUES: tuple[int, ...] = (X_RESIDUE, OUTPUT_RESIDUE)
"""For each array, the word of its residue."""


def problem_words(problem: DiagonalProblem) -> list[int]:
    """Return the words of a problem, whose arrays are aligned."""
    words = [problem.element_size, problem.has_input, signed(problem.value), problem.height, problem.width]
    words += [problem.begin, problem.end, problem.inverted, *problem.x_strides, *problem.output_strides]
    words += [0, 0, len(problem.batch)]
    for dimension in problem.batch:
        words += dimension
    return words
