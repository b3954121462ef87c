"""Sampling on the CPU: a token per row, drawn by a seed."""

from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE
from kernels_cpu.problems import SampleProblem
from kernels_cpu.sample.plan import NOTHING, PLAN, all_kernels, kernel_of
from kernels_cpu.sample.plan import plan as plan_of_words
from kernels_cpu.sample.problem_words import DIMS, RESIDUES
from kernels_cpu.sample.problem_words import problem_words as words_of_problem

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


def plan(problem: SampleProblem, target: Target) -> Plan:
    """Plan the tokens of all rows, and load the kernel."""
    words = planned(plan_of_words, words_of_problem(problem), target.threads)
    launches = Launches(words, kernel_of, target)
    variant = "nothing to do"
    if words[ALGORITHM] != NOTHING:
        variant = f"rows of {8 * problem.element_size} bits; tasks: {len(launches.launches[0].tasks)}"
    return Plan(variant, words[WORKSPACE], {"launch": lambda: launches.run})
