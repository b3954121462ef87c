"""The launches of `lanes`, and what they and its kernel agree on."""

from collections.abc import Iterator

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import LANES, kernel_key
from kernels_cuda.top_k.shared.launches import Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import slot_bytes

LANES_THREADS = 256
LANES_WARPS = LANES_THREADS // 32
# Lanes that share a short row, and rows of a block: 32, so that a word has a bit for each.
ROW_LANES = 8
ROWS_PER_BLOCK = LANES_THREADS // ROW_LANES
# Each lane keeps so many maxima for the search for a threshold.
LANE_MAXIMA = 4
# Only for a small k are hardly more than k elements at or above the k-th of the maxima; each of these is
# compared with all others.
LANES_LARGEST_K = 12
# Longer rows than the first have a whole warp each; the second is the longest that is served.
SHORT_ELEMENTS = 256
LANES_ELEMENTS = 1024
# There is room for 1.5 k plus so many pairs; where more are at or above the threshold, a row is read again.
SPARE_SLOTS = 32


def mark_words(row_elements: int) -> int:
    """Return the words with a bit for each position of a row, a multiple of four.

    Positions count from the boundary of a vector, up to 15 elements before the row.
    """
    return ceil_div(row_elements + 15, 128) * 4


def lanes_variants(element_size: int) -> Iterator[Variant]:
    """List the kernel for an element size."""
    yield variant("lanes", "short_rows.lanes:lanes_kernel", element_size)


def lanes_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every short row some lanes, and the longer ones of a block a warp, one after the other.

    Rows have at most `LANES_ELEMENTS`, and k is at most `LANES_LARGEST_K`.
    """
    element_size, axis_size = selection.element_size, min(selection.axis_size, selection.most)
    n_slots = ceil_div(selection.k + selection.k // 2 + SPARE_SLOTS, 4) * 4
    n_words = mark_words(axis_size) if selection.is_by_index else 0
    n_bytes = ROWS_PER_BLOCK * (n_slots * slot_bytes(element_size) + n_words * 4)
    kernel = kernel_key(LANES, element_size, 0, 0)
    sizes = Sizes(ceil_div(selection.n_rows, ROWS_PER_BLOCK), LANES_THREADS, n_bytes, 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    put_value(out, SHORT_ELEMENTS)
    put_value(out, n_words)
    put_value(out, n_slots)
    return split(device, out)
