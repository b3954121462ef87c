"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.layout import TABLE_WRITER
from kernels_cuda.nonzero_coordinates.parameters import GENERAL_COLUMNS
from kernels_cuda.runtime.variant import Variant

_FOLDER = "kernels_cuda.nonzero_coordinates"


def small(element_size: int) -> Variant:
    """Return the kernel that does everything for few elements."""
    return Variant("nonzero_small", f"{_FOLDER}.small:small_kernel", (element_size,))


def mask(element_size: int) -> Variant:
    """Return the kernel for the mask of contiguous input."""
    return Variant("nonzero_mask", f"{_FOLDER}.masks:mask_kernel", (element_size,))


def strided_mask(element_size: int, wide: bool) -> Variant:
    """Return the kernel for the mask of input of any layout."""
    return Variant("nonzero_mask_strided", f"{_FOLDER}.masks:strided_mask_kernel", (element_size, wide))


def transposed_mask(element_size: int) -> Variant:
    """Return the kernel for the mask of matrices whose columns are contiguous."""
    return Variant("nonzero_mask_transposed", f"{_FOLDER}.transposed:mask_kernel", (element_size,))


def count() -> Variant:
    """Return the kernel that counts the bits of a mask."""
    return Variant("nonzero_count", f"{_FOLDER}.transposed:count_kernel")


def scan() -> Variant:
    """Return the kernel that adds up counts."""
    return Variant("nonzero_scan", f"{_FOLDER}.expand:scan_kernel")


def expand(n_columns: int, coordinate_size: int, wide: bool) -> Variant:
    """Return the kernel that writes rows of coordinates."""
    return Variant("nonzero_expand", f"{_FOLDER}.expand:expand_kernel", (n_columns, coordinate_size, wide))


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield scan()
    yield count()
    for element_size in (1, 2, 4, 8):
        yield small(element_size)
        yield mask(element_size)
        yield transposed_mask(element_size)
        for wide in (False, True):
            yield strided_mask(element_size, wide)
    for coordinate_size in (4, 8):
        for n_columns in (1, 2, 3, 4, GENERAL_COLUMNS):
            yield expand(n_columns, coordinate_size, wide=False)
        yield expand(GENERAL_COLUMNS, coordinate_size, wide=True)
