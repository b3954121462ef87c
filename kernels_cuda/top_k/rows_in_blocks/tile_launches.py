"""The launches of `tile`, and what they and its kernel agree on."""

from collections.abc import Iterator

from kernels_cpu.plan_words import Words
from kernels_cuda.device_words import BLOCK_SHARED_BYTES
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import FEWEST_TILE_THREADS
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import TILE, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.order_launches import end_unordered
from kernels_cuda.top_k.shared.shapes import N_DIGITS, TILE_SUMS, WARP_LANES, TileShape

# The first shape that holds a row serves it; blocks of 8-byte elements have fewer of them, and there is one
# shape less. Positions are counted in 16 bits.
TILE_THREADS = (256, 384, 512, 1024)
TILE_ITEMS = (8, 16, 16, 16)
WIDE_TILE_THREADS = (256, 512, 1024)
WIDE_TILE_ITEMS = 8


def n_tile_shapes(element_size: int) -> int:
    """Return how many shapes there are."""
    return len(WIDE_TILE_THREADS) if element_size == 8 else len(TILE_THREADS)


def tile_shape(element_size: int, number: int) -> TileShape:
    """Return the shape of a number."""
    if element_size == 8:
        return TileShape(WIDE_TILE_THREADS[number], WIDE_TILE_ITEMS)
    return TileShape(TILE_THREADS[number], TILE_ITEMS[number])


def dynamic_bytes(shape: TileShape, element_size: int) -> int:
    """Return the dynamic shared memory in which a block exchanges keys, then positions."""
    return shape.n_threads * shape.n_items * max(4, element_size)


def tile_bytes(shape: TileShape, element_size: int) -> int:
    """Return all shared memory of a block: it also counts digits per warp, in 16 bits, and adds them."""
    own_bytes = shape.n_threads // WARP_LANES * N_DIGITS * 2 + TILE_SUMS * 4
    return dynamic_bytes(shape, element_size) + own_bytes


def tile_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for number in range(n_tile_shapes(element_size)):
        shape = tile_shape(element_size, number)
        needed = dynamic_bytes(shape, element_size)
        factory = "rows_in_blocks.tile:tile_kernel"
        yield variant("tile", factory, element_size, *shape, dynamic_shared_bytes=needed)


def tile_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Sort every row in a block."""
    element_size = selection.element_size
    shape = TileShape(0, 0)
    for number in range(n_tile_shapes(element_size)):
        tried = tile_shape(element_size, number)
        is_enough = shape.n_threads >= device[FEWEST_TILE_THREADS]
        is_enough = is_enough and selection.axis_size <= shape.n_threads * shape.n_items
        if not is_enough and tile_bytes(tried, element_size) <= device[BLOCK_SHARED_BYTES]:
            shape = tried
    if selection.axis_size > shape.n_threads * shape.n_items:
        return UNSERVED
    kernel = kernel_key(TILE, element_size, shape.n_threads, shape.n_items)
    sizes = Sizes(selection.n_rows, shape.n_threads, dynamic_bytes(shape, element_size), 1)
    begin_rows(problem, device, selection, out, kernel, sizes)
    split(device, out)
    return end_unordered(problem, device, selection, out)
