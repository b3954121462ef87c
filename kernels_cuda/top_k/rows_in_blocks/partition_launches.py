"""The launches of the partition algorithm."""

from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared import shapes
from kernels_cuda.top_k.shared.launches import (
    Launch,
    UnservedError,
    Workspace,
    batches,
    fill_offsets,
    operands_of,
)
from kernels_cuda.top_k.shared.parameters import PartitionParameters
from kernels_cuda.top_k.shared.policy import Policy


def has_few_rows(problem: Problem, policy: Policy) -> bool:
    """Tell whether there are so few rows that larger blocks finish them sooner."""
    return problem.n_rows <= policy.partition.few_rows_per_multiprocessor * problem.multiprocessors


def fitting_partition(problem: Problem, policy: Policy) -> shapes.PartitionShape | None:
    """Return the shape of blocks that hold a row each, or None if there is none."""
    if problem.is_sorted and problem.k > shapes.SORTED_PAIRS:
        return None
    partition = policy.partition
    candidates = partition.shapes
    if has_few_rows(problem, policy):
        candidates = (
            partition.shapes_of_few_sorted_rows if problem.is_sorted else partition.shapes_of_few_rows
        )
    room = policy.block_bytes - shapes.PARTITION_STATIC_BYTES
    fitting = (
        shape
        for shape in candidates
        if problem.axis_size <= shape.n_elements and _dynamic_bytes(problem, shape) <= room
    )
    return next(fitting, None)


def _dynamic_bytes(problem: Problem, shape: shapes.PartitionShape) -> int:
    return shape.dynamic_bytes(problem.element_size, problem.k, problem.is_sorted)


def partition_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a block that holds it."""
    shape = fitting_partition(problem, policy)
    if shape is None:
        raise UnservedError(problem, "partition")
    # Where the block counts digits; 0 if it does not sort.
    counters_offset = 0
    if problem.is_sorted:
        counters_offset = shapes.pair_counters_offset(problem.element_size, problem.k, shape.n_threads)
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.partition(problem.element_size, shape),
            batch,
            shape.n_threads,
            (*operands_of(problem), offsets),
            PartitionParameters(
                **problem.register_parameters,
                counters_offset=counters_offset,
                first_row=first,
            ),
            _dynamic_bytes(problem, shape),
        )
        for first, batch in batches(problem.n_rows, policy.launch_blocks)
    ]
