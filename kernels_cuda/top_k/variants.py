"""The kernels that top-k can be made of."""

from collections.abc import Iterator

from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k import sort_shape
from kernels_cuda.top_k.block_shape import largest_shape
from kernels_cuda.top_k.column_shape import LARGEST_SHARED_BYTES
from kernels_cuda.top_k.tile_shape import TILE_SHAPES, exchange_bytes
from kernels_cuda.top_k.warp_shape import vectors_a_lane

ELEMENT_SIZES = (1, 2, 4, 8)
# Longest rows of the two warp kernels, which hold 8 and 32 keys a lane (16 and 32 of one byte).
WARP_ROWS = (256, 1024)
# Threads of the block kernels: for rows of some thousand elements, for k of some hundred, and for all others:
# many rows, or so few that each may have a multiprocessor.
BLOCK_THREADS = (128, 256, 512, 1024)
# Threads of the kernels that reorder by index: for short rows, and for all others.
BY_INDEX_THREADS = (32, 512)
# Blocks may have this of shared memory on the devices that have most of it.
MOST_SHARED_BYTES = 227 << 10
# Bytes of a position in the workspace of a sort: 8 for rows of more than 2^32 elements.
POSITION_SIZES = (4, 8)


def warp_variant(element_size: int, axis_size: int) -> Variant:
    """Return the warp kernel for rows of `axis_size` elements."""
    longest = next(size for size in WARP_ROWS if axis_size <= size)
    parameters = element_size, vectors_a_lane(element_size, longest)
    return Variant("top_k_warp", "kernels_cuda.top_k.warp:warp_source", parameters)


def block_variant(element_size: int, n_threads: int) -> Variant:
    """Return the block kernel of `n_threads`."""
    shared_bytes = largest_shape(element_size, n_threads, MOST_SHARED_BYTES).shared_bytes
    parameters = element_size, n_threads
    return Variant("top_k_block", "kernels_cuda.top_k.block:block_source", parameters, shared_bytes)


def maxima_variant(element_size: int) -> Variant:
    """Return the kernel for group maxima of long rows."""
    return Variant("top_k_maxima", "kernels_cuda.top_k.maxima:maxima_source", (element_size,))


def maxima_turned_variant(element_size: int) -> Variant:
    """Return the kernel for group maxima of long rows that lie side by side."""
    factory = "kernels_cuda.top_k.maxima_turned:maxima_turned_source"
    return Variant("top_k_maxima_turned", factory, (element_size,))


def columns_variant(element_size: int) -> Variant:
    """Return the kernel for rows that are columns in memory."""
    factory = "kernels_cuda.top_k.columns:columns_source"
    return Variant("top_k_columns", factory, (element_size,), LARGEST_SHARED_BYTES)


def tile_variant(element_size: int, n_threads: int, n_items: int) -> Variant:
    """Return the kernel that sorts a row in a block."""
    parameters = element_size, n_threads, n_items
    shared_bytes = exchange_bytes(*parameters)
    return Variant("top_k_tile", "kernels_cuda.top_k.tile:tile_source", parameters, shared_bytes)


def clear_variant() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return Variant("top_k_clear", "kernels_cuda.top_k.sort:clear_source")


def sort_variants(element_size: int, position_size: int) -> tuple[Variant, Variant]:
    """Return the kernels of a radix sort: for the histograms, and for a pass."""
    parameters = element_size, position_size, *sort_shape.tile_shape(element_size, position_size)
    return (
        Variant("top_k_histogram", "kernels_cuda.top_k.sort:histogram_source", (element_size,)),
        Variant("top_k_sort", "kernels_cuda.top_k.sort:sort_source", parameters),
    )


def offsets_variant() -> Variant:
    """Return the kernel that fills the table of row offsets."""
    return Variant("top_k_offsets", "kernels_cuda.top_k.row_offsets:offsets_source")


def by_index_variant(element_size: int, n_threads: int) -> Variant:
    """Return the kernel that reorders selected elements by index in blocks of `n_threads`."""
    factory = "kernels_cuda.top_k.by_index:by_index_source"
    return Variant("top_k_by_index", factory, (element_size, n_threads))


def mask_variant(element_size: int) -> Variant:
    """Return the kernel that copies rows up to their lengths."""
    return Variant("top_k_mask", "kernels_cuda.top_k.lengths:mask_source", (element_size,))


def pad_variant(element_size: int) -> Variant:
    """Return the kernel that fills the output of short rows up."""
    return Variant("top_k_pad", "kernels_cuda.top_k.lengths:pad_source", (element_size,))


def variants() -> Iterator[Variant]:
    """List every compilable kernel once."""
    yield offsets_variant()
    yield clear_variant()
    for element_size in ELEMENT_SIZES:
        yield maxima_variant(element_size)
        yield maxima_turned_variant(element_size)
        yield columns_variant(element_size)
        for longest in WARP_ROWS:
            yield warp_variant(element_size, longest)
        for n_threads in BY_INDEX_THREADS:
            yield by_index_variant(element_size, n_threads)
        yield mask_variant(element_size)
        yield pad_variant(element_size)
        for n_threads in BLOCK_THREADS:
            yield block_variant(element_size, n_threads)
        for shape in TILE_SHAPES[element_size]:
            yield tile_variant(element_size, *shape)
        for position_size in POSITION_SIZES:
            histogram, sort_pass = sort_variants(element_size, position_size)
            yield sort_pass
        yield histogram
