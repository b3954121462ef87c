"""What launches and kernels agree on: the kernels there are, sizes, and the integers that kernels take."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.kernel_keys import PARAMETER_BITS, KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import TABLE_WRITERS, WRITE_TABLE
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER, Variant

VECTOR = 16
"""Bytes that are loaded at a time."""
THREADS = 512
WARPS = THREADS // 32
FEW = 256
"""Elements that are listed in order: a half of the threads' maxima, so that the list of a random row fits."""
LIST = 1024
"""Elements at or above the threshold that a block has room for."""
BINS = 2048
DIGIT_BITS = BINS.bit_length() - 1
N_POWERS = 128
COPIES = 16
"""Copies of the table of powers, so that the 16 lanes that shared memory serves at a time use one each."""
NARROW_DEPTH = 3
"""Dimensions of rows that a launch has as values; those of more are in the workspace."""
FLOAT_SIZES = 2, 4, 8
CLUSTERS = 1, PORTABLE_CLUSTER
"""Blocks that may share a row."""

ROWS_KERNEL = 1
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("sample_rows", "kernels_cuda.sample.rows:rows_kernel", (int, int)),
)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield sample_variant(WRITE_TABLE)
    for element_size in FLOAT_SIZES:
        for cluster in CLUSTERS:
            yield sample_variant(kernel_key(ROWS_KERNEL, element_size, cluster))


def sample_variant(key: int) -> Variant:
    """Return the kernel that an integer stands for."""
    variant = variant_of(key, FAMILIES)
    cluster = key >> (2 * PARAMETER_BITS) if variant.parameters else 1
    if cluster == 1:
        return variant
    return variant._replace(cluster=cluster, since=CLUSTERS_FROM)


class Parameters(NamedTuple):
    """Parameters of `rows.sample_rows`."""

    n_rows: int
    n: int
    x_step: int
    """Bytes from an element to the next."""
    segment: int
    """Elements of a row that a warp adds up."""
    mantissa: int
    infinity: int
    index_size: int
    guessed_from: int
    """Elements of a row from which on a small k is first tried with a threshold from a part of them."""
    n_dims: int


class Given(NamedTuple):
    """One integer for each parameter of `sample`: an address, a format, or the value of a number."""

    seed: int
    step: int
    temperature: int
    k: int
    top_p: int
    min_p: int
