"""Where runs along up to two dimensions are: the parameters from `plan_plain.plain_places`, and their use."""

from kernels_cuda import ptx
from kernels_cuda.gather_nd.sizes import PLAIN_COORDINATES, PLAIN_DIMS
from kernels_cuda.runtime.compiler import device_function

PLACE_TABLES = dict.fromkeys(("x_strides", "index_strides", "output_strides"), PLAIN_DIMS) | dict.fromkeys(
    ("bounds", "coordinate_strides"), PLAIN_COORDINATES
)


@device_function
def along(address, outer, inner, strides):
    """Return the address of a run in a tensor that begins at `address`."""
    return ptx.add_product(ptx.add_product(address, outer, strides[0]), inner, strides[1])
