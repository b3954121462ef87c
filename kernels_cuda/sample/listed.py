"""The token of a row of which the first k elements in order take part, for small k."""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, weigh_functions, weight_of_element
from kernels_cuda.sample.keys import IN_FLIGHT, key_functions
from kernels_cuda.sample.parameters import FEW, LIST, THREADS, WARPS
from kernels_cuda.sample.shared import block_inclusive_sum, block_largest, block_sum, team_functions

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS


@functools.cache
def listed_functions(element_size: int, cluster: int) -> Any:
    """Make the device function that lists, orders and draws, and the one before it that reads a part."""
    keys = key_functions(element_size, cluster)
    team, weigh = team_functions(cluster), weigh_functions(element_size)
    any_weight = weight_of_element(keys, weigh)
    bits, bias, is_wide = 8 * element_size, 1 << (8 * element_size - 1), element_size == 8
    register, per_vector = keys.register, keys.per_vector
    n_parts = 2 if is_wide else 1

    @device_function
    def threshold_of(own, count, thread, bins, room):
        """Return a key that at least `count` maxima of threads reach, or 0: digit by digit."""
        key = u64(own)
        found = u64(0)
        before = u64(0)
        # A loop that is not unrolled: code that runs once takes longer to load than to run.
        above = i64(ptx.same_u32(u32(bits)))
        if count > THREADS:
            above = i64(0)
        while above > 0:
            shift = u64(above - _DIGIT_BITS)
            if thread < _DIGITS:
                bins[thread] = u64(0)
            cuda.syncthreads()
            if above == bits or (key ^ found) >> u64(above) == 0:
                # The largest digit has the first bin.
                digit = (_DIGITS - 1) - (u32(key >> shift) & (_DIGITS - 1))
                ptx.count_shared(ptx.shared_address(bins) + digit * 8)
            cuda.syncthreads()
            own_count = u64(0)
            if thread < _DIGITS:
                own_count = bins[thread]
            inclusive, _ = block_inclusive_sum(own_count, thread, room)
            reached = before + inclusive
            if reached - own_count < u64(count) <= reached:
                room[WARPS] = u64((_DIGITS - 1) - thread)
                room[WARPS + 1] = reached - own_count
            cuda.syncthreads()
            found |= room[WARPS] << shift
            before = room[WARPS + 1]
            above -= _DIGIT_BITS
        cuda.syncthreads()
        return found

    @device_function
    def largest_of_part(at, p, thread):
        """Return the largest key of a thread in a part of the row."""
        end = u32((p.n + i64(keys.skipped(at, p)) + (per_vector - 1)) // per_vector)
        apart = end // u32(IN_FLIGHT * WARPS)
        vector = (thread >> 5) * apart + (thread & 31)
        words = (
            keys.load(at, p, vector, end),
            keys.load(at, p, vector + WARPS * apart, end),
            keys.load(at, p, vector + 2 * WARPS * apart, end),
            keys.load(at, p, vector + 3 * WARPS * apart, end),
        )
        return keys.key_of_largest(keys.largest_in(words, keys.lowest(p), p), p)

    @device_function
    def likely_count(count, n):
        """Return how many of the largest elements of that part are beyond `count` of the row, or more.

        Four times the deviation of their number is added to it.
        """
        expected = (count * (IN_FLIGHT * THREADS * per_vector) + (n - 1)) // n
        more = i64(0)
        while more * more < 16 * expected:
            more += 1
        return expected + more + 4

    @device_function
    def collect(at, p, rank, thread, threshold, bins, room):
        """List the elements of a block at or above a threshold; return how many there are."""
        counter = ptx.shared_address(room)
        # Not NaN.
        threshold = max(threshold, u64(bias) - u64(p.infinity))
        if thread == 0:
            room[0] = u64(0)
        cuda.syncthreads()
        reached = keys.reached_at(threshold, p)
        vector, end = keys.segment_of(at, p, rank, thread)
        while vector < end:
            words = keys.group(at, p, vector, end)
            for number in range(IN_FLIGHT):
                rest = words[number]
                # Most vectors have nothing to list.
                if keys.reaches(keys.larger_in(rest, keys.lowest(p), p), reached):
                    i = (vector + u32(32 * number)) * u32(per_vector) - keys.skipped(at, p)
                    # A loop that is not unrolled.
                    left = ptx.same_u32(u32(per_vector))
                    while left > 0:
                        key = u64(keys.key_in(rest, p))
                        if key >= threshold:
                            place = ptx.atomic_add_shared_u32(counter, u32(1))
                            if place < LIST:
                                put(bins, place, key, i)
                        rest = keys.shifted(rest)
                        i += 1
                        left -= 1
            vector += 32 * IN_FLIGHT
        cuda.syncthreads()
        n = room[0]
        cuda.syncthreads()
        return n

    @device_function
    def put(bins, place, key, index):
        """Write an element to a list: the larger, the earlier in order."""
        if is_wide:
            bins[place] = key
            bins[LIST + place] = u64(~u32(index))
        else:
            bins[place] = (key << 32) | u64(~u32(index))

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
            for part in range(n_parts):
                place = ptx.shared_address(bins) + (part * LIST + i) * 8
                bins[part * LIST + n + i] = ptx.load_cluster_u64(ptx.cluster_address(place, other))
            i += THREADS // cluster
        cuda.syncthreads()

    @device_function
    def count_larger(element, other, half, n, bins):
        """Return how many listed elements are larger, of each second four or pair."""
        found = u32(0)
        if is_wide:
            j = half
            while j < n:
                if bins[j] > element or (bins[j] == element and bins[LIST + j] > other):
                    found += 1
                j += 2
        else:
            at = ptx.shared_address(bins) + half * 32
            end = ptx.shared_address(bins) + n * 8
            while at < end:
                first, second = ptx.load_shared_u64x2(at)
                third, fourth = ptx.load_shared_u64x2(at + 16)
                found += u32(first > element) + u32(second > element)
                found += u32(third > element) + u32(fourth > element)
                at += 64
        return found

    @device_function
    def order(n, count, thread, bins, listed):
        """Write the first `count` of `n` listed elements in order: their keys, and their indices.

        Two threads count the elements that are before one.
        """
        if not is_wide and thread < 8:
            bins[n + thread] = u64(0)
        cuda.syncthreads()
        i = thread >> 1
        while i - (thread >> 1) < n:
            element = bins[i]
            other = u64(0)
            key = element >> 32
            index = ~u32(element)
            if is_wide:
                other = bins[LIST + min(i, u32(LIST - 1))]
                key = element
                index = ~u32(other)
            place = count_larger(element, other, thread & 1, n, bins)
            place += ptx.shuffle_xor_u32(place, 1)
            if i < n and place < count and thread & 1 == 0:
                listed[place] = key
                listed[FEW + place] = u64(index)
            i += THREADS // 2
        cuda.syncthreads()

    @device_function
    def draw(request, weighing, p, count, thread, arrays):
        """Return the token, of the ordered elements."""
        _, _, listed, _, _, room = arrays
        weight = u64(0)
        if thread < count:
            weight = any_weight(keys.element_of(register(listed[thread])), p, weighing)
        inclusive, total = block_inclusive_sum(weight, thread, room)
        if inclusive - weight >= u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, i64(total))):
            weight = u64(0)
        if thread < count:
            listed[2 * FEW + thread] = weight
        total = block_sum(weight, thread, room)
        target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
        # Two threads add up the weights of smaller indices.
        i = thread >> 1
        before = u64(0)
        index = u64(0)
        if i < count:
            index = listed[FEW + i]
            for j in range(thread & 1, count, 2):
                if listed[FEW + j] < index:
                    before += listed[2 * FEW + j]
        before += ptx.shuffle_xor_u64(before, 1)
        found = u64(0)
        if i < count and before <= target < before + listed[2 * FEW + i]:
            found = index
        return i64(block_largest(found, thread, room))

    @device_function
    def draw_listed(at, p, request, own, is_guess, rank, thread, arrays, scale):
        """Return the token of a row, by the first block, from the largest keys of threads.

        It is -2 if too many elements are at or above the threshold, or if those keys are from a part of the
        row and too few are.
        """
        powers, bins, listed, _, mail, room = arrays
        count = request.count
        if is_guess:
            count = likely_count(count, p.n)
        threshold = team.largest(threshold_of(own, count, thread, bins, room), 1, thread, mail)
        n = i64(team.sum(collect(at, p, rank, thread, threshold, bins, room), 2, thread, mail))
        token = i64(-2)
        if n <= LIST and (n >= request.count or not is_guess):
            token = i64(0)
            if rank == 0:
                if cluster > 1:
                    gather(thread, bins, mail)
                # NaN is not listed.
                n_first = min(u32(n), u32(request.count))
                order(u32(n), n_first, thread, bins, listed)
                largest = register(listed[0])
                token = i64(-1)
                if u64(largest) > u64(bias) - u64(p.infinity):
                    value = keys.value_of(keys.element_of(largest), p)
                    weighing = weigh.prepare(value, keys.signed(largest), request, p, thread, powers, scale)
                    token = draw(request, weighing, p, n_first, thread, arrays)
        team.meet()
        return token

    return largest_of_part, draw_listed
