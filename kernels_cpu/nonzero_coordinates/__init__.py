"""NONZERO_COORDINATES on the CPU."""

from collections.abc import Callable

from kernels_cpu.kernel import BoundKernel
from kernels_cpu.nonzero_coordinates import problem_words as given
from kernels_cpu.nonzero_coordinates.plan import ONE_PASS, PLAN, all_kernels, kernel_of
from kernels_cpu.nonzero_coordinates.plan import plan as plan_of_words
from kernels_cpu.nonzero_coordinates.problem_words import DIMS, RESIDUES
from kernels_cpu.nonzero_coordinates.problem_words import problem_words as words_of_problem
from kernels_cpu.plan import Launches, Plan, Target, planned
from kernels_cpu.plan_words import ALGORITHM, BLOCK, LAUNCHES, WORKSPACE
from kernels_cpu.problems import NonzeroProblem

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


def plan(problem: NonzeroProblem, target: Target) -> Plan:
    """Plan a list of coordinates; loads kernels when they are asked for."""

    def planned_with(changes: dict[int, int]) -> list[int]:
        words = words_of_problem(problem)
        for word, value in changes.items():
            words[word] = value
        return planned(plan_of_words, words, target.threads)

    words = planned_with({})
    in_one_pass = words[ALGORITHM] == ONE_PASS

    def load_launch() -> BoundKernel | Callable[..., int]:
        launches = Launches(words, kernel_of, target)
        return launches.bound() or launches.run

    def load_count() -> Callable[[int, int, int], int]:
        launches = Launches(planned_with({given.STEP: given.COUNT}), kernel_of, target)
        return lambda x, count, workspace: launches.run(x, 0, count, workspace)

    def load_expand() -> Callable[[int, int, int, int], None]:
        packed = {given.STEP: given.EXPAND, given.ROW_STEP: len(problem.sizes), given.COLUMN_STEP: 1}
        Launches(planned_with(packed), kernel_of, target)

        def expand(x: int, coordinates: int, n_rows: int, workspace: int) -> None:
            words = planned_with({**packed, given.CAPACITY: n_rows})
            Launches(words, kernel_of, target).run(x, coordinates, 0, workspace)

        return expand

    variant = "one pass" if in_one_pass else f"two passes, parts: {words[LAUNCHES + BLOCK]}"
    loaders = {"launch": load_launch, "count": load_count, "expand": load_expand}
    return Plan(variant, words[WORKSPACE], loaders, in_one_pass)
