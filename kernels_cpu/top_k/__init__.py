"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from collections.abc import Callable
from typing import Any

from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM, WORKSPACE
from kernels_cpu.top_k.fit import FIT
from kernels_cpu.top_k.plan import ALGORITHMS, NOTHING, PLAN, SORT, all_kernels, kernel_of
from kernels_cpu.top_k.plan import plan as plan_of_words
from kernels_cpu.top_k.problem_words import DIMS, RESIDUES
from kernels_cpu.top_k.problem_words import problem_words as words_of_problem
from kernels_cpu.top_k.table import COLUMNS_WORD

__all__ = [
    "DIMS",
    "FIT",
    "PLAN",
    "RESIDUES",
    "all_kernels",
    "kernel_of",
    "plan",
    "plan_of_words",
    "words_of_problem",
]


def plan(problem: Any, target: Target) -> Plan:
    """Plan a top-k, and load its kernels."""
    words = planned(plan_of_words, words_of_problem(problem), target.threads)
    launches = Launches(words, kernel_of, target)
    variant = _variant(problem, words[ALGORITHM], launches)
    return Plan(variant, words[WORKSPACE], {"launch": lambda: _launch(launches, problem)})


def _variant(problem: Any, algorithm: int, launches: Launches) -> str:
    if algorithm == NOTHING:
        return "nothing to do"
    table, tasks = launches.launches[0].table, launches.launches[0].tasks
    how = "sorted" if algorithm == SORT else "searched"
    why = f"{8 * problem.element_size} bits, {how}: k is 1/{problem.axis_size // problem.k} of the axis"
    where = "in place" if problem.axis_strides[0] == 1 else f"{table.words[COLUMNS_WORD]} columns at a time"
    return f"{ALGORITHMS[algorithm]}, {where}, {why}; tasks: {len(tasks)}"


def _launch(launches: Launches, problem: Any) -> Callable[..., int]:
    bound = launches.bound()
    if bound is None or not problem.length_size:
        return bound or launches.run

    def launch_rows(x: int, lengths: int, *others: int) -> int:
        return bound(lengths, x, *others)

    vars(launch_rows)["lengths_first"] = bound
    return launch_rows
