"""Where a row and its results are, and how results are written: for kernels that select from whole rows."""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import i64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.shared.lengths import pad_function
from kernels_cuda.top_k.shared.rows import row_length, row_offsets, store_index


class RowFunctions(NamedTuple):
    """Device functions for one element width; `p` are the `launches.RowParameters` of a kernel.

    ``find_row(x, lengths, values, indices, offsets, row, p)`` returns the addresses of a row in x, values and
    indices, and how many elements it has. ``write_result(values, indices, rank, element, position, p)``
    writes its result number `rank`, and ``pad_results(values, indices, rank, step, p)`` fills up those of
    number `rank`, ``rank + step``, ... up to k.
    """

    find_row: Any
    write_result: Any
    pad_results: Any


@functools.cache
def row_functions(element_size: int) -> RowFunctions:
    """Make the functions for one element width."""
    store_element = ptx.STORE[element_size]
    pad_row = pad_function(element_size)

    @device_function
    def find_row(x, lengths, values, indices, offsets, row, p):
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        value_address = values + value_row * element_size
        return x + x_row * element_size, value_address, indices + index_row * p.index_size, length

    @device_function
    def write_result(values, indices, rank, element, position, p):
        store_element(values + i64(rank) * p.strides.values * element_size, element)
        at = indices + i64(rank) * p.strides.indices * p.index_size
        store_index(at, p.index_size, position)

    @device_function
    def pad_results(values, indices, rank, step, p):
        padding = p.length_format.padding
        pad_row(values, indices, p.strides, p.index_size, padding, i64(rank), i64(step), p.k)

    return RowFunctions(find_row, write_result, pad_results)
