"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.layout import TABLE_WRITER
from kernels_cuda.runtime.variant import Variant


def kernel(name: str, *parameters: int) -> Variant:
    """Return the kernel of the module `name`, made for an element size and what tells its variants apart."""
    return Variant(f"diagonal_{name}", f"kernels_cuda.diagonal_matrix.{name}:{name}_kernel", parameters)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    for element_size in (1, 2, 4, 8):
        yield kernel("transposed", element_size)
        for flag in (False, True):
            yield kernel("rows", element_size, flag)
            yield kernel("elements", element_size, flag)
