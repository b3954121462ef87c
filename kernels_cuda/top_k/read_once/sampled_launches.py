"""The launches of `sampled`: a threshold for each row, one pass over all rows, and an end for each row."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.plan_words import ALGORITHM, Words, put_values
from kernels_cuda.device_words import ARCH, BLOCK_SHARED_BYTES, PLANNED
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import LAUNCH_BLOCKS
from kernels_cuda.top_k.problem import Selection, scratch_limit
from kernels_cuda.top_k.shared.kernel_keys import SAMPLE, kernel_key
from kernels_cuda.top_k.shared.launches import (
    FULL,
    UNSERVED,
    Sizes,
    begin,
    fill_offsets,
    put_area,
    put_area_of_rows,
    put_first,
    put_outputs,
    put_rows,
    put_windows,
    put_x,
    split,
    take,
    variant,
)
from kernels_cuda.top_k.shared.shapes import (
    BINS_PER_THREAD,
    KIB,
    MOST_SHARED_BYTES,
    SORTED_PAIRS,
    VECTOR_BYTES,
    WARP_LANES,
    bits_for,
    group_key_bytes,
    pair_counters_offset,
    pair_sort_bytes,
)

# From this compute capability on, a sample is worth its time; older devices have not been measured.
SAMPLED_FROM = (9, 0)
# A sample has the first of these sizes, powers of two, that leaves few candidates, or else the last; its keys
# take at most `SAMPLE_BYTES`. Up to 2k candidates are always few.
SAMPLE_SIZES = (4096, 8192, 16384)
FEW_CANDIDATES = 6144
SAMPLE_BYTES = 64 * KIB
# A row is not sampled if it may have more candidates or segments than these.
MOST_CANDIDATES = 10240
MOST_SEGMENTS = 2048
# A warp lists the candidates of about this many segments of a row.
SEGMENTS_PER_WARP = 2

# A warp lists what reaches the threshold of a row segment by segment, while others of its segments are on
# their way to shared memory.
SEGMENT_VECTORS_PER_LANE = 8
# The alignment of what a thread marks, 8 neighbouring vectors: their addresses differ in three bits. Dynamic
# shared memory does not have that.
STAGE_ALIGNMENT = SEGMENT_VECTORS_PER_LANE * VECTOR_BYTES
SEGMENT_VECTORS = WARP_LANES * SEGMENT_VECTORS_PER_LANE
# Bytes for each segment, and for each row: its threshold (8 bytes), and two counters.
SEGMENT_BYTES = 8
ROW_STATE_BYTES = 16
LISTING_THREADS = 128
LISTING_WARPS = LISTING_THREADS // WARP_LANES
# A block that lists has two segments for each warp in shared memory.
LISTING_WORDS = 2 * LISTING_WARPS * SEGMENT_VECTORS * VECTOR_BYTES // 4
# Threads that choose a row's threshold, and that finish a row.
SAMPLED_THREADS = 512
# Static shared memory of a block, at most: a histogram, and sums.
SAMPLED_STATIC_BYTES = 4 * SAMPLED_THREADS + 1024


class Listed(NamedTuple):
    """The addresses of what is listed: where segments of rows have their candidates, elements and lows."""

    segments: int
    elements: int
    lows: int


class SampledParameters(NamedTuple):
    """More parameters of the three kernels.

    Attributes
    ----------
    sample_bits : int
        Of a number that a row's sample has elements, a power of two.
    n_slots, n_segments : int
        Candidates of a row for which there is room, and the most segments that a row has.
    n_listing, first_row, n_rows : int
        Blocks that list the candidates of a row, and the rows of the batch.
    candidate_words, counters_offset, selected_word : int
        Shared memory of the candidates, where a block that sorts those selected counts, and where the list of
        these begins.
    """

    is_sorted: int
    sample_bits: int
    n_slots: int
    n_segments: int
    n_listing: int
    first_row: int
    n_rows: int
    candidate_words: int
    counters_offset: int
    selected_word: int


def segment_elements(element_size: int) -> int:
    """Return the elements of a segment."""
    return SEGMENT_VECTORS * VECTOR_BYTES // element_size


def sample_rank(sample_size: int, k: int, n_elements: int) -> int:
    """Return the rank in a sample that surely does not come before the k-th element of the row.

    About k of the row's elements come before it, `expected` of them in the sample, give or take the root of
    that: 5 roots are less than a quarter of it and 25.

    Examples
    --------
    >>> sample_rank(4096, 2048, 131072), sample_rank(4096, 32, 131072)
    (113, 34)
    """
    expected = -(-sample_size * k // n_elements)
    return expected + expected // 4 + 33


def list_slots(sample_size: int, k: int, n_elements: int) -> int:
    """Return the room for a row's candidates: the elements that so many of the sample stand for, and 2k.

    Examples
    --------
    >>> list_slots(4096, 2048, 131072)
    5632
    """
    most = most_of_sample(sample_rank(sample_size, k, n_elements))
    stood_for = -(-(most + most // 4 + 25) * n_elements // sample_size)
    return -(-max(stood_for, 2 * k) // 128) * 128


def most_of_sample(rank: int) -> int:
    """Return how many of the sample may be at or above the threshold, for a rank."""
    return rank + rank // 16


class SampleShape(NamedTuple):
    """A row's sample, room for candidates, its segments, and shared memory of the block that finishes it."""

    size: int
    n_slots: int
    n_segments: int
    candidate_bytes: int
    selected_offset: int
    finishing_bytes: int


def _best_size(device: Words, selection: Selection) -> int:
    """Return the size of samples: the first that leaves few candidates, or else the last that has room."""
    key_bytes, k = group_key_bytes(selection.element_size), selection.k
    most_bytes = min(device[BLOCK_SHARED_BYTES] - SAMPLED_STATIC_BYTES, SAMPLE_BYTES)
    best = SAMPLE_SIZES[0]
    for number in range(1, len(SAMPLE_SIZES)):
        size = SAMPLE_SIZES[number]
        is_few = list_slots(best, k, selection.axis_size) <= max(FEW_CANDIDATES, 2 * k)
        if not is_few and size * key_bytes <= most_bytes:
            best = size
    return best


def _shape(device: Words, selection: Selection, n_segments: int) -> SampleShape:
    """Return the sample for rows of a problem.

    A block that finishes a row has its candidates, or those selected and what sorts them; then, if these are
    to be sorted, bins; then the list of them.
    """
    element_size, k = selection.element_size, selection.k
    size = _best_size(device, selection)
    n_slots = list_slots(size, k, selection.axis_size)
    candidate_bytes = max(
        n_slots * (group_key_bytes(element_size) + 4), pair_sort_bytes(element_size, k, SAMPLED_THREADS)
    )
    bins_bytes = 4 * BINS_PER_THREAD * SAMPLED_THREADS if selection.is_sorted else 0
    selected_offset = candidate_bytes + 4 * n_segments + bins_bytes
    finishing_bytes = selected_offset + 2 * (n_slots if selection.is_sorted else k)
    return SampleShape(size, n_slots, n_segments, candidate_bytes, selected_offset, finishing_bytes)


def sampled_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size: they choose thresholds, list candidates, and finish rows."""
    if element_size > 1:
        for name, factory, needed in (
            ("sample", "read_once.sampled_threshold:sample_kernel", SAMPLE_BYTES),
            ("list", "read_once.sampled:list_kernel", 0),
            ("finish", "read_once.sampled_finish:finish_kernel", MOST_SHARED_BYTES),
        ):
            yield variant(name, factory, element_size, dynamic_shared_bytes=needed, since=SAMPLED_FROM)


class _Areas(NamedTuple):
    """Offsets in the workspace: of the states of rows, of their segments, and of their candidates."""

    states: int
    segments: int
    keys: int
    positions: int


def _put_areas(out: Words, selection: Selection, shape: SampleShape, areas: _Areas, first: int) -> None:
    """Put where the segments and the candidates of the rows from `first` on are.

    Kernels count rows from the first one of all, and areas have room for those of a batch.
    """
    put_area_of_rows(out, selection, areas.segments, first * shape.n_segments * SEGMENT_BYTES)
    key_bytes = group_key_bytes(selection.element_size)
    put_area_of_rows(out, selection, areas.keys, first * shape.n_slots * key_bytes)
    put_area_of_rows(out, selection, areas.positions, first * shape.n_slots * 4)


def _sizes(step: int, shape: SampleShape, n_rows: int, n_listing: int, key_bytes: int) -> Sizes:
    """Return the sizes of a launch: of thresholds, of lists (`n_listing` blocks per row), or of results."""
    if step == 0:
        return Sizes(n_rows, SAMPLED_THREADS, shape.size * key_bytes, 1)
    if step == 1:
        return Sizes(n_rows * n_listing, LISTING_THREADS, 0, 1)
    return Sizes(n_rows, SAMPLED_THREADS, shape.finishing_bytes, 1)


def sampled_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Find thresholds, list candidates, and finish rows."""
    element_size, n_rows, axis_size = selection.element_size, selection.n_rows, selection.axis_size
    is_suitable = device[ARCH] >= 10 * SAMPLED_FROM[0] + SAMPLED_FROM[1] and selection.x_step == 1
    # A row may begin within a vector.
    n_segments = axis_size // segment_elements(element_size) + 2
    if not is_suitable or element_size == 1 or selection.k > SORTED_PAIRS or n_segments > MOST_SEGMENTS:
        return UNSERVED
    # A row that begins where a vector does has two segments less.
    n_listing = max(1, (n_segments - 2) // (LISTING_WARPS * SEGMENTS_PER_WARP))
    shape = _shape(device, selection, n_segments)
    has_room = shape.finishing_bytes + SAMPLED_STATIC_BYTES <= device[BLOCK_SHARED_BYTES]
    # Blocks are counted in 32 bits.
    if shape.n_slots > MOST_CANDIDATES or not has_room or n_rows > ((1 << 32) - 1) // n_listing:
        return UNSERVED
    key_bytes = group_key_bytes(element_size)
    row_bytes = ROW_STATE_BYTES + n_segments * SEGMENT_BYTES + shape.n_slots * (key_bytes + 4)
    batch = n_rows
    if batch * row_bytes > scratch_limit(device, selection):
        batch = max(1, min(scratch_limit(device, selection) // row_bytes, device[LAUNCH_BLOCKS] // n_listing))
    areas = _Areas(
        take(out, batch * ROW_STATE_BYTES),
        take(out, batch * n_segments * SEGMENT_BYTES),
        take(out, batch * shape.n_slots * key_bytes),
        take(out, batch * shape.n_slots * 4),
    )
    offsets = fill_offsets(problem, device, selection, out)
    parameters = SampledParameters(
        selection.is_sorted,
        bits_for(shape.size),
        shape.n_slots,
        n_segments,
        n_listing,
        0,
        batch,
        shape.candidate_bytes // 4,
        pair_counters_offset(element_size, selection.k, SAMPLED_THREADS),
        shape.selected_offset // 4,
    )
    first = 0
    while first < n_rows and out[ALGORITHM] != FULL:
        n_each = min(batch, n_rows - first)
        for step in range(3):
            sizes = _sizes(step, shape, n_each, n_listing, key_bytes)
            begin(out, device, kernel_key(SAMPLE + step, element_size, 0, 0), sizes)
            put_x(out, selection)
            put_windows(out, selection)
            if step == 2:
                put_outputs(out, selection)
            put_area_of_rows(out, selection, areas.states, first * ROW_STATE_BYTES)
            if step > 0:
                _put_areas(out, selection, shape, areas, first)
            put_area(out, selection, offsets)
            put_rows(out, problem, selection)
            put_first(out, 0 if step == 1 else first)
            put_values(out, parameters._replace(first_row=first, n_rows=n_each))
            if batch == n_rows:
                split(device, out)
        first += n_each
    return PLANNED
