"""Where a row and its results are, and how results are written.

Rows may be windows: each has ``lengths[row]`` elements from position ``starts[row]`` on. Neither is known
before the kernels run: each asks for its row's (`rows.row_window`) when it begins, selects from these
elements, and fills the results up where they are fewer than k. Where an algorithm selects from parts of a row
first, the results of a part are filled up with elements that come last, so that they are as many for each.
"""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import i64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.rows import NO_INDEX, row_offsets, row_window, store_index


class RowIndices(NamedTuple):
    """The address of a row's indices, and the position at which the row begins: what is added to its own."""

    address: Any
    start: Any


class RowFunctions(NamedTuple):
    """Device functions for one element width; `p` are the `launches.RowParameters` of a kernel.

    ``find_row(x, windows, values, indices, offsets, row, p)`` returns the addresses of a row in x and values,
    its `RowIndices`, and how many elements it has. ``write_result(values, indices, rank, element, position,
    p)`` writes its result number `rank`, and ``pad_results(values, indices, rank, step, end, p)`` fills up
    those of number `rank`, ``rank + step``, ... below `end`.
    """

    find_row: Any
    write_result: Any
    pad_results: Any


@functools.cache
def row_functions(element_size: int) -> RowFunctions:
    """Make the functions for one element width."""
    element_type, store_element = ptx.REGISTER[element_size], ptx.STORE[element_size]

    @device_function
    def find_row(x, windows, values, indices, offsets, row, p):
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        start, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        base = x + (x_row + start * p.strides.x) * element_size
        row_indices = RowIndices(indices + index_row * p.index_size, start)
        return base, values + value_row * element_size, row_indices, length

    @device_function
    def write_result(values, indices, rank, element, position, p):
        store_element(values + i64(rank) * p.strides.values * element_size, element)
        at = indices.address + i64(rank) * p.strides.indices * p.index_size
        store_index(at, p.index_size, position + indices.start)

    @linked_function
    def pad(values, indices, strides, index_size, padding, rank, step, end):
        while rank < end:
            at = values + rank * strides.values * element_size
            store_element(at, element_type(padding))
            store_index(indices + rank * strides.indices * index_size, index_size, NO_INDEX)
            rank += step

    @device_function
    def pad_results(values, indices, rank, step, end, p):
        padding = p.window_format.padding
        pad(values, indices.address, p.strides, p.index_size, padding, i64(rank), i64(step), end)

    return RowFunctions(find_row, write_result, pad_results)
