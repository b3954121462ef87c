"""The token of a row by digits of distances from the largest key: for top_p, large k, and neither."""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, inlined_weight
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import BINS, DIGIT_BITS, THREADS, WARPS
from kernels_cuda.sample.shared import block_inclusive_sum, block_largest, block_sum, team_functions, warp_sum

_PER_THREAD = BINS // THREADS


@device_function
def add_to_bin(bins, digit, amount):
    """Add to a bin of 64 bits by its halves: the lower one tells whether it has gone round."""
    place = ptx.shared_address(bins) + digit * 8
    low = u32(amount)
    high = u32(amount >> 32)
    old = ptx.atomic_add_shared_u32(place, low)
    if old + low < old:
        high += 1
    if high != 0:
        ptx.reduce_add_shared_u32(place + 4, high)


@functools.cache
def selected_functions(element_size: int, cluster: int) -> Any:
    """Make the device function that selects and draws."""
    keys = key_functions(element_size, cluster)
    register, per_vector = keys.register, keys.per_vector
    team, weight_of = team_functions(cluster), inlined_weight(element_size)
    bits = 8 * element_size

    @device_function
    def tied_weight(largest, distance, scale, powers):
        """Return the weight at a distance, or 1 if that is none."""
        key = keys.signed(register(largest - distance))
        return u64(max(ARITHMETIC.weight(key, scale, ptx.shared_address(powers)), 1))

    @device_function
    def add_up(at, p, rank, thread, largest, distance, above, scale, by_weight, bins, powers):
        """Add each element whose distance has the digits found so far to the bin of its next digit."""
        shift = max(above - DIGIT_BITS, 0)
        vector, end = keys.segment_of(at, p, rank, thread)
        ahead = keys.load(at, p, vector, end)
        while vector < end:
            words = ahead
            vector += 32
            ahead = keys.load(at, p, vector, end)
            # A loop that is not unrolled: weighing takes much code.
            left = ptx.same_u32(u32(per_vector))
            while left > 0:
                key = keys.key_in(words, p)
                words = keys.shifted(words)
                left -= 1
                found = register(largest - key)
                is_member = True
                if above < bits:
                    is_member = (found ^ distance) >> register(above) == 0
                if is_member:
                    digit = u32(found >> register(shift)) & u32((1 << (above - shift)) - 1)
                    if not by_weight:
                        ptx.count_shared(ptx.shared_address(bins) + digit * 8)
                    else:
                        weight = weight_of(key, scale, powers)
                        if weight != 0:
                            add_to_bin(bins, digit, weight)

    @device_function
    def merge(thread, bins):
        """Add up the bins of all blocks, in each of them."""
        totals = cuda.local.array(_PER_THREAD, u64)
        team.meet()
        for j in range(_PER_THREAD):
            totals[j] = bins[thread * _PER_THREAD + j]
        if cluster > 1:
            own = ptx.cluster_rank()
            for j in range(_PER_THREAD):
                place = ptx.shared_address(bins) + (thread * _PER_THREAD + j) * 8
                for other in range(cluster):
                    if u32(other) != own:
                        totals[j] += ptx.load_cluster_u64(ptx.cluster_address(place, u32(other)))
            team.meet()
        return totals

    @device_function
    def select(at, p, request, rank, thread, largest, scale, by_weight, total, arrays):
        """Return the distance at which elements or weights reach a goal, what they are before, and the goal.

        The goal is the count, or the share top_p of a total, which is that of all weights if it is negative.
        """
        powers, bins, _, _, _, room = arrays
        distance = register(0)
        before = u64(0)
        goal = u64(request.count)
        above = i64(bits)
        while above > 0:
            shift = max(above - DIGIT_BITS, 0)
            for j in range(_PER_THREAD):
                bins[thread * _PER_THREAD + j] = u64(0)
            cuda.syncthreads()
            add_up(
                at,
                p,
                rank,
                thread,
                largest,
                distance,
                above,
                scale,
                by_weight,
                bins,
                ptx.shared_address(powers),
            )
            totals = merge(thread, bins)
            own = u64(0)
            for j in range(_PER_THREAD):
                own += totals[j]
            inclusive, of_all = block_inclusive_sum(own, thread, room)
            if above == bits and by_weight:
                if total < 0:
                    total = i64(of_all)
                goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, total))
            reached = before + inclusive - own
            if reached < goal <= reached + own:
                digit = u32(0)
                for j in range(_PER_THREAD):
                    if reached + totals[j] < goal and j + 1 < _PER_THREAD:
                        reached += totals[j]
                        digit += 1
                    else:
                        break
                room[WARPS] = u64(thread * _PER_THREAD + digit)
                room[WARPS + 1] = reached
            cuda.syncthreads()
            distance |= register(room[WARPS]) << register(shift)
            before = room[WARPS + 1]
            cuda.syncthreads()
            above = shift
        return distance, before, goal

    @device_function
    def sum_segments(at, p, rank, thread, largest, distance, scale, arrays):
        """Tell the first block the sum of the weights nearer than a distance, and how many are at it.

        Return the sum over the row, to all blocks.
        """
        powers, _, _, sums, mail, room = arrays
        powers_at = ptx.shared_address(powers)
        vector, end = keys.segment_of(at, p, rank, thread)
        total = u64(0)
        n_ties = u32(0)
        ahead = keys.load(at, p, vector, end)
        while vector < end:
            words = ahead
            vector += 32
            ahead = keys.load(at, p, vector, end)
            left = ptx.same_u32(u32(per_vector))
            while left > 0:
                key = keys.key_in(words, p)
                words = keys.shifted(words)
                left -= 1
                found = register(largest - key)
                if found < distance:
                    total += weight_of(key, scale, powers_at)
                if found == distance:
                    n_ties += 1
        total = warp_sum(total)
        n_ties = ptx.warp_add(n_ties)
        if thread & 31 == 0:
            number = rank * WARPS + (thread >> 5)
            team.put(sums, number, total)
            team.put(sums, WARPS * cluster + number, u64(n_ties))
        if thread & 31 != 0:
            total = u64(0)
        total = team.sum(block_sum(total, thread, room), 1, thread, mail)
        team.meet()
        return total

    @device_function
    def choose_segment(request, thread, ties, of_tied, sums, room):
        """Return the sum of what stays, the segment of the token, and what is before it: weights and ties."""
        n = WARPS * cluster
        own = u64(0)
        n_ties = u64(0)
        if thread < n:
            own = sums[thread]
            n_ties = sums[n + thread]
        inclusive, _ = block_inclusive_sum(n_ties, thread, room)
        ties_before = inclusive - n_ties
        if ties_before < ties:
            own += min(n_ties, ties - ties_before) * of_tied
        inclusive, total = block_inclusive_sum(own, thread, room)
        target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
        before = inclusive - own
        if before <= target < inclusive:
            room[WARPS] = u64(thread)
            room[WARPS + 1] = target - before
            room[WARPS + 2] = ties_before
        cuda.syncthreads()
        segment, rest, ties_before = room[WARPS], room[WARPS + 1], room[WARPS + 2]
        cuda.syncthreads()
        return segment, rest, ties_before

    @device_function
    def draw(at, p, request, thread, largest, distance, ties, scale, arrays):
        """Return the token of a row, whose segments have been added up."""
        powers, _, _, sums, _, room = arrays
        powers_at = ptx.shared_address(powers)
        of_tied = tied_weight(largest, distance, scale, powers)
        segment, target, ties_before = choose_segment(request, thread, ties, of_tied, sums, room)
        skipped = keys.skipped(at, p)
        first = u32(i64(segment) * p.segment)
        end = u32(min(i64(first) + p.segment, p.n + i64(skipped)))
        token = u64(0)
        while first < end and token == 0:
            i = first + thread - skipped
            is_there = skipped <= first + thread < end
            key = keys.key_at(at, p, i, is_there)
            found = register(largest - key)
            is_tied = u64(0)
            if is_there and found == distance:
                is_tied = u64(1)
            inclusive, n_tied = block_inclusive_sum(is_tied, thread, room)
            weight = u64(0)
            if is_there and (found < distance or (is_tied != 0 and ties_before + inclusive <= ties)):
                weight = u64(ARITHMETIC.weight(keys.signed(key), scale, powers_at))
            ties_before += n_tied
            inclusive, total = block_inclusive_sum(weight, thread, room)
            if inclusive - weight <= target < inclusive:
                token = u64(i) + 1
            token = block_largest(token, thread, room)
            target -= min(total, target)
            first += THREADS
        return i64(token) - 1

    @device_function
    def draw_selected(at, p, request, largest, rank, thread, arrays):
        """Return the token of a row, by the first block."""
        powers, _, _, _, _, _ = arrays
        scale = ARITHMETIC.scale_of(
            keys.signed(largest),
            request.temperature,
            request.temperature_exponent,
            bits,
            p.mantissa,
            request.least,
        )
        # All elements stay but NaN, whose distance no other has.
        distance = largest
        ties = u64(0)
        total = i64(-1)
        is_counted = 0 < request.count < p.n
        is_done = False
        while not is_done:
            by_weight = not is_counted
            if is_counted or request.top_p >= 0:
                distance, before, goal = select(
                    at, p, request, rank, thread, largest, scale, by_weight, total, arrays
                )
                weight = u64(1)
                if by_weight:
                    weight = tied_weight(largest, distance, scale, powers)
                ties = (goal - before + weight - 1) // weight
            is_done = by_weight or request.top_p < 0
            is_counted = False
            total = i64(sum_segments(at, p, rank, thread, largest, distance, scale, arrays))
            if ties > 0:
                total += i64(ties * tied_weight(largest, distance, scale, powers))
        token = i64(0)
        if rank == 0:
            token = draw(at, p, request, thread, largest, distance, ties, scale, arrays)
        return token

    return draw_selected
