"""The kernels there are, and the sizes and integers that launches and kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.kernel_keys import KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import TABLE_WRITERS, WRITE_TABLE
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER, Variant
from kernels_cuda.top_k.variants import variant_of as top_k_variant

VECTOR = 16
"""Bytes that are loaded at a time."""
THREADS = 512
WARPS = THREADS // 32
IN_FLIGHT = 4
"""Vectors of a thread in a group; the loops over whole groups load all of them before they use the first."""
GROUP = 32 * IN_FLIGHT
"""Vectors of a group, the least part of a segment that is added up by itself."""
PAIR = GROUP // 2
"""Vectors of half a group, of which each thread has two."""
MOST_LISTED = 256
"""The largest k for which `top_k` lists the elements that take part."""
MOST_LISTED_OF_GIVEN = 128
"""The same where k is an array: `top_k` lists as many for all rows."""
LISTED_WARPS = 4
"""Rows of a block whose elements are listed."""
BINS = 2048
DIGIT_BITS = BINS.bit_length() - 1
N_POWERS = 128
COPIES = 16
"""Copies of the table of powers, so that the 16 lanes that shared memory serves at a time use one each."""
SLOT_BYTES = VECTOR * THREADS
"""Shared memory for a vector of each thread."""
MOST_SLOTS = 10
"""The most vectors of a row that a thread keeps, an even number: two blocks share a multiprocessor."""
KEPT_BYTES = 21 << 10
"""Shared memory of the kernel that keeps rows, besides them, at most."""
NARROW_DEPTH = 3
"""Dimensions of rows that a launch has as values; those of more are in the workspace."""
FLOAT_SIZES = 2, 4, 8
CLUSTERS = 1, 2, 4, PORTABLE_CLUSTER
"""Blocks that may share a row: powers of two, as plans halve them, and kernels divide bins among them."""

ROWS_KERNEL, UNFILTERED_KERNEL, LISTED_KERNEL, SHARDS_KERNEL, KEPT_KERNEL = range(1, 6)
FROM_TOP_K = 1 << 62
"""This bit stands for a kernel of `top_k`, the others for its number there."""
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("sample_rows", "kernels_cuda.sample.rows:rows_kernel", (int, int)),
    KernelFamily("sample_unfiltered", "kernels_cuda.sample.unfiltered:unfiltered_kernel", (int, int)),
    KernelFamily("sample_listed", "kernels_cuda.sample.listed:listed_kernel", (int,)),
    KernelFamily("sample_shards", "kernels_cuda.sample.shards:shards_kernel", (int, int)),
    KernelFamily("sample_kept", "kernels_cuda.sample.kept:kept_kernel", (int, int)),
)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield sample_variant(WRITE_TABLE)
    for element_size in FLOAT_SIZES:
        yield sample_variant(kernel_key(LISTED_KERNEL, element_size))
        for cluster in CLUSTERS:
            yield sample_variant(kernel_key(ROWS_KERNEL, element_size, cluster))
            yield sample_variant(kernel_key(UNFILTERED_KERNEL, element_size, cluster))
            yield sample_variant(kernel_key(SHARDS_KERNEL, element_size, cluster))
        yield sample_variant(kernel_key(KEPT_KERNEL, element_size, PORTABLE_CLUSTER))


def sample_variant(key: int) -> Variant:
    """Return the kernel that an integer stands for."""
    if key & FROM_TOP_K != 0:
        return top_k_variant(key ^ FROM_TOP_K)
    variant = variant_of(key, FAMILIES)
    cluster = int(str(variant.parameters[1])) if len(variant.parameters) > 1 else 1
    if cluster == 1:
        return variant
    shared_bytes = MOST_SLOTS * SLOT_BYTES if variant.name == "sample_kept" else 0
    return variant._replace(cluster=cluster, since=CLUSTERS_FROM, dynamic_shared_bytes=shared_bytes)


class Given(NamedTuple):
    """One integer for each parameter of `sample`: an address, a format, or the value of a number."""

    seed: int
    step: int
    temperature: int
    k: int
    top_p: int
    min_p: int


class Dimension(NamedTuple):
    """A dimension of rows: its size, and the strides of all arrays in bytes."""

    size: int
    x: int
    output: int
    of: Given


class Dimensions(NamedTuple):
    """Up to `NARROW_DEPTH` dimensions, the fastest first."""

    first: Dimension
    second: Dimension
    third: Dimension


class Parameters(NamedTuple):
    """Parameters of all kernels."""

    n_rows: int
    n: int
    x_step: int
    """Bytes from an element to the next."""
    segment: int
    """Elements of a row that a warp adds up; 0 for `listed`, which has no segments."""
    mantissa: int
    infinity: int
    index_size: int
    n_listed: int
    """Elements of each row that `top_k` has listed, for rows with a k of at most as many."""
    n_dims: int
    formats: Given
    values: Given
    dims: Dimensions
