"""The integer arithmetic of sampling for GPUs, and the table of powers that it reads.

`ARITHMETIC` is that of the CPU, except for one division. Loops over elements weigh in floats of 64 bits
instead, each of whose operations is exact or rounds where the definition does: integers below 2^53 are such
floats, and one to which a number is added in the binade of 2^52 units rounds that number to these units.

- `Weighing.origin` plus x is 1.5 * 2^52 units of differences minus D, so `exponent` of `ptx` finds, by one
  multiplication of that with `factor` and the addition of `top`, 1.5 * 2^52 minus Y. Its upper word is a
  constant, plus the whole part and the index of the fraction that -Y has.
- `quadratic_f32` of `ptx` finds in floats of 32 bits what the rest is multiplied by for Q: the bits of its
  result are that integer.
- A power of the table and the rest's, 1 + Q, are floats. Their product is added to a sum of 2^52 and more,
  which drops the fraction: a weight is that, with the sum's exponent taken away.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from kernels_cpu.exact import sampling
from kernels_cpu.exact.sampling import C0, C1, C2, FULL, LOG2_E, POWER_BITS, TABLE_BITS, Scale
from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import called_function, device_function
from kernels_cuda.sample.parameters import COPIES, N_POWERS, THREADS

_FLOAT_BIAS = 1023
_LARGEST_POWER = 100  # of temperatures for `exponent`: with larger ones, infinities would weigh as numbers do
# No weight at 60 times the power of two of the temperature; an exponent of 4 and more for the float.
_FAR = (_FLOAT_BIAS + 5 << 52) | (7 << 49)
_NEAR_FLOATS = 30  # binary places from a float of 32 bits to those next to it, and six more
_TOP = _FLOAT_BIAS + 52 << 52 | 1 << 51  # 1.5 * 2^52
EMPTY_SUM = _FLOAT_BIAS + 52 << 52
"""The bits of a sum of no weights. It has room for 2^15."""
BINS_PER_POWER = 64
"""Bins for a power of two of the weights."""
_INDEX_SHIFT = 52 - TABLE_BITS
_PER_POWER = THREADS // N_POWERS
_DIVIDEND = LOG2_E << 36
"""What a temperature's digits divide for C."""
_DIVIDEND_LOW, _DIVIDEND_FLOAT = _DIVIDEND & ((1 << 64) - 1), int(np.float64(_DIVIDEND).view(np.uint64))


def _bits_of_float(digits: int, exponent: int) -> int:
    """Return the bits of digits * 2^exponent as a float of 32 bits."""
    return int(np.float32(math.ldexp(digits, exponent)).view(np.uint32))


# The bits of a float in this binade, whose units are 2^27, are `inner` of `sampling`.
_BINADE = 127 + 50 << 23
_C0 = _bits_of_float((1 << 23) + C0 - _BINADE, 27)
_C1, _C2 = _bits_of_float(C1, 25), _bits_of_float(C2, 25)


def _factors() -> tuple[int, ...]:
    """Return 2^(2^bit / 128) for 7 bits, on a scale of 2^63: square roots of two, and of each other."""
    factors, root = [0] * TABLE_BITS, 2 << 192
    for bit in range(TABLE_BITS - 1, -1, -1):
        root = math.isqrt(root << 192)
        factors[bit] = root >> 129
    return tuple(factors)


_FACTORS = _factors()


@device_function
def _product(a, b):
    return i64(ptx.multiply_wide_u32(u32(a), u32(b)))


@called_function
def _power_of(powers, number):
    """Return an entry of `sampling.POWERS`; no table is needed."""
    power = u64(1) << 62
    for bit in range(TABLE_BITS):
        if (number >> bit) & 1 != 0:
            power = ptx.multiply_high_u64(power, u64(_FACTORS[bit])) << 1
    # Twice the power, rounded down, and then rounded.
    return i64((ptx.multiply_high_u64(power, u64(4 * FULL << 3)) + 1) >> 1)


@called_function
def _factor_of(digits, exponent):
    """Do what `sampling` does in five divisions of integers, by one of floats."""
    factor = i64(0)
    if digits >= 0 and exponent < 1 << 15:
        # Rounded to units of 2^-7 or 2^-6. That the dividend is too small takes less than 2^-9 from it.
        quotient = ptx.divide_f64(u64(_DIVIDEND_FLOAT), ptx.f64_of_integer(u64(digits)))
        factor = i64(ptx.integer_of_f64(quotient))
        # So it may have reached the next integer, but cannot have fallen below its own.
        if i64(u64(_DIVIDEND_LOW) - u64(factor) * u64(digits)) < 0:
            factor -= 1
    return factor


ARITHMETIC: Any = sampling.arithmetic(called_function, _product, _power_of)._replace(factor_of=_factor_of)
"""The functions of `sampling`; where they take powers, any number will do."""
N_SCALE = len(Scale._fields)


@device_function
def power_word(number):
    """Return an entry of `sampling.POWERS` as tables have it for `WeighFunctions.add`.

    A quarter of it is a float, from whose exponent the number is subtracted: `add` adds an index together
    with the whole part of -Y.
    """
    return ptx.f64_of_integer(u64(_power_of(0, number))) - (u64(2) << 52) - (u64(number) << _INDEX_SHIFT)


@device_function
def fill_powers(powers, thread):
    """Write copies of each `power_word` to a shared array: lanes that read at once use several."""
    number = thread // u32(_PER_POWER)
    word = power_word(number)
    # Several threads have the same power. At a time, 16 lanes write 16 different copies, which use all banks.
    for i in range(COPIES // _PER_POWER):
        copy = (thread + i * _PER_POWER) & (COPIES - 1)
        powers[number * COPIES + copy] = i64(word)
    cuda.syncthreads()


class Weighing(NamedTuple):
    """The numbers of a row by which its elements are weighed; floats as their bits."""

    is_fast: Any
    low: Any
    """A number without a weight, which stands for smaller ones."""
    origin: Any
    factor: Any
    """From a difference to the exponent."""
    top: Any
    least: Any
    lane_powers: Any
    """The address of the lane's copy of the table."""
    scale: Any
    """The address of the row's `Scale`."""


class WeighFunctions(NamedTuple):
    """The device functions for one element width."""

    weighing_of: Any
    """The `Weighing` of a row by its largest element. If it is not fast, its scale is to be written."""
    put_scale: Any
    """Writes the scale by the largest element's key with a sign. A barrier has to follow."""
    prepare: Any
    """Does both, where a block has one row."""
    add: Any
    """Adds an element, as `value_of` of `keys` gives it, to a sum, if `Weighing.is_fast`."""
    bin: Any
    """The bin of such an element: 0 is that of the largest."""
    fast: Any
    """The weight of such an element, unless it is less than `Weighing.least`."""
    of_key: Any
    """The weight of a key with a sign."""


@called_function
def _of_key(key, scale):
    words = cuda.local.array(N_SCALE, i64)
    for i in range(N_SCALE):
        words[i] = i64(ptx.load_shared_u64(scale + u32(8 * i)))
    row = Scale(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8])
    return ARITHMETIC.weight(key, row, 0)


@device_function
def _of_any_key(key, weighing):
    return u64(_of_key(key, weighing.scale))


@called_function
def _float_of(digits, exponent):
    """Return the bits of digits * 2^exponent."""
    return i64(ptx.f64_of_integer(u64(digits))) + (exponent << 52)


@called_function
def _near_origin(largest, factor, power):
    """Return `origin` and `top`, where `largest` is below 2^50 units of 2^(power - 41)."""
    magic = u64((power + (_FLOAT_BIAS + 52 - 41)) << 52 | 1 << 51)
    twice = magic + (u64(1) << 52)
    origin = ptx.subtract_f64(twice, ptx.add_down_f64(largest, magic))
    # 1.5 * 2^52 units times the factor is an integer.
    return origin, ptx.f64_of_integer(u64((3 << 51) - 24 * factor))


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
    largest = ptx.f64_of_f32(value)
    low = ptx.f32_below(ptx.subtract_f64(largest, u64(_FAR + (power << 52))))
    # Those with a weight are next to the largest: their differences are exact.
    origin = largest ^ (u64(1) << 63)
    top = u64(_TOP)
    if field - 127 <= power + 8:
        origin, top = _near_origin(largest, factor, power)
    return is_fast, u64(low), origin, u64(_float_of(factor, -7 - power)), top


@called_function
def _prepared_wide(value, factor, power):
    """Return what `Weighing` has of a row, by the bits of its largest element as a float of 64 bits."""
    field = i64(value >> 52 & 2047)
    is_fast = -900 <= power <= 900 and field <= power + _FLOAT_BIAS + 8
    if not is_fast:
        power = i64(0)
    low = ptx.subtract_f64(value, u64(_FAR + (power << 52)))
    origin, top = _near_origin(value, factor, power)
    return is_fast, low, origin, u64(_float_of(factor, -7 - power)), top


@functools.cache
def weigh_functions(element_size: int, copies: int = COPIES) -> WeighFunctions:
    """Make the functions for one element width, and so many copies of the table of powers.

    `fast` takes floats of 32 bits at least, as their bits.
    """
    bits = 8 * element_size
    prepared = _prepared_wide if element_size == 8 else _prepared_narrow
    exponent = ptx.exponent_f64 if element_size == 8 else ptx.exponent_f32
    register = ptx.REGISTER[element_size]

    @device_function
    def weighing_of(value, request, lane_powers, scale):
        power = request.temperature_exponent + 52
        is_fast, low, origin, factor, top = prepared(value, request.factor, power)
        return Weighing(is_fast, low, origin, factor, top, u64(request.least), lane_powers, scale)

    @device_function
    def put_scale(key, request, p, lane, scale):
        row = ARITHMETIC.scale_of(
            key, request.factor, request.temperature_exponent, bits, p.mantissa, request.least
        )
        for i in range(N_SCALE):
            if lane == i:
                ptx.store_shared_u64(scale + u32(8 * i), u64(row[i]))

    @device_function
    def prepare(value, key, request, p, thread, powers, scale):
        lane_powers = ptx.shared_address(powers) + (thread & (copies - 1)) * 8
        weighing = weighing_of(value, request, lane_powers, ptx.shared_address(scale))
        if not weighing.is_fast:
            put_scale(key, request, p, thread, weighing.scale)
            cuda.syncthreads()
        return weighing

    @device_function
    def add(value, weighing, total):
        found = exponent(value, register(weighing.low), weighing.origin, weighing.factor, weighing.top)
        rest = u32(found)
        whole = u32(found >> 32)
        inner = ptx.quadratic_f32(rest, u32(_C2), u32(_C1), u32(_C0))
        inner = ptx.multiply_high_u32(rest, inner)
        # As the float 1 + Q.
        inner = ptx.multiply_wide_add_u32(inner, u32(1 << (53 - POWER_BITS)), u64(_FLOAT_BIAS << 52))
        number = whole & ((1 << TABLE_BITS) - 1)
        low, high = ptx.load_shared_u32x2(ptx.multiply_add_u32(number, u32(8 * copies), weighing.lane_powers))
        high += whole << (_INDEX_SHIFT - 32)
        return ptx.add_whole_product_f64(total, low, high, inner)

    @device_function
    def bin_of(value, weighing):
        # The upper word has Y rounded up, in units of 2^-7.
        found = exponent(value, register(weighing.low), weighing.origin, weighing.factor, weighing.top)
        return (u32(_TOP >> 32) - u32(found >> 32)) // u32((1 << TABLE_BITS) // BINS_PER_POWER)

    @device_function
    def fast(value, weighing):
        weight = add(value, weighing, u64(EMPTY_SUM)) - u64(EMPTY_SUM)
        if weight < weighing.least:
            weight = u64(0)
        return weight

    return WeighFunctions(weighing_of, put_scale, prepare, add, bin_of, fast, _of_any_key)


@functools.cache
def weight_of_element(keys: Any, weigh: WeighFunctions) -> Any:
    """Make the device function that weighs an element of any row, by `key_functions`."""

    @device_function
    def weight(element, p, weighing):
        if weighing.is_fast:
            return weigh.fast(keys.value_of(element, p), weighing)
        return weigh.of_key(keys.signed(keys.key_of(element, p)), weighing)

    return weight


@functools.cache
def add_vector(keys: Any, weigh: WeighFunctions, *, has_least: bool = False) -> Any:
    """Make the device function that adds the weights of a vector to a sum, if `Weighing.is_fast`.

    With `has_least`, weights below `Weighing.least` are 0.
    """

    @device_function
    def add(words, p, weighing, total):
        values = keys.values_in(words, p)
        for i in range(keys.per_vector):
            following = weigh.add(values[i], weighing, total)
            if not has_least or following - total >= weighing.least:
                total = following
        return total

    return add
