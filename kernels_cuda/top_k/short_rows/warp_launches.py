"""The launches of `warp`, and what they and its kernel agree on."""

from collections.abc import Iterator

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_value
from kernels_cuda.device_words import MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import WARP, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES, slot_bytes
from kernels_cuda.top_k.short_rows.lanes_launches import LANES_LARGEST_K, lanes_launches

WARP_KERNEL_THREADS = 256
WARP_KERNEL_WARPS = WARP_KERNEL_THREADS // WARP_LANES
# The search for a threshold has two maxima of each lane: for a larger k, these may be too few.
WARP_LARGEST_K = 32
# The two kernels serve rows up to these lengths: they hold 8 and 32 keys per lane (16 and 32 of one byte).
ROW_ELEMENTS = (256, 1024)
# Slots of a warp for pairs at or above a threshold; and for all those of a row that is ranked without one.
THRESHOLD_SLOTS = 64
WHOLE_ROW_SLOTS = 256
# By value, `lanes` is faster for rows up to this length if each multiprocessor has more than so many of them.
LANES_FASTER_ELEMENTS = 128
MANY_ROWS = 128


def vectors_per_lane(element_size: int, row_elements: int) -> int:
    """Return how many vectors of a row a lane holds."""
    return ceil_div(row_elements * element_size, WARP_LANES * VECTOR_BYTES)


def warp_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for row_elements in ROW_ELEMENTS:
        n_vectors = vectors_per_lane(element_size, row_elements)
        yield variant("warp", "short_rows.warp:warp_kernel", element_size, n_vectors)


def warp_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a warp, or short ones some of its lanes."""
    element_size, axis_size = selection.element_size, min(selection.axis_size, selection.most)
    has_threshold = selection.k <= WARP_LARGEST_K
    if axis_size > (ROW_ELEMENTS[1] if has_threshold else WHOLE_ROW_SLOTS):
        return UNSERVED
    are_many = selection.n_rows > MANY_ROWS * device[MULTIPROCESSORS] and selection.is_by_index == 0
    if are_many and axis_size <= LANES_FASTER_ELEMENTS and selection.k <= LANES_LARGEST_K:
        return lanes_launches(problem, device, selection, out)
    n_slots = THRESHOLD_SLOTS if has_threshold else WHOLE_ROW_SLOTS
    row_elements = ROW_ELEMENTS[0] if axis_size <= ROW_ELEMENTS[0] else ROW_ELEMENTS[1]
    kernel = kernel_key(WARP, element_size, vectors_per_lane(element_size, row_elements), 0)
    n_bytes = WARP_KERNEL_WARPS * n_slots * slot_bytes(element_size)
    sizes = Sizes(ceil_div(selection.n_rows, WARP_KERNEL_WARPS), WARP_KERNEL_THREADS, n_bytes, 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    put_value(out, selection.is_by_index)
    put_value(out, n_slots)
    return split(device, out)
