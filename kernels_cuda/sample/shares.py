"""Where the share top_p of a row ends, by the exponents of its weights.

A pass adds weights to bins, which have 1/64 of a power of two each and are in the order of the elements. The
next pass adds up the weights of nearer bins than that in which the share ends, and lists the elements of this
one. Among these few, the distance of the last ones that stay is found by its digits.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, BINS_PER_POWER, EMPTY_SUM, weigh_functions
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import PAIR, THREADS, WARPS
from kernels_cuda.sample.shared import (
    COUNT,
    FARTHEST,
    N_DIGITS,
    NEAREST,
    SUM,
    add_to_bin,
    bin_functions,
    count_lanes,
    team_functions,
    warp_inclusive_sum,
    warp_sum,
)

SHARE_BINS = 40 * BINS_PER_POWER
"""So many bins hold all elements that have a weight. Later, listed elements have the same memory."""
# Bins that are likely to hold all elements that stay. All others, which are most of a row, need no bins.
_NEAR_BINS = 12 * BINS_PER_POWER
_MOST_LISTED = 4 * THREADS


def most_candidates(cluster: int) -> int:
    """Return how many elements of a bin a block can list."""
    return _MOST_LISTED if cluster == 1 else THREADS


class End(NamedTuple):
    """Where a share ends."""

    is_found: Any
    distance: Any
    """Of the last elements that stay."""
    ties: Any
    """How many stay at this distance: the first ones."""


@functools.cache
def share_functions(element_size: int, cluster: int) -> Any:
    """Make the device function that finds the end of a share, if `Weighing.is_fast`."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    register, per_vector = keys.register, keys.per_vector
    team, bins_of = team_functions(cluster), bin_functions(SHARE_BINS, cluster)
    most, n_warps, per_thread = most_candidates(cluster), WARPS * cluster, _MOST_LISTED // THREADS

    def pass_over(visit: Any, is_backward: bool) -> Any:
        """Make the function that visits the vectors of a thread, from the first to the last or backward.

        While a pair is visited, the next one is read.
        """

        @device_function
        def visit_both(first, second, p, weighing, where, state):
            state = visit(first, p, weighing, where, state)
            return visit(second, p, weighing, where, state)

        @device_function
        def visit_in_turn(first, second, p, weighing, where, state):
            """Do the same in half the code: few rows wait for instructions."""
            left = ptx.same_u32(u32(2))
            while left > 0:
                left -= 1
                state = visit(first, p, weighing, where, state)
                first = second
            return state

        visit_pair = visit_both if cluster == 1 else visit_in_turn

        @device_function
        def visit_all(at, p, rank, thread, weighing, where, state):
            vector, end = keys.segment_of(at, p, rank, thread)
            groups = keys.groups_of(at, p, vector, end)
            # The same number in all lanes.
            first = vector - (thread & 31)
            n_pairs = u32(0)
            if first < end:
                n_pairs = (end - first + (PAIR - 1)) // u32(PAIR)
            number = u32(0)
            last = max(n_pairs, u32(1)) - 1
            ahead = keys.pair_at(at, p, vector, end, groups, last if is_backward else number)
            while number < n_pairs:
                words, other = ahead
                number += 1
                following = last - min(number, last) if is_backward else number
                ahead = keys.pair_at(at, p, vector, end, groups, following)
                state = visit_pair(words, other, p, weighing, where, state)
            return state

        return visit_all

    def fill_from_value(i: int) -> Any:
        """Make the function that adds the weights of the values from one on to bins, and to a sum.

        Compilers do not unroll a loop over eight values with so long a body.
        """
        if i == per_vector:

            @device_function
            def nothing(values, weighing, where, total):
                return total

            return nothing
        others = fill_from_value(i + 1)

        @device_function
        def fill_values(values, weighing, where, total):
            bins, n_bins = where
            following = weigh.add(values[i], weighing, total)
            of_value = weigh.bin(values[i], weighing)
            if of_value < n_bins:
                add_to_bin(bins, of_value, following - total)
            return others(values, weighing, where, following)

        return fill_values

    fill_values = fill_from_value(0)

    @device_function
    def fill_vector(words, p, weighing, where, state):
        """Add the weights of a vector to the first bins, and all to a sum."""
        total = fill_values(keys.values_in(words, p), weighing, where, u64(EMPTY_SUM))
        return state + (total - u64(EMPTY_SUM))

    @device_function
    def fill_vector_from(words, p, weighing, where, state):
        """Do what `fill_vector` does, without weights below `Weighing.least`."""
        bins, n_bins = where
        # A loop that is not unrolled.
        left = ptx.same_u32(u32(per_vector))
        while left > 0:
            left -= 1
            value = keys.value_of(keys.element_in(words, u32(0)), p)
            weight = weigh.fast(value, weighing)
            of_value = weigh.bin(value, weighing)
            if of_value < n_bins and weight != 0:
                add_to_bin(bins, of_value, weight)
            state += weight
            words = keys.shifted(words)
        return state

    fill, fill_from = pass_over(fill_vector, True), pass_over(fill_vector_from, True)

    @device_function
    def list_value(value, is_in, p, where, found):
        """List an element if it is in the bin. All lanes of a warp call, and stay together."""
        _, largest, listed_at, count_at, owners_at, owner = where
        number, nearest, farthest, place = found
        if ptx.ballot(u32(is_in)) != 0:
            distance = register(largest - keys.key_of_value(value, p))
            if is_in:
                number += 1
                nearest, farthest = min(nearest, distance), max(farthest, distance)
                if place < u32(most):
                    place = ptx.atomic_add_shared_u32(count_at, u32(1))
                if place < u32(most):
                    ptx.store_shared_u64(listed_at + place * 8, u64(distance))
                    ptx.store_shared_u32(owners_at + place * 4, owner)
        return number, nearest, farthest, place

    def collect_from_value(i: int) -> Any:
        """Make the function that adds up the weights of nearer values from one on, and lists others.

        Nearer ones are added without a branch: most warps have one.
        """
        if i == per_vector:

            @device_function
            def nothing(values, p, weighing, where, total, found):
                return total, found

            return nothing
        others = collect_from_value(i + 1)

        @device_function
        def collect_values(values, p, weighing, where, total, found):
            of_value = weigh.bin(values[i], weighing)
            following = weigh.add(values[i], weighing, total)
            total = following if of_value < where[0] else total
            found = list_value(values[i], of_value == where[0], p, where, found)
            return others(values, p, weighing, where, total, found)

        return collect_values

    collect_values = collect_from_value(0)

    @device_function
    def collect_vector(words, p, weighing, where, state):
        """Add up the weights in nearer bins than one, and list the elements in that.

        None of these is below `Weighing.least`: an element of that bin stays. Lanes stay together: where
        they do not, the rest of the pass takes many times as long.
        """
        total, found = state
        values = keys.values_in(words, p)
        nearest = u32(SHARE_BINS)
        for i in range(per_vector):
            nearest = min(nearest, weigh.bin(values[i], weighing))
        if ptx.ballot(u32(nearest <= where[0])) != 0:
            of_vector, found = collect_values(values, p, weighing, where, u64(EMPTY_SUM), found)
            total += of_vector - u64(EMPTY_SUM)
        return total, found

    collect = pass_over(collect_vector, False)

    @device_function
    def bin_of_share(at, p, request, rank, thread, weighing, total, arrays):
        """Return the bin in which a share of a sum ends, the weights in nearer ones, and the share.

        A negative `total` stands for the sum of all weights. The share is at most that: the second pass, with
        all bins, reaches it.
        """
        n_bins = ptx.same_u32(u32(_NEAR_BINS))
        goal, of_bins = u64(1), u64(0)
        own, inclusive = u64(0), u64(0)
        while goal > of_bins and n_bins <= SHARE_BINS:
            bins_of.clear(thread, arrays.bins)
            cuda.syncthreads()
            where = ptx.shared_address(arrays.bins), n_bins
            if weighing.least == 1:
                of_all = fill(at, p, rank, thread, weighing, where, u64(0))
            else:
                of_all = fill_from(at, p, rank, thread, weighing, where, u64(0))
            if total < 0:
                warp = rank * u32(WARPS) + (thread >> 5)
                team.report(arrays.reports, SUM, warp, warp_sum(of_all), thread & 31)
            bins_of.merge(thread, arrays.bins)
            own, inclusive, of_bins = bins_of.scan(thread, arrays.bins, arrays.room)
            if total < 0:
                total = i64(warp_sum(team.sum_of_reports(arrays.reports, SUM, thread & 31)))
            goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, total))
            n_bins = u32(SHARE_BINS) if n_bins < SHARE_BINS else u32(SHARE_BINS + 1)
        found, before = bins_of.find(thread, arrays.bins, inclusive - own, own, goal, arrays.room)
        return found, before, goal

    @device_function
    def weight_at(largest, distance, p, weighing):
        element = keys.element_of(register(largest - register(distance)))
        return weigh.fast(keys.value_of(element, p), weighing)

    @device_function
    def n_listed_by(rank, arrays):
        """Return how many elements a block has in its bin."""
        lane = u32(cuda.threadIdx.x) & 31
        number = u32(0)
        if lane < u32(WARPS):
            number = u32(arrays.reports[rank * u32(WARPS) + lane])
        return ptx.warp_add(number)

    @device_function
    def listed(number, n_found, arrays):
        """Return the distance and the segment of an element that is listed, or a distance that none has."""
        block, first, end = u32(0), u32(0), u32(0)
        for other in range(1, cluster):
            end += n_listed_by(u32(other - 1), arrays)
            if number >= end:
                block, first = u32(other), end
        distance, owner = ~u64(0), u32(0)
        if number < n_found:
            distance_at = ptx.shared_address(arrays.bins) + (number - first) * 8
            owner_at = ptx.shared_address(arrays.owners) + (number - first) * 4
            if cluster > 1:
                distance = ptx.load_cluster_u64(ptx.cluster_address(distance_at, block))
                owner = ptx.load_cluster_u32(ptx.cluster_address(owner_at, block))
            else:
                distance, owner = ptx.load_shared_u64(distance_at), ptx.load_shared_u32(owner_at)
        return distance, owner

    @device_function
    def find_distance(thread, found, largest, before, goal, p, weighing, arrays):
        """Return the least distance at which the weights reach a goal, and the weights nearer than that.

        `found` has the number of elements in the lists, and their least and largest distances. Five bits are
        found at a time, by 32 bins. Of three sets of these, one is filled and read, and one is cleared for
        the step after the next. Then the elements are added to the sums and the ties of their segments.
        """
        n_found, low, high = found
        distances = cuda.local.array(per_thread, u64)
        weights = cuda.local.array(per_thread, u64)
        owners = cuda.local.array(per_thread, u32)
        for i in range(per_thread):
            distances[i], weights[i], owners[i] = ~u64(0), u64(0), u32(0)
            if u32(i * THREADS) < n_found:
                distances[i], owners[i] = listed(thread + u32(i * THREADS), n_found, arrays)
                if distances[i] <= high:
                    weights[i] = weight_at(largest, distances[i], p, weighing)
        lane = thread & 31
        digits = ptx.shared_address(arrays.digits)
        used = u32(0)
        above = i64(64 - ptx.leading_zeros_u64(high - low))
        while above > 0:
            shift = max(above - 5, 0)
            for i in range(per_thread):
                if u32(i * THREADS) < n_found:
                    digit = (distances[i] - low) >> u64(shift)
                    if distances[i] >= low and digit < 32:
                        add_to_bin(digits + used * 256, u32(digit), weights[i])
            cuda.syncthreads()
            own = ptx.load_shared_u64(digits + used * 256 + lane * 8)
            inclusive = before + warp_inclusive_sum(own, lane)
            digit = u64(count_lanes(inclusive < goal))
            before = ptx.shuffle_from_u64(inclusive - own, u32(digit))
            low += digit << u64(shift)
            above = shift
            used = u32(0) if used == 2 else used + 1
            if thread < 32:
                following = u32(0) if used == 2 else used + 1
                ptx.store_shared_u64(digits + following * 256 + lane * 8, u64(0))
        sums = ptx.shared_address(arrays.sums)
        for i in range(per_thread):
            if u32(i * THREADS) < n_found:
                if distances[i] < low:
                    add_to_bin(sums, owners[i], weights[i])
                if distances[i] == low:
                    ptx.count_shared(sums + (u32(n_warps) + owners[i]) * 8)
        return low, before

    @called_function
    def find(at, p, request, rank, thread, largest, weighing, total, arrays):
        """Return the `End` of the share top_p of `total`; the first block has the sums of segments then.

        Other blocks are only told if it is found. It is not where a bin has more elements than can be listed,
        with several distances.
        """
        lane, warp = thread & 31, rank * u32(WARPS) + (thread >> 5)
        nearer, before, goal = bin_of_share(at, p, request, rank, thread, weighing, total, arrays)
        if thread == 0:
            arrays.room[WARPS] = u64(0)
        if thread < N_DIGITS:
            arrays.digits[thread] = u64(0)
        cuda.syncthreads()
        listed_at = ptx.shared_address(arrays.bins)
        count_at = ptx.shared_address(arrays.room) + u32(WARPS * 8)
        where = nearer, largest, listed_at, count_at, ptx.shared_address(arrays.owners), warp
        nothing = u64(0), (u32(0), ~register(0), register(0), u32(0))
        own, found = collect(at, p, rank, thread, weighing, where, nothing)
        n_own, nearest, farthest, _ = found
        own, n_ties = warp_sum(own), u64(ptx.warp_add(n_own))
        team.report(arrays.reports, COUNT, warp, n_ties, lane)
        team.report(arrays.reports, FARTHEST, warp, keys.largest_in_warp(farthest), lane)
        team.report(arrays.reports, NEAREST, warp, keys.largest_in_warp(~nearest), lane)
        if lane == 0:
            team.put(arrays.sums, warp, own)
            team.put(arrays.sums, u32(n_warps) + warp, n_ties)
        team.meet()
        n_found = u32(0)
        are_listed = True
        for other in range(cluster):
            n_listed = n_listed_by(u32(other), arrays)
            n_found += n_listed
            are_listed = are_listed and n_listed <= u32(most)
        are_listed = are_listed and n_found <= u32(_MOST_LISTED)
        farthest = register(team.largest_report(arrays.reports, FARTHEST, lane))
        nearest = register(team.largest_report(arrays.reports, NEAREST, lane))
        farthest = u64(keys.largest_in_warp(farthest))
        nearest = u64(~register(keys.largest_in_warp(nearest)))
        distance = nearest
        is_found = are_listed or nearest == farthest
        if are_listed and nearest != farthest and rank == 0:
            if thread < u32(n_warps):
                arrays.sums[u32(n_warps) + thread] = u64(0)
            cuda.syncthreads()
            distance, before = find_distance(
                thread, (n_found, nearest, farthest), largest, before, goal, p, weighing, arrays
            )
            cuda.syncthreads()
        weight = max(weight_at(largest, distance, p, weighing), u64(1))
        return End(is_found, register(distance), (goal - before + weight - 1) // weight)

    return find
