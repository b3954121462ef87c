"""Rows of very different lengths: launches at the same time, each of which selects from rows of some lengths.

Few rows are long. The blocks that run at a time share them: each reads the windows of its share of all rows,
and selects from those that are the launch's, one after the other.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.rows import row_window
from kernels_cuda.top_k.shared.shapes import WARP_LANES


@device_function
def begin_beside_others():
    """Begin beside the launch before this one, which writes nothing that is read; one block ends after it.

    That launch began when the one before it had ended, or in the same way.
    """
    ptx.let_next_launch_begin()
    if cuda.blockIdx.x == 0:
        ptx.grid_dependency_wait_only()


def share_of_rows(n_threads: int, select_row: Any) -> Any:
    """Make the device function of a block; ``select_row(operands, areas, row, p, more)`` has barriers.

    `marks` is the address of a word of shared memory for each warp.
    """
    n_warps = n_threads // WARP_LANES

    @linked_function
    def select_share(operands, areas, marks, p, more):
        _, windows, _, _, offsets = operands
        thread = u32(cuda.threadIdx.x)
        n_blocks = i64(cuda.gridDim.x)
        first = i64(cuda.blockIdx.x)
        while first < p.n_rows:
            row = first + i64(thread) * n_blocks
            length = i64(-1)
            if row < p.n_rows:
                _, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
            marked = ptx.ballot(u32(p.window_format.least <= length <= p.window_format.most))
            if thread & 31 == 0:
                ptx.store_shared_u32(marks + (thread >> 5 << 2), marked)
            cuda.syncthreads()
            warp = u32(0)
            while warp < n_warps:
                marked = ptx.load_shared_u32(marks + (warp << 2))
                while marked != 0:
                    place = warp * WARP_LANES + ptx.trailing_zeros_u32(marked)
                    marked &= marked - 1
                    select_row(operands, areas, first + i64(place) * n_blocks, p, more)
                    cuda.syncthreads()
                warp += 1
            # All have read the marks.
            cuda.syncthreads()
            first += n_threads * n_blocks

    return select_share
