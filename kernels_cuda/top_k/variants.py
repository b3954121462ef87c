"""The kernels of top-k: all there are, and which one a plan means."""

import functools
from collections.abc import Iterator

from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.columns.columns_launches import columns_variants
from kernels_cuda.top_k.copy.copy_launches import copy_variants
from kernels_cuda.top_k.many_blocks.cluster_launches import cluster_variants
from kernels_cuda.top_k.many_blocks.grid_launches import grid_variants
from kernels_cuda.top_k.numbers.numbered_launches import numbered_variants
from kernels_cuda.top_k.numbers.sorted_launches import codes_variant, sorted_variants
from kernels_cuda.top_k.read_once.block_launches import block_variants
from kernels_cuda.top_k.read_once.one_pass_launches import one_pass_variants
from kernels_cuda.top_k.read_once.sampled_launches import sampled_variants
from kernels_cuda.top_k.rows_in_blocks.partition_launches import partition_variants
from kernels_cuda.top_k.shared.kernel_keys import MOST_PARAMETERS, NAMES, kernel_key, with_more
from kernels_cuda.top_k.shared.launches import offsets_variant
from kernels_cuda.top_k.shared.order_launches import order_variants
from kernels_cuda.top_k.shared.shapes import ELEMENT_SIZES
from kernels_cuda.top_k.short_rows.lanes_launches import lanes_variants
from kernels_cuda.top_k.short_rows.rounds_launches import rounds_variants
from kernels_cuda.top_k.sort.sort_launches import clear_variant, indices_variant, sort_variants


def variants() -> Iterator[Variant]:
    """List every compilable kernel once."""
    yield offsets_variant()
    yield clear_variant()
    yield indices_variant()
    yield codes_variant()
    yield from order_variants()
    for element_size in ELEMENT_SIZES:
        for variants_of in (
            rounds_variants,
            lanes_variants,
            partition_variants,
            one_pass_variants,
            sampled_variants,
            block_variants,
            cluster_variants,
            grid_variants,
            columns_variants,
            sort_variants,
            copy_variants,
            numbered_variants,
            sorted_variants,
        ):
            yield from variants_of(element_size)


def key_of(variant: Variant) -> int:
    """Return the number by which plans know a kernel."""
    name = NAMES.index(variant.name.removeprefix("top_k_").removeprefix("diagonal_"))
    unused = (0,) * (MOST_PARAMETERS - len(variant.parameters))
    first, second, third, fourth, fifth = (int(str(each)) for each in (*variant.parameters, *unused))
    return with_more(kernel_key(name, first, second, third), fourth, fifth)


@functools.cache
def _by_key() -> dict[int, Variant]:
    return {key_of(variant): variant for variant in variants()}


def variant_of(key: int) -> Variant:
    """Return the kernel that plans know by a number.

    Examples
    --------
    >>> variant_of(kernel_key(NAMES.index("block"), 4, 256, 0)).label
    'dmlops_top_k_block_4_256'
    """
    return _by_key()[key]
