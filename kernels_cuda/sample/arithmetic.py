"""The integer arithmetic of sampling for GPUs, and the table of powers that it reads."""

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
inlined_weight: Any = sampling.arithmetic(linked_function, _product, _power_of).weight
"""For loops over elements."""


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
