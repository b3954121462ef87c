"""Where runs along up to two dimensions are: the parameters from `plan_plain.plain_places`, and their use."""

from kernels_cuda import ptx
from kernels_cuda.runtime.compiler import device_function


@device_function
def along(address, outer, inner, strides):
    """Return the address of a run in a tensor that begins at `address`."""
    return ptx.add_product(ptx.add_product(address, outer, strides[0]), inner, strides[1])
