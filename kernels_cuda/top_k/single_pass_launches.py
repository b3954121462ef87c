"""The launches of the single-pass algorithm: how many blocks share a row, and what each has room for."""

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
from kernels_cuda.top_k.parameters import SinglePassParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem

# Positions are counted in 31 bits, and with a key of up to 32 bits fit a pair.
_LONGEST_ROW = (1 << 31) - 1


def can_serve(problem: Problem, policy: Policy) -> bool:
    """Tell whether the algorithm takes a problem."""
    return (
        bool(policy.cluster.blocks)
        and kernels.single_pass(4).dynamic_shared_bytes <= policy.block_bytes
        and problem.element_size in shapes.SINGLE_PASS_ELEMENT_SIZES
        and problem.strides.x == 1
        and problem.k <= policy.single_pass.largest_k
        and problem.axis_size <= _LONGEST_ROW
    )


def cluster_bits(problem: Problem, policy: Policy) -> int:
    """Return the bits of the number of blocks that share a row, each of which has most of a tile."""
    for n_blocks, most_rows in policy.single_pass.clusters:
        if problem.n_rows <= most_rows and n_blocks * shapes.SINGLE_PASS_TILE_BYTES < 2 * problem.row_bytes:
            return n_blocks.bit_length() - 1
    return 0


def single_pass_launches(problem: Problem, policy: Policy, workspace: Workspace) -> list[Launch]:
    """Give every row a block, or a cluster of blocks."""
    if not can_serve(problem, policy):
        raise unserved(problem, "single_pass")
    bits = cluster_bits(problem, policy)
    shape = shapes.SinglePassShape(policy.single_pass.n_slots, shapes.most_kept(problem.k), 1 << bits)
    position_bits = problem.axis_size.bit_length()
    offsets, launches = fill_offsets(problem, workspace)
    return launches + [
        Launch(
            kernels.single_pass(problem.element_size),
            batch << bits,
            shapes.SINGLE_PASS_THREADS,
            (Pointer(X), lengths_of(problem), Pointer(VALUES), Pointer(INDICES), offsets),
            SinglePassParameters(
                index_size=problem.index_size,
                is_sorted=int(problem.is_sorted),
                first_block=first << bits,
                cluster_bits=bits,
                axis_size=problem.axis_size,
                k=problem.k,
                strides=problem.strides,
                position_bits=position_bits,
                position_mask=(1 << position_bits) - 1,
                n_slots=shape.n_slots,
                ring_byte=shape.ring_offset,
                most=shape.most,
                layout=problem.rows.layout,
                unfolded_format=problem.unfolded_format,
                key_format=problem.key_format,
                length_format=problem.length_format,
            ),
            shape.dynamic_bytes,
            cluster=1 << bits,
        )
        for first, batch in batches(problem.n_rows, max(1, policy.launch_blocks >> bits))
    ]
