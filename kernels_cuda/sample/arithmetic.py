"""The integer arithmetic of sampling for GPUs, and the table of powers that it reads."""

import functools
import math
from typing import Any

from numba import cuda

from kernels_cpu.exact import sampling
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function, linked_function


def _factors() -> tuple[int, ...]:
    """Return 2^(-2^bit / 256) for 8 bits, on a scale of 2^63: square roots of a half, and of each other."""
    factors, root = [0] * 8, 1 << 191
    for bit in range(7, -1, -1):
        root = math.isqrt(root << 192)
        factors[bit] = root >> 129
    return tuple(factors)


_FACTORS = _factors()


@device_function
def _product(a, b):
    return i64(ptx.multiply_wide_u32(u32(a), u32(b)))


@device_function
def _power_of(powers, number):
    return i64(ptx.load_shared_u64(powers + u32(number) * 8))


ARITHMETIC: Any = sampling.arithmetic(called_function, _product, _power_of)
"""Functions of the address of `fill_powers`'s array in shared memory, where they take powers."""
_INLINED: Any = sampling.arithmetic(linked_function, _product, _power_of)


@functools.cache
def inlined_weight(element_size: int) -> Any:
    """Make the device function ``weight(key, scale, powers)`` of unsigned keys, for loops over elements.

    For keys of 32 bits at most, what comes before the 64 bits of a difference is done in 32 bits.
    """
    bias = 1 << (8 * element_size - 1)
    weight, decayed = _INLINED.weight, _INLINED.decayed

    @device_function
    def weight_of_wide(key, scale, powers):
        return u64(weight(i64(key - u64(bias)), scale, powers))

    @device_function
    def weight_of_narrow(key, scale, powers):
        magnitude = key - u32(bias)
        is_negative = key < bias
        if is_negative:
            magnitude = u32(bias) - key
        mantissa = u32(scale.mantissa)
        field = magnitude >> mantissa
        digits = magnitude & ((u32(1) << mantissa) - u32(1))
        if field > 0:
            digits |= u32(1) << mantissa
        field = max(field, u32(1))
        top = u32(max(min(scale.top, 1 << 30), 0))
        # The digits as a multiple of the row's unit are below 2^61.
        place = u64(digits << (u32(29) - mantissa)) << 32
        place >>= u64(min(top - field, u32(63)))
        difference = u64(scale.position) - place
        if is_negative:
            difference = u64(scale.position) + place
        is_weighed = field <= top and magnitude < u32(scale.infinity) and difference <= u64(scale.limit)
        found = i64(0)
        if is_weighed:
            found = decayed(i64(difference << u64(scale.shift)), scale.factor, powers)
            if found < scale.least:
                found = i64(0)
        if i64(key) - bias == scale.largest:
            found = i64(sampling.FULL)
        return u64(found)

    return weight_of_wide if element_size == 8 else weight_of_narrow


@device_function
def fill_powers(powers, thread):
    """Write `sampling.POWERS` to a shared array, by the first 256 threads of a block."""
    if thread < 256:
        power = u64(1) << 63
        for bit in range(8):
            if (thread >> bit) & 1 != 0:
                power = ptx.multiply_high_u64(power, u64(_FACTORS[bit])) << 1
        # Twice the power, rounded down, and then rounded.
        scaled = ptx.multiply_high_u64(power, u64(((1 << 40) - 1) << 2))
        powers[thread] = i64((scaled + 1) >> 1)
    cuda.syncthreads()
