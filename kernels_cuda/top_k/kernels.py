"""The kernels that top-k can be made of, as what the store compiles: known without Numba."""

from collections.abc import Iterator
from typing import Any

from kernels_cuda.runtime.variant import CLUSTERS_FROM, Variant
from kernels_cuda.top_k.shared import shapes
from kernels_cuda.top_k.shared.policy import (
    BLOCK_THREADS,
    ELEMENT_SIZES,
    PARTITION_SHAPES,
    ROUNDS_SHAPES,
    SAMPLED_FROM,
    TILE_SHAPES,
    ByIndexPolicy,
    ColumnsPolicy,
    SampledPolicy,
    WarpPolicy,
    block_shape,
)

# Blocks may have this of shared memory on the devices that have most of it.
MOST_SHARED_BYTES = 227 << 10
# Bytes of a position in the workspace of a sort: 8 for rows of 2^30 and more elements.
POSITION_SIZES = (4, 8)


def _variant(name: str, factory: str, *given: Any, **options: Any) -> Variant:
    return Variant(f"top_k_{name}", f"kernels_cuda.top_k.{factory}", *given, **options)


def warp(element_size: int, row_elements: int) -> Variant:
    """Return the kernel for short rows, up to `row_elements` elements."""
    parameters = element_size, shapes.vectors_per_lane(element_size, row_elements)
    return _variant("warp", "short_rows.warp:warp_kernel", parameters)


def rounds(element_size: int, shape: shapes.RoundsShape) -> Variant:
    """Return the kernel for short rows and a small k."""
    parameters = element_size, *shape
    return _variant("rounds", "short_rows.rounds:rounds_kernel", parameters)


def block(element_size: int, n_threads: int) -> Variant:
    """Return the kernel of one block of `n_threads` per row."""
    dynamic_bytes = block_shape(element_size, n_threads, MOST_SHARED_BYTES).dynamic_bytes
    parameters = element_size, n_threads
    return _variant("block", "read_once.block:block_kernel", parameters, dynamic_bytes)


def maxima(element_size: int) -> Variant:
    """Return the kernel for group maxima of long rows."""
    return _variant("maxima", "many_blocks.grid:maxima_kernel", (element_size,))


def transposed_maxima(element_size: int) -> Variant:
    """Return the kernel for group maxima of rows that lie side by side."""
    return _variant(
        "transposed_maxima",
        "many_blocks.grid:transposed_maxima_kernel",
        (element_size,),
    )


def cluster(element_size: int) -> Variant:
    """Return the kernel of one cluster of blocks per row."""
    factory = "many_blocks.cluster:cluster_kernel"
    dynamic_bytes = MOST_SHARED_BYTES - shapes.cluster_static_bytes(element_size)
    blocks = shapes.LARGEST_CLUSTER
    return _variant("cluster", factory, (element_size,), dynamic_bytes, blocks, CLUSTERS_FROM)


def one_pass(element_size: int, n_threads: int) -> Variant:
    """Return the kernel of one block per row, which reads it once."""
    factory = "read_once.one_pass:one_pass_kernel"
    return _variant("one_pass", factory, (element_size, n_threads))


def columns(element_size: int) -> Variant:
    """Return the kernel for rows that are columns in memory."""
    shared_bytes = ColumnsPolicy.block_bytes
    return _variant("columns", "columns.columns:columns_kernel", (element_size,), shared_bytes)


def tile(element_size: int, shape: shapes.TileShape) -> Variant:
    """Return the kernel that sorts a row in a block."""
    dynamic_bytes = shape.dynamic_bytes(element_size)
    return _variant(
        "tile",
        "rows_in_blocks.tile:tile_kernel",
        (element_size, *shape),
        dynamic_bytes,
    )


def sample(element_size: int) -> Variant:
    """Return the kernel that chooses thresholds from samples of rows."""
    factory, dynamic_bytes = (
        "read_once.sampled_threshold:sample_kernel",
        SampledPolicy.sample_bytes,
    )
    return _variant("sample", factory, (element_size,), dynamic_bytes, since=SAMPLED_FROM)


def list_candidates(element_size: int) -> Variant:
    """Return the kernel that lists the elements at or above the thresholds."""
    factory = "read_once.sampled:list_kernel"
    return _variant("list", factory, (element_size,), since=SAMPLED_FROM)


def finish(element_size: int) -> Variant:
    """Return the kernel that selects from what has been listed."""
    factory = "read_once.sampled_finish:finish_kernel"
    return _variant("finish", factory, (element_size,), MOST_SHARED_BYTES, since=SAMPLED_FROM)


def partition(element_size: int, shape: shapes.PartitionShape) -> Variant:
    """Return the kernel that selects from a row in the registers of a block."""
    most_sorted = min(shape.n_elements, shapes.SORTED_PAIRS)
    dynamic_bytes = max(
        shape.dynamic_bytes(element_size, shape.n_elements, is_sorted=False),
        shape.dynamic_bytes(element_size, most_sorted, is_sorted=True),
    )
    dynamic_bytes = min(dynamic_bytes, MOST_SHARED_BYTES - shapes.PARTITION_STATIC_BYTES)
    parameters = element_size, *shape
    return _variant(
        "partition",
        "rows_in_blocks.partition:partition_kernel",
        parameters,
        dynamic_bytes,
    )


def clear() -> Variant:
    """Return the kernel that empties what a sort counts in."""
    return _variant("clear", "sort.sort:clear_kernel")


def histogram(element_size: int) -> Variant:
    """Return the kernel that counts all digits of a sort."""
    return _variant("histogram", "sort.sort:histogram_kernel", (element_size,))


def sort(element_size: int, position_size: int, tile: shapes.SortTile) -> Variant:
    """Return the kernel for one pass of a sort."""
    dynamic_bytes = tile.n_elements * shapes.pair_bytes(element_size, position_size)
    parameters = element_size, position_size, *tile
    return _variant("sort", "sort.sort:sort_kernel", parameters, dynamic_bytes)


def offsets() -> Variant:
    """Return the kernel that fills the table of row offsets."""
    return _variant("offsets", "shared.rows:offsets_kernel")


def by_index(element_size: int, n_threads: int) -> Variant:
    """Return the kernel that reorders selected elements by index in blocks of `n_threads`."""
    factory = "shared.by_index:by_index_kernel"
    return _variant("by_index", factory, (element_size, n_threads))


def reorder_few(n_items: int) -> Variant:
    """Return the kernel that reorders `n_items` selected elements per lane by index, without the rows."""
    return _variant("reorder_few", "shared.reorder:few_kernel", (n_items,))


def reorder_many(shape: shapes.TileShape) -> Variant:
    """Return the kernel that reorders as many selected elements as a tile holds."""
    return _variant("reorder", "shared.reorder:many_kernel", tuple(shape))


def variants() -> Iterator[Variant]:
    """List every compilable kernel once."""
    yield offsets()
    yield clear()
    for n_items in shapes.REORDER_ITEMS:
        yield reorder_few(n_items)
    for reordered in ByIndexPolicy.reorder_shapes:
        yield reorder_many(reordered)
    for element_size in ELEMENT_SIZES:
        yield maxima(element_size)
        yield transposed_maxima(element_size)
        yield columns(element_size)
        yield cluster(element_size)
        for row_elements in WarpPolicy.row_elements:
            yield warp(element_size, row_elements)
        for shape in ROUNDS_SHAPES[element_size]:
            yield rounds(element_size, shapes.RoundsShape(*shape))
        for n_threads in BLOCK_THREADS:
            yield block(element_size, n_threads)
        for shape in TILE_SHAPES[element_size]:
            yield tile(element_size, shapes.TileShape(*shape))
        for shape in PARTITION_SHAPES[element_size]:
            yield partition(element_size, shapes.PartitionShape(*shape))
        for position_size in POSITION_SIZES:
            for sort_tile in shapes.SORT_TILES[shapes.pair_bytes(element_size, position_size)]:
                yield sort(element_size, position_size, sort_tile)
        yield histogram(element_size)
        for n_threads in shapes.BY_INDEX_THREADS:
            yield by_index(element_size, n_threads)
        if element_size in shapes.ONE_PASS_ELEMENTS:
            for n_threads in shapes.ONE_PASS_THREADS:
                yield one_pass(element_size, n_threads)
        if element_size > 1:
            yield list_candidates(element_size)
            yield sample(element_size)
            yield finish(element_size)
