"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.gather_nd.parameters import PLANAR_UNITS, VECTOR
from kernels_cuda.layout import TABLE_WRITER
from kernels_cuda.runtime.variant import Variant

_FOLDER = "kernels_cuda.gather_nd"


def units(unit: int, index_size: int, wide: bool) -> Variant:
    """Return the kernel for units of some bytes of runs of any layout."""
    return Variant("gather_units", f"{_FOLDER}.units:units_kernel", (unit, index_size, wide))


def planar(unit: int, index_size: int, per_thread: int) -> Variant:
    """Return the kernel for units of runs along up to two dimensions."""
    return Variant("gather_planar", f"{_FOLDER}.planar:planar_kernel", (unit, index_size, per_thread))


def strided(element_size: int) -> Variant:
    """Return the kernel for runs that are strided in the input."""
    return Variant("gather_strided", f"{_FOLDER}.strided:strided_kernel", (element_size,))


def unaligned(index_size: int) -> Variant:
    """Return the kernel for contiguous runs that lie otherwise between 16-byte boundaries in the output."""
    return Variant("gather_unaligned", f"{_FOLDER}.unaligned:unaligned_kernel", (index_size,))


def check(index_size: int, is_long: bool) -> Variant:
    """Return the kernel that looks for index tuples out of range."""
    return Variant("gather_check", f"{_FOLDER}.check:check_kernel", (index_size, is_long))


def clear() -> Variant:
    """Return the kernel that says that no index tuple is out of range."""
    return Variant("gather_clear", f"{_FOLDER}.check:clear_kernel")


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield clear()
    for element_size in (1, 2, 4, 8):
        yield strided(element_size)
    for index_size in (4, 8):
        yield unaligned(index_size)
        for is_long in (True,) if index_size == 8 else (False, True):
            yield check(index_size, is_long)
        for unit in (1, 2, 4, 8, VECTOR):
            for per_thread in (1, PLANAR_UNITS):
                yield planar(unit, index_size, per_thread)
            for wide in (False, True):
                yield units(unit, index_size, wide)
