"""The token of a row with top_p, min_p or a large k: which elements stay, and the draw from these.

k is found by digits of distances from the largest key, and so is top_p where `shares` does not find it.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.arithmetic import (
    ARITHMETIC,
    EMPTY_SUM,
    add_vector,
    weigh_functions,
    weight_of_element,
)
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import BINS, DIGIT_BITS, GROUP, IN_FLIGHT, THREADS, WARPS
from kernels_cuda.sample.shared import (
    SUM,
    add_to_bin,
    bin_functions,
    block_inclusive_sum,
    count_lanes,
    team_functions,
    warp_inclusive_sum,
    warp_sum,
)
from kernels_cuda.sample.shares import share_functions


class Cut(NamedTuple):
    """The parameters of a pass over the elements of a row."""

    largest: Any
    """The key from which distances are taken."""
    distance: Any
    """The digits of the distance that are known."""
    above: Any
    """The lowest bit of these digits."""
    by_weight: Any
    bins: Any
    are_all: Any
    """All elements stay, whatever their distance."""
    weighing: Any


class Draw(NamedTuple):
    """The draw from a part of a row."""

    is_first: Any
    """The part is the row: the random word says what the target is."""
    word_low: Any
    word_high: Any
    target: Any
    """The token is the first at which the running sum of the part exceeds this."""
    ties: Any
    """The number of elements at the distance that stay: the first ones."""
    of_tied: Any


@functools.cache
def selected_functions(element_size: int, cluster: int) -> Any:
    """Make the device function that selects and draws."""
    keys, weigh = key_functions(element_size, cluster), weigh_functions(element_size)
    register, per_vector = keys.register, keys.per_vector
    team, any_weight = team_functions(cluster), weight_of_element(keys, weigh)
    bins_of = bin_functions(BINS, cluster)
    find_share = share_functions(element_size, cluster)
    bits = 8 * element_size

    @device_function
    def fast_weight(element, p, weighing):
        return weigh.fast(keys.value_of(element, p), weighing)

    @device_function
    def tied_weight(largest, distance, p, weighing):
        """Return the weight at a distance: 0 at that of NaN, whose key is that of no number."""
        weight = u64(0)
        if distance != largest:
            weight = any_weight(keys.element_of(register(largest - distance)), p, weighing)
        return weight

    def weighed_passes(weight_of: Any) -> tuple[Any, Any, Any]:
        """Make the functions that add an element: to a sum; to a sum, counting ties; and to bins."""

        @device_function
        def add(element, p, cut, total, n_ties):
            return total + weight_of(element, p, cut.weighing), n_ties

        @device_function
        def add_near(element, p, cut, total, n_ties):
            found = register(cut.largest - keys.key_of(element, p))
            if found < cut.distance:
                total += weight_of(element, p, cut.weighing)
            if found == cut.distance:
                n_ties += 1
            return total, n_ties

        @device_function
        def add_to_bins(element, p, cut, total, n_ties):
            """Add to the bin of the next digit, if the distance has the digits found so far."""
            found = register(cut.largest - keys.key_of(element, p))
            shift = max(cut.above - DIGIT_BITS, 0)
            is_member = True
            if cut.above < bits:
                is_member = (found ^ cut.distance) >> register(cut.above) == 0
            if is_member:
                digit = u32(found >> register(shift)) & u32((1 << (cut.above - shift)) - 1)
                if not cut.by_weight:
                    ptx.count_shared(cut.bins + digit * 8)
                else:
                    weight = weight_of(element, p, cut.weighing)
                    if weight != 0:
                        add_to_bin(cut.bins, digit, weight)
            return total, n_ties

        return add, add_near, add_to_bins

    def pass_over(visits: Any, slow_visits: Any, which: int) -> Any:
        """Make the function that visits the elements of a thread; it returns the sum, and how many tie."""
        visit, slow_visit = visits[which], slow_visits[which]

        @device_function
        def visit_all(at, p, vector, end, cut):
            total = u64(0)
            n_ties = u32(0)
            ahead = keys.load(at, p, vector, end)
            while vector < end:
                words = ahead
                vector += 32
                ahead = keys.load(at, p, vector, end)
                if cut.weighing.is_fast:
                    for _ in range(per_vector):
                        total, n_ties = visit(keys.element_in(words, u32(0)), p, cut, total, n_ties)
                        words = keys.shifted(words)
                else:
                    # A loop that is not unrolled: weighing takes much code.
                    left = ptx.same_u32(u32(per_vector))
                    while left > 0:
                        total, n_ties = slow_visit(keys.element_in(words, u32(0)), p, cut, total, n_ties)
                        words = keys.shifted(words)
                        left -= 1
            return total, n_ties

        return visit_all

    visits, slow_visits = weighed_passes(fast_weight), weighed_passes(any_weight)
    sum_all, sum_near, fill_bins = (pass_over(visits, slow_visits, which) for which in range(3))

    def sum_of_all(has_least: bool) -> Any:
        """Make the function that returns the sum of all weights, if `Weighing.is_fast`."""
        add_to_sum = add_vector(keys, weigh, has_least=has_least)

        @device_function
        def sum_fast(at, p, vector, end, weighing):
            """Return it, from the last to the first: the pass before has left the last ones in the cache."""
            groups = keys.groups_of(at, p, vector, end)
            total = u64(0)
            left = u32(0)
            if vector < end:
                left = (end - vector + (GROUP - 1)) // u32(GROUP)
            while left > 0:
                left -= 1
                words = keys.group_at(at, p, vector, end, groups, left)
                of_group = u64(EMPTY_SUM)
                for number in range(IN_FLIGHT):
                    of_group = add_to_sum(words[number], p, weighing, of_group)
                total += of_group - u64(EMPTY_SUM)
            return total

        return sum_fast

    sum_fast, sum_from = sum_of_all(False), sum_of_all(True)

    @called_function
    def sum_part(at, p, vector, end, cut):
        """Return the sum of the weights nearer than a distance, and how many are at it.

        A thread has each 32nd vector, up to an end.
        """
        n_ties = u32(0)
        if cut.are_all and cut.weighing.is_fast:
            if cut.weighing.least == 1:
                total = sum_fast(at, p, vector, end, cut.weighing)
            else:
                total = sum_from(at, p, vector, end, cut.weighing)
        elif cut.are_all:
            total, _ = sum_all(at, p, vector, end, cut)
        else:
            total, n_ties = sum_near(at, p, vector, end, cut)
        return total, n_ties

    @device_function
    def select(at, p, request, rank, thread, largest, weighing, by_weight, total, arrays):
        """Return the distance at which the count or the weights reach a goal, their sum before, and the goal.

        The goal is k, or the share top_p of `total`; a negative one stands for the sum of all weights.
        """
        bins_at = ptx.shared_address(arrays.bins)
        distance = register(0)
        before = u64(0)
        goal = u64(request.count)
        # A loop that is not unrolled, as each step weighs elements.
        above = i64(ptx.same_u32(u32(bits)))
        while above > 0:
            shift = max(above - DIGIT_BITS, 0)
            bins_of.clear(thread, arrays.bins)
            cuda.syncthreads()
            cut = Cut(largest, distance, above, by_weight, bins_at, False, weighing)
            vector, end = keys.segment_of(at, p, rank, thread)
            fill_bins(at, p, vector, end, cut)
            bins_of.merge(thread, arrays.bins)
            own, inclusive, of_all = bins_of.scan(thread, arrays.bins, arrays.room)
            if above == bits and by_weight:
                if total < 0:
                    total = i64(of_all)
                goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, total))
            reached = before + inclusive - own
            digit, before = bins_of.find(thread, arrays.bins, reached, own, goal, arrays.room)
            distance |= register(digit) << register(shift)
            above = shift
        return distance, before, goal

    @device_function
    def sum_segments(at, p, rank, thread, cut, arrays):
        """Tell the first block the weights nearer than a distance, and the ties at it, of each segment.

        Return the sum of these weights over the row, to all blocks.
        """
        vector, end = keys.segment_of(at, p, rank, thread)
        total, n_ties = sum_part(at, p, vector, end, cut)
        total = warp_sum(total)
        n_ties = ptx.warp_add(n_ties)
        lane, warp = thread & 31, rank * WARPS + (thread >> 5)
        if lane == 0:
            team.put(arrays.sums, warp, total)
            team.put(arrays.sums, WARPS * cluster + warp, u64(n_ties))
        team.report(arrays.reports, SUM, warp, total, lane)
        team.meet()
        return warp_sum(team.sum_of_reports(arrays.reports, SUM, lane))

    @device_function
    def choose(own, n_ties, draw, thread, room):
        """Return the number of the part that the token is in, and the draw from it.

        Each thread has a part, of whose weights `own` is the sum, and which has `n_ties` ties.
        """
        if thread == 0:
            room[WARPS], room[WARPS + 1], room[WARPS + 2] = u64(0), u64(0), u64(0)
        ties_before = u64(0)
        if draw.ties > 0:
            inclusive, _ = block_inclusive_sum(n_ties, thread, room)
            ties_before = min(inclusive - n_ties, draw.ties)
            own += min(n_ties, draw.ties - ties_before) * draw.of_tied
        inclusive, total = block_inclusive_sum(own, thread, room)
        target = draw.target
        if draw.is_first:
            target = u64(ARITHMETIC.part(draw.word_low, draw.word_high, i64(total)))
        before = inclusive - own
        if before <= target < inclusive:
            room[WARPS], room[WARPS + 1], room[WARPS + 2] = u64(thread), target - before, ties_before
        cuda.syncthreads()
        part = u32(room[WARPS])
        target, ties = room[WARPS + 1], draw.ties - room[WARPS + 2]
        cuda.syncthreads()
        return part, Draw(False, draw.word_low, draw.word_high, target, ties, draw.of_tied)

    @device_function
    def token_in_vector(at, p, first, last, cut, draw, lane):
        """Return the element of a vector at which the running sum of weights exceeds the target.

        Each lane of a warp weighs one.
        """
        place = first + i64(lane)
        found = register(0)
        exists = first <= place < last
        if exists:
            found = register(cut.largest - keys.key_of(keys.element_at(at, p, place), p))
        stays = exists and found < cut.distance
        is_tied = exists and found == cut.distance
        tied = ptx.ballot(u32(is_tied))
        if is_tied:
            stays = ptx.popcount_u32(tied & ptx.lanes_below()) < draw.ties
        weight = u64(0)
        if stays:
            weight = tied_weight(cut.largest, found, p, cut.weighing)
        is_before = warp_inclusive_sum(weight, lane) <= draw.target
        return first + i64(count_lanes(is_before and place < last))

    @device_function
    def draw_token(at, p, request, thread, cut, ties, arrays):
        """Return the token of a row whose segments have been added up.

        The segment that the token is in is divided among the warps, and so on, at last among the threads.
        """
        sums, room = arrays.sums, arrays.room
        lane = thread & 31
        of_tied = tied_weight(cut.largest, cut.distance, p, cut.weighing)
        draw = Draw(True, request.word_low, request.word_high, u64(0), ties, of_tied)
        own = u64(0)
        n_ties = u64(0)
        if thread < WARPS * cluster:
            own = sums[thread]
            n_ties = sums[WARPS * cluster + thread]
        first = u32(0)
        _, stop = keys.segment_of(at, p, u32(cluster - 1), u32(THREADS - 1))
        each = u32(p.segment // per_vector)
        part, draw = choose(own, n_ties, draw, thread, room)
        while each > 1:
            first += part * each
            stop = min(first + each, stop)
            is_last = each <= THREADS
            if is_last:
                each = u32(1)
                vector = first + thread
                end = min(vector + 1, stop)
            else:
                each = (each + (32 * WARPS - 1)) // u32(32 * WARPS) * 32
                vector = first + (thread >> 5) * each
                end = min(vector + each, stop)
                vector += lane
            own, few_ties = sum_part(at, p, vector, end, cut)
            n_ties = u64(few_ties)
            if not is_last:
                own = warp_sum(own)
                n_ties = warp_sum(n_ties)
                if lane == 0:
                    sums[thread >> 5] = own
                    sums[WARPS + (thread >> 5)] = n_ties
                cuda.syncthreads()
                own = u64(0)
                n_ties = u64(0)
                if thread < WARPS:
                    own = sums[thread]
                    n_ties = sums[WARPS + thread]
            part, draw = choose(own, n_ties, draw, thread, room)
        place = i64(first + part) * per_vector - i64(keys.skipped(at, p))
        return token_in_vector(at, p, max(place, 0), min(place + per_vector, p.n), cut, draw, lane)

    @device_function
    def draw_selected(at, p, request, weighing, largest, rank, thread, arrays):
        """Return the token of a row, in the first block; others return 0."""
        # All elements stay but NaN, whose distance no other has.
        distance = largest
        ties = u64(0)
        total = i64(-1)
        is_counted = request.is_counted != 0
        are_all = not is_counted and request.top_p < 0
        is_done = False
        bins_at = ptx.shared_address(arrays.bins)
        cut = Cut(largest, distance, i64(0), False, bins_at, are_all, weighing)
        while not is_done:
            by_weight = not is_counted
            is_summed = False
            if by_weight and request.top_p >= 0 and weighing.is_fast:
                is_summed, distance, ties = find_share(
                    at, p, request, rank, thread, largest, weighing, total, arrays
                )
            if not is_summed and (is_counted or request.top_p >= 0):
                distance, before, goal = select(
                    at, p, request, rank, thread, largest, weighing, by_weight, total, arrays
                )
                weight = u64(1)
                if by_weight:
                    weight = max(tied_weight(largest, distance, p, weighing), u64(1))
                ties = (goal - before + weight - 1) // weight
            is_done = by_weight or request.top_p < 0
            is_counted = False
            cut = Cut(largest, distance, i64(0), False, bins_at, are_all, weighing)
            if not is_summed:
                total = i64(sum_segments(at, p, rank, thread, cut, arrays))
                if ties > 0:
                    total += i64(ties * tied_weight(largest, distance, p, weighing))
        token = i64(0)
        if rank == 0:
            token = draw_token(at, p, request, thread, cut, ties, arrays)
        return token

    return draw_selected
