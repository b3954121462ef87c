"""The kernel for rows of which a small k takes part, after `top_k` has found these: one warp per row.

It begins while `top_k` runs: the first warp makes the table of powers, and the others find a part each of the
parameters of the block's rows. When `top_k` has ended, each warp draws the token of a row. To load the code
for that takes longer than to run it, so it is kept short.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, N_SCALE, power_word, weigh_functions, weight_of_element
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import LISTED_WARPS, MOST_LISTED, N_POWERS, VECTOR, Given, Parameters
from kernels_cuda.sample.requests import (
    N_ADDRESSES,
    N_REQUEST,
    TEMPERATURE_PART,
    find_near_row,
    put_part,
    put_token,
    request_in,
)
from kernels_cuda.sample.shared import add_to_bin, count_lanes, warp_inclusive_sum, warp_sum_below_2_53

_N_ASKED = N_REQUEST + 1
"""Integers in shared memory for a row: a `Request`, and the address of the token."""
_STEP = 64
"""Elements that a warp weighs at a time, two per lane. Of those that do not exist, the weights are 0."""
_COUNT_BITS = 9
"""The low bits of a bin count its elements; the others are their sum, which is below 2^45."""
_COUNT = (1 << _COUNT_BITS) - 1
_DIGIT_BITS = 5
"""Bits of an index that are found at a time: each lane has a bin."""
_N_BINS = 1 << _DIGIT_BITS


class _Room(NamedTuple):
    """The addresses of what a warp has in shared memory."""

    weights: Any
    sums: Any
    """The sums of the weights up to each pair of elements."""
    places: Any
    """The indices of the elements."""
    bins: Any
    last_places: Any
    """The largest index in each bin."""
    scale: Any


@device_function
def _keep_first(room, lane, count, goal):
    """Drop the weights before which the sum has reached a goal; the first weight stays.

    Return where the last element with a weight ends, and the sum of weights. Each weight becomes what is
    added to a bin: its sum and a count of one.
    """
    end, total = u32(0), u64(0)
    i = lane * 2
    while i < count:
        weight, other = ptx.load_shared_u64x2(room.weights + i * 8)
        through = ptx.load_shared_u64(room.sums + i * 4)
        if through - other >= goal:
            weight = weight if through - other - weight < goal else u64(0)
            other = u64(0)
        total += weight + other
        end = i + 1 if weight > 0 else end
        end = i + 2 if other > 0 else end
        weight = weight << _COUNT_BITS | u64(weight > 0)
        other = other << _COUNT_BITS | u64(other > 0)
        ptx.store_shared_u64x2(room.weights + i * 8, weight, other)
        i = ptx.same_u32(i + _STEP)
    return ptx.warp_max(end), warp_sum_below_2_53(total)


@device_function
def _add_element(weight, place, low, shift, room):
    """Add an element to the bin of a digit of its index, if the digits above are those of `low`."""
    digit = (place - low) >> shift
    if digit < _N_BINS and weight != 0:
        add_to_bin(room.bins, digit, weight)
        ptx.reduce_max_shared_u32(room.last_places + digit * 4, place)


@device_function
def _place_of(target, end, room, lane, n):
    """Return the index at which the running sum of weights, in the order of indices, exceeds the target.

    Digit by digit, the first bin with which they do is divided, until it has a single element.
    """
    goal = (target + 1) << _COUNT_BITS
    shift = max(ptx.highest_bit(u32(n)), u32(_DIGIT_BITS - 1)) - (_DIGIT_BITS - 1)
    low, digit, found = u32(0), u32(0), u64(_COUNT)
    while found & _COUNT > 1:
        ptx.store_shared_u64(room.bins + lane * 8, u64(0))
        ptx.store_shared_u32(room.last_places + lane * 4, u32(0))
        cuda.syncwarp()
        i = lane * 2
        while i < end:
            weight, other = ptx.load_shared_u64x2(room.weights + i * 8)
            place, other_place = ptx.load_shared_u32x2(room.places + i * 4)
            _add_element(weight, place, low, shift, room)
            _add_element(other, other_place, low, shift, room)
            i = ptx.same_u32(i + _STEP)
        cuda.syncwarp()
        own = ptx.load_shared_u64(room.bins + lane * 8)
        through = warp_inclusive_sum(own, lane)
        digit = count_lanes(through < goal)
        found = ptx.shuffle_from_u64(own, digit)
        goal -= (ptx.shuffle_from_u64(through, digit) - found) >> _COUNT_BITS << _COUNT_BITS
        low += digit << shift
        shift = max(shift, u32(_DIGIT_BITS)) - _DIGIT_BITS
    return ptx.load_shared_u32(room.last_places + digit * 4)


def listed_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    keys, weigh = key_functions(element_size, 1), weigh_functions(element_size, 1)
    weight_of = weight_of_element(keys, weigh)
    load = ptx.LOAD[element_size]
    n_kept, n_asked, n_scales = LISTED_WARPS * MOST_LISTED, LISTED_WARPS * _N_ASKED, LISTED_WARPS * N_SCALE
    n_sums, n_bins = n_kept // 2, LISTED_WARPS * _N_BINS

    @device_function
    def load_pair(elements, indices, i, last):
        """Return two elements and their indices; the last one stands for those that do not exist."""
        i, j = min(i, last), min(i + 1, last)
        return (
            load(elements + i64(i) * element_size),
            load(elements + i64(j) * element_size),
            ptx.load_u32(indices + i64(i) * 4),
            ptx.load_u32(indices + i64(j) * 4),
        )

    @device_function
    def draw(elements, indices, request, table, room, lane, p):
        """Return the token of a row."""
        count, i, start = u32(request.count), lane * 2, ptx.same_u32(u32(0))
        first = load(elements)
        pair = load_pair(elements, indices, i, count - 1)
        largest = keys.key_of(first, p)
        token = ~u64(0)
        if keys.has_weight(largest, p):
            weighing = weigh.weighing_of(keys.value_of(first, p), request, table, room.scale)
            if not weighing.is_fast:
                weigh.put_scale(keys.signed(largest), request, p, lane, room.scale)
                cuda.syncwarp()
            total = u64(0)
            while start < count:
                element, other_element, place, other_place = pair
                pair = load_pair(elements, indices, i + _STEP, count - 1)
                weight, other = weight_of(element, p, weighing), weight_of(other_element, p, weighing)
                weight = weight if i < count else u64(0)
                other = other if i + 1 < count else u64(0)
                through = total + warp_inclusive_sum(weight + other, lane)
                total = ptx.shuffle_from_u64(through, u32(31))
                ptx.store_shared_u64x2(room.weights + i * 8, weight, other)
                ptx.store_shared_u64(room.sums + i * 4, through)
                ptx.store_shared_u32x2(room.places + i * 4, place, other_place)
                i += _STEP
                start = ptx.same_u32(start + _STEP)
            goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, i64(total)))
            end, total = _keep_first(room, lane, count, goal)
            target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
            token = u64(_place_of(target, end, room, lane, p.n))
        return token

    @cuda.jit
    def sample_listed(
        elements,
        indices,
        x,
        given: Given,
        output,
        p: Parameters,
        far,
    ):
        powers = cuda.shared.array(N_POWERS, u64)
        asked = cuda.shared.array(n_asked, i64)
        weights = cuda.shared.array(n_kept, u64, VECTOR)
        sums = cuda.shared.array(n_sums, u64)
        places = cuda.shared.array(n_kept, u32, VECTOR)
        bins = cuda.shared.array(n_bins, u64)
        last_places = cuda.shared.array(n_bins, u32)
        scales = cuda.shared.array(n_scales, u64)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        row = i64(cuda.blockIdx.x) * LISTED_WARPS
        # A lane of any warp but the first finds a part of the parameters of a row. The last two of the four
        # parts are the last warp's, by the same code.
        n_parts = u32(2) if warp == LISTED_WARPS - 1 else u32(1)
        of_row, part = lane % u32(LISTED_WARPS), warp - 1 + lane // u32(LISTED_WARPS)
        if warp == 0:
            number = lane
            while number < N_POWERS:
                powers[number] = power_word(number)
                number = ptx.same_u32(number + 32)
        elif lane < n_parts * LISTED_WARPS:
            find_near_row(min(row + i64(of_row), p.n_rows - 1), x, given, output, p, addresses)
            put_part(part, addresses, p, True, asked, of_row * _N_ASKED)
            if part == TEMPERATURE_PART:
                asked[of_row * _N_ASKED + N_REQUEST] = addresses[1]
        cuda.syncthreads()
        row += i64(warp)
        request = request_in(asked, warp * _N_ASKED, p, True)
        output_at = asked[warp * _N_ASKED + N_REQUEST]
        room = _Room(
            ptx.shared_address(weights) + warp * (MOST_LISTED * 8),
            ptx.shared_address(sums) + warp * (MOST_LISTED // 2 * 8),
            ptx.shared_address(places) + warp * (MOST_LISTED * 4),
            ptx.shared_address(bins) + warp * (_N_BINS * 8),
            ptx.shared_address(last_places) + warp * (_N_BINS * 4),
            ptx.shared_address(scales) + warp * (N_SCALE * 8),
        )
        # No launch of this plan writes the parameters, and its first one has waited for all before it.
        ptx.grid_dependency_wait()
        if row < p.n_rows and 0 < request.count <= p.n_listed:
            first = row * p.n_listed
            token = draw(
                elements + first * element_size,
                indices + first * 4,
                request,
                ptx.shared_address(powers),
                room,
                lane,
                p,
            )
            if lane == 0:
                put_token(output_at, token, p)

    return sample_listed
