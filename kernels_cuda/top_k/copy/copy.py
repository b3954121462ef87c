"""All elements of each row, by ascending index: a copy of the rows, and the positions.

A block has a part of some rows, and each of its threads `COPIED_PER_THREAD` elements of one.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.top_k.copy.copy_launches import COPIED_PER_THREAD, CopyParameters
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import NO_INDEX, part_of


def copy_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    element_type = ptx.REGISTER[element_size]
    load_element = ptx.LOAD[element_size]
    find_row, write_result, _ = row_functions(element_size)

    @cuda.jit
    def copy_rows(x, windows: Windows, values, indices, offsets, p: RowParameters, c: CopyParameters):
        ptx.grid_dependency_wait()
        thread = u32(cuda.threadIdx.x)
        group, part = part_of(p.first + i64(cuda.blockIdx.x), c.n_parts)
        # Neighbouring threads have elements of the same row, or of rows that lie side by side.
        n_neighbours = u32(c.n_rows if c.is_transposed != 0 else c.n_lanes)
        row_of_block = thread // n_neighbours
        lane = thread - row_of_block * n_neighbours
        if c.is_transposed != 0:
            row_of_block, lane = lane, row_of_block
        row = group * c.n_rows + i64(row_of_block)
        if row >= p.n_rows:
            return
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        first = part * c.n_lanes * COPIED_PER_THREAD + i64(lane)
        elements = cuda.local.array(COPIED_PER_THREAD, element_type)
        for item in range(COPIED_PER_THREAD):
            at = first + item * c.n_lanes
            elements[item] = element_type(p.window_format.padding)
            if at < length:
                elements[item] = load_element(base + at * p.strides.x * element_size)
        for item in range(COPIED_PER_THREAD):
            at = first + item * c.n_lanes
            if at < p.axis_size:
                position = at if at < length else i64(NO_INDEX)
                write_result(values, indices, at, elements[item], position, p)

    return copy_rows
