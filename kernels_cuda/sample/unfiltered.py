"""The kernel for rows without k, top_p and min_p: all elements take part.

A block, or a cluster of blocks, finds the largest element of a row. Then each warp adds up the weights of its
segment, in up to 32 chunks. The warp whose segment holds the token finds the chunk that does, and reads it
again, while the others begin with the next row.

A chunk is one group of vectors or more (`keys.Groups`). Almost all groups are whole: every vector lies within
the row. These have a loop of their own, without the bounds checks and the code for partial vectors. All other
groups, called ragged, take a slower function: the row's first and last ones, each warp's last one where
segments are not multiples of a group, and all groups of rows whose elements are not contiguous. A chunk may
have groups of both kinds, so the two sums are added.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.arithmetic import (
    ARITHMETIC,
    EMPTY_SUM,
    N_SCALE,
    add_vector,
    fill_powers,
    weigh_functions,
    weight_of_element,
)
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import (
    COPIES,
    GROUP,
    IN_FLIGHT,
    N_POWERS,
    PAIR,
    THREADS,
    VECTOR,
    WARPS,
    Given,
    Parameters,
)
from kernels_cuda.sample.requests import (
    N_ADDRESSES,
    N_REQUEST,
    find_row,
    put_request,
    put_token,
    request_in,
)
from kernels_cuda.sample.shared import (
    count_lanes,
    lane_with,
    team_functions,
    warp_inclusive_sum,
    warp_sum,
    warp_sum_below_2_53,
)

_ROWS = 32  # whose parameters the lanes of a warp prepare at a time


class ChunkFunctions(NamedTuple):
    """The device functions that add up the weights of a warp's segment, and find the token in it.

    A segment has up to 32 chunks, one for each lane to keep the sum of.
    """

    divide: Any
    """The thread's first vector, the end of its segment, the segment's groups, and the groups of a chunk."""
    sum: Any
    """The sum of chunk i of the segment, in lane i."""
    sums_of_row: Any
    """The sum of a row, and that of the segments before this one."""
    draw: Any
    """The token of a row; only the warp whose segment holds it calls."""
    draw_in_chunk: Any
    """The token, searched for from a chunk's first vector on."""
    vector_sum: Any
    """The sum of the weights of a vector."""
    pair_sum: Any
    """The sum of the weights of two vectors, if `Weighing.is_fast`."""


def chunk_functions(element_size: int, cluster: int, *, has_least: bool = False) -> ChunkFunctions:
    """Make the functions for one element width; with `has_least`, weights below `Weighing.least` are 0."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    any_weight, per_vector = weight_of_element(keys, weigh), keys.per_vector
    fast_sum = add_vector(keys, weigh, has_least=has_least)
    team, n_warps = team_functions(cluster), WARPS * cluster
    per_lane = max(n_warps // 32, 1)

    @device_function
    def divide(at, p, rank, thread):
        vector, end = keys.segment_of(at, p, rank, thread)
        first = vector - (thread & 31)
        n_groups = u32(0)
        if first < end:
            n_groups = (end - first + u32(GROUP - 1)) // u32(GROUP)
        return vector, end, n_groups, max((n_groups + 31) >> 5, u32(1))

    @device_function
    def sums_of_row(own, warp, lane, sums):
        """Return the sum of a row, and that of the segments before this one."""
        team.put_all(sums, warp, own, lane)
        team.meet()
        total = u64(0)
        before = u64(0)
        for i in range(per_lane):
            other = i * 32 + lane
            if other < n_warps:
                total += sums[other]
                if other < warp:
                    before += sums[other]
        return warp_sum(total), warp_sum(before)

    @called_function
    def vector_sum(words, p, weighing):
        """Return the sum of the weights of a vector."""
        # For vectors of two elements, the fast sum is not worth its code.
        if per_vector > 2 and weighing.is_fast:
            return fast_sum(words, p, weighing, u64(EMPTY_SUM)) - u64(EMPTY_SUM)
        total = u64(0)
        # Not unrolled: weighing takes much code.
        left = ptx.same_u32(u32(per_vector))
        while left > 0:
            left -= 1
            total += any_weight(keys.element_in(words, u32(0)), p, weighing)
            words = keys.shifted(words)
        return total

    @device_function
    def pair_sum(pair, p, weighing):
        """Return the sum of the weights of two vectors, if `Weighing.is_fast`."""
        first, second = pair
        empty = u64(EMPTY_SUM)
        return fast_sum(first, p, weighing, empty) + fast_sum(second, p, weighing, empty) - (empty + empty)

    @called_function
    def ragged_chunks(at, p, vector, n_groups, end, per_chunk, weighing, lane):
        """Return the sums of the chunks' ragged groups, chunk i in lane i, if `Weighing.is_fast`.

        They come before and after the whole groups, which the loop skips.
        """
        groups = keys.groups_of(at, p, vector, end)
        own = u64(0)
        number = u32(0)
        while number < n_groups:
            if number == groups.begin:
                number = u32(number + groups.n_whole)
            if number < n_groups:
                total = u64(0)
                # Not unrolled: few groups are ragged, and the code for partial vectors is long.
                left = ptx.same_u32(u32(2))
                while left > 0:
                    left -= 1
                    pair = keys.any_pair(at, p, u32(vector + number * GROUP + left * PAIR), end)
                    total += pair_sum(pair, p, weighing)
                total = warp_sum_below_2_53(total)
                if lane == number // per_chunk:
                    own += total
            number = u32(number + 1)
        return own

    @device_function
    def whole_chunks(at, p, vector, end, per_chunk, weighing, lane):
        """Return the sums of the chunks' whole groups, chunk i in lane i, if `Weighing.is_fast`.

        Groups are read backward, because the search for the largest element has left the last ones in the
        cache. While one pair of vectors is added up, the other is read.
        """
        groups = keys.groups_of(at, p, vector, end)
        own = u64(0)
        number = u32(groups.begin + groups.n_whole)
        address = groups.address + i64(u32(number - 1)) * (GROUP * VECTOR)
        if number > groups.begin:
            first, second = keys.whole_pair(address), keys.whole_pair(address + PAIR * VECTOR)
            while number > groups.begin:
                chunk = u32(number - 1) // u32(per_chunk)
                stop = max(u32(chunk * per_chunk), groups.begin)
                total = u64(0)
                while number > stop:
                    number = u32(number - 1)
                    # Read the group before this one. The first has none, and is read again: no branch.
                    address = groups.address + i64(max(number, u32(groups.begin + 1)) - 1) * (GROUP * VECTOR)
                    total += pair_sum(first, p, weighing)
                    first = keys.whole_pair(address)
                    total += pair_sum(second, p, weighing)
                    second = keys.whole_pair(address + PAIR * VECTOR)
                total = warp_sum_below_2_53(total)
                if lane == chunk:
                    own = total
        return own

    @called_function
    def slow_chunks(at, p, vector, n_groups, end, per_chunk, weighing, lane):
        """Do what `sum_chunks` does, with any weights."""
        own = u64(0)
        n_vectors, per_chunk = n_groups * IN_FLIGHT, per_chunk * IN_FLIGHT
        for i in range(n_vectors):
            total = vector_sum(keys.load(at, p, vector + 32 * u32(i), end), p, weighing)
            total = warp_sum_below_2_53(total)
            if lane == u32(i) // per_chunk:
                own += total
        return own

    @device_function
    def sum_chunks(at, p, vector, n_groups, end, per_chunk, weighing, lane):
        """Return, in lane i, the sum of the weights of chunk i."""
        if weighing.is_fast:
            return ragged_chunks(at, p, vector, n_groups, end, per_chunk, weighing, lane) + whole_chunks(
                at, p, vector, end, per_chunk, weighing, lane
            )
        return slow_chunks(at, p, vector, n_groups, end, per_chunk, weighing, lane)

    @called_function
    def draw_in_segment(at, p, vector, end, per_chunk, weighing, own, target):
        """Return the token of a row; the warp whose segment it is in calls."""
        lane = u32(cuda.threadIdx.x) & 31
        inclusive = warp_inclusive_sum(own, lane)
        chunk, target = lane_with(own, inclusive, target)
        return draw_in_chunk(at, p, vector + chunk * per_chunk * GROUP, end, weighing, target)

    @called_function
    def draw_in_chunk(at, p, vector, end, weighing, target):
        """Return the element at which the running sum of weights exceeds a target.

        The sum begins with the chunk, of which `vector` is the lane's first one.
        """
        lane = u32(cuda.threadIdx.x) & 31
        ahead = keys.load(at, p, vector, end)
        token = u64(0)
        is_found = False
        while not is_found and vector - lane < end:
            words = ahead
            ahead = keys.load(at, p, vector + 32, end)
            found = vector_sum(words, p, weighing)
            total = warp_sum_below_2_53(found)
            if target < total:
                is_found = True
                inclusive = warp_inclusive_sum(found, lane)
                owner, target = lane_with(found, inclusive, target)
                number = element_with(words, owner, p, weighing, target)
                first = ptx.shuffle_from_u32(u32(vector), owner)
                token = u64(u32(first * per_vector + number) - keys.skipped(at, p))
            target -= total
            vector += 32
        return token

    @device_function
    def element_with(words, owner, p, weighing, target):
        """Return the number of the element that a target is in, in the vector of lane `owner`.

        Each lane weighs one element of that vector.
        """
        lane = u32(cuda.threadIdx.x) & 31
        words = ptx.shuffle_from_u64(words[0], owner), ptx.shuffle_from_u64(words[1], owner)
        weight = any_weight(keys.element_in(words, lane & (per_vector - 1)), p, weighing)
        if lane >= per_vector:
            weight = u64(0)
        inclusive = warp_inclusive_sum(weight, lane)
        return count_lanes(inclusive <= target)

    return ChunkFunctions(
        divide, sum_chunks, sums_of_row, draw_in_segment, draw_in_chunk, vector_sum, pair_sum
    )


def unfiltered_kernel(element_size: int, cluster: int) -> Any:
    """Make the kernel for one element width, with so many blocks per row."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    team = team_functions(cluster)
    chunks_of = chunk_functions(element_size, cluster)
    n_warps, n_powers = WARPS * cluster, N_POWERS * COPIES
    n_asked = _ROWS * N_REQUEST

    # Limit registers so that two blocks fit on a multiprocessor.
    @cuda.jit(max_registers=65536 // (2 * THREADS))
    def sample_unfiltered(
        x,
        given: Given,
        output,
        p: Parameters,
        far,
    ):
        powers = cuda.shared.array(n_powers, i64)
        asked = cuda.shared.array(n_asked, i64)
        scale = cuda.shared.array(N_SCALE, i64)
        maxima = cuda.shared.array(n_warps, u64)
        sums = cuda.shared.array(n_warps, u64)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        rank = u32(0)
        if cluster > 1:
            rank = ptx.cluster_rank()
            ptx.cluster_arrive_relaxed()
        warp = rank * WARPS + (thread >> 5)
        fill_powers(powers, thread)  # ends with a barrier
        if cluster > 1:
            ptx.cluster_wait()  # all blocks run
        ptx.grid_dependency_wait()
        n_teams = i64(cuda.gridDim.x) // cluster
        row = i64(cuda.blockIdx.x) // cluster
        while row < p.n_rows:
            # Each lane finds one of the block's next 32 rows.
            find_row(
                min(row + i64(lane) * n_teams, p.n_rows - 1),
                x,
                given,
                output,
                p,
                far,
                addresses,
            )
            # The last warps find the parameters of these rows, while the others begin to read.
            put_request(addresses, p, False, thread, asked, lane * N_REQUEST)
            slot = u32(0)
            while slot < _ROWS and row < p.n_rows:
                at = i64(ptx.shuffle_from_u64(u64(addresses[0]), slot))
                to = i64(ptx.shuffle_from_u64(u64(addresses[1]), slot))
                largest = keys.largest_of_row(keys.largest(at, p, rank, thread), warp, lane, maxima)
                token = u64(0)
                is_mine = warp == 0
                if not keys.has_weight(largest, p):
                    token = ~u64(0)
                    team.meet()
                else:
                    request = request_in(asked, slot * N_REQUEST, p, False)
                    value = keys.value_of(keys.element_of(largest), p)
                    weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
                    vector, end, n_groups, per_chunk = chunks_of.divide(at, p, rank, thread)
                    chunks = chunks_of.sum(at, p, vector, n_groups, end, per_chunk, weighing, lane)
                    own = warp_sum(chunks)
                    total, before = chunks_of.sums_of_row(own, warp, lane, sums)
                    target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
                    is_mine = before <= target < before + own
                    if is_mine:
                        token = chunks_of.draw(
                            at, p, vector, end, per_chunk, weighing, chunks, target - before
                        )
                if is_mine and lane == 0:
                    put_token(to, token, p)
                slot += 1
                row += n_teams

    return sample_unfiltered
