"""The launches of `sampled`: a threshold for each row, one pass over all rows, and an end for each row."""

from typing import NamedTuple

from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared import shapes
from kernels_cuda.top_k.shared.launches import (
    INDICES,
    VALUES,
    Launch,
    UnservedError,
    Workspace,
    X,
    batches,
    fill_offsets,
    lengths_of,
)
from kernels_cuda.top_k.shared.parameters import SampledParameters
from kernels_cuda.top_k.shared.policy import SAMPLED_FROM, Policy


class SampleShape(NamedTuple):
    """Elements of a row's sample, room for its candidates, its segments, and shared memory that ends it."""

    size: int
    n_slots: int
    n_segments: int
    selected_offset: int
    finishing_bytes: int


def fitting_sample(problem: Problem, policy: Policy) -> SampleShape | None:
    """Return the sample for rows of a problem, or None if no sample leaves few enough candidates."""
    if policy.capability < SAMPLED_FROM or problem.strides.x != 1:
        return None
    sampled, element_size = policy.sampled, problem.element_size
    key_bytes = shapes.group_key_bytes(element_size)
    most_bytes = policy.block_bytes - shapes.SAMPLED_STATIC_BYTES
    most_bytes = min(most_bytes, sampled.sample_bytes)
    sizes = [size for size in sampled.sample_sizes if size * key_bytes <= most_bytes]
    slots = [shapes.list_slots(size, problem.k, problem.axis_size) for size in sizes]
    few = max(sampled.few_candidates, 2 * problem.k)
    at = next((at for at, n_slots in enumerate(slots) if n_slots <= few), -1)
    # A row may begin within a vector.
    n_segments = problem.axis_size // shapes.segment_elements(element_size) + 2
    selected_offset = shapes.selected_offset(
        element_size, slots[at], n_segments, problem.k, problem.is_sorted
    )
    finishing_bytes = selected_offset + 2 * (slots[at] if problem.is_sorted else problem.k)
    if (
        element_size == 1
        or problem.k > shapes.SORTED_PAIRS
        or slots[at] > sampled.most_candidates
        or n_segments > sampled.most_segments
        or finishing_bytes + shapes.SAMPLED_STATIC_BYTES > policy.block_bytes
    ):
        return None
    return SampleShape(sizes[at], slots[at], n_segments, selected_offset, finishing_bytes)


def sampled_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Find thresholds, list candidates, and finish rows."""
    shape = fitting_sample(problem, policy)
    if shape is None:
        raise UnservedError(problem, "sampled")
    # A row that begins where a vector does has two segments less.
    segments_per_block = shapes.LISTING_WARPS * policy.sampled.segments_per_warp
    n_listing = max(1, (shape.n_segments - 2) // segments_per_block)
    n_units = problem.n_rows * n_listing
    # Blocks count them in 32 bits.
    if n_units >= 1 << 32:
        raise UnservedError(problem, "sampled")
    element_size, n_rows = problem.element_size, problem.n_rows
    key_bytes = shapes.group_key_bytes(element_size)
    counters_offset = shapes.pair_counters_offset(element_size, problem.k, shapes.SAMPLED_THREADS)
    states = workspace.take(n_rows * shapes.ROW_STATE_BYTES)
    segments = workspace.take(n_rows * shape.n_segments * shapes.SEGMENT_BYTES)
    elements = workspace.take(n_rows * shape.n_slots * key_bytes)
    lows = workspace.take(n_rows * shape.n_slots * 4)
    offsets, launches = fill_offsets(problem, workspace)
    x, lengths = Pointer(X), lengths_of(problem)
    outputs = Pointer(VALUES), Pointer(INDICES)
    for variant, n_blocks, n_threads, pointers, shared_bytes in (
        (
            *(kernels.sample(element_size), n_rows, shapes.SAMPLED_THREADS),
            *((x, lengths, states, offsets), shape.size * key_bytes),
        ),
        (
            *(kernels.list_candidates(element_size), n_units, shapes.LISTING_THREADS),
            *((x, lengths, states, segments, elements, lows, offsets), 0),
        ),
        (
            *(kernels.finish(element_size), n_rows, shapes.SAMPLED_THREADS),
            *((x, lengths, *outputs, states, segments, elements, lows, offsets), shape.finishing_bytes),
        ),
    ):
        launches += [
            Launch(
                variant,
                batch,
                n_threads,
                pointers,
                SampledParameters(
                    **problem.row_parameters,
                    is_sorted=int(problem.is_sorted),
                    first_block=first,
                    n_rows=n_rows,
                    sample_bits=shape.size.bit_length() - 1,
                    n_slots=shape.n_slots,
                    n_segments=shape.n_segments,
                    n_listing=n_listing,
                    candidate_words=shapes.candidate_bytes(element_size, shape.n_slots, problem.k) // 4,
                    selected_word=shape.selected_offset // 4,
                    counters_offset=counters_offset,
                    unfolded_format=problem.unfolded_format,
                ),
                shared_bytes,
            )
            for first, batch in batches(n_blocks, policy.launch_blocks)
        ]
    return launches
