"""The kernel for top_p, min_p or a large k: one block, or one cluster of blocks, draws the token of a row."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.sample.arithmetic import N_SCALE, fill_powers, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import (
    BINS,
    COPIES,
    N_POWERS,
    THREADS,
    VECTOR,
    WARPS,
    Given,
    Parameters,
)
from kernels_cuda.sample.requests import (
    N_ADDRESSES,
    N_REQUEST,
    count_of,
    find_row,
    put_request,
    put_token,
    request_in,
)
from kernels_cuda.sample.selected import selected_functions
from kernels_cuda.sample.shared import N_DIGITS, N_REPORTS, Arrays, team_functions
from kernels_cuda.sample.shares import SHARE_BINS, most_candidates


def rows_kernel(element_size: int, cluster: int) -> Any:
    """Make the kernel for one element width, with so many blocks per row."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    team = team_functions(cluster)
    draw_selected = selected_functions(element_size, cluster)
    n_sums, n_room = 2 * WARPS * cluster, WARPS + 4
    n_reports = N_REPORTS * WARPS * cluster
    n_powers, n_bins, n_owners = N_POWERS * COPIES, max(BINS, SHARE_BINS), most_candidates(cluster)

    # Limit registers so that two blocks fit on a multiprocessor.
    @cuda.jit(max_registers=65536 // (2 * THREADS))
    def sample_rows(
        x,
        given: Given,
        output,
        p: Parameters,
        far,
    ):
        powers = cuda.shared.array(n_powers, i64)
        asked = cuda.shared.array(N_REQUEST, i64)
        scale = cuda.shared.array(N_SCALE, i64)
        bins = cuda.shared.array(n_bins, u64, VECTOR)
        sums = cuda.shared.array(n_sums, u64)
        room = cuda.shared.array(n_room, u64)
        reports = cuda.shared.array(n_reports, u64)
        owners = cuda.shared.array(n_owners, u32)
        digits = cuda.shared.array(N_DIGITS, u64)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        rank = u32(0)
        if cluster > 1:
            rank = ptx.cluster_rank()
            ptx.cluster_arrive_relaxed()
            ptx.cluster_wait()  # all blocks run
        arrays = Arrays(bins, sums, room, reports, owners, digits)
        ptx.grid_dependency_wait()
        is_ready = False
        row = i64(cuda.blockIdx.x) // cluster
        while row < p.n_rows:
            find_row(row, x, given, output, p, far, addresses)
            if not 0 < count_of(addresses, p) <= p.n_listed:
                if not is_ready:
                    fill_powers(powers, thread)  # ends with a barrier
                    is_ready = True
                at = addresses[0]
                # By some warps, while the others begin to read.
                if thread & 31 == 0:
                    put_request(addresses, p, True, thread, asked, 0)
                own = keys.largest(at, p, rank, thread)
                warp = rank * WARPS + (thread >> 5)
                largest = keys.largest_of_row(own, warp, thread & 31, reports)
                request = request_in(asked, 0, p, True)
                token = i64(-1)
                if keys.has_weight(largest, p):
                    value = keys.value_of(keys.element_of(largest), p)
                    weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
                    token = draw_selected(at, p, request, weighing, largest, rank, thread, arrays)
                if rank == 0 and thread == 0:
                    put_token(addresses[1], u64(token), p)
                team.meet()
            row += i64(cuda.gridDim.x) // cluster

    return sample_rows
