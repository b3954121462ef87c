"""The words of a top-k problem, which plans of both devices read.

After `N_DIMS` comes each dimension of rows, the slowest first: its size, and the strides of x, values,
indices and lengths along it, in elements. Masks and padding are bits, as signed integers.
"""

from typing import Any

from kernels_cpu.integers import signed

ELEMENT_SIZE, INDEX_SIZE, SIGN, FLIP, INFINITY, LARGEST, K, AXIS_SIZE = range(8)
X_STEP, VALUE_STEP, INDEX_STEP, IS_SORTED, LENGTH_SIZE, LENGTH_SIGNED, PADDING, N_DIMS = range(8, 16)
DIMS, DIMENSION = 16, 5
SIZE, X_STRIDE, VALUE_STRIDE, INDEX_STRIDE, LENGTH_STRIDE = range(DIMENSION)
RESIDUES: tuple[int, ...] = ()
"""For each array, the word of its residue."""


def problem_words(problem: Any) -> list[int]:
    """Return the words of a `Problem`."""
    words = [problem.element_size, problem.index_size, *[signed(mask) for mask in problem.masks]]
    words += [problem.largest, problem.k, problem.axis_size, *problem.axis_strides, problem.is_sorted]
    words += [problem.length_size, problem.length_signed, signed(problem.padding), len(problem.rows)]
    length_strides = problem.length_strides or (0,) * len(problem.rows)
    for row, length_stride in zip(problem.rows, length_strides, strict=True):
        words += [*row, length_stride]
    return words
