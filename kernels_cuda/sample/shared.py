"""What the threads of a block, or of a cluster of blocks, do together: maxima, sums and prefix sums."""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.parameters import WARPS

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


def _block_reduction(warp_reduction: Any) -> Any:
    """Make the device function that does over a block what another one does over a warp.

    It takes a value, the number of the thread and `room`, a shared array of one u64 per warp.
    """

    @device_function
    def reduced(value, thread, room):
        value = warp_reduction(value)
        cuda.syncthreads()
        if thread & 31 == 0:
            room[thread >> 5] = value
        cuda.syncthreads()
        share = u64(0)
        if thread & 31 < WARPS:
            share = room[thread & 31]
        return warp_reduction(share)

    return reduced


block_sum = _block_reduction(warp_sum)
block_largest = _block_reduction(warp_largest)


@device_function
def block_inclusive_sum(value, thread, room):
    """Return the sum over the threads up to this one, and over all; `room` as in `_block_reduction`."""
    lane = thread & 31
    inclusive = warp_inclusive_sum(value, lane)
    cuda.syncthreads()
    if lane == 31:
        room[thread >> 5] = inclusive
    cuda.syncthreads()
    share = u64(0)
    if lane < WARPS:
        share = room[lane]
    before = share
    if lane >= thread >> 5:
        before = u64(0)
    return inclusive + warp_sum(before), warp_sum(share)


class Team(NamedTuple):
    """Device functions of the blocks that share a row."""

    meet: Any
    """Waits until all threads have arrived, and sees what they wrote to shared memory."""
    put: Any
    """Writes a u64 to a place of a shared array of the first block."""
    put_all: Any
    """Writes a u64 that all lanes of a warp have to a place of a shared array of each block."""
    sum: Any
    """The sum over all blocks of a value that all threads of a block have; takes a slot of `mail`."""
    largest: Any
    """The largest such value."""


def _block() -> Team:
    @device_function
    def meet():
        cuda.syncthreads()

    @device_function
    def put(array, place, value):
        array[place] = value

    @device_function
    def same(value, slot, thread, mail):
        """Return a value, which needs no other block: only the parameters are those of a cluster."""
        return value

    @device_function
    def put_all(array, place, value, lane):
        if lane == 0:
            array[place] = value

    return Team(meet, put, put_all, same, same)


@functools.cache
def team_functions(cluster: int) -> Team:
    """Make the functions for clusters of so many blocks; `mail` has as many u64 for each slot."""
    if cluster == 1:
        return _block()

    @device_function
    def meet():
        ptx.cluster_arrive()
        ptx.cluster_wait()

    @device_function
    def put(array, place, value):
        address = ptx.shared_address(array) + u32(place) * 8
        _store_cluster(ptx.cluster_address(address, u32(0)), value)

    @device_function
    def put_all(array, place, value, lane):
        if lane < cluster:
            address = ptx.shared_address(array) + u32(place) * 8
            _store_cluster(ptx.cluster_address(address, lane), value)

    @device_function
    def tell_all(value, slot, thread, mail):
        if thread < cluster:
            place = ptx.shared_address(mail) + (u32(slot) * cluster + ptx.cluster_rank()) * 8
            _store_cluster(ptx.cluster_address(place, thread), value)
        meet()

    @device_function
    def sum_of_blocks(value, slot, thread, mail):
        tell_all(value, slot, thread, mail)
        total = u64(0)
        for rank in range(cluster):
            total += mail[slot * cluster + rank]
        return total

    @device_function
    def largest_of_blocks(value, slot, thread, mail):
        tell_all(value, slot, thread, mail)
        best = u64(0)
        for rank in range(cluster):
            best = max(best, mail[slot * cluster + rank])
        return best

    return Team(meet, put, put_all, sum_of_blocks, largest_of_blocks)
