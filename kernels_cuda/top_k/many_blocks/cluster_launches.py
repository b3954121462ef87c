"""The launches of `cluster`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.integers import ceil_div
from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import ARCH, BLOCK_SHARED_BYTES, MULTIPROCESSORS
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER, Variant
from kernels_cuda.top_k.policy import CLUSTER_BLOCKS
from kernels_cuda.top_k.problem import Selection, bounded_product
from kernels_cuda.top_k.shared.kernel_keys import CLUSTER, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, split, variant
from kernels_cuda.top_k.shared.shapes import (
    KIB,
    MOST_SHARED_BYTES,
    VECTOR_BYTES,
    WARP_LANES,
    bits_for,
)

# Blocks of a cluster have these threads, and a vector of a row for each of them in a step.
CLUSTER_THREADS = 1024
CLUSTER_WARPS = CLUSTER_THREADS // WARP_LANES
CLUSTER_STEP_BYTES = CLUSTER_THREADS * VECTOR_BYTES
LARGEST_CLUSTER = 16
# From this compute capability on (10 times the major version) there are small devices, which only portable
# clusters are sure to run on.
SMALL_DEVICES_FROM = 110
# Bins that keys are counted in: a thread has two of them.
CLUSTER_BINS = 2 * CLUSTER_THREADS
# The most that clusters order by value: the bins of a block have room for so many keys. By index, they write
# what they select at once, and k has no limit.
CLUSTER_LARGEST_K = 4096
# The fewest and the most selected elements that one block orders.
SMALLEST_CLUSTER_CHUNK = 128
LARGEST_CLUSTER_CHUNK = 1024
# A cluster selects few elements, of at most so many bytes each, if it has enough groups for each of them: a
# block has one per lane. There is room for so many candidates, and so many of one block.
SMALL_K_LARGEST_ELEMENT = 4
SMALL_K_GROUPS_PER_SELECTED = 4
SMALL_K_CANDIDATES = 256
SMALL_K_CANDIDATES_OF_BLOCK = 64
# Clusters run at the same time on this many eighths of the multiprocessors: those of a cluster are
# neighbours, and some are left over.
EIGHTHS_OF_MULTIPROCESSORS = 7
# A cluster runs within one GPC. Devices have at most so many, so that the largest has at least that share of
# the multiprocessors.
_MOST_GPCS = 8


class ClusterParameters(NamedTuple):
    """More parameters of `cluster.cluster_top_k`."""

    is_sorted: int
    """Whether results come by value, or by ascending index."""
    is_small_k: int
    """Whether k is small enough for few candidates."""
    cluster_bits: int
    """The bits of the number of blocks of a cluster."""
    step_bits: int
    """The bits of the number of elements that a cluster reads in a step, a vector per thread."""
    chunk_bits: int
    """The bits of the number of selected elements that one block orders."""


def cluster_sort_bytes(element_size: int) -> int:
    """Return the room for all keys that are ordered: in chunks, with a vector between them."""
    return CLUSTER_LARGEST_K * max(4, element_size) + LARGEST_CLUSTER * VECTOR_BYTES


def cluster_static_bytes(element_size: int) -> int:
    """Return the shared memory that the kernel has besides the keys of a row, at most."""
    chunk_bytes = LARGEST_CLUSTER_CHUNK * (max(4, element_size) + 4)
    return max(cluster_sort_bytes(element_size), 24 * KIB) + chunk_bytes + 512


def cluster_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    needed = MOST_SHARED_BYTES - cluster_static_bytes(element_size)
    needs = {"dynamic_shared_bytes": needed, "cluster": LARGEST_CLUSTER, "since": CLUSTERS_FROM}
    yield variant("cluster", "many_blocks.cluster:cluster_kernel", element_size, **needs)


def _fitting_cluster(device: Words, selection: Selection) -> int:
    """Return how many blocks a cluster has, or 0: the most that run at a time.

    All of them must have a whole step of work, unless few elements are selected, or so many that with half as
    many blocks each would have more than `SMALLEST_CLUSTER_CHUNK` of them to order.
    """
    most_blocks = EIGHTHS_OF_MULTIPROCESSORS * device[MULTIPROCESSORS] // 8
    n_ordered = 0 if selection.is_by_index else selection.k
    fewest, together, busy = 0, 0, 0
    for bits in range(bits_for(LARGEST_CLUSTER) + 1):
        n_blocks = 1 << bits
        if device[CLUSTER_BLOCKS] & n_blocks and _is_possible(device, selection, n_blocks):
            if fewest == 0:
                fewest = n_blocks
            if selection.n_rows <= most_blocks // n_blocks:
                together = n_blocks
                orders_many = n_blocks // 2 * SMALLEST_CLUSTER_CHUNK < n_ordered
                if n_blocks * CLUSTER_STEP_BYTES <= selection.row_bytes or orders_many:
                    busy = n_blocks
    most = together if together > 0 else fewest
    if most > 0 and _is_small_k(selection, most):
        return most
    return busy if busy > 0 else fewest


def _is_possible(device: Words, selection: Selection, n_blocks: int) -> bool:
    """Tell whether the device has such clusters, and these can hold a row and order what is selected."""
    arch: int = device[ARCH]
    is_large = arch < SMALL_DEVICES_FROM and n_blocks * _MOST_GPCS <= device[MULTIPROCESSORS]
    has_them = arch >= 10 * CLUSTERS_FROM[0] and (n_blocks <= PORTABLE_CLUSTER or is_large)
    most = min(CLUSTER_LARGEST_K, n_blocks * LARGEST_CLUSTER_CHUNK)
    room = device[BLOCK_SHARED_BYTES] - cluster_static_bytes(selection.element_size)
    holds_row = _n_steps(selection, n_blocks) <= room // CLUSTER_STEP_BYTES
    return has_them and holds_row and (selection.is_by_index == 1 or selection.k <= most)


def _is_small_k(selection: Selection, n_blocks: int) -> bool:
    """Tell whether k is small enough for so many blocks to find few candidates."""
    has_groups = selection.k <= n_blocks * WARP_LANES // SMALL_K_GROUPS_PER_SELECTED
    return has_groups and selection.element_size <= SMALL_K_LARGEST_ELEMENT


def _n_steps(selection: Selection, n_blocks: int) -> int:
    """Return in how many steps so many blocks read a row."""
    return ceil_div(selection.row_bytes, n_blocks * CLUSTER_STEP_BYTES)


def cluster_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a cluster."""
    n_blocks = _fitting_cluster(device, selection)
    if n_blocks == 0:
        return UNSERVED
    element_size = selection.element_size
    n_bytes = _n_steps(selection, n_blocks) * CLUSTER_STEP_BYTES
    kernel = kernel_key(CLUSTER, element_size, 0, 0)
    sizes = Sizes(bounded_product(selection.n_rows, n_blocks), CLUSTER_THREADS, n_bytes, n_blocks)
    begin_rows(problem, device, selection, out, kernel, sizes)
    chunk = max(SMALLEST_CLUSTER_CHUNK, ceil_div(selection.k, n_blocks))
    parameters = ClusterParameters(
        1 - selection.is_by_index,
        int(_is_small_k(selection, n_blocks)),
        bits_for(n_blocks),
        bits_for(n_blocks * CLUSTER_STEP_BYTES // element_size),
        bits_for(chunk),
    )
    put_values(out, parameters)
    return split(device, out)
