"""What the threads of a block, or of a cluster of blocks, do together: maxima, sums, prefix sums and bins."""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.parameters import THREADS, WARPS

_store_cluster = ptx.STORE_CLUSTER[8]


@device_function
def warp_sum(value):
    """Return the sum of 64-bit values over a warp."""
    for bit in range(5):
        value += ptx.shuffle_xor_u64(value, 1 << bit)
    return value


@device_function
def warp_sum_below_2_53(value):
    """Return the sum over a warp of values below 2^53, by the instruction for words."""
    low = ptx.warp_add(u32(value) & ((1 << 26) - 1))
    return (u64(ptx.warp_add(u32(value >> 26))) << 26) + u64(low)


@device_function
def warp_largest(value):
    """Return the largest of the 64-bit values of a warp."""
    for bit in range(5):
        value = max(value, ptx.shuffle_xor_u64(value, 1 << bit))
    return value


@device_function
def warp_inclusive_sum(value, lane):
    """Return the sum of 64-bit values over the lanes up to this one."""
    for bit in range(5):
        distance = u32(1 << bit)
        below = ptx.shuffle_from_u64(value, lane - distance if lane >= distance else lane)
        if lane >= distance:
            value += below
    return value


@device_function
def count_lanes(condition):
    """Return for how many lanes of a warp a condition holds."""
    return ptx.popcount_u32(ptx.ballot(u32(condition)))


@device_function
def lane_with(own, inclusive, target):
    """Return the lane whose value a target is in, by running sums, and the target less those before it."""
    found = count_lanes(inclusive <= target)
    return found, target - ptx.shuffle_from_u64(inclusive - own, found)


@device_function
def block_inclusive_sum(value, thread, room):
    """Return the sum over the threads up to this one, and over all; `room` has one u64 per warp."""
    lane = thread & 31
    inclusive = warp_inclusive_sum(value, lane)
    cuda.syncthreads()
    if lane == 31:
        room[thread >> 5] = inclusive
    cuda.syncthreads()
    share = u64(0)
    if lane < WARPS:
        share = room[lane]
    of_warps = warp_inclusive_sum(share, lane)
    before = ptx.shuffle_from_u64(of_warps - share, thread >> 5)
    return inclusive + before, ptx.shuffle_from_u64(of_warps, u32(WARPS - 1))


COUNT, FARTHEST, NEAREST, SUM = range(4)
N_REPORTS = 4
"""The kinds of reports, which warps make to all others: how many elements they have in a bin, their largest
distance, the inverse of the least one, and a sum of weights. First, COUNT has their largest keys."""
N_DIGITS = 3 * 32
"""Bins for the digits of a distance."""


class Arrays(NamedTuple):
    """The shared arrays of the kernel for rows."""

    bins: Any
    sums: Any
    """The sum and the ties of each segment, in the first block."""
    room: Any
    """A u64 per warp, for reductions, and four more."""
    reports: Any
    """`N_REPORTS` u64 of each warp of the team."""
    owners: Any
    """The segments of listed elements."""
    digits: Any
    """`N_DIGITS` u64: three sets of 32 bins, one for each lane of a warp."""


class Team(NamedTuple):
    """Device functions of the blocks that share a row."""

    meet: Any
    """Waits until all threads have arrived, and sees what they wrote to shared memory."""
    put: Any
    """Writes a u64 to a place of a shared array of the first block."""
    put_all: Any
    """Writes a u64 that all lanes of a warp have to a place of a shared array of each block."""
    report: Any
    """Does that in `reports`, by the kind of report and the number of the warp."""
    sum_of_reports: Any
    """The sum of the reports of a kind that a lane has: all lanes together have those of all warps."""
    largest_report: Any
    """The largest report of a kind that a lane has."""


def _meetings(cluster: int) -> tuple[Any, Any, Any]:
    """Make the functions that differ where several blocks share a row."""

    @device_function
    def meet():
        if cluster > 1:
            ptx.cluster_arrive()
            ptx.cluster_wait()
        else:
            cuda.syncthreads()

    @device_function
    def put(array, place, value):
        if cluster > 1:
            address = ptx.shared_address(array) + u32(place) * 8
            _store_cluster(ptx.cluster_address(address, u32(0)), value)
        else:
            array[place] = value

    @device_function
    def put_all(array, place, value, lane):
        if cluster > 1:
            if lane < cluster:
                address = ptx.shared_address(array) + u32(place) * 8
                _store_cluster(ptx.cluster_address(address, lane), value)
        elif lane == 0:
            array[place] = value

    return meet, put, put_all


@functools.cache
def team_functions(cluster: int) -> Team:
    """Make the functions for clusters of so many blocks."""
    meet, put, put_all = _meetings(cluster)
    n_warps = WARPS * cluster
    per_lane = max(n_warps // 32, 1)

    @device_function
    def report(reports, kind, warp, value, lane):
        put_all(reports, u32(kind * n_warps) + warp, value, lane)

    @device_function
    def sum_of_reports(reports, kind, lane):
        total = u64(0)
        for i in range(per_lane):
            warp = u32(i * 32) + lane
            if warp < u32(n_warps):
                total += reports[u32(kind * n_warps) + warp]
        return total

    @device_function
    def largest_report(reports, kind, lane):
        best = u64(0)
        for i in range(per_lane):
            warp = (u32(i * 32) + lane) & u32(n_warps - 1)
            best = max(best, reports[u32(kind * n_warps) + warp])
        return best

    return Team(meet, put, put_all, report, sum_of_reports, largest_report)


@device_function
def add_to_bin(bins, digit, amount):
    """Add to a bin of 64 bits in two halves: the lower one tells whether there is a carry."""
    address = bins + digit * 8
    low = u32(amount)
    high = u32(amount >> 32)
    old = ptx.atomic_add_shared_u32(address, low)
    if old + low < old:
        high += 1
    if high != 0:
        ptx.reduce_add_shared_u32(address + 4, high)


class BinFunctions(NamedTuple):
    """Device functions for so many bins in shared memory, of which each thread has some."""

    clear: Any
    merge: Any
    """Waits for all threads; then each block has the sums of all blocks' bins."""
    scan: Any
    """The sum of a thread's bins, that of all up to these, and that of all; takes `room`."""
    find: Any
    """The bin in which a running sum reaches a goal, and the sum before that, by the results of `scan`."""


@functools.cache
def bin_functions(n_bins: int, cluster: int) -> BinFunctions:
    """Make the functions for a number of bins."""
    team, per_thread, per_block = team_functions(cluster), n_bins // THREADS, n_bins // cluster

    @device_function
    def clear(thread, bins):
        for j in range(per_thread):
            bins[thread * per_thread + j] = u64(0)

    @device_function
    def merge(thread, bins):
        team.meet()
        if cluster > 1:
            # Each block adds up some bins, which no other one touches meanwhile.
            first = ptx.shared_address(bins) + ptx.cluster_rank() * u32(8 * per_block)
            for start in range(0, per_block, THREADS):
                number = thread + u32(start)
                if number < u32(per_block):
                    address = first + number * 8
                    total = u64(0)
                    for other in range(cluster):
                        total += ptx.load_cluster_u64(ptx.cluster_address(address, u32(other)))
                    for other in range(cluster):
                        _store_cluster(ptx.cluster_address(address, u32(other)), total)
            team.meet()

    @device_function
    def scan(thread, bins, room):
        own = u64(0)
        for j in range(per_thread):
            own += bins[thread * per_thread + j]
        inclusive, of_all = block_inclusive_sum(own, thread, room)
        return own, inclusive, of_all

    @device_function
    def find(thread, bins, before, own, goal, room):
        """Return them; `before` is the sum before the bins of this thread."""
        if before < goal <= before + own:
            number = thread * per_thread
            while before + bins[number] < goal:
                before += bins[number]
                number += u32(1)
            room[WARPS] = u64(number)
            room[WARPS + 1] = before
        cuda.syncthreads()
        found, before = u32(room[WARPS]), room[WARPS + 1]
        cuda.syncthreads()
        return found, before

    return BinFunctions(clear, merge, scan, find)
