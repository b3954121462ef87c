"""The kernels there are, and the sizes and integers that launches and kernels agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cuda.kernel_keys import KernelFamily, kernel_key, variant_of
from kernels_cuda.layout import TABLE_WRITERS, WRITE_TABLE, Column
from kernels_cuda.runtime.variant import Variant

GRANULE = 16384  # elements that share a count; their positions fill 32 KiB of shared memory
CHUNK = 1024  # elements of a warp's 32 mask words
GENERAL_COLUMNS = 8  # columns that one launch writes when no kernel is made for their number

MASK_THREADS = 256
TRANSPOSED_THREADS = 256
FILLED_WORDS = 4  # words of a row that a lane of the transposed kernel fills
SCAN_THREADS = 1024
EXPAND_THREADS = 512
SMALL_THREADS = 1024
SMALL_FEWER_THREADS = 512
SMALL_IN_FLIGHT = 4  # elements that a thread of the small kernel loads, at most
SMALL_LIMIT = SMALL_THREADS * SMALL_IN_FLIGHT


# Kernels that read the input are compiled for an element size; `strided_mask_kernel` also for whether it is
# wide, and `expand_kernel` for the columns that it writes, the size of coordinates, and whether it is wide.
SMALL_KERNEL, MASK_KERNEL, MASK_STRIDED_KERNEL, MASK_TRANSPOSED_KERNEL = range(1, 5)
COUNT_KERNEL, SCAN_KERNEL, EXPAND_KERNEL = range(5, 8)
_MASKS, _ROWS = "kernels_cuda.nonzero_coordinates.masks", "kernels_cuda.nonzero_coordinates.rows"
FAMILIES = (
    TABLE_WRITERS,
    KernelFamily("nonzero_small", f"{_ROWS}:small_kernel", (int,)),
    KernelFamily("nonzero_mask", f"{_MASKS}:mask_kernel", (int,)),
    KernelFamily("nonzero_mask_strided", f"{_MASKS}:strided_mask_kernel", (int, bool)),
    KernelFamily("nonzero_mask_transposed", f"{_MASKS}:transposed_mask_kernel", (int,)),
    KernelFamily("nonzero_count", f"{_MASKS}:count_kernel"),
    KernelFamily("nonzero_scan", f"{_ROWS}:scan_kernel"),
    KernelFamily("nonzero_expand", f"{_ROWS}:expand_kernel", (int, int, bool)),
)


def _kernel_keys() -> Iterator[int]:
    yield WRITE_TABLE
    yield kernel_key(SCAN_KERNEL)
    yield kernel_key(COUNT_KERNEL)
    for element_size in (1, 2, 4, 8):
        for family in (SMALL_KERNEL, MASK_KERNEL, MASK_TRANSPOSED_KERNEL):
            yield kernel_key(family, element_size)
        for wide in (False, True):
            yield kernel_key(MASK_STRIDED_KERNEL, element_size, wide)
    for coordinate_size in (4, 8):
        for n_columns in (1, 2, 3, 4, GENERAL_COLUMNS):
            yield kernel_key(EXPAND_KERNEL, n_columns, coordinate_size, False)
        yield kernel_key(EXPAND_KERNEL, GENERAL_COLUMNS, coordinate_size, True)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    for key in _kernel_keys():
        yield variant_of(key, FAMILIES)


def block_elements(element_size: int) -> int:
    """Return how many elements a block reads of contiguous input: 64 KiB, but a granule at least."""
    return max(GRANULE, 65536 // element_size)


def small_threads(n_elements: int) -> int:
    """Return the threads of the small kernel: one per element, as far as a block goes.

    Half a block has less to wait for, and is enough where its threads take in the elements all at once.
    """
    most = SMALL_FEWER_THREADS if n_elements <= SMALL_FEWER_THREADS * SMALL_IN_FLIGHT else SMALL_THREADS
    return min(-(-n_elements // 32) * 32, most)


class Dims(NamedTuple):
    """The dimensions of the input, with strides in bytes."""

    n_dims: int
    multipliers: Column
    shifts: Column
    sizes: Column
    strides: Column


class Columns(NamedTuple):
    """The divisions that make the columns of a position, and what fills the columns of rows without one.

    A period is how many elements share a coordinate. Of up to four columns, the last one needs no division.
    """

    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    periods: tuple[int, ...]
    fills: tuple[int, ...]


class SmallParameters(NamedTuple):
    """Parameters of `nonzero_small`."""

    end: int
    magnitude: int
    capacity: int
    row_bytes: int
    column_bytes: int
    coordinate_size: int
    n_columns: int
    fills: int
    count_size: int


class MaskParameters(NamedTuple):
    """Parameters of the kernels of `masks`: elements from `skipped` to `end`, which count from a boundary."""

    skipped: int
    end: int
    magnitude: int


class TransposedMaskParameters(NamedTuple):
    """Parameters of `nonzero_mask_transposed`.

    A warp has 32 rows of `FILLED_WORDS` words: there are `n_row_tiles` times `n_word_tiles` of these units
    in a matrix.
    """

    magnitude: int
    n_units: int
    height: int
    n_row_tiles: int
    row_words: int
    n_word_tiles: int
    batch_bytes: int
    column_bytes: int


class ExpandParameters(NamedTuple):
    """Parameters of `nonzero_expand`."""

    n_granules: int
    granules_per_tile: int
    n_tiles: int
    """Granules in all, and tiles, of which each block has one."""
    skipped: int
    """Elements before the first, from a 16-byte boundary on."""
    capacity: int
    row_bytes: int
    column_bytes: int
    is_packed: int
    """Rows that may be written, their layout, and whether a row is written in vectors."""
    fills: int
    fills_cells: int
    """Whether the rows that are left are written, and whether that is one value in one piece."""
    count_size: int
    """Bytes of the count."""
    n_columns: int
    """Columns that are written."""
    multiplier: int
    shift: int
    period: int
    """The divisor that takes the columns before these away."""
