"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.layout import TABLE_WRITER
from kernels_cuda.runtime.variant import Variant

_FOLDER = "kernels_cuda.diagonal_matrix"


def rows(element_size: int) -> Variant:
    """Return the kernel for rows whose columns are contiguous."""
    return Variant("diagonal_rows", f"{_FOLDER}.rows:rows_kernel", (element_size,))


def strided(element_size: int) -> Variant:
    """Return the kernel for rows whose columns are strided in the input."""
    return Variant("diagonal_strided", f"{_FOLDER}.strided:strided_kernel", (element_size,))


def transposed(element_size: int) -> Variant:
    """Return the kernel for rows that are contiguous in the input, of columns that are in the output."""
    return Variant("diagonal_transposed", f"{_FOLDER}.transposed:transposed_kernel", (element_size,))


def elements(element_size: int, wide: bool) -> Variant:
    """Return the kernel for any layout."""
    return Variant("diagonal_elements", f"{_FOLDER}.elements:elements_kernel", (element_size, wide))


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    for element_size in (1, 2, 4, 8):
        yield rows(element_size)
        yield strided(element_size)
        yield transposed(element_size)
        for wide in (False, True):
            yield elements(element_size, wide)
