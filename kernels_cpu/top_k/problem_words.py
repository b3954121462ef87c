"""The words of a top-k problem, which plans of both devices read.

After `N_DIMS` comes each dimension of rows, the slowest first: its size, and the strides of x, values,
indices, lengths, starts and numbers along it, in elements. Masks and padding are bits, as signed integers.
`K` results are written for each row, of which no more than `MAX_LENGTH` are elements.
"""

from kernels_cpu.integers import signed
from kernels_cpu.problems import TopKProblem

ELEMENT_SIZE, INDEX_SIZE, SIGN, FLIP, INFINITY, LARGEST, K, AXIS_SIZE = range(8)
X_STEP, VALUE_STEP, INDEX_STEP, IS_SORTED, LENGTH_SIZE, LENGTH_SIGNED, PADDING = range(8, 15)
START_SIZE, START_SIGNED, MAX_LENGTH, NAN_LAST, NUMBER_SIZE, NUMBER_SIGNED, NUMBER_STEP = range(15, 22)
N_DIMS = 22
DIMS, DIMENSION = 23, 7
SIZE, X_STRIDE, VALUE_STRIDE, INDEX_STRIDE, LENGTH_STRIDE, START_STRIDE, NUMBER_STRIDE = range(DIMENSION)
RESIDUES: tuple[int, ...] = ()
"""For each array, the word of its residue."""


def problem_words(problem: TopKProblem) -> list[int]:
    """Return the words of a problem."""
    longest = problem.axis_size if problem.max_length is None else problem.max_length
    words = [problem.element_size, problem.index_size, *[signed(mask) for mask in problem.masks]]
    words += [problem.largest, problem.k, problem.axis_size, *problem.axis_strides, problem.is_sorted]
    words += [problem.length_size, problem.length_signed, signed(problem.padding)]
    words += [problem.start_size, problem.start_signed, longest, problem.nan_last]
    words += [problem.number_size, problem.number_signed, problem.number_step, len(problem.rows)]
    none = (0,) * len(problem.rows)
    strides = (problem.length_strides, problem.start_strides, problem.number_strides)
    for row, *others in zip(problem.rows, *[each or none for each in strides], strict=True):
        words += [*row, *others]
    return words
