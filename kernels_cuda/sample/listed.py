"""The kernel for rows of which a small k takes part, after `top_k` has found these: one warp per row."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.sample.arithmetic import ARITHMETIC
from kernels_cuda.sample.keys import key_functions
from kernels_cuda.sample.parameters import LISTED_WARPS, MOST_LISTED, Given, Parameters
from kernels_cuda.sample.requests import N_ADDRESSES, find_row, put_token, request_of
from kernels_cuda.sample.shared import warp_inclusive_sum, warp_sum_below_2_53


def listed_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    keys = key_functions(element_size, 1)
    bits, bias = 8 * element_size, 1 << (8 * element_size - 1)
    read = ptx.LOAD[element_size]
    n_kept = LISTED_WARPS * MOST_LISTED

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
        kept = cuda.shared.array(n_kept, u64)
        places = cuda.shared.array(n_kept, u32)
        addresses = cuda.local.array(N_ADDRESSES, i64)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        row = i64(cuda.blockIdx.x) * LISTED_WARPS + i64(thread >> 5)
        find_row(min(row, p.n_rows - 1), x, given, output, p, far, addresses)
        request = request_of(addresses, p)
        # No launch of this plan writes the parameters.
        ptx.grid_dependency_wait()
        if row < p.n_rows and 0 < request.count <= p.n_listed:
            first = row * p.n_listed
            own = (thread >> 5) * MOST_LISTED
            largest = keys.key_of(read(elements + first * element_size), p)
            scale = ARITHMETIC.scale_of(
                keys.signed(largest),
                request.factor,
                request.temperature_exponent,
                bits,
                p.mantissa,
                request.least,
            )
            total = u64(0)
            for i in range(lane, request.count, 32):
                key = keys.key_of(read(elements + (first + i) * element_size), p)
                weight = u64(ARITHMETIC.weight(keys.signed(key), scale, 0))
                kept[own + i] = weight
                places[own + i] = ptx.load_u32(indices + (first + i) * 4)
                total += weight
            goal = u64(
                ARITHMETIC.share(request.top_p, request.top_p_exponent, i64(warp_sum_below_2_53(total)))
            )
            # In order, the first ones stay until their weights reach the goal.
            before = u64(0)
            total = u64(0)
            for start in range(0, request.count, 32):
                i = u32(start) + lane
                weight = u64(0)
                if i < request.count:
                    weight = kept[own + i]
                inclusive = before + warp_inclusive_sum(weight, lane)
                before = ptx.shuffle_from_u64(inclusive, u32(31))
                if inclusive - weight >= goal:
                    weight = u64(0)
                if i < request.count:
                    kept[own + i] = weight
                total += weight
            total = warp_sum_below_2_53(total)
            target = u64(ARITHMETIC.part(request.word_low, request.word_high, i64(total)))
            # The largest index before which the weights do not exceed the target, bit by bit.
            token = u32(0)
            bit = u32(1) << ptx.highest_bit(u32(p.n))
            while bit > 0:
                before = u64(0)
                for i in range(lane, request.count, 32):
                    if places[own + i] < token + bit:
                        before += kept[own + i]
                if warp_sum_below_2_53(before) <= target:
                    token += bit
                bit >>= 1
            if lane == 0:
                found = u64(token)
                if u64(largest) <= u64(bias) - u64(p.infinity):
                    found = ~u64(0)
                put_token(addresses[1], found, p)

    return sample_listed
