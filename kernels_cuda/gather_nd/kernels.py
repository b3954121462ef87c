"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.gather_nd.parameters import PLANAR_UNITS, VECTOR
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.tables import TABLE_WRITER


def kernel(name: str, *parameters: int) -> Variant:
    """Return the kernel of an algorithm, which the module of its name makes with these parameters."""
    return Variant(f"gather_{name}", f"kernels_cuda.gather_nd.{name}:{name}_kernel", parameters)


def clear() -> Variant:
    """Return the kernel that says that no index tuple is out of range."""
    return Variant("gather_clear", "kernels_cuda.gather_nd.check:clear_kernel")


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield clear()
    for element_size in (1, 2, 4, 8):
        yield kernel("strided", element_size)
    for index_size in (4, 8):
        yield kernel("unaligned", index_size)
        for is_long in (True,) if index_size == 8 else (False, True):
            yield kernel("check", index_size, is_long)
        for unit in (1, 2, 4, 8, VECTOR):
            for per_thread in (1, PLANAR_UNITS):
                yield kernel("planar", unit, index_size, per_thread)
            for wide in (False, True):
                yield kernel("units", unit, index_size, wide)
