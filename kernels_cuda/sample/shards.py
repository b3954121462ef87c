"""The kernel for shards of rows, whose stages `kernels_cpu.sample.problem_words` lists.

The largest element of a whole row is given, so that a shard is read once for the sum of its weights, and once
more, with the chunk that the token is in, if the token is in this shard.
"""

from typing import Any

from numba import cuda

from kernels_cpu.sample.problem_words import LARGEST
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, N_SCALE, fill_powers, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import COPIES, N_POWERS, THREADS, WARPS, Given, Parameters
from kernels_cuda.sample.requests import (
    N_ADDRESSES,
    N_REQUEST,
    find_row,
    put_request,
    put_token,
    request_in,
)
from kernels_cuda.sample.shared import team_functions, warp_sum
from kernels_cuda.sample.unfiltered import chunk_functions


@called_function
def _target_in(sums, p, shard, word_low, word_high):
    """Return what the running sum of a shard has to exceed; -1 if the token is in another one."""
    total = i64(0)
    for i in range(p.n):
        total += i64(ptx.read_u64(sums + i * p.x_step))
    target = ARITHMETIC.part(word_low, word_high, total)
    for i in range(shard):
        target -= i64(ptx.read_u64(sums + i * p.x_step))
    if not 0 <= target < i64(ptx.read_u64(sums + shard * p.x_step)):
        target = i64(-1)
    return target


def shards_kernel(element_size: int, cluster: int) -> Any:
    """Make the kernel for one element width, with so many blocks per row."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    team, chunks_of = team_functions(cluster), chunk_functions(element_size, cluster, has_least=True)
    read = ptx.READ[element_size]
    n_warps, n_powers = WARPS * cluster, N_POWERS * COPIES

    # Limit registers so that two blocks fit on a multiprocessor.
    @cuda.jit(max_registers=65536 // (2 * THREADS))
    def sample_shards(
        x,
        given: Given,
        output,
        p: Parameters,
        far,
    ):
        powers = cuda.shared.array(n_powers, i64)
        asked = cuda.shared.array(N_REQUEST, i64)
        scale = cuda.shared.array(N_SCALE, i64)
        sums = cuda.shared.array(n_warps, u64)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        rank = u32(0)
        if cluster > 1:
            rank = ptx.cluster_rank()
        warp = rank * WARPS + (thread >> 5)
        # Arrays tell the stage: `LARGEST` is one unless it is that of targets, `TARGET` in that of tokens.
        if p.formats.top_p != 0:
            fill_powers(powers, thread)
        ptx.grid_dependency_wait()
        is_drawn = p.formats.k != 0
        row = i64(cuda.blockIdx.x) // cluster
        while row < p.n_rows:
            find_row(row, x, given, output, p, far, addresses)
            at = addresses[0]
            if lane == 0:
                put_request(addresses, p, True, thread, asked, 0)
            team.meet()
            request = request_in(asked, 0, p, True)
            count = request.count
            is_mine = warp == 0
            found = u64(0)
            if p.formats.top_p == 0:
                found = u64(_target_in(at, p, count, request.word_low, request.word_high))
            else:
                largest = keys.key_of(read(addresses[2 + LARGEST]), p)
                if is_drawn:
                    found = ~u64(0)
                if keys.has_weight(largest, p) and (not is_drawn or count >= 0):
                    value = keys.value_of(keys.element_of(largest), p)
                    weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
                    vector, end, n_groups, per_chunk = chunks_of.divide(at, p, rank, thread)
                    chunks = chunks_of.sum(at, p, vector, n_groups, end, per_chunk, weighing, lane)
                    own = warp_sum(chunks)
                    total, before = chunks_of.sums_of_row(own, warp, lane, sums)
                    if not is_drawn:
                        found = total
                    elif u64(count) < total:
                        is_mine = before <= u64(count) < before + own
                        if is_mine:
                            found = chunks_of.draw(
                                at, p, vector, end, per_chunk, weighing, chunks, u64(count) - before
                            )
                            found += u64(p.values.seed)
            if is_mine and lane == 0:
                put_token(addresses[1], found, p)
            team.meet()
            row += i64(cuda.gridDim.x) // cluster

    return sample_shards
