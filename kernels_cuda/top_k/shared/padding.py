"""Fill up results of which there are more than a row has elements: one block per row."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64
from kernels_cuda.top_k.shared.launches import RowParameters
from kernels_cuda.top_k.shared.order_launches import PADDING_THREADS
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import row_offsets


def padding_kernel(element_size: int) -> Any:
    """Make the kernel for one element width; it writes the results from number `p.k` to `end`."""
    _, _, pad_results = row_functions(element_size)

    @cuda.jit
    def pad_rows(values, indices, offsets, p: RowParameters, end):
        ptx.grid_dependency_wait()
        row = p.first + i64(cuda.blockIdx.x)
        _, value_row, index_row = row_offsets(p.layout, offsets, row)
        row_indices = RowIndices(indices + index_row * p.index_size, i64(0))
        rank = p.k + i64(cuda.threadIdx.x)
        pad_results(values + value_row * element_size, row_indices, rank, PADDING_THREADS, end, p)

    return pad_rows
