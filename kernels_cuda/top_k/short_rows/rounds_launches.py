"""The launches of `rounds`, and what they and its kernel agree on."""

from collections.abc import Iterator

from kernels_cpu.integers import ceil_div
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    Algorithm,
    Launch,
    Policy,
    UnservedError,
    Workspace,
    launch_rows,
    row_parameters,
    variant,
)

ROUNDS_THREADS = 128
# Lanes of short rows remember several of the selected positions each.
ROUNDS_LARGEST_K = 8
# Each pair gives the lanes that hold a row, and the keys of each lane; the first that holds a row serves it.
ROUNDS_SHAPES = {
    **dict.fromkeys((1, 2, 4), ((4, 16), (4, 32), (8, 32), (16, 32))),
    8: ((4, 16), (8, 16), (16, 16), (32, 16)),
}


def _variant(element_size: int, n_lanes: int, n_keys: int) -> Variant:
    return variant("rounds", "short_rows.rounds:rounds_kernel", element_size, n_lanes, n_keys)


def rounds_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for shape in ROUNDS_SHAPES[element_size]:
        yield _variant(element_size, *shape)


def rounds_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row as many lanes as hold it."""
    shapes = ROUNDS_SHAPES[problem.element_size]
    shape = next((shape for shape in shapes if problem.axis_size <= shape[0] * shape[1]), None)
    if shape is None or problem.k > ROUNDS_LARGEST_K:
        raise UnservedError(problem, "rounds")
    launch = Launch(
        _variant(problem.element_size, *shape),
        ceil_div(problem.n_rows * shape[0], ROUNDS_THREADS),
        ROUNDS_THREADS,
        (),
        row_parameters(problem, key_format=problem.aligned_format),
        more=(int(not problem.is_by_index),),
    )
    return launch_rows(launch, problem, policy, workspace)


ROUNDS = Algorithm(rounds_launches, rounds_variants)
