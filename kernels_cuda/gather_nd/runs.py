"""Where a run is in input and output, whatever its dimensions and strides."""

from typing import Any

from numba import types

from kernels_cuda.gather_nd.indices import index_functions
from kernels_cuda.offsets import offset_functions
from kernels_cuda.runtime.compiler import device_function

i64 = types.int64


def run_function() -> Any:
    """Make the function that reads a run's index tuple.

    It returns how far the run is from the beginning of input and output, and whether it is read.
    """
    _, read_short, bring = index_functions(4, True)
    _, read_long, _ = index_functions(8, True)
    _, _, three_offsets = offset_functions(wide=False)

    @device_function
    def along(place, index_size, bound, stride, least):
        """Return how far on the index at `place` leads, and whether it is in range."""
        index = read_long(place, least) if index_size == 8 else read_short(place, least)
        at, is_in_range = bring(index, bound, least)
        return i64(at) * stride, is_in_range

    @device_function
    def find_run(
        run,
        indices,
        n_coordinates,
        coordinate_bytes,
        index_size,
        least,
        clips,
        n_dims,
        multipliers,
        shifts,
        sizes,
        x_strides,
        index_strides,
        output_strides,
        bounds,
        coordinate_strides,
    ):
        x_at = i64(run) * x_strides[0]
        index_at = i64(run) * index_strides[0]
        output_at = i64(run) * output_strides[0]
        if n_dims > 1:
            x_at, index_at, output_at = three_offsets(
                run, n_dims, multipliers, shifts, sizes, x_strides, index_strides, output_strides
            )
        place = indices + index_at
        offset, is_read = along(place, index_size, bounds[0], coordinate_strides[0], least)
        # Not a loop, which the compiler would not unroll: columns have no addresses.
        if n_coordinates > 1:
            place += coordinate_bytes
            more, is_in_range = along(place, index_size, bounds[1], coordinate_strides[1], least)
            offset += more
            is_read = is_read and is_in_range
        if n_coordinates > 2:
            place += coordinate_bytes
            more, is_in_range = along(place, index_size, bounds[2], coordinate_strides[2], least)
            offset += more
            is_read = is_read and is_in_range
        if n_coordinates > 3:
            place += coordinate_bytes
            more, is_in_range = along(place, index_size, bounds[3], coordinate_strides[3], least)
            offset += more
            is_read = is_read and is_in_range
        return x_at + offset, output_at, is_read or clips != 0

    return find_run
