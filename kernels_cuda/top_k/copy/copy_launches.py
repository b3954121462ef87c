"""The launches of `copy`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

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
from kernels_cuda.top_k.shared.shapes import WARP_LANES

COPY_THREADS = 256
COPIED_PER_THREAD = 8


class CopyParameters(NamedTuple):
    """More parameters of `copy.copy_rows`, whose blocks have `n_rows` rows with `n_lanes` threads each."""

    is_transposed: int
    n_rows: int
    n_lanes: int
    n_parts: int


def copy_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    yield variant("copy", "copy.copy:copy_kernel", element_size)


def copy_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Copy all rows."""
    if problem.is_sorted or problem.k < problem.axis_size:
        raise UnservedError(problem, "copy")
    is_transposed = policy.is_transposed(problem)
    # Powers of two. Rows that are shorter than a warp share one.
    needed = max(ceil_div(problem.axis_size, COPIED_PER_THREAD), min(problem.axis_size, WARP_LANES))
    n_lanes = min(COPY_THREADS, 1 << (needed - 1).bit_length())
    if is_transposed:
        n_lanes = COPY_THREADS // WARP_LANES
    n_rows = COPY_THREADS // n_lanes
    n_parts = ceil_div(problem.axis_size, n_lanes * COPIED_PER_THREAD)
    (kernel,) = copy_variants(problem.element_size)
    launch = Launch(
        kernel,
        ceil_div(problem.n_rows, n_rows) * n_parts,
        COPY_THREADS,
        (),
        row_parameters(problem),
        more=(CopyParameters(int(is_transposed), n_rows, n_lanes, n_parts),),
    )
    return launch_rows(launch, problem, policy, workspace)


COPY = Algorithm(copy_launches, copy_variants)
