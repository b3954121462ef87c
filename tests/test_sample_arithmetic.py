"""The integer arithmetic of `sample`, run on integers that refuse what is undefined once it is compiled."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from ml_dtypes import finfo

from tests import sampling
from tests.data import FLOATS, bits, float_from_bits, random, special_values
from tests.inside import exact_sampling


class Word(int):
    """An integer with a sign that refuses results of more than 64 bits, and shifts by other than 0 to 63."""

    def __new__(cls, value):
        if not -(2**63) <= value < 2**63:
            message = f"{int(value)} has more than 64 bits"
            raise OverflowError(message)
        return super().__new__(cls, value)


def _checked(name):
    operation = getattr(int, name)

    def method(*operands):
        if name.endswith("shift__"):
            count = operands[0] if name in ("__rlshift__", "__rrshift__") else operands[1]
            if not 0 <= count < 64:
                message = f"a shift by {int(count)}"
                raise OverflowError(message)
        return Word(operation(*operands))

    return method


BINARY = "add", "sub", "mul", "floordiv", "and", "or", "xor", "lshift", "rshift"
for each in (*BINARY, *(f"r{name}" for name in BINARY), "neg", "invert", "abs"):
    setattr(Word, f"__{each}__", _checked(f"__{each}__"))


def product(a, b):
    """Return the product of two integers of 32 bits without a sign, as compiled code has it."""
    assert 0 <= a < 2**32
    assert 0 <= b < 2**32
    return Word((int(a) * int(b) + 2**63) % 2**64 - 2**63)


ARITHMETIC = exact_sampling.arithmetic(
    lambda function: function, product, lambda powers, number: Word(powers[number])
)


def with_bits(array):
    """Return floats as those of Python, each with its bits as kernels read them."""
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        values = array.astype(float).tolist()
    patterns = bits(array).view(f"int{8 * array.itemsize}").tolist()
    return list(zip(values, map(Word, patterns), strict=True))


def format_of(dtype):
    """Return the bits of a float, and of its fraction."""
    return Word(8 * dtype.itemsize), Word(finfo(dtype).nmant)


def every_exponent(dtype):
    """Return some floats of each sign and exponent: the least, the largest and others, infinities and NaN."""
    width, mantissa = map(int, format_of(dtype))
    fractions = 0, 1, (1 << mantissa) - 1, int(random(dtype).integers(1 << mantissa))
    heads = range(1 << (width - mantissa))
    return float_from_bits([head << mantissa | fraction for head in heads for fraction in fractions], dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shares(dtype):
    given = every_exponent(dtype)
    totals = random("totals").integers(1, 2**63, len(given)).tolist()
    for (value, word), total in zip(with_bits(given), totals, strict=True):
        for nan, default in ((0, 0), (-1, 1)):
            share = default if math.isnan(value) else min(max(value, 0), 1)
            digits, exponent = ARITHMETIC.share_of(word, *format_of(dtype), Word(nan))
            found = ARITHMETIC.share(Word(digits), Word(exponent), Word(total))
            assert found == max(math.ceil(Fraction(share) * total), 1), (value, total)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_temperatures(dtype):
    for value, word in with_bits(every_exponent(dtype)):
        digits, exponent = ARITHMETIC.temperature_of(word, *format_of(dtype))
        factor = ARITHMETIC.factor_of(Word(digits), Word(exponent))
        assert (digits < 0) == (not value > 0), value
        if 0 < value < math.inf:
            assert int(digits) * Fraction(2) ** int(exponent) == Fraction(value)
            assert factor == (sampling.LOG2_E << 36) // int(digits), value
        else:
            assert factor == 0, value


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weights(dtype):
    """Of pairs of special values, and of those near to each other, at special temperatures and others."""
    rng = random(("weights", dtype))
    width, mantissa = format_of(dtype)
    (_, infinity), (_, lowest) = with_bits(np.array([np.inf, -0.0], dtype))
    temperatures = np.concatenate(
        [special_values("float64"), [1.5, 30.0, 1e-3], 10.0 ** rng.uniform(-40, 40, 3)]
    )
    ordinary = np.append(rng.standard_normal(5) * 3, 1 + 2.0**-mantissa)
    given = np.concatenate([special_values(dtype), ordinary.astype(dtype)])
    elements = [(x, ARITHMETIC.key_of(word, infinity, lowest)) for x, word in with_bits(given)]
    for temperature, word in with_bits(temperatures):
        digits, exponent = ARITHMETIC.temperature_of(word, *format_of(np.dtype("float64")))
        least = 1
        if digits < 0:  # only elements like the largest have a weight
            exponent, least = 1 << 20, sampling.FULL + 1
        factor = ARITHMETIC.factor_of(Word(digits), Word(exponent))
        for largest, key in elements:
            if not largest > -math.inf:
                continue
            scale = ARITHMETIC.scale_of(key, factor, Word(exponent), width, mantissa, Word(least))
            row = [(x, other) for x, other in elements if not x > largest]
            expected = sampling.weights_of([x for x, _ in row], temperature if temperature > 0 else 1.0)
            if digits < 0:
                expected = [sampling.FULL if x == largest else 0 for x, _ in row]
            found = [ARITHMETIC.weight(other, scale, exact_sampling.POWERS) for _, other in row]
            assert found == expected, (temperature, largest)


def test_random_words():
    rng = random("words")
    ends = [-(2**63), -1, 0, 1, 2**63 - 1]
    seeds, steps, totals = ([*ends, *rng.integers(-(2**63), 2**63, 10).tolist()] for _ in range(3))
    for seed, step, total in itertools.product(seeds, steps, totals):
        low, high = ARITHMETIC.random_word(Word(seed), Word(step))
        word = sampling.random_word(seed % 2**64, step % 2**64)
        assert int(high) << 32 | int(low) == word
        if total >= 0:
            assert ARITHMETIC.part(low, high, Word(total)) == word * total >> 64
