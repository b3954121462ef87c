"""DIAGONAL_MATRIX1 on the CPU."""

from kernels_cpu.diagonal_matrix.plan import KINDS, PLAN, all_kernels, kernel_of
from kernels_cpu.diagonal_matrix.plan import plan as plan_of_words
from kernels_cpu.diagonal_matrix.problem_words import DIMS, RESIDUES
from kernels_cpu.diagonal_matrix.problem_words import problem_words as words_of_problem
from kernels_cpu.plan_words import ALGORITHM, Words
from kernels_cpu.problems import DiagonalProblem

__all__ = [
    "DIMS",
    "PLAN",
    "RESIDUES",
    "all_kernels",
    "described",
    "kernel_of",
    "plan_of_words",
    "words_of_problem",
]


def described(problem: DiagonalProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return f"row segments, {KINDS[words[ALGORITHM]]}"
