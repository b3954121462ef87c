"""Rows of very different lengths: launches at the same time, each of which selects from rows of some lengths.

Few rows are long, and any may be. The blocks that run at a time are divided into groups, each of which has a
share of all rows. Each block of a group reads the windows of all of these, and takes its part of those that
are the launch's: where a group has as many blocks as such rows, each block has one.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.shared.rows import row_window
from kernels_cuda.top_k.shared.shapes import WARP_LANES

# A group takes runs of so many neighbouring rows. If rows are in order of length, longer runs would give one
# group all of the long ones; lengths of 8 bytes are read by 32.
_NEIGHBOURS = 4


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

    group_bits = n_threads.bit_length() - 1

    @device_function
    def groups_of(n_rows):
        """Return the number of groups, and of the blocks of each; blocks left over have no group.

        Each thread has one row, or more if there are as many groups as blocks.
        """
        # Recomputed: live values would cost a row its registers.
        n_blocks = ptx.same_u32(u32(cuda.gridDim.x))
        n_groups = u32(min(((n_rows - 1) >> group_bits) + 1, i64(n_blocks)))
        return n_groups, n_blocks // n_groups

    @device_function
    def row_of(number, p):
        """Return which of all rows is number `number` of a block's group."""
        n_groups, _ = groups_of(p.n_rows)
        block = u32(cuda.blockIdx.x)
        group = block - block // n_groups * n_groups
        among = number & u32(_NEIGHBOURS - 1)
        return i64(number - among) * n_groups + i64(group * u32(_NEIGHBOURS) + among)

    @linked_function
    def select_share(operands, areas, marks, p, more):
        _, windows, _, _, offsets = operands
        thread = u32(cuda.threadIdx.x)
        n_groups, n_members = groups_of(p.n_rows)
        # How many of the rows that come next are those of other blocks.
        n_skipped = u32(cuda.blockIdx.x) // n_groups
        is_member = n_skipped < n_members
        first = u32(0)
        while is_member and row_of(first, p) < p.n_rows:
            row = row_of(first + thread, p)
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
                while n_skipped < ptx.popcount_u32(marked):
                    while n_skipped > 0:
                        marked &= marked - u32(1)
                        n_skipped -= u32(1)
                    row = row_of(first + warp * WARP_LANES + ptx.trailing_zeros_u32(marked), p)
                    marked &= marked - u32(1)
                    select_row(operands, areas, row, p, more)
                    cuda.syncthreads()
                    _, n_members = groups_of(p.n_rows)
                    n_skipped = n_members - u32(1)
                n_skipped -= ptx.popcount_u32(marked)
                warp += 1
            # All have read the marks.
            cuda.syncthreads()
            first += u32(n_threads)

    return select_share
