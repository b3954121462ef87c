"""The launches of `warp`, and what they and its kernel agree on."""

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
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES

WARP_KERNEL_THREADS = 256
WARP_KERNEL_WARPS = WARP_KERNEL_THREADS // WARP_LANES
# A lane gives its two largest elements to the search for a threshold: with a larger k, these may not do.
WARP_LARGEST_K = 32
# The two kernels serve rows up to these lengths: they hold 8 and 32 keys per lane (16 and 32 of one byte).
ROW_ELEMENTS = (256, 1024)
# Slots for candidates of a warp: for those at or above a threshold, and for all elements of a row that is
# ranked without one.
FEW_SLOTS = 64
MANY_SLOTS = 256


def _variant(element_size: int, row_elements: int) -> Variant:
    vectors_per_lane = ceil_div(row_elements * element_size, WARP_LANES * VECTOR_BYTES)
    return variant("warp", "short_rows.warp:warp_kernel", element_size, vectors_per_lane)


def warp_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for row_elements in ROW_ELEMENTS:
        yield _variant(element_size, row_elements)


def warp_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a warp."""
    has_threshold = problem.k <= WARP_LARGEST_K
    n_slots = FEW_SLOTS if has_threshold else MANY_SLOTS
    if problem.axis_size > (ROW_ELEMENTS[-1] if has_threshold else MANY_SLOTS):
        raise UnservedError(problem, "warp")
    row_elements = next(size for size in ROW_ELEMENTS if problem.axis_size <= size)
    launch = Launch(
        _variant(problem.element_size, row_elements),
        ceil_div(problem.n_rows, WARP_KERNEL_WARPS),
        WARP_KERNEL_THREADS,
        (),
        row_parameters(problem),
        WARP_KERNEL_WARPS * n_slots * (12 if problem.element_size == 8 else 8),
        more=(int(problem.is_by_index), n_slots),
    )
    return launch_rows(launch, problem, policy, workspace)


WARP = Algorithm(warp_launches, warp_variants)
