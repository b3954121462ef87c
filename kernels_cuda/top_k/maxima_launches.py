"""The launches that find group maxima, for what finishes rows by them: block or cluster."""

from typing import NamedTuple

from kernels_cuda.layout import ceil_div
from kernels_cuda.runtime.launch import Pointer
from kernels_cuda.top_k import kernels
from kernels_cuda.top_k.launches import Launch, Workspace, X, batches, fill_offsets, lengths_of
from kernels_cuda.top_k.parameters import MaximaParameters, TransposedMaximaParameters
from kernels_cuda.top_k.policy import Policy
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shapes import (
    FINE_PER_CHUNK,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    TRANSPOSED_ROWS,
    VECTOR_BYTES,
    fine_bits,
    group_key_bytes,
)


def is_transposed(problem: Problem, policy: Policy) -> bool:
    """Tell whether enough rows lie side by side for lanes to read one each."""
    return problem.rows.n_neighbours >= policy.transposed_rows


class Maxima(NamedTuple):
    """How many coarse groups a part of a row has, and how many chunks each of them has."""

    n_coarse: int
    coarse_chunks: int

    @property
    def fine_per_coarse(self) -> int:
        """Fine groups of a coarse one."""
        return self.coarse_chunks * FINE_PER_CHUNK


class FoundMaxima(NamedTuple):
    """Where the fine and the coarse maxima of all parts of rows are, and the table of row offsets, if any."""

    fine: Pointer
    coarse: Pointer
    offsets: Pointer


def group_bits(problem: Problem, policy: Policy) -> int:
    """Return the bits of the number of vectors of a fine group."""
    return fine_bits(problem.element_size, is_transposed(problem, policy))


def chunk_vectors(problem: Problem, policy: Policy) -> int:
    """Return the vectors of a chunk, which a warp reads together."""
    return FINE_PER_CHUNK << group_bits(problem, policy)


def maxima_choices(problem: Problem, policy: Policy, part_size: int) -> list[Maxima]:
    """Return the coarse groups that there may be; those beyond the end of a part are empty."""
    chunk_bytes = chunk_vectors(problem, policy) * VECTOR_BYTES
    n_chunks = max(1, ceil_div(part_size * problem.element_size, chunk_bytes))
    if is_transposed(problem, policy):
        # Rows may be many and short: no more groups than make whole vectors of keys.
        keys_per_vector = VECTOR_BYTES // group_key_bytes(problem.element_size)
        return [Maxima(ceil_div(n_chunks, keys_per_vector) * keys_per_vector, 1)]
    return [
        Maxima(ceil_div(n_chunks, coarse_chunks * MAXIMA_WARPS) * MAXIMA_WARPS, coarse_chunks)
        for coarse_chunks in policy.grid.coarse_chunks
    ]


def maxima_launches(
    problem: Problem, policy: Policy, part_size: int, maxima: Maxima, workspace: Workspace
) -> tuple[FoundMaxima, list[Launch]]:
    """Return where the maxima will be, and what finds them."""
    n_parts = ceil_div(problem.axis_size, part_size)
    n_coarse_keys = problem.n_rows * n_parts * maxima.n_coarse
    key_bytes = group_key_bytes(problem.element_size)
    fine = workspace.take(n_coarse_keys * maxima.fine_per_coarse * key_bytes)
    coarse = workspace.take(n_coarse_keys * key_bytes)
    offsets, launches = fill_offsets(problem, workspace)
    pointers = (Pointer(X), lengths_of(problem), fine, coarse, offsets)
    if is_transposed(problem, policy):
        n_blocks = ceil_div(problem.n_rows, TRANSPOSED_ROWS) * n_parts * maxima.n_coarse
        variant = kernels.transposed_maxima(problem.element_size)
        parameters: TransposedMaximaParameters | MaximaParameters = TransposedMaximaParameters(
            first_block=0,
            axis_size=problem.axis_size,
            part_size=part_size,
            n_parts=n_parts,
            n_rows=problem.n_rows,
            n_coarse=maxima.n_coarse,
            x_stride=problem.strides.x,
            layout=problem.rows.layout,
            unfolded_format=problem.unfolded_format,
            length_format=problem.length_format,
        )
    else:
        blocks_per_part = maxima.n_coarse // MAXIMA_WARPS
        n_blocks = problem.n_rows * n_parts * blocks_per_part
        variant = kernels.maxima(problem.element_size)
        parameters = MaximaParameters(
            first_block=0,
            axis_size=problem.axis_size,
            part_size=part_size,
            n_parts=n_parts,
            blocks_per_part=blocks_per_part,
            coarse_chunks=maxima.coarse_chunks,
            x_stride=problem.strides.x,
            layout=problem.rows.layout,
            unfolded_format=problem.unfolded_format,
            length_format=problem.length_format,
        )
    launches += [
        Launch(variant, batch, MAXIMA_THREADS, pointers, parameters._replace(first_block=first))
        for first, batch in batches(n_blocks, policy.launch_blocks)
    ]
    return FoundMaxima(fine, coarse, offsets), launches
