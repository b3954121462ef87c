"""DIAGONAL_MATRIX1 on the CPU."""

from kernels_cpu.diagonal_matrix.plan import KINDS, PLAN, all_kernels, kernel_of
from kernels_cpu.diagonal_matrix.plan import plan as plan_of_words
from kernels_cpu.diagonal_matrix.problem_words import DIMS, RESIDUES
from kernels_cpu.diagonal_matrix.problem_words import problem_words as words_of_problem
from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM
from kernels_cpu.problems import DiagonalProblem

__all__ = [
    "DIMS",
    "PLAN",
    "RESIDUES",
    "all_kernels",
    "kernel_of",
    "plan",
    "plan_of_words",
    "words_of_problem",
]


def plan(problem: DiagonalProblem, target: Target) -> Plan:
    """Plan a band of diagonals; loads its kernel."""
    words = planned(plan_of_words, words_of_problem(problem), target.threads)
    launches = Launches(words, kernel_of, target)
    variant = f"row segments, {KINDS[words[ALGORITHM]]}"
    return Plan(variant, 0, {"launch": lambda: launches.bound() or launches.run})
