"""The kernels as what the store compiles: known without Numba."""

from collections.abc import Iterator

from kernels_cuda.nonzero_coordinates.parameters import GENERAL_COLUMNS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.tables import TABLE_WRITER

# A function makes each kernel: its module and name.
_FACTORIES = {
    "small": "small:small_kernel",
    "mask": "masks:mask_kernel",
    "mask_strided": "masks:strided_mask_kernel",
    "mask_transposed": "transposed:mask_kernel",
    "count": "transposed:count_kernel",
    "scan": "expand:scan_kernel",
    "expand": "expand:expand_kernel",
}


def kernel(name: str, *parameters: int) -> Variant:
    """Return the kernel of a step, made with these parameters."""
    factory = f"kernels_cuda.nonzero_coordinates.{_FACTORIES[name]}"
    return Variant(f"nonzero_{name}", factory, parameters)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield kernel("scan")
    yield kernel("count")
    for element_size in (1, 2, 4, 8):
        for name in ("small", "mask", "mask_transposed"):
            yield kernel(name, element_size)
        for wide in (False, True):
            yield kernel("mask_strided", element_size, wide)
    for coordinate_size in (4, 8):
        for n_columns in (1, 2, 3, 4, GENERAL_COLUMNS):
            yield kernel("expand", n_columns, coordinate_size, False)
        yield kernel("expand", GENERAL_COLUMNS, coordinate_size, True)
