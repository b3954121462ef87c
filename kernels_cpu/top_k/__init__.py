"""TOP_K1 on the CPU: sorted and stable, along any axis."""

from kernels_cpu.plan_words import ALGORITHM, CONTENT, GRID, LAUNCHES, N_POINTERS, Words
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
    "described",
    "kernel_of",
    "plan_of_words",
    "words_of_problem",
]


def described(problem: TopKProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    algorithm = words[ALGORITHM]
    if algorithm == NOTHING:
        return "nothing to do"
    table = LAUNCHES + CONTENT + 2 * words[LAUNCHES + N_POINTERS]
    how = "sorted" if algorithm == SORT else "searched"
    share = problem.axis_size // problem.k or 1
    why = f"{8 * problem.element_size} bits, {how}: k is 1/{share} of the axis"
    columns = words[table + COLUMNS_WORD]
    where = "in place" if problem.axis_strides[0] == 1 else f"{columns} columns at a time"
    return f"{ALGORITHMS[algorithm]}, {where}, {why}; tasks: {words[LAUNCHES + GRID]}"
