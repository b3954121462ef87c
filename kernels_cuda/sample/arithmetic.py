"""The integer arithmetic of sampling for GPUs, and the table of powers that it reads.

`ARITHMETIC` is that of the CPU. Loops over elements find the exponent of a weight in four instructions on
floats of 64 bits instead (`exponent` of `ptx`), each of which is exact or rounds down where the definition
does: integers below 2^53 are such floats, and one that is added to 2^52 loses what is behind the point.
"""

import functools
import math
from typing import Any, NamedTuple

from numba import cuda

from kernels_cpu.exact import sampling
from kernels_cpu.exact.sampling import C1, C2, C3, LOG2_E, POWER_BITS, TABLE_BITS, Scale
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.parameters import COPIES, THREADS

_ROUND_SHIFT = POWER_BITS - 32
_FLOAT_BIAS = 1023
_LARGEST_POWER = 100  # of temperatures that `exponent` takes: weights of infinities would be those of numbers
# No weight at 60 times the power of two of the temperature; an exponent of 4 and more for the float.
_FAR = (_FLOAT_BIAS + 5 << 52) | (7 << 49)
_NEAR_FLOATS = 30  # binary places from a float of 32 bits to those next to it, and six more


def _factors() -> tuple[int, ...]:
    """Return 2^(-2^bit / 128) for 7 bits, on a scale of 2^63: square roots of a half, and of each other."""
    factors, root = [0] * TABLE_BITS, 1 << 191
    for bit in range(TABLE_BITS - 1, -1, -1):
        root = math.isqrt(root << 192)
        factors[bit] = root >> 129
    return tuple(factors)


_FACTORS = _factors()


@device_function
def _product(a, b):
    return i64(ptx.multiply_wide_u32(u32(a), u32(b)))


@device_function
def _power_of(powers, number):
    return i64(ptx.load_shared_u64(powers + u32(number) * (8 * COPIES)))


ARITHMETIC: Any = sampling.arithmetic(called_function, _product, _power_of)
"""Functions of the address of `fill_powers`'s array in shared memory, where they take powers."""
N_SCALE = len(Scale._fields)


@device_function
def fill_powers(powers, thread):
    """Write copies of `sampling.POWERS` to a shared array: lanes that read at once use several."""
    number = thread & ((1 << TABLE_BITS) - 1)
    power = u64(1) << 63
    for bit in range(TABLE_BITS):
        if (number >> bit) & 1 != 0:
            power = ptx.multiply_high_u64(power, u64(_FACTORS[bit])) << 1
    # Twice the power, rounded down, and then rounded.
    scaled = ptx.multiply_high_u64(power, u64(((1 << POWER_BITS) - 1) << 2))
    copy = thread >> TABLE_BITS
    while copy < COPIES:
        powers[number * COPIES + copy] = i64((scaled + 1) >> 1)
        copy += THREADS >> TABLE_BITS
    cuda.syncthreads()


class Weighing(NamedTuple):
    """The numbers of a row by which its elements are weighed; floats as their bits."""

    is_fast: Any
    low: Any
    """A number without a weight, which stands for smaller ones."""
    magic: Any
    """1.5 * 2^52 times the unit of differences."""
    largest: Any
    """The largest element, rounded down to this unit, plus `magic`."""
    factor: Any
    """From a difference to the exponent."""
    least: Any
    powers: Any
    """The address of the table, and of the lane's copy."""
    lane_powers: Any
    scale: Any
    """The address of the row's `Scale`."""


class WeighFunctions(NamedTuple):
    """The device functions for one element width."""

    prepare: Any
    fast: Any
    """The weight of an element as `value_of` of `keys` gives it, if `Weighing.is_fast`."""
    of_key: Any
    """The weight of a key with a sign."""


@called_function
def _of_key(key, scale, powers):
    words = cuda.local.array(N_SCALE, i64)
    for i in range(N_SCALE):
        words[i] = i64(ptx.load_shared_u64(scale + u32(8 * i)))
    row = Scale(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8])
    return ARITHMETIC.weight(key, row, powers)


@device_function
def _of_any_key(key, weighing):
    return u64(_of_key(key, weighing.scale, weighing.powers))


@called_function
def _float_of(digits, exponent):
    """Return the bits of digits * 2^exponent."""
    return i64(ptx.f64_of_integer(u64(digits))) + (exponent << 52)


@called_function
def _prepared_narrow(value, factor, power):
    """Return what `Weighing` has of a row, by the bits of its largest element as a float of 32 bits."""
    field = max(i64(value >> 23 & 255), 1)
    if power < field - 127 - _NEAR_FLOATS:
        # Only the largest element has a weight, as at this temperature.
        power = field - 127 - _NEAR_FLOATS
        factor = i64(LOG2_E >> 16)
    is_fast = power <= _LARGEST_POWER and field < 254
    if not is_fast:
        power = i64(0)
    unit = max(power - 41, field - 127 - 49)
    magic = u64((unit + (_FLOAT_BIAS + 52)) << 52 | 1 << 51)
    largest = ptx.f64_of_f32(value)
    low = ptx.f32_below(ptx.subtract_f64(largest, u64(_FAR + (power << 52))))
    found = u64(_float_of(factor, -7 - power))
    return is_fast, u64(low), magic, ptx.add_down_f64(largest, magic), found


@called_function
def _prepared_wide(value, factor, power):
    """Return what `Weighing` has of a row, by the bits of its largest element as a float of 64 bits."""
    field = i64(value >> 52 & 2047)
    is_fast = -900 <= power <= 900 and field <= power + _FLOAT_BIAS + 8
    if not is_fast:
        power = i64(0)
    magic = u64((power + (_FLOAT_BIAS + 52 - 41)) << 52 | 1 << 51)
    low = ptx.subtract_f64(value, u64(_FAR + (power << 52)))
    found = u64(_float_of(factor, -7 - power))
    return is_fast, low, magic, ptx.add_down_f64(value, magic), found


@functools.cache
def weigh_functions(element_size: int) -> WeighFunctions:
    """Make the functions for one element width; `fast` takes floats of 32 bits at least, as their bits."""
    bits = 8 * element_size
    prepared = _prepared_wide if element_size == 8 else _prepared_narrow
    exponent = ptx.exponent_f64 if element_size == 8 else ptx.exponent_f32
    register = ptx.REGISTER[element_size]

    @device_function
    def prepare(value, key, request, p, thread, powers, scale):
        """Return the `Weighing` of a row by its largest element, of which `key` is the key with a sign."""
        power = request.temperature_exponent + 52
        is_fast, low, magic, largest, factor = prepared(value, request.factor, power)
        if not is_fast:
            row = ARITHMETIC.scale_of(
                key, request.factor, request.temperature_exponent, bits, p.mantissa, request.least
            )
            for i in range(N_SCALE):
                if thread == i:
                    scale[i] = row[i]
            cuda.syncthreads()
        at = ptx.shared_address(powers)
        lane_powers = at + (thread & (COPIES - 1)) * 8
        return Weighing(
            is_fast,
            low,
            magic,
            largest,
            factor,
            u64(request.least),
            at,
            lane_powers,
            ptx.shared_address(scale),
        )

    @device_function
    def fast(value, weighing):
        found = exponent(value, register(weighing.low), weighing.magic, weighing.largest, weighing.factor)
        rest = u32(found)
        whole = u32(found >> 32)
        inner = u32(C2) - ptx.multiply_high_u32(rest, u32(C3))
        inner = u32(C1) - ptx.multiply_high_u32(rest, inner)
        inner = ptx.multiply_high_u32(rest, inner)
        power = ptx.load_shared_u64(weighing.lane_powers + (whole & ((1 << TABLE_BITS) - 1)) * (8 * COPIES))
        power -= u64(ptx.multiply_high_u32(u32(power >> _ROUND_SHIFT), inner))
        # The exponent has two more in its whole part: powers have two more bits than weights.
        weight = ptx.shift_right_u64(power, whole >> TABLE_BITS & 0x1FFF)
        if weight < weighing.least:
            weight = u64(0)
        return weight

    return WeighFunctions(prepare, fast, _of_any_key)


@functools.cache
def weight_of_element(keys: Any, weigh: WeighFunctions) -> Any:
    """Make the device function that weighs an element of any row, by `key_functions`."""

    @device_function
    def weight(element, p, weighing):
        if weighing.is_fast:
            return weigh.fast(keys.value_of(element, p), weighing)
        return weigh.of_key(keys.signed(keys.key_of(element, p)), weighing)

    return weight
