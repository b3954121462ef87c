"""GATHER_ND1 on the CPU."""

from collections.abc import Callable

from kernels_cpu.gather_nd.plan import KINDS, PLAN, all_kernels, kernel_of
from kernels_cpu.gather_nd.plan import plan as plan_of_words
from kernels_cpu.gather_nd.problem_words import DIMS, RESIDUES
from kernels_cpu.gather_nd.problem_words import problem_words as words_of_problem
from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM
from kernels_cpu.problems import GatherProblem

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


def plan(problem: GatherProblem, target: Target) -> Plan:
    """Plan a gather, and load its kernel; the kernel of the check is loaded when that is asked for."""
    words = planned(plan_of_words, words_of_problem(problem), target.threads)
    launches = Launches(words, kernel_of, target)

    def load_check() -> Callable[[int], int]:
        words = planned(plan_of_words, words_of_problem(problem, checks=True), target.threads)
        checks = Launches(words, kernel_of, target)
        return checks.bound() or (lambda indices: checks.run(0, indices))

    variant = f"{KINDS[words[ALGORITHM]]} slices"
    return Plan(variant, 0, {"launch": lambda: launches.bound() or launches.run, "check": load_check})
