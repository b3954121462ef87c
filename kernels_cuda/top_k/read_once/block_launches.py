"""The launches of `block`, which also finish what `grid` begins, and what they and its kernel agree on.

A block finishes a row, or a part of one: it finds group maxima, or takes those that other blocks have
written, and goes on from stage to stage down to the elements.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import ONLY_BLOCK_THREADS
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import BLOCK, kernel_key
from kernels_cuda.top_k.shared.launches import (
    NO_AREA,
    UNSERVED,
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_outputs,
    put_rows,
    put_windows,
    put_x,
    split,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    BINS_PER_THREAD,
    CHUNK_VECTORS,
    FINE_BITS,
    KIB,
    MOST_SHARED_BYTES,
    SPARE_CANDIDATES,
    VECTOR_BYTES,
    group_key_bytes,
)

# The blocks: the first serve rows of some thousand elements, and the second a k of some hundred. The third
# serve more rows than multiprocessors, and the last no more than that; devices whose blocks may have less
# shared memory than `LARGE_BLOCK_BYTES` do without both.
BLOCK_THREADS = (128, 256, 512, 1024)
LARGE_BLOCK_BYTES = 99 * KIB
# Rows up to `SMALL_ELEMENTS` with k up to `SMALL_K` use the smallest blocks.
SMALL_ELEMENTS = 4096
SMALL_K = 512
# Up to this k, rows use the second smallest blocks. Many rows use them up to a larger k, because more blocks
# at a time are worth more than larger ones. The largest blocks serve k up to `LARGEST_K`.
MIDDLE_K, MIDDLE_K_OF_MANY_ROWS, LARGEST_K = 512, 1024, 4096
# All three are this where there are no larger blocks.
K_WITHOUT_LARGE_BLOCKS = 2048
# Rows are many if there are at least this many per multiprocessor.
MANY_ROWS_PER_MULTIPROCESSOR = 7
# A threshold should be found among this many groups per selected element, so that few other elements are at
# or above it. From `SMALL_K` on, there are fewer groups to search, but more elements to read.
GROUPS_PER_SELECTED = 8
GROUPS_PER_SELECTED_OF_LARGE_K = 4
LARGEST_LANE_BITS = 3
# The stages that a block goes through: maxima of coarse groups, of fine groups, and elements.
ELEMENTS, FINE, COARSE = range(3)


class BlockShape(NamedTuple):
    """Sizes of a block, and of its arrays for candidates (or group maxima) and listed groups."""

    n_threads: int
    n_slots: int
    n_groups: int
    n_candidate_groups: int
    key_bytes: int


NO_BLOCK = BlockShape(0, 0, 0, 0, 0)


def list_offset(shape: BlockShape) -> int:
    """Return where the list lies in dynamic shared memory; it is also the order of the candidates."""
    offset = max(shape.n_slots * (shape.key_bytes + 4), shape.n_groups * shape.key_bytes)
    return ceil_div(offset, VECTOR_BYTES) * VECTOR_BYTES


def bins_offset(shape: BlockShape) -> int:
    """Return where the bins lie that the candidates are ordered by."""
    size = max(4 * shape.n_candidate_groups, 2 * shape.n_slots)
    return list_offset(shape) + ceil_div(size, VECTOR_BYTES) * VECTOR_BYTES


def dynamic_bytes(shape: BlockShape) -> int:
    """Return the dynamic shared memory of a launch."""
    return bins_offset(shape) + 4 * BINS_PER_THREAD * shape.n_threads


def block_static_bytes(n_threads: int) -> int:
    """Return the shared memory that the kernel has of its own, at most."""
    return 4 * n_threads + 1024


def block_shape(element_size: int, n_threads: int, block_bytes: int) -> BlockShape:
    """Return the most that blocks hold; those of 512 and 1024 threads need more than 48 KiB.

    Where a block may have no more than 99 KiB, those of 1024 threads hold a little less.
    """
    n_bytes = group_key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    large = _large_shape(n_threads, n_bytes, 65536, 6144)
    if dynamic_bytes(large) + block_static_bytes(n_threads) <= block_bytes:
        return large
    return _large_shape(n_threads, n_bytes, 57344, 5632)


def _large_shape(n_threads: int, key_bytes: int, size: int, n_candidate_groups: int) -> BlockShape:
    n_slots = size // (key_bytes + 4) // 512 * 512
    return BlockShape(n_threads, n_slots, size // key_bytes, n_candidate_groups, key_bytes)


def has_large_blocks(device: Words) -> bool:
    """Tell whether a device has room for the last two kinds of blocks."""
    room: int = device[BLOCK_SHARED_BYTES]
    return room >= LARGE_BLOCK_BYTES


def shape_of(device: Words, selection: Selection, number: int) -> BlockShape:
    """Return the blocks of a number, in the order of `BLOCK_THREADS`."""
    n_threads = BLOCK_THREADS[number]
    if device[ONLY_BLOCK_THREADS] > 0:
        n_threads = device[ONLY_BLOCK_THREADS]
    return block_shape(selection.element_size, n_threads, device[BLOCK_SHARED_BYTES])


class BlockParameters(NamedTuple):
    """More parameters of `block.block_top_k`, whose blocks have one part of a row each."""

    source_size: int
    """Bytes of an index in `sources`; 0 if there are none."""
    is_by_index: int
    """Whether results are written by ascending position."""
    part_size: int
    n_parts: int
    """Elements of a part of a row, and how many parts a row has."""
    top_stage: int
    has_unit_groups: int
    """Where the block begins: coarse maxima, fine maxima or elements; and whether each of these maxima is a
    group by itself."""
    lane_bits: int
    n_groups: int
    enough_groups: int
    """Bits of the vectors of a group in the first stage, for how many groups there is room, and among how
    many a threshold should be looked for."""
    most_groups: int
    """How many groups may be at or above the threshold."""
    n_slots: int
    n_candidate_groups: int
    list_word: int
    bins_word: int
    """Candidates and groups for which there is room, and where the list of groups and the bins begin in
    shared memory, in words."""
    n_coarse: int
    coarse_bits: int
    fine_bits: int
    """Coarse groups of a part, and the bits of the vectors of a coarse group and of a fine one."""


def block_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for n_threads in BLOCK_THREADS:
        needed = dynamic_bytes(block_shape(element_size, n_threads, MOST_SHARED_BYTES))
        factory = "read_once.block:block_kernel"
        yield variant("block", factory, element_size, n_threads, dynamic_shared_bytes=needed)


def _fitting_shape(device: Words, selection: Selection) -> BlockShape:
    """Return the blocks that serve whole rows well, or `NO_BLOCK`."""
    axis_size, k, n_rows = selection.axis_size, selection.k, selection.n_rows
    multiprocessors = device[MULTIPROCESSORS]
    small, middle = shape_of(device, selection, 0), shape_of(device, selection, 1)
    if axis_size <= small.n_slots or (axis_size <= SMALL_ELEMENTS and k <= SMALL_K):
        return small
    middle_k = MIDDLE_K
    if n_rows >= MANY_ROWS_PER_MULTIPROCESSOR * multiprocessors:
        middle_k = MIDDLE_K_OF_MANY_ROWS
    has_large = has_large_blocks(device)
    if not has_large:
        middle_k = K_WITHOUT_LARGE_BLOCKS
    if axis_size <= middle.n_slots or (k <= middle_k and _fits(selection, middle)):
        return middle
    if not has_large:
        return NO_BLOCK
    large = shape_of(device, selection, 3 if n_rows <= multiprocessors else 2)
    if axis_size <= large.n_slots or (k <= LARGEST_K and _fits(selection, large)):
        return large
    return NO_BLOCK


def _fits(selection: Selection, shape: BlockShape) -> bool:
    return selection.row_bytes // VECTOR_BYTES <= shape.n_groups << LARGEST_LANE_BITS


class Areas(NamedTuple):
    """Areas of the workspace that blocks read and write; for `NO_AREA`, x, values and indices are operands.

    They may start from elements with `sources`, their indices of `source_size` bytes, or from group maxima.
    """

    x: int
    values: int
    indices: int
    sources: int
    source_size: int
    fine: int
    coarse: int


class Stages(NamedTuple):
    """The group maxima that a block starts from.

    A fine group has ``1 << fine_bits`` vectors of elements, a coarse one ``1 << coarse_bits`` vectors of fine
    maxima. With unit groups, the maxima of the top stage themselves are the groups among which the block
    looks for a threshold.
    """

    top: int
    n_coarse: int
    coarse_bits: int
    fine_bits: int
    has_unit_groups: int


def block_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a block."""
    shape = _fitting_shape(device, selection)
    if selection.k > shape.n_candidate_groups:
        return UNSERVED
    stages = Stages(ELEMENTS, 0, 0, FINE_BITS, 0)
    areas = Areas(NO_AREA, NO_AREA, NO_AREA, NO_AREA, 0, NO_AREA, NO_AREA)
    return finish_rows(problem, device, selection, out, shape, selection.axis_size, stages, areas)


def finish_rows(
    problem: Words,
    device: Words,
    selection: Selection,
    out: Words,
    largest: BlockShape,
    part_size: int,
    stages: Stages,
    areas: Areas,
) -> int:
    """Assign one block, with room for the largest shape at most, to each part of a row."""
    n_parts = ceil_div(selection.axis_size, part_size)
    n_vectors = part_size * selection.element_size // VECTOR_BYTES
    if stages.top == FINE:
        n_vectors = stages.n_coarse << stages.coarse_bits
    elif stages.top == COARSE:
        n_vectors = stages.n_coarse * largest.key_bytes // VECTOR_BYTES
    enough = enough_groups(selection.k)
    lane_bits = 0 if stages.has_unit_groups else LARGEST_LANE_BITS
    while (
        lane_bits > 0 and n_vectors >> lane_bits < enough and n_vectors <= largest.n_groups << (lane_bits - 1)
    ):
        lane_bits -= 1
    n_groups = ceil_div(n_vectors, 1 << lane_bits)
    if stages.has_unit_groups:
        n_groups = n_vectors * VECTOR_BYTES // largest.key_bytes
    needed = _needed_shape(selection, part_size, n_groups, largest)
    most_groups = _most_groups(selection.k, n_groups, needed)
    shape = needed._replace(n_slots=ceil_div(needed.n_slots, 4) * 4)
    offsets = fill_offsets(problem, device, selection, out)
    kernel = kernel_key(BLOCK, selection.element_size, shape.n_threads, 0)
    n_blocks = bounded_product(selection.n_rows, n_parts)
    begin(out, device, kernel, Sizes(n_blocks, shape.n_threads, dynamic_bytes(shape), 1))
    _put_operands(out, selection, areas)
    put_area(out, selection, offsets)
    put_rows(out, problem, selection)
    parameters = BlockParameters(
        areas.source_size,
        selection.is_by_index,
        part_size,
        n_parts,
        stages.top,
        stages.has_unit_groups,
        lane_bits,
        shape.n_groups,
        enough,
        most_groups,
        shape.n_slots,
        shape.n_candidate_groups,
        list_offset(shape) // 4,
        bins_offset(shape) // 4,
        stages.n_coarse,
        stages.coarse_bits,
        stages.fine_bits,
    )
    put_values(out, parameters)
    return split(device, out)


def _put_operands(out: Words, selection: Selection, areas: Areas) -> None:
    """Put pointers at x, lengths, values and indices, and at what else a block starts from."""
    if areas.x < 0:
        put_x(out, selection)
    else:
        put_area(out, selection, areas.x)
    put_windows(out, selection)
    if areas.values < 0:
        put_outputs(out, selection)
    else:
        put_area(out, selection, areas.values)
        put_area(out, selection, areas.indices)
    put_area(out, selection, areas.sources)
    put_area(out, selection, areas.fine)
    put_area(out, selection, areas.coarse)


def enough_groups(k: int) -> int:
    """Return the number of groups in which a threshold is looked for."""
    return k * (GROUPS_PER_SELECTED if k < SMALL_K else GROUPS_PER_SELECTED_OF_LARGE_K)


def _needed_shape(selection: Selection, part_size: int, n_groups: int, largest: BlockShape) -> BlockShape:
    """Return what blocks need to hold; what they do not need serves as cache.

    Of rows with lengths, short ones may have more groups than others.
    """
    k = selection.k
    n_slots, held_groups = min(largest.n_slots, part_size), 0
    if n_groups > k and (part_size > largest.n_slots or 4 * k < part_size):
        n_slots = min(largest.n_slots, 2 * k + SPARE_CANDIDATES)
        # A warp writes the maxima of whole chunks, of at most one for each vector.
        held_groups = ceil_div(n_groups, CHUNK_VECTORS) * CHUNK_VECTORS
        if selection.has_lengths + selection.has_starts > 0:
            held_groups = largest.n_groups
    n_candidate_groups = min(largest.n_candidate_groups, 2 * k + SPARE_CANDIDATES)
    return largest._replace(n_slots=n_slots, n_groups=held_groups, n_candidate_groups=n_candidate_groups)


def _most_groups(k: int, n_groups: int, needed: BlockShape) -> int:
    """Return how many groups may be at or above the threshold.

    Some more than k, to find it soon, yet few enough: if the elements come in no order, c of n groups hold
    about ``-n * log(1 - c / n)`` elements at or above it, and these should fit.
    """
    n_groups = max(n_groups, 1)
    fitting = n_groups - decayed(n_groups, 9 * needed.n_slots, 10 * n_groups)
    return max(k, min(k + k // 8 + 8, fitting, needed.n_candidate_groups))


# An integer stands for so many times as much.
_UNIT_BITS = 30
_ONE = 1 << _UNIT_BITS
# 1 / e.
_ONE_DECAYED = 395007542
# With so many terms, a power series is as exact as the integers are.
_TERMS = 13


def decayed(count: int, dividend: int, divisor: int) -> int:
    """Return ``count * exp(-dividend / divisor)``, rounded up, for numbers from 0 on, a count below 2^32.

    Examples
    --------
    >>> decayed(1000, 0, 5), decayed(1000, 5, 5), decayed(1000, 500, 5)
    (1000, 368, 1)
    """
    rest = ((dividend % divisor) << _UNIT_BITS) // divisor
    term, total = _ONE, _ONE
    for number in range(1, _TERMS):
        term = -(term * rest // _ONE) // number
        total += term
    for _ in range(min(dividend // divisor, _UNIT_BITS)):
        total = total * _ONE_DECAYED // _ONE
    return ceil_div(count * max(total, 1), _ONE)
