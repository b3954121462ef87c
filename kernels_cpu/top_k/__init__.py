"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from collections.abc import Callable

from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE
from kernels_cpu.problems import TopKProblem
from kernels_cpu.top_k.plan import ALGORITHMS, NOTHING, PLAN, SORT, all_kernels, kernel_of
from kernels_cpu.top_k.plan import plan as plan_of_words
from kernels_cpu.top_k.problem_words import DIMS, RESIDUES
from kernels_cpu.top_k.problem_words import problem_words as words_of_problem
from kernels_cpu.top_k.table import COLUMNS_WORD

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


def plan(problem: TopKProblem, target: Target) -> Plan:
    """Plan a top-k, and load its kernels."""
    words = planned(plan_of_words, words_of_problem(problem), target.threads)
    launches = Launches(words, kernel_of, target)
    variant = _variant(problem, words[ALGORITHM], launches)

    def launch() -> Callable[..., int]:
        # Kernels take the other inputs in front of x.
        is_plain = problem.length_size + problem.start_size + problem.number_size == 0
        return (launches.bound() if is_plain else None) or launches.run

    return Plan(variant, words[WORKSPACE], {"launch": launch})


def _variant(problem: TopKProblem, algorithm: int, launches: Launches) -> str:
    if algorithm == NOTHING:
        return "nothing to do"
    table, tasks = launches.launches[0].table, launches.launches[0].tasks
    how = "sorted" if algorithm == SORT else "searched"
    share = problem.axis_size // problem.k or 1
    why = f"{8 * problem.element_size} bits, {how}: k is 1/{share} of the axis"
    where = "in place" if problem.axis_strides[0] == 1 else f"{table.words[COLUMNS_WORD]} columns at a time"
    return f"{ALGORITHMS[algorithm]}, {where}, {why}; tasks: {len(tasks)}"
