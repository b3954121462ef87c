"""Indices: read, and brought into range; and the addresses of runs along up to two dimensions."""

from typing import Any

from kernels_cuda import ptx
from kernels_cuda.gather_nd.parameters import LEAST_LONG, LEAST_SHORT
from kernels_cuda.ptx import i32, i64, u32, u64
from kernels_cuda.runtime.compiler import device_function


def index_functions(index_size: int, is_long: bool) -> tuple[Any, Any, Any]:
    """Make what deals with indices of a size in registers of 32 bits, or of 64 if `is_long`.

    Returns
    -------
    register : Numba type
        Unsigned; sums in it wrap, so that a negative index too low for its bound ends up above it.
    read : device function
        ``read(address, least)`` returns the bits of an index.
    bring : device function
        ``bring(index, bound, least)`` returns the position that the index names, or the nearest there is,
        and whether it names one.

    Indices below `least` count from the end (`parameters.TupleParameters`).
    """
    register, signed = (u64, i64) if is_long else (u32, i32)
    without_sign = LEAST_LONG if is_long else LEAST_SHORT
    load_bits = ptx.READ[index_size]
    extends = is_long and index_size == 4

    @device_function
    def read_index(address, least):
        bits = load_bits(address)
        if extends and least != without_sign:
            return register(i64(i32(bits)))
        return bits

    @device_function
    def bring(index, bound, least):
        limit = register(bound)
        at = index + limit if signed(index) < signed(least) else index
        is_in_range = at < limit
        if not is_in_range:
            is_negative = signed(index) < 0 and signed(least) != without_sign
            at = register(0) if is_negative else limit - 1
        return at, is_in_range

    return register, read_index, bring


@device_function
def along(address, outer, inner, strides):
    """Return the address of a run in a tensor that begins at `address`."""
    return ptx.add_product(ptx.add_product(address, outer, strides[0]), inner, strides[1])
