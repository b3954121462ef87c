"""The arithmetic of `sample`, in integers alone: weights, shares of sums, and random words.

All functions take and return integers of 64 bits with a sign, and Python's own integers as well. No sum or
difference may leave these 64 bits: compilers take it that none does. Floats come as *keys*, integers in the
order of their values: the magnitude bits, negative below zero. Both zeros have key 0, and NaN has the key
-2^(bits - 1).

A weight is exp((x - largest) / temperature) on a scale on which 1 is `FULL` = 2^37 - 1: a sum of 2^26 weights
has 63 bits. For a temperature t * 2^E with 1 <= t < 2, these are the steps:

1. Round x and the largest element down to multiples of 2^(E - 41), and subtract: D.
2. Multiply by C = log2(e) / t, in units of 2^-46: Y = D * C >> 48 is the exponent in units of 2^-39.
3. A table of powers of 2^(1/128) and a cubic polynomial give 2^-Y: -Y is a whole number, which is a shift to
   the right, plus a fraction that is not negative.

In units of 2^-36 of the largest weight, steps 1 and 2 are off by at most 0.17, step 3 by -0.32 to 0.73, and
what the last shift drops is less than 0.5: together less than one. The unit of step 1 is a fixed part of
the temperature, so a small temperature magnifies no rounding. D is found in a coarser unit, that in which the
largest element has 62 bits, if that element exceeds 2^20 temperatures: those with a weight are then so close
to it that they are multiples of that unit too.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

FULL = (1 << 37) - 1
"""The weight of the largest element."""

MASK = (1 << 32) - 1
_DIGITS = 61  # bits of an element as a multiple of the row's unit
_UNIT = 41  # the unit is 2^-41 of the temperature's power of two, or larger
_LIMIT = (1 << 47) - 1  # larger differences have no weight at any temperature
LOG2_E = 6653256548922161246  # log2(e) * 2^62
# 2^r = 1 + r * (c0 + u * (c1 + u * c2)) for r < 2^-7, in units of 2^-31, 2^-33 and 2^-33: an economised
# Taylor polynomial in u, which is 1 + 128 * r with 24 bits. GPUs find it in floats of 32 bits.
C0, C1, C2 = 1484499216, 16062921, 29179
_GREEDY, _DEFAULT = -1, -1

TABLE_BITS = 7
POWER_BITS = 39
"""Bits of an exponent's fraction, and of the first power of the table."""


def _powers() -> tuple[int, ...]:
    """Return 2^(i / 128) on a scale of 4 * `FULL`, rounded."""
    bits = 192
    root = 2 << bits
    for _ in range(TABLE_BITS):
        root = math.isqrt(root << bits)
    powers, power = [], 1 << bits
    for _ in range(1 << TABLE_BITS):
        powers.append((power * (4 * FULL) + (1 << (bits - 1))) >> bits)
        power = power * root >> bits
    return tuple(powers)


POWERS = _powers()


class Scale(NamedTuple):
    """The integers by which a row's keys become weights."""

    largest: int
    """The key of the largest element."""
    position: int
    """The largest element in the row's unit."""
    top: int
    """The exponent field at which an element has `_DIGITS` digits in that unit."""
    shift: int
    """From the row's unit to that of the temperature."""
    limit: int
    """The largest difference with a weight, in the row's unit."""
    factor: int
    """C of the module's docstring."""
    mantissa: int
    """Bits of the fraction of the element type."""
    infinity: int
    """The key of infinity."""
    least: int
    """Weights below this are dropped."""


class Arithmetic(NamedTuple):
    """The functions, compiled for one device."""

    key_of: Any
    weight: Any
    factor_of: Any
    scale_of: Any
    temperature_of: Any
    share_of: Any
    share: Any
    random_word: Any
    part: Any


def _key_of(bits: int, infinity: int, lowest: int) -> int:
    """Return the key of an element's bits, as an integer with a sign."""
    key = bits
    if bits < 0:
        key = lowest - bits
    if key > infinity or key < -infinity:
        key = lowest
    return key


def arithmetic(compiled: Callable[[Any], Any], product: Any, power_of: Any) -> Arithmetic:
    """Return the functions.

    Parameters
    ----------
    compiled : callable
        The decorator that compiles a function for a device.
    product : callable
        Multiplies two integers of 32 bits without a sign, to the 64 bits of an integer.
    power_of : callable
        Returns an entry of `POWERS`, of what stands for that, and its number.
    """

    @compiled
    def decayed(difference: Any, factor: Any, powers: Any) -> Any:
        """Return the weight of an element by D and C."""
        high, low = difference >> 32, difference & MASK
        factor_high, factor_low = factor >> 32, factor & MASK
        exponent = (product(high, factor_high) << 32) + (product(low, factor_low) >> 32 & MASK)
        exponent = (exponent + product(high, factor_low) + product(low, factor_high)) >> 16
        # 127 whole parts more, so that it is positive.
        exponent = (127 << POWER_BITS) - exponent
        rest = exponent & MASK
        upper = (rest >> 9) + (1 << 23)
        inner = C1 + (product(upper, C2) >> 23)
        inner = C0 + (product(upper, inner) >> 25)
        inner = product(rest, inner) >> 32 & MASK
        power = power_of(powers, exponent >> 32 & 127)
        power += (product(power >> 32 & MASK, inner) + (product(power & MASK, inner) >> 32 & MASK)) >> 6
        return power >> min(129 - (exponent >> POWER_BITS & 127), 63)

    @compiled
    def weight(key: Any, scale: Scale, powers: Any) -> Any:
        """Return the weight of a key."""
        # NaN weighs as little as -inf; its key in 64 bits has no magnitude.
        key = max(key, -scale.infinity)
        sign = key >> 63
        magnitude = (key ^ sign) - sign
        field = magnitude >> scale.mantissa
        fraction = magnitude & ((1 << scale.mantissa) - 1)
        if field > 0:
            fraction |= 1 << scale.mantissa
        below = scale.top - max(field, 1)
        digits = fraction << (_DIGITS - scale.mantissa)
        difference = scale.position - (((digits ^ sign) - sign) >> min(max(below, 0), 63))
        is_weighed = (magnitude < scale.infinity) & (below >= 0) & (difference <= scale.limit)
        difference = difference << scale.shift if is_weighed else 0
        found = decayed(difference, scale.factor, powers)
        if key == scale.largest:
            found = FULL
        elif not is_weighed or found < scale.least:
            found = 0
        return found

    @compiled
    def real_of(bits: Any, width: Any, mantissa: Any) -> Any:
        """Return the magnitude of a float as m * 2^e with 53 bits in m, whether it is negative, or is NaN."""
        sign = bits >> (width - 1) & 1
        magnitude = bits & ~(-1 << (width - 1))
        infinity = ((1 << (width - 1 - mantissa)) - 1) << mantissa
        field = magnitude >> mantissa
        digits = magnitude & ((1 << mantissa) - 1)
        if field > 0:
            digits |= 1 << mantissa
        exponent = max(field, 1) - ((1 << (width - 2 - mantissa)) - 1) - mantissa
        if magnitude >= infinity:
            exponent = 1 << 20
            digits = 1
        if 0 < digits < 1 << 52:
            for n_bits in (32, 16, 8, 4, 2, 1):
                if digits < 1 << (53 - n_bits):
                    digits <<= n_bits
                    exponent -= n_bits
        return digits, exponent, sign > 0, magnitude > infinity

    @compiled
    def temperature_of(bits: Any, width: Any, mantissa: Any) -> Any:
        """Return m and e of a temperature m * 2^e; m is `_GREEDY` where the first element is taken."""
        digits, exponent, is_negative, is_nan = real_of(bits, width, mantissa)
        if digits == 0 or is_negative or is_nan:
            digits = _GREEDY
        return digits, exponent

    @compiled
    def share_of(bits: Any, width: Any, mantissa: Any, nan: Any) -> Any:
        """Return m and e of a share m * 2^e, where m is -1 for 1; m is `nan` for NaN."""
        digits, exponent, is_negative, is_nan = real_of(bits, width, mantissa)
        if is_nan:
            digits = nan
        elif is_negative:
            digits = 0
        elif exponent >= -52 and digits > 0:
            digits = _DEFAULT
        return digits, exponent

    @compiled
    def share(digits: Any, exponent: Any, total: Any) -> Any:
        """Return the least integer that is at least a share of a sum, and at least 1."""
        if digits <= 0:
            return 1 if digits == 0 else max(total, 1)
        # No shift is negative, as other shares are below 1: their m has 53 bits, and their e is below -52.
        # The product has four words of 32 bits: `upper` are the two highest.
        high, low = digits >> 32, digits & MASK
        total_high, total_low = total >> 32, total & MASK
        lowest = product(low, total_low)
        middle = product(high, total_low) + (lowest >> 32 & MASK)
        other = product(low, total_high) + (middle & MASK)
        upper = product(high, total_high) + (middle >> 32 & MASK) + (other >> 32 & MASK)
        lowest, other = lowest & MASK, other & MASK
        shift = -exponent
        if shift < 64:
            kept = (upper << (64 - shift)) + (other >> (shift - 32))
            dropped = lowest | (other & ((1 << (shift - 32)) - 1))
        else:
            shift = min(shift - 64, 62)
            kept = upper >> shift
            dropped = lowest | other | (upper & ((1 << shift) - 1))
        if dropped != 0:
            kept += 1
        return max(kept, 1)

    @compiled
    def factor_of(digits: Any, exponent: Any) -> Any:
        """Return C of a temperature, log2(e) * 2^98 / m, digit by digit."""
        if digits < 0 or exponent >= 1 << 15:
            return 0
        factor = LOG2_E // digits
        rest = LOG2_E - factor * digits
        for n_bits in (10, 10, 10, 6):
            rest <<= n_bits
            quotient = rest // digits
            factor = (factor << n_bits) + quotient
            rest -= quotient * digits
        return factor

    @compiled
    def scale_of(largest: Any, factor: Any, exponent: Any, width: Any, mantissa: Any, least: Any) -> Any:
        """Return the `Scale` of a row, of its largest key and C and the exponent of its temperature."""
        infinity = ((1 << (width - 1 - mantissa)) - 1) << mantissa
        bias = (1 << (width - 2 - mantissa)) - 1
        magnitude = abs(largest)
        power = exponent + 52
        top = max(max(magnitude >> mantissa, 1) - bias + 1, power + _DIGITS - _UNIT)
        shift = min(top - (power + _DIGITS - _UNIT), 47)
        top += bias
        if magnitude >= infinity:
            top = -1
        sign = largest >> 63
        position = magnitude & ((1 << mantissa) - 1)
        field = magnitude >> mantissa
        if field > 0:
            position |= 1 << mantissa
        position = ((position << (_DIGITS - mantissa)) ^ sign) - sign
        position >>= min(max(top - max(field, 1), 0), 63)
        return Scale(largest, position, top, shift, _LIMIT >> shift, factor, mantissa, infinity, least)

    @compiled
    def random_word(seed: Any, step: Any) -> Any:
        """Return the first two words of Philox4x32-10 with key `seed` and counter `step`."""
        key, next_key = seed & MASK, seed >> 32 & MASK
        first, second, third, fourth = step & MASK, step >> 32 & MASK, 0, 0
        for _ in range(10):
            even, odd = product(first, 0xD2511F53), product(third, 0xCD9E8D57)
            first, third = (odd >> 32 & MASK) ^ second ^ key, (even >> 32 & MASK) ^ fourth ^ next_key
            second, fourth = odd & MASK, even & MASK
            key, next_key = (key + 0x9E3779B9) & MASK, (next_key + 0xBB67AE85) & MASK
        return first, second

    @compiled
    def part(low: Any, high: Any, total: Any) -> Any:
        """Return the part of a sum that a random word of 64 bits says, rounded down."""
        total_high, total_low = total >> 32, total & MASK
        middle = product(high, total_low)
        carry = (middle & MASK) + (product(low, total_low) >> 32 & MASK)
        other = product(low, total_high) + (carry & MASK)
        return product(high, total_high) + (middle >> 32 & MASK) + (carry >> 32) + (other >> 32)

    return Arithmetic(
        compiled(_key_of),
        weight,
        factor_of,
        scale_of,
        temperature_of,
        share_of,
        share,
        random_word,
        part,
    )


def power_of(powers: Any, number: Any) -> Any:
    """Return an entry of a table."""
    return powers[number]
