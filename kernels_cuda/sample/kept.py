"""The kernel for few rows without k, top_p and min_p: a cluster of blocks keeps each in shared memory.

A row is read once, but for the chunk that the token is in. Threads copy their vectors to slots of their own,
find the largest element in them, and then add up the weights. Warps send messages
(`top_k.many_blocks.cluster_messages`): their largest elements to all blocks, and the sums of their chunks, of
which lanes have four vectors each, to the last warp. That one has no segment, and draws the token.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cpu.integers import ceil_div
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function, dynamic_shared_array
from kernels_cuda.sample.arithmetic import ARITHMETIC, N_SCALE, fill_powers, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import (
    COPIES,
    GROUP,
    IN_FLIGHT,
    MOST_SLOTS,
    N_POWERS,
    PAIR,
    SLOT_BYTES,
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
from kernels_cuda.sample.shared import lane_with, warp_inclusive_sum, warp_sum_below_2_53
from kernels_cuda.sample.unfiltered import chunk_functions
from kernels_cuda.top_k.many_blocks.cluster_messages import announce, barrier_at, of_block, wait_for_all

_MOST_CHUNKS = ceil_div(MOST_SLOTS, IN_FLIGHT)
# Numbers of barriers.
_MAXIMA, _SUMS, _N_BARRIERS = range(3)


class SlotFunctions(NamedTuple):
    """The device functions for slots: those of a thread begin at the address `room`."""

    fill: Any
    """Begins to fill them with the vectors of a thread; returns their number, which is even."""
    largest: Any
    """The largest key of a thread, when they are full."""
    sum: Any
    """The sum of chunk i of the segment, in lane i."""


def slot_functions(element_size: int, cluster: int) -> SlotFunctions:
    """Make the functions for one element width."""
    keys = key_functions(element_size, cluster)
    chunks_of = chunk_functions(element_size, cluster)

    @device_function
    def fill(at, p, rank, thread, room):
        vector, end = keys.segment_of(at, p, rank, thread)
        skip = keys.skipped(at, p)
        address = at - i64(skip) * element_size
        # Vectors from the first one that is whole to the last.
        begin = u32(skip > 0)
        stop = u32(0)
        if p.x_step == element_size:
            stop = min(end, u32((p.n + i64(skip)) // keys.per_vector))
        first = vector - (thread & 31)
        n_slots = (max(end, first) - first + u32(PAIR - 1)) // u32(PAIR) * 2
        # A loop that is not unrolled.
        slot = u32(0)
        while slot < n_slots:
            if begin <= vector < stop:
                ptx.copy_async_first_bytes(room, address + i64(vector) * VECTOR, u32(VECTOR))
            else:
                low, high = keys.load(at, p, vector, end)
                ptx.store_shared_u64x2(room, low, high)
            vector += 32
            room += SLOT_BYTES
            slot = ptx.next_pass(slot)
        return n_slots

    @device_function
    def pair_in(room, slot):
        address = room + slot * SLOT_BYTES
        return ptx.load_shared_u64x2(address), ptx.load_shared_u64x2(address + SLOT_BYTES)

    @device_function
    def largest(p, room, n_slots):
        best = keys.lowest(p)
        slot = u32(0)
        while slot < n_slots:
            first, second = pair_in(room, slot)
            best = keys.larger_in(second, keys.larger_in(first, best, p), p)
            slot = ptx.next_pass(ptx.next_pass(slot))
        return keys.key_of_largest(best, p)

    @device_function
    def fast_sum(p, room, n_slots, weighing, lane):
        own = u64(0)
        slot = u32(0)
        while slot < n_slots:
            stop = min(slot + IN_FLIGHT, n_slots)
            total = u64(0)
            while slot < stop:
                total += chunks_of.pair_sum(pair_in(room, slot), p, weighing)
                slot += 2
            total = warp_sum_below_2_53(total)
            if lane == (slot - 1) // u32(IN_FLIGHT):
                own = total
        return own

    @called_function
    def slow_sum(p, room, n_slots, weighing, lane):
        own = u64(0)
        for i in range(n_slots):
            words = ptx.load_shared_u64x2(room + u32(i) * SLOT_BYTES)
            total = warp_sum_below_2_53(chunks_of.vector_sum(words, p, weighing))
            if lane == u32(i) // u32(IN_FLIGHT):
                own += total
        return own

    @device_function
    def sum_slots(p, room, n_slots, weighing, lane):
        if weighing.is_fast:
            return fast_sum(p, room, n_slots, weighing, lane)
        return slow_sum(p, room, n_slots, weighing, lane)

    return SlotFunctions(fill, largest, sum_slots)


class Rooms(NamedTuple):
    """The addresses of what warps receive, and of the barriers for it."""

    maxima: Any
    """The largest key of each warp."""
    sums: Any
    """The sums of all chunks, in the order of elements; in the last block."""
    barriers: Any


class MessageFunctions(NamedTuple):
    """The device functions for messages."""

    largest: Any
    """The largest key of the row, by that of a thread."""
    send_sums: Any
    """Sends the sums of the chunks of a segment, which lanes have, to the last block."""
    draw: Any
    """The token, by the sums of all chunks; the last warp calls."""


def message_functions(element_size: int, cluster: int) -> MessageFunctions:
    """Make the functions for one element width."""
    keys = key_functions(element_size, cluster)
    chunks_of = chunk_functions(element_size, cluster)
    warps_per_lane, room_bytes = WARPS * cluster // 32, 8 * WARPS * cluster

    @device_function
    def largest(rooms, warp, lane, own):
        barrier = barrier_at(rooms.barriers, _MAXIMA)
        key = u64(keys.largest_in_warp(own))
        if u32(cuda.threadIdx.x) == 0:
            announce(barrier, room_bytes)
        if lane < cluster:
            to, at_barrier = of_block(rooms.maxima + warp * 8, barrier, lane)
            ptx.send_u64(to, key, at_barrier)
        wait_for_all(barrier, 0)
        best = u64(0)
        for i in range(0, room_bytes, 32 * 8):
            best = max(best, ptx.load_shared_u64(rooms.maxima + lane * 8 + i))
        return keys.register(keys.largest_in_warp(keys.register(best)))

    @device_function
    def send_sums(rooms, warp, lane, n_chunks, own):
        if lane < n_chunks:
            address, barrier = rooms.sums + (warp * n_chunks + lane) * 8, barrier_at(rooms.barriers, _SUMS)
            to, at_barrier = of_block(address, barrier, u32(cluster - 1))
            ptx.send_u64(to, own, at_barrier)

    @called_function
    def draw(at, p, rooms, n_chunks, request, weighing):
        lane = u32(cuda.threadIdx.x) & 31
        barrier = barrier_at(rooms.barriers, _SUMS)
        if lane == 0:
            announce(barrier, n_chunks * room_bytes)
        wait_for_all(barrier, 0)
        per_lane = n_chunks * warps_per_lane
        own = u64(0)
        for i in range(per_lane):
            own += ptx.load_shared_u64(rooms.sums + (lane * per_lane + u32(i)) * 8)
        inclusive = warp_inclusive_sum(own, lane)
        total = ptx.shuffle_from_u64(inclusive, u32(31))
        target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
        owner, target = lane_with(own, inclusive, target)
        own = u64(0)
        if lane < per_lane:
            own = ptx.load_shared_u64(rooms.sums + (owner * per_lane + lane) * 8)
        chunk, target = lane_with(own, warp_inclusive_sum(own, lane), target)
        chunk += owner * per_lane
        warp = chunk // n_chunks
        vector, end = keys.segment_of(at, p, u32(0), warp * 32 + lane)
        vector += (chunk - warp * n_chunks) * GROUP
        return chunks_of.draw_in_chunk(at, p, vector, end, weighing, target)

    return MessageFunctions(largest, send_sums, draw)


def kept_kernel(element_size: int, cluster: int) -> Any:
    """Make the kernel for one element width, with so many blocks per row."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    slots, messages = slot_functions(element_size, cluster), message_functions(element_size, cluster)
    n_warps, n_powers = WARPS * cluster, N_POWERS * COPIES
    n_sums, group = n_warps * _MOST_CHUNKS, GROUP * keys.per_vector

    # Limit registers so that two blocks fit on a multiprocessor, if it has the shared memory.
    @cuda.jit(max_registers=65536 // (2 * THREADS))
    def sample_kept(
        x,
        given: Given,
        output,
        p: Parameters,
        far,
    ):
        powers = cuda.shared.array(n_powers, i64)
        asked = cuda.shared.array(N_REQUEST, i64)
        scale = cuda.shared.array(N_SCALE, i64)
        rooms = Rooms(
            ptx.shared_address(cuda.shared.array(n_warps, u64)),
            ptx.shared_address(cuda.shared.array(n_sums, u64)),
            ptx.shared_address(cuda.shared.array(_N_BARRIERS, u64)),
        )
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        rank = ptx.cluster_rank()
        warp = rank * WARPS + (thread >> 5)
        room = ptx.shared_address(dynamic_shared_array(u32)) + thread * VECTOR
        if thread < _N_BARRIERS:
            ptx.message_barrier_init(barrier_at(rooms.barriers, thread), u32(1))
        ptx.cluster_arrive_relaxed()
        ptx.grid_dependency_wait()
        find_row(i64(cuda.blockIdx.x) // cluster, x, given, output, p, far, addresses)
        at = addresses[0]
        n_slots = slots.fill(at, p, rank, thread, room)
        if lane == 0:
            put_request(addresses, p, False, thread, asked, 0)
        fill_powers(powers, thread)  # ends with a barrier
        ptx.cluster_wait()  # all blocks run
        ptx.copy_async_wait()
        largest = messages.largest(rooms, warp, lane, slots.largest(p, room, n_slots))
        token = ~u64(0)
        if keys.has_weight(largest, p):
            request = request_in(asked, 0, p, False)
            value = keys.value_of(keys.element_of(largest), p)
            weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
            n_chunks = u32((p.segment + (group - 1)) // group)
            own = slots.sum(p, room, n_slots, weighing, lane)
            messages.send_sums(rooms, warp, lane, n_chunks, own)
            if warp == n_warps - 1:
                token = messages.draw(at, p, rooms, n_chunks, request, weighing)
        if warp == n_warps - 1 and lane == 0:
            put_token(addresses[1], token, p)

    return sample_kept
