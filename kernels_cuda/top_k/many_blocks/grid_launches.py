"""The launches of `grid`: many blocks write group maxima, and blocks finish rows, or parts, by these."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.key_formats import filler
from kernels_cuda.top_k.policy import (
    FINE_BYTES,
    NARROW_AXIS_ELEMENTS,
    PART_ELEMENTS,
    UNIT_GROUPS_PER_THREAD,
)
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.read_once.block_launches import (
    COARSE,
    ELEMENTS,
    FINE,
    LARGEST_K,
    LARGEST_LANE_BITS,
    SMALL_K,
    Areas,
    BlockShape,
    Stages,
    enough_groups,
    finish_rows,
    has_large_blocks,
    shape_of,
)
from kernels_cuda.top_k.shared.kernel_keys import MAXIMA, TRANSPOSED_MAXIMA, kernel_key
from kernels_cuda.top_k.shared.launches import (
    NO_AREA,
    UNSERVED,
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_rows,
    put_windows,
    put_x,
    split,
    take,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    CHUNK_VECTORS,
    FINE_BITS,
    MAXIMA_THREADS,
    MAXIMA_WARPS,
    VECTOR_BYTES,
    bits_for,
    group_key_bytes,
)

FINE_PER_CHUNK = CHUNK_VECTORS >> FINE_BITS
# Rows of a block that finds the maxima of transposed rows, which lie side by side.
TRANSPOSED_ROWS = 32
# If there are more rows than multiprocessors, the smallest blocks finish those of at most this many fine
# groups, for k up to `SMALL_BLOCK_K`.
SMALL_BLOCK_GROUPS = 1024
SMALL_BLOCK_K = 256


class MaximaParameters(NamedTuple):
    """More parameters of the kernels of `grid`: a part of a row has `n_coarse` coarse groups, its chunks."""

    part_size: int
    n_parts: int
    n_coarse: int


def grid_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: for rows one after the other, and side by side."""
    yield variant("maxima", "many_blocks.grid:maxima_kernel", element_size)
    yield variant("transposed_maxima", "many_blocks.grid:transposed_maxima_kernel", element_size)


def fine_bits(element_size: int, is_transposed: int) -> int:
    """Return the bits of the number of vectors of a fine group.

    Those of transposed rows are smaller: an element that is read again takes a memory sector of its own.
    """
    if is_transposed:
        return 2 if element_size == 8 else 1
    return FINE_BITS


def _fine_bytes(selection: Selection) -> int:
    return VECTOR_BYTES << fine_bits(selection.element_size, selection.is_transposed)


def _chunk_bytes(selection: Selection) -> int:
    """Return the bytes of a chunk, which a warp reads together."""
    return FINE_PER_CHUNK * _fine_bytes(selection)


def _coarse_groups(selection: Selection, part_size: int) -> int:
    """Return how many coarse groups there may be; those beyond the end of a part are empty."""
    n_chunks = max(1, ceil_div(part_size * selection.element_size, _chunk_bytes(selection)))
    # Transposed rows may be many and short: no more groups than make whole vectors of keys.
    together = MAXIMA_WARPS
    if selection.is_transposed:
        together = VECTOR_BYTES // group_key_bytes(selection.element_size)
    return ceil_div(n_chunks, together) * together


class Parts(NamedTuple):
    """The blocks that finish rows, and the elements of a part of one: 0 if rows are not served."""

    shape: BlockShape
    part_size: int


def _finishing_shape(device: Words, selection: Selection) -> BlockShape:
    """Return the blocks that finish rows."""
    has_large = has_large_blocks(device)
    if has_large and selection.k > SMALL_K:
        return shape_of(device, selection, 3)
    if has_large and selection.n_rows <= device[MULTIPROCESSORS]:
        # The work of all warps of the largest blocks takes longer than what they share.
        return shape_of(device, selection, 2)
    has_few_groups = selection.row_bytes // _fine_bytes(selection) <= SMALL_BLOCK_GROUPS
    return shape_of(device, selection, 0 if has_few_groups and selection.k <= SMALL_BLOCK_K else 1)


def _parts(device: Words, selection: Selection) -> Parts:
    """Return the blocks that finish rows, and the elements of a part of one."""
    k, axis_size, element_size = selection.k, selection.axis_size, selection.element_size
    shape = _finishing_shape(device, selection)
    if k > min(LARGEST_K, shape.n_candidate_groups):
        return Parts(shape, 0)
    per_vector = VECTOR_BYTES // element_size
    most_vectors = shape.n_groups << LARGEST_LANE_BITS
    most_coarse = most_vectors * (VECTOR_BYTES // shape.key_bytes)
    chunk_elements = _chunk_bytes(selection) // element_size
    n_parts = ceil_div(axis_size, min(device[PART_ELEMENTS], most_coarse * chunk_elements))
    if n_parts == 1:
        return Parts(shape, axis_size)
    # One block finishes what is selected from all parts.
    if n_parts > most_vectors * per_vector // k:
        return Parts(shape, 0)
    return Parts(shape, ceil_div(axis_size, n_parts * per_vector) * per_vector)


def grid_launches(problem: Words, device: Words, given: Selection, out: Words) -> int:
    """Write the group maxima of every row, or part of one too long for a block, and finish it from these."""
    # The results of all parts make a shorter row.
    selection = given._replace(least=0)
    shape, part_size = _parts(device, selection)
    if part_size == 0:
        return UNSERVED
    n_coarse = _coarse_groups(selection, part_size)
    n_parts = ceil_div(selection.axis_size, part_size)
    key_bytes = group_key_bytes(selection.element_size)
    n_keys = bounded_product(bounded_product(selection.n_rows, n_parts), n_coarse)
    fine = take(out, bounded_product(n_keys, FINE_PER_CHUNK * key_bytes))
    coarse = take(out, bounded_product(n_keys, key_bytes))
    _put_maxima(problem, device, selection, out, MaximaParameters(part_size, n_parts, n_coarse), fine, coarse)
    stages = _choose_stages(device, selection, shape, n_coarse)
    areas = Areas(NO_AREA, NO_AREA, NO_AREA, NO_AREA, 0, fine, coarse)
    if n_parts == 1:
        return finish_rows(problem, device, selection, out, shape, part_size, stages, areas)
    return _finish_parts(problem, device, selection, out, shape, part_size, stages, areas)


def _put_maxima(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    parameters: MaximaParameters,
    fine: int,
    coarse: int,
) -> None:
    """Put the launch that finds the maxima."""
    offsets = fill_offsets(problem, device, selection, out)
    kernel, n_blocks = MAXIMA, bounded_product(selection.n_rows, parameters.n_coarse // MAXIMA_WARPS)
    if selection.is_transposed:
        kernel = TRANSPOSED_MAXIMA
        n_blocks = bounded_product(ceil_div(selection.n_rows, TRANSPOSED_ROWS), parameters.n_coarse)
    sizes = Sizes(bounded_product(n_blocks, parameters.n_parts), MAXIMA_THREADS, 0, 1)
    begin(out, device, kernel_key(kernel, selection.element_size, 0, 0), sizes)
    put_x(out, selection)
    put_windows(out, selection)
    put_area(out, selection, fine)
    put_area(out, selection, coarse)
    put_area(out, selection, offsets)
    put_rows(out, problem, selection)
    put_values(out, parameters)
    split(device, out)


def _finish_parts(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    shape: BlockShape,
    part_size: int,
    stages: Stages,
    areas: Areas,
) -> int:
    """Finish every part of a row by itself, and then what is selected from all parts."""
    position_size = 4 if selection.bound <= device[NARROW_AXIS_ELEMENTS] else 8
    n_before = (ceil_div(selection.axis_size, part_size) - 1) * part_size
    n_left = n_before // part_size * selection.k + min(selection.k, selection.axis_size - n_before)
    n_selected = bounded_product(selection.n_rows, n_left)
    values = take(out, bounded_product(n_selected, selection.element_size))
    indices = take(out, bounded_product(n_selected, position_size))
    # The results of parts lie one after the other.
    parts = selection._replace(
        index_size=position_size, output_step=1, output_row=n_left, padding=filler(problem)
    )
    of_parts = Areas(NO_AREA, values, indices, NO_AREA, 0, areas.fine, areas.coarse)
    finish_rows(problem, device, parts, out, shape, part_size, stages, of_parts)
    merged = selection._replace(axis_size=n_left, x_step=1, x_row=n_left)
    of_merged = Areas(values, NO_AREA, NO_AREA, indices, position_size, NO_AREA, NO_AREA)
    elements = Stages(ELEMENTS, 0, 0, FINE_BITS, 0)
    return finish_rows(problem, device, merged, out, shape, n_left, elements, of_merged)


def _choose_stages(device: Words, selection: Selection, shape: BlockShape, n_coarse: int) -> Stages:
    """Choose what a block starts from, by the numbers of group maxima that there are."""
    keys_per_vector = VECTOR_BYTES // shape.key_bytes
    group_bits = fine_bits(selection.element_size, selection.is_transposed)
    coarse_bits = bits_for(FINE_PER_CHUNK // keys_per_vector)
    n_fine = n_coarse * FINE_PER_CHUNK
    has_enough_coarse = n_coarse >= enough_groups(selection.k)
    # There is one stage less to go through where each maximum may be a group by itself.
    most_units = min(shape.n_groups, device[UNIT_GROUPS_PER_THREAD] * shape.n_threads)
    if (n_coarse if has_enough_coarse else n_fine) <= most_units:
        return Stages(COARSE if has_enough_coarse else FINE, n_coarse, coarse_bits, group_bits, 1)
    fits_fine = n_fine // keys_per_vector <= shape.n_groups << LARGEST_LANE_BITS
    takes_fine = n_fine * shape.key_bytes <= device[FINE_BYTES] or not has_enough_coarse
    return Stages(FINE if fits_fine and takes_fine else COARSE, n_coarse, coarse_bits, group_bits, 0)
