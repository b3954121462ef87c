"""The launches of the partition algorithm."""

from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.top_k import kernels, shapes
from kernels_cuda.top_k.launches import (
    INDICES,
    VALUES,
    Launch,
    Workspace,
    X,
    batches,
    fill_offsets,
    lengths_of,
    unserved,
)
from kernels_cuda.top_k.parameters import PartitionParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem


def fitting_partition(problem: Problem, policy: Policy) -> shapes.PartitionShape | None:
    """Return the shape of blocks that hold a row each, or None if there is none."""
    if problem.is_sorted and problem.k > shapes.SORTED_PAIRS:
        return None
    partition = policy.partition
    fitting = [
        shape
        for shape in partition.shapes
        if problem.axis_size <= shape.n_elements
        and _dynamic_bytes(problem, shape) <= policy.block_bytes - shapes.PARTITION_STATIC_BYTES
    ]
    if not fitting:
        return None
    is_few = problem.n_rows <= partition.few_rows_per_multiprocessor * problem.multiprocessors
    return fitting[-1 if is_few else 0]


def _dynamic_bytes(problem: Problem, shape: shapes.PartitionShape) -> int:
    return shape.dynamic_bytes(problem.element_size, problem.k, problem.is_sorted)


def partition_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a block that holds it."""
    shape = fitting_partition(problem, policy)
    if shape is None:
        raise unserved(problem, "partition")
    # Where the block sorts; 0 if it does not.
    counters_offset = shape.counters_offset(problem.element_size, problem.k) if problem.is_sorted else 0
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.partition(problem.element_size, shape),
            batch,
            shape.n_threads,
            (Pointer(X), lengths_of(problem), Pointer(VALUES), Pointer(INDICES), offsets),
            PartitionParameters(
                index_size=problem.index_size,
                counters_offset=counters_offset,
                first_row=first,
                axis_size=problem.axis_size,
                k=problem.k,
                strides=problem.strides,
                layout=problem.rows.layout,
                key_format=problem.key_format,
                length_format=problem.length_format,
            ),
            _dynamic_bytes(problem, shape),
        )
        for first, batch in batches(problem.n_rows, policy.launch_blocks)
    ]
