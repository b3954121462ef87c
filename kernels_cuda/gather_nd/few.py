"""Few units of runs that are all a stride apart: a unit a thread, in as little code as that takes.

Such a launch ends when its first instructions have come in and two loads have followed each other: the kernel
for any layout, most of whose code would only be skipped, takes noticeably longer.
"""

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.gather_nd.indices import index_functions
from kernels_cuda.gather_nd.sizes import MOST_FEW_COORDINATES, THREADS, VECTOR
from kernels_cuda.offsets import arithmetic

u32 = types.uint32
i64 = types.int64


def few_source(unit: int, index_size: int) -> KernelSource:
    """Make the kernel."""
    is_vector = unit == VECTOR
    _, read_index, bring = index_functions(index_size, index_size == 8)
    _, divide = arithmetic(wide=False)
    read = ptx.READ[min(unit, 8)]
    store = ptx.STORE[min(unit, 8)]
    scalar = ptx.REGISTER[min(unit, 8)]

    @device_function
    def along(place, bound, stride, is_signed):
        """Return how far on the index at `place` leads, and whether it is in range."""
        index, is_in_range = bring(read_index(place, is_signed), bound, is_signed)
        return i64(index) * stride, is_in_range

    def gather_few(
        x,
        indices,
        output,
        n_units,
        units_a_run,
        multiplier,
        shift,
        x_stride,
        index_stride,
        output_stride,
        n_coordinates,
        coordinate_bytes,
        is_signed,
        clips,
        bounds,
        coordinate_strides,
    ):
        position = u32(u32(u32(cuda.blockIdx.x) * u32(THREADS)) + u32(cuda.threadIdx.x))
        if position >= u32(n_units):
            return
        run = divide(position, multiplier, shift)
        place = indices + i64(run) * index_stride
        offset, is_read = along(place, bounds[0], coordinate_strides[0], is_signed)
        # Not a loop, which the compiler would not unroll: columns have no addresses.
        if n_coordinates > 1:
            place += coordinate_bytes
            more, is_in_range = along(place, bounds[1], coordinate_strides[1], is_signed)
            offset += more
            is_read = is_read and is_in_range
        if n_coordinates > 2:
            place += coordinate_bytes
            more, is_in_range = along(place, bounds[2], coordinate_strides[2], is_signed)
            offset += more
            is_read = is_read and is_in_range
        within = i64(u32(u32(position - u32(run * u32(units_a_run))) * u32(unit)))
        source = x + i64(run) * x_stride + within + offset
        target = output + i64(run) * output_stride + within
        is_read = is_read or clips != 0
        if is_vector:
            a, b, c, d = ptx.load_if_u32x4(source, u32(is_read))
            ptx.store_u32x4(target, a, b, c, d)
        else:
            element = scalar(0)
            if is_read:
                element = read(source)
            store(target, element)

    return KernelSource(gather_few, dict.fromkeys(("bounds", "coordinate_strides"), MOST_FEW_COORDINATES))
