"""The kernel for rows of which a small k takes part, after `top_k` has found these: one warp per row.

To load its code takes longer than to run it. So it begins while `top_k` runs: the first warp draws from
elements that it makes up, and drops the token, and the others find the parameters of the block's rows. When
`top_k` has ended, each warp draws the token of a row by the same code.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.arithmetic import ARITHMETIC, put_power, weight_by_table
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import LISTED_WARPS, MOST_LISTED, N_POWERS, VECTOR, Given, Parameters
from kernels_cuda.sample.requests import (
    N_ADDRESSES,
    N_REQUEST,
    find_row,
    put_part,
    put_practice,
    put_token,
    request_in,
)
from kernels_cuda.sample.shared import warp_inclusive_sum, warp_sum_below_2_53

_N_ASKED = N_REQUEST + 1
"""Integers in shared memory for a row: a `Request`, and the address of the token."""
_PRACTICE = LISTED_WARPS * _N_ASKED
_STEP = 64
"""Elements that a warp weighs at a time, two per lane. Of those that do not exist, the weights are 0."""
_AT_ONCE = 4
"""Elements that a lane compares with its own at a time."""


@device_function
def _keep_first(weights, sums, lane, count, goal):
    """Drop the weights before which the sum has reached a goal; the first weight stays.

    Return where the last element with a weight ends, and the sum of weights.
    """
    end, total = u32(0), u64(0)
    i = lane * 2
    while i < count:
        weight, other = ptx.load_shared_u64x2(weights + i * 8)
        through = ptx.load_shared_u64(sums + i * 4)
        if through - other >= goal:
            weight = weight if through - other - weight < goal else u64(0)
            other = u64(0)
        ptx.store_shared_u64x2(weights + i * 8, weight, other)
        end = i + 1 if weight > 0 else end
        end = i + 2 if other > 0 else end
        total += weight + other
        i = ptx.same_u32(i + _STEP)
    return ptx.warp_max(end), warp_sum_below_2_53(total)


@device_function
def _sums_before(weights, places, end, place, other):
    """Return the sums of the weights at places before one, and before another."""
    before, before_other = u64(0), u64(0)
    i = u32(0)
    while i < end:
        a, b, c, d = ptx.load_shared_u32x4(places + i * 4)
        found = a, b, c, d
        first, second = ptx.load_shared_u64x2(weights + i * 8)
        third, fourth = ptx.load_shared_u64x2(weights + i * 8 + VECTOR)
        weighed = first, second, third, fourth
        for j in range(_AT_ONCE):
            before += weighed[j] if found[j] < place else u64(0)
            before_other += weighed[j] if found[j] < other else u64(0)
        i = ptx.same_u32(i + _AT_ONCE)
    return before, before_other


def listed_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    keys = key_functions(element_size, 1)
    bits, bias = 8 * element_size, 1 << (8 * element_size - 1)
    register, load = ptx.REGISTER[element_size], ptx.LOAD[element_size]
    n_kept, n_asked = LISTED_WARPS * MOST_LISTED, _PRACTICE + _N_ASKED
    n_pairs = n_kept // 2

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
    def weight_of(element, exists, scale, powers, p):
        weight = u64(weight_by_table(keys.signed(keys.key_of(element, p)), scale, powers))
        return weight if exists else u64(0)

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
        powers = cuda.shared.array(N_POWERS, i64)
        asked = cuda.shared.array(n_asked, i64)
        weight_array = cuda.shared.array(n_kept, u64, VECTOR)
        sum_array = cuda.shared.array(n_pairs, u64)
        place_array = cuda.shared.array(n_kept, u32, VECTOR)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        row = i64(cuda.blockIdx.x) * LISTED_WARPS
        put_power(powers, thread)
        if thread == 0:
            put_practice(asked, _PRACTICE)
        cuda.syncthreads()
        table = ptx.shared_address(powers)
        weights = ptx.shared_address(weight_array) + warp * (MOST_LISTED * 8)
        sums = ptx.shared_address(sum_array) + warp * (MOST_LISTED * 4)
        places = ptx.shared_address(place_array) + warp * (MOST_LISTED * 4)
        is_drawing = warp == 0
        asked_at = u32(_PRACTICE)
        is_real = u32(0)
        while is_real < 2:
            if is_real > 0:
                cuda.syncthreads()
                row += i64(warp)
                is_drawing = row < p.n_rows
                asked_at = warp * _N_ASKED
            elif warp > 0 and lane < LISTED_WARPS:
                find_row(min(row + i64(lane), p.n_rows - 1), x, given, output, p, far, addresses)
                put_part(warp - 1, addresses, p, asked, lane * _N_ASKED)
                if warp == 1:
                    asked[lane * _N_ASKED + N_REQUEST] = addresses[1]
            request = request_in(asked, asked_at, p, True)
            if is_real > 0:
                # No launch of this plan writes the parameters.
                ptx.grid_dependency_wait()
                is_drawing &= 0 < request.count <= p.n_listed
            if is_drawing:
                count = u32(request.count)
                elements_at = elements + row * p.n_listed * element_size
                indices_at = indices + row * p.n_listed * 4
                i = lane * 2
                largest, a, b, place, other_place = register(0), register(0), register(0), u32(0), u32(0)
                if is_real > 0:
                    largest = load(elements_at)
                    a, b, place, other_place = load_pair(elements_at, indices_at, i, count - 1)
                largest = keys.key_of(largest, p)
                scale = ARITHMETIC.scale_of(
                    keys.signed(largest),
                    request.factor,
                    request.temperature_exponent,
                    bits,
                    p.mantissa,
                    request.least,
                )
                total = u64(0)
                start = ptx.same_u32(u32(0))
                while start < count:
                    weight = weight_of(a, i < count, scale, table, p)
                    other = weight_of(b, i + 1 < count, scale, table, p)
                    through = total + warp_inclusive_sum(weight + other, lane)
                    total = ptx.shuffle_from_u64(through, u32(31))
                    ptx.store_shared_u64x2(weights + i * 8, weight, other)
                    ptx.store_shared_u64(sums + i * 4, through)
                    ptx.store_shared_u32x2(places + i * 4, place, other_place)
                    i += _STEP
                    start = ptx.same_u32(start + _STEP)
                    if start < count and is_real > 0:
                        a, b, place, other_place = load_pair(elements_at, indices_at, i, count - 1)
                goal = u64(ARITHMETIC.share(request.top_p, request.top_p_exponent, i64(total)))
                end, total = _keep_first(weights, sums, lane, count, goal)
                cuda.syncwarp()
                target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
                # The element is drawn before which the weights do not exceed the target, and with it they do.
                token = ~u64(0)
                is_any = u64(largest) > u64(bias) - u64(p.infinity)
                is_own = lane == 0 and not is_any
                i = lane * 2
                while i < end:
                    place, other_place = ptx.load_shared_u32x2(places + i * 4)
                    weight, other = ptx.load_shared_u64x2(weights + i * 8)
                    before, before_other = _sums_before(weights, places, end, place, other_place)
                    is_first = before <= target < before + weight
                    if is_any and (is_first or before_other <= target < before_other + other):
                        token = u64(place) if is_first else u64(other_place)
                        is_own = True
                    i = ptx.same_u32(i + _STEP)
                if is_own and is_real > 0:
                    put_token(asked[asked_at + N_REQUEST], token, p)
            is_real = ptx.next_pass(is_real)

    return sample_listed
