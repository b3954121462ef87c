"""Sampling on the CPU: a token per row, drawn by a seed."""

from kernels_cpu.plan_words import ALGORITHM, GRID, LAUNCHES, Words
from kernels_cpu.problems import SampleProblem
from kernels_cpu.sample.plan import NOTHING, PLAN, all_kernels, kernel_of
from kernels_cpu.sample.problem_words import DIMS, RESIDUES
from kernels_cpu.sample.problem_words import problem_words as words_of_problem

__all__ = [
    "DIMS",
    "PLAN",
    "RESIDUES",
    "all_kernels",
    "described",
    "kernel_of",
    "words_of_problem",
]


def described(problem: SampleProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    if words[ALGORITHM] == NOTHING:
        return "nothing to do"
    return f"rows of {8 * problem.element_size} bits; tasks: {words[LAUNCHES + GRID]}"
