"""NONZERO_COORDINATES on the CPU."""

from kernels_cpu.nonzero_coordinates.plan import ONE_PASS, PLAN, all_kernels, kernel_of
from kernels_cpu.nonzero_coordinates.plan import plan as plan_of_words
from kernels_cpu.nonzero_coordinates.problem_words import DIMS, RESIDUES
from kernels_cpu.nonzero_coordinates.problem_words import problem_words as words_of_problem
from kernels_cpu.plan_words import ALGORITHM, BLOCK, LAUNCHES, Words
from kernels_cpu.problems import NonzeroProblem

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


def described(problem: NonzeroProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return "one pass" if words[ALGORITHM] == ONE_PASS else f"two passes, parts: {words[LAUNCHES + BLOCK]}"
