"""The kernels that top-k can be made of."""

from collections.abc import Iterator

from kernels_cuda.launch import Variant
from kernels_cuda.top_k.block import block_source
from kernels_cuda.top_k.maxima import maxima_source
from kernels_cuda.top_k.rows import offsets_source
from kernels_cuda.top_k.sort import histogram_source, scan_source, scatter_source
from kernels_cuda.top_k.warp import vectors_a_lane, warp_source

ELEMENT_SIZES = (1, 2, 4, 8)
# Longest rows of the two warp kernels, which hold 8 and 32 keys a lane (16 and 32 of one byte).
WARP_ROWS = (256, 1024)
# Threads of the block kernels: for rows of some thousand elements, for k of some hundred, and for all others:
# many rows, or so few that each may have a multiprocessor.
BLOCK_THREADS = (128, 256, 512, 1024)
# Bytes of a position in the workspace of a sort: 8 for rows of more than 2^32 elements.
POSITION_SIZES = (4, 8)


def warp_variant(element_size: int, axis_size: int) -> Variant:
    """Return the warp kernel for rows of `axis_size` elements."""
    longest = next(size for size in WARP_ROWS if axis_size <= size)
    return Variant("top_k_warp", warp_source, (element_size, vectors_a_lane(element_size, longest)))


def block_variant(element_size: int, n_threads: int) -> Variant:
    """Return the block kernel of `n_threads`."""
    return Variant("top_k_block", block_source, (element_size, n_threads))


def maxima_variant(element_size: int) -> Variant:
    """Return the kernel for group maxima of long rows."""
    return Variant("top_k_maxima", maxima_source, (element_size,))


def sort_variants(element_size: int, position_size: int) -> tuple[Variant, Variant, Variant]:
    """Return the kernels of a radix sort: histogram, scan, scatter."""
    return (
        Variant("top_k_histogram", histogram_source, (element_size, position_size)),
        Variant("top_k_scan", scan_source, (position_size,)),
        Variant("top_k_scatter", scatter_source, (element_size, position_size)),
    )


def offsets_variant() -> Variant:
    """Return the kernel that fills the table of row offsets."""
    return Variant("top_k_offsets", offsets_source)


def variants() -> Iterator[Variant]:
    """List every compilable kernel once."""
    yield offsets_variant()
    for element_size in ELEMENT_SIZES:
        yield maxima_variant(element_size)
        for longest in WARP_ROWS:
            yield warp_variant(element_size, longest)
        for n_threads in BLOCK_THREADS:
            yield block_variant(element_size, n_threads)
    for position_size in POSITION_SIZES:
        yield sort_variants(ELEMENT_SIZES[0], position_size)[1]
        for element_size in ELEMENT_SIZES:
            histogram, _, scatter = sort_variants(element_size, position_size)
            yield histogram
            yield scatter
