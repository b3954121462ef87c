"""Reorder few selected elements of each row by ascending index, without reading the row again.

An algorithm has written the first k elements of each row, in order. A warp ranks their indices by counting,
and each value follows its index. The time depends on neither the row's length nor the indices.

A row with a length (`lengths`) has min(k, length) selected elements; its padding stays where it is.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.order_launches import REORDER_ITEMS, REORDER_THREADS
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.rows import load_index
from kernels_cuda.top_k.shared.shapes import WARP_LANES

_NOWHERE = 0xFFFFFFFF


def reorder_kernel(element_size: int) -> Any:
    """Make the kernel for one element width: one warp per row."""
    element_type = ptx.REGISTER[element_size]
    load_element = ptx.LOAD[element_size]
    find_row, write_result, _ = row_functions(element_size)

    @cuda.jit
    def reorder(windows: Windows, values, indices, offsets, p: RowParameters):
        ptx.grid_dependency_wait()
        lane = u32(cuda.threadIdx.x) & 31
        block = p.first + i64(cuda.blockIdx.x)
        row = block * (REORDER_THREADS // WARP_LANES) + i64(cuda.threadIdx.x >> 5)
        if row >= p.n_rows:
            return
        _, values, indices, length = find_row(i64(0), windows, values, indices, offsets, row, p)
        n_selected = u32(min(p.k, length))
        value_step = p.strides.values * element_size
        index_step = p.strides.indices * p.index_size
        found = cuda.local.array(REORDER_ITEMS, u32)
        elements = cuda.local.array(REORDER_ITEMS, element_type)
        ranks = cuda.local.array(REORDER_ITEMS, u32)
        for item in range(REORDER_ITEMS):
            at = lane + u32(item * WARP_LANES)
            found[item] = u32(_NOWHERE)
            ranks[item] = u32(0)
            if at < n_selected:
                address = indices.address + i64(at) * index_step
                found[item] = u32(load_index(address, p.index_size) - indices.start)
                elements[item] = load_element(values + i64(at) * value_step)
        for source in range(REORDER_ITEMS):
            other = u32(0)
            while other + u32(source * WARP_LANES) < n_selected and other < WARP_LANES:
                index = ptx.shuffle_from_u32(found[source], other)
                for item in range(REORDER_ITEMS):
                    ranks[item] += u32(index < found[item])
                other += 1
        # All lanes have loaded their elements before any lane overwrites one.
        cuda.syncwarp()
        for item in range(REORDER_ITEMS):
            if lane + u32(item * WARP_LANES) < n_selected:
                write_result(values, indices, ranks[item], elements[item], i64(found[item]), p)

    return reorder
