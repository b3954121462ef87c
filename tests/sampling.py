"""The meaning of `sample` in Python's integers and fractions, as docs/operators/sample.md states it."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

FULL = 2**37 - 1


def _rounded(number):
    return int(number.to_integral_value())


def _constants():
    with localcontext() as context:
        context.prec = 80
        ln2 = Decimal(2).ln()
        step = Decimal(1) / 128
        c4 = ln2**4 / 24
        c1 = ln2 + step**3 / 4 * c4
        c2 = ln2**2 / 2 - step**2 * 5 / 4 * c4
        c3 = ln2**3 / 6 + 2 * step * c4
        powers = [_rounded((2**39 - 4) * (ln2 * i * step).exp()) for i in range(128)]
        # Of u = 1 + r / 2^-7; the first one is three units more, so that what is rounded down cancels.
        factors = [
            _rounded((c1 - c2 * step + c3 * step**2) * 2**31) + 3,
            _rounded((c2 * step - 2 * c3 * step**2) * 2**33),
            _rounded(c3 * step**2 * 2**33),
        ]
        return _rounded(2**62 / ln2), factors, powers


LOG2_E, (C0, C1, C2), POWERS = _constants()


def weight(x, largest, temperature):
    """Return the weight of a finite element, where the largest is finite too."""
    if math.isinf(temperature):
        return FULL
    t, exponent = math.frexp(temperature)
    unit = Fraction(2) ** (exponent - 1 - 41)
    difference = math.floor(Fraction(largest) / unit) - math.floor(Fraction(x) / unit)
    if difference >= 2**47:
        return 0
    factor = (LOG2_E << 36) // int(t * 2**53)
    power = -((difference * factor) >> 48)
    whole, index, rest = power >> 39, power >> 32 & 127, power & (2**32 - 1)
    upper = 2**23 + (rest >> 9)
    inner = rest * (C0 + (upper * (C1 + (upper * C2 >> 23)) >> 25)) >> 32
    return (POWERS[index] + (POWERS[index] * inner >> 38)) >> (2 - whole)


def philox(key, counter):
    """Return the four words of Philox4x32-10."""
    key, counter = list(key), list(counter)
    for _ in range(10):
        even, odd = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        low = 2**32 - 1
        counter = [odd >> 32 ^ counter[1] ^ key[0], odd & low, even >> 32 ^ counter[3] ^ key[1], even & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return counter


def random_word(seed, step):
    """Return the random word of a seed and a step, an integer of 64 bits."""
    halves = [[int(number) >> 32 * i & (2**32 - 1) for i in range(2)] for number in (seed, step)]
    low, high, *_ = philox(halves[0], [*halves[1], 0, 0])
    return high << 32 | low


def weights_of(row, temperature):
    """Return the weight of each element of a row of Python floats, whose largest has one."""
    largest = max(x for x in row if not math.isnan(x))
    if math.isinf(largest):
        return [FULL if x == largest else 0 for x in row]
    found = {}
    for x in row:
        if x not in found:
            found[x] = weight(x, largest, temperature) if math.isfinite(x) else 0
    return [0 if math.isnan(x) else found[x] for x in row]


def _clamped(share, default):
    share = float(share)
    return default if math.isnan(share) else min(max(share, 0.0), 1.0)


def token(row, seed, step, temperature, k, top_p, min_p):
    """Return the token of one row."""
    row = [float(x) for x in row]
    if all(math.isnan(x) or x == -math.inf for x in row):
        return -1
    order = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), -row[i] if row[i] == row[i] else 0, i))
    temperature = float(temperature)
    if not temperature > 0:
        return order[0]
    weights = weights_of(row, temperature)
    k = 0 if k is None else int(k)
    order = order[:k] if 0 < k < len(row) else order
    least = Fraction(_clamped(min_p, 0.0)) * FULL
    order = [i for i in order if weights[i] >= least]
    goal = Fraction(_clamped(top_p, 1.0)) * sum(weights[i] for i in order)
    stay, reached = [], 0
    for i in order:
        if stay and reached >= goal:
            break
        stay.append(i)
        reached += weights[i]
    reached = Fraction(random_word(seed, step) * reached, 2**64)
    running = 0
    for i in sorted(stay):
        running += weights[i]
        if running > reached:
            return i
    raise AssertionError


def sample(logits, seeds, *, steps=0, temperature=1.0, k=None, top_p=1.0, min_p=0.0):
    """Return the token of each row; parameters are numbers or arrays, which broadcast to the rows."""
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        logits = logits.astype(np.float64)
    rows = logits.shape[:-1]
    given = [
        np.broadcast_to(value, rows)
        for value in (seeds, steps, temperature, 0 if k is None else k, top_p, min_p)
    ]
    tokens = np.empty(rows, np.int64)
    for place in np.ndindex(rows):
        tokens[place] = token(logits[place], *[value[place] for value in given])
    return tokens
