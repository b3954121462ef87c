"""The token of a row of which the first k elements in order take part, for small k."""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import FEW, LIST, THREADS
from kernels_cuda.sample.shared import block_largest, block_sum, team_functions

_PER_LANE = THREADS // 32


@functools.cache
def listed_functions(element_size: int, cluster: int) -> Any:
    """Make the device function that lists, orders and draws; it returns -2 if the list overflows."""
    keys = key_functions(element_size, cluster)
    team, weigh = team_functions(cluster), weigh_functions(element_size)
    bits = 8 * element_size
    per_vector = keys.per_vector

    @device_function
    def threshold_of(own, count, thread, bins, room):
        """Return a key that at least `count` maxima of threads reach, or 0: found by the first warp."""
        bins[thread] = u64(own)
        cuda.syncthreads()
        if thread < 32:
            maxima = cuda.local.array(_PER_LANE, u64)
            for j in range(_PER_LANE):
                maxima[j] = bins[thread + 32 * j]
            found = u64(0)
            # Loops that are not unrolled: code that runs once takes longer to load than to run.
            left = ptx.same_u32(u32(bits))
            while left > 0:
                left -= 1
                bit = u64(1) << u64(left)
                reached = u32(0)
                for j in range(_PER_LANE):
                    if maxima[j] >= found | bit:
                        reached += 1
                if i64(ptx.warp_add(reached)) >= count:
                    found |= bit
            if thread == 0:
                room[0] = found
        cuda.syncthreads()
        found = room[0]
        cuda.syncthreads()
        return found

    @device_function
    def collect(at, p, rank, thread, threshold, bins, room):
        """List the elements of a block at or above a threshold; return how many there are."""
        counter = ptx.shared_address(room)
        if thread == 0:
            room[0] = u64(0)
        cuda.syncthreads()
        vector, end = keys.segment_of(at, p, rank, thread)
        while vector < end:
            words = keys.load(at, p, vector, end), keys.load(at, p, vector + 32, end)
            for number in range(2):
                rest = words[number]
                i = (vector + u32(32 * number)) * u32(per_vector) - keys.skipped(at, p)
                for _ in range(per_vector):
                    key = u64(keys.key_in(rest, p))
                    if key >= threshold and key != 0:
                        place = ptx.atomic_add_shared_u32(counter, u32(1))
                        if place < LIST:
                            bins[place] = key
                            bins[LIST + place] = u64(i)
                    rest = keys.shifted(rest)
                    i += 1
            vector += 64
        cuda.syncthreads()
        n = room[0]
        cuda.syncthreads()
        return n

    @device_function
    def gather(thread, bins, mail):
        """Append the lists of the other blocks to that of the first, whose numbers are in the third slot."""
        # Equally many threads for each block.
        other = thread // u32(THREADS // cluster)
        n = u32(0)
        for before in range(cluster):
            if before < other:
                n += u32(mail[2 * cluster + before])
        of_other = u32(mail[2 * cluster + other])
        i = thread & u32(THREADS // cluster - 1)
        while other > 0 and i < of_other:
            for half in range(2):
                place = ptx.shared_address(bins) + (half * LIST + i) * 8
                bins[half * LIST + n + i] = ptx.load_cluster_u64(ptx.cluster_address(place, other))
            i += THREADS // cluster
        cuda.syncthreads()

    @device_function
    def order(n, count, thread, bins, listed):
        """Write the first `count` of `n` listed elements in order: their keys, and their indices."""
        i = thread
        while i < n:
            key = bins[i]
            index = bins[LIST + i]
            place = u32(0)
            for j in range(n):
                if bins[j] > key or (bins[j] == key and bins[LIST + j] < index):
                    place += 1
            if place < count:
                listed[place] = key
                listed[FEW + place] = index
            i += THREADS
        cuda.syncthreads()

    @device_function
    def draw(request, weighing, count, thread, arrays):
        """Return the token, of the ordered elements."""
        _, _, listed, _, _, room = arrays
        weight = u64(0)
        if thread < count:
            weight = weigh.of_key(keys.signed(listed[thread]), weighing)
            listed[2 * FEW + thread] = weight
        total = block_sum(weight, thread, room)
        goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, i64(total)))
        before = u64(0)
        if thread < count:
            for j in range(thread):
                before += listed[2 * FEW + j]
        if before >= goal:
            weight = u64(0)
        cuda.syncthreads()
        if thread < count:
            listed[2 * FEW + thread] = weight
        total = block_sum(weight, thread, room)
        target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
        before = u64(0)
        if thread < count:
            for j in range(count):
                if listed[FEW + j] < listed[FEW + thread]:
                    before += listed[2 * FEW + j]
        found = u64(0)
        if weight > 0 and before <= target < before + weight:
            found = listed[FEW + thread]
        return i64(block_largest(found, thread, room))

    @device_function
    def draw_listed(at, p, request, weighing, own, rank, thread, arrays):
        """Return the token of a row, by the first block; -2 if there are too many elements for a list."""
        _, bins, listed, _, mail, room = arrays
        threshold = threshold_of(own, request.count, thread, bins, room)
        threshold = team.largest(threshold, 1, thread, mail)
        n = team.sum(collect(at, p, rank, thread, threshold, bins, room), 2, thread, mail)
        token = i64(-2)
        if n <= LIST:
            token = i64(0)
            if rank == 0:
                if cluster > 1:
                    gather(thread, bins, mail)
                # NaN is not listed.
                count = min(u32(n), u32(request.count))
                order(u32(n), count, thread, bins, listed)
                token = draw(request, weighing, count, thread, arrays)
        team.meet()
        return token

    return draw_listed
