"""Plain functions of words with all that plans may have, for `tests.test_plan_compiler`."""

from typing import NamedTuple

from kernels_cpu.plan_words import begin_launch, begin_plan, put_pointer, put_values

POWERS = (1, 2, 4, 8, 16)
LIMIT = -(1 << 63)


class Pair(NamedTuple):
    """Two integers."""

    first: int
    second: int = 5


class Nested(NamedTuple):
    """A pair and a number."""

    pair: Pair
    number: int


def arithmetic(words, out):
    """Apply every operator."""
    a, b = words[0], words[1]
    shift = words[2] & 63
    out[0] = a + b
    out[1] = a - b
    out[2] = (a >> 40) * (b >> 40)
    if b != 0:
        out[3] = a // b
        out[4] = a % b
    out[5] = (a >> 32) << (shift & 15)
    out[6] = a >> shift
    out[7] = (a & b) | (a ^ 12345)
    out[8] = -(a >> 1)
    out[9] = ~a
    out[10] = min(a, b, 7) + max(a >> 2, b >> 2)
    out[11] = abs(a >> 1)
    out[12] = a // 16 + a % 16 + a // 7 + a % 7 + -(-(a >> 8) // 24)
    out[13] = LIMIT
    return a


def decisions(words, out):
    """Compare, and choose by what comes out."""
    a, b, c = words[0], words[1], words[2]
    is_between = a < b <= c
    is_other = not is_between and (a == 3 or b != 4)
    out[0] = int(is_between) + is_other
    out[1] = 1 if a > b and c > 0 else 2 if a and not b else 3
    out[2] = POWERS[a % 5] + POWERS[2] + len(POWERS)
    out[3] = a in (1, 2, b)
    out[4] = a not in POWERS
    if (c and b >= 0) or a:
        out[5] = 1
    elif b:
        out[5] = 2
    else:
        out[5] = 3
    first, second = (a, b) if a < b else (b, a)
    out[6] = first
    out[7] = second
    # The second operand is not computed.
    if b == 0 or a // b > 1:
        out[8] = 1
    out[9] = bool(a)
    return first == second


def loops(words, out):
    """Go round in all ways."""
    total = count = 0
    for i in range(words[0] & 15):
        if i == 5:
            continue
        if i == 11:
            break
        total += i
    for i in range(3, 20, 1 + (words[1] & 3)):
        count += 1
        out[1] = i
    for i in range(9, words[2] & 7, -2):
        total -= i
    while total > 10:
        total //= 2
        count += total
    out[0] = 0
    out[0] += total
    out[2] = count
    return first_above(words, 3)


def first_above(words, n):
    """Return from within a loop."""
    for i in range(n):
        if words[i] > 0:
            return i
    return -1


def swapped(pair: Pair) -> Pair:
    """Return a named tuple on several paths."""
    if pair.first > pair.second:
        return Pair(pair.second, pair.first)
    return pair


def fraction(number, *, of=4, is_negative=False):
    """Take keywords, and defaults."""
    return -number // of if is_negative else number // of


def tuples(words, out):
    """Make, pass, return and take apart tuples."""
    pair = swapped(Pair(words[0], words[1]))
    nested = Nested(number=words[2], pair=Pair(words[2]))
    if words[2] > 0:
        nested = Nested(pair, 3)
    nested = nested._replace(pair=nested.pair._replace(first=words[1] - 1))
    first, second = nested.pair
    out[0] = first + nested[1]
    out[1] = second
    out[2] = fraction(words[0]) + fraction(words[1], of=3, is_negative=True)
    begin_plan(out, 1)
    begin_launch(out, 2, 3, 4, 5, 6)
    put_pointer(out, 0, 8)
    put_values(out, nested)
    put_values(out, (pair, (7, words[0] > 0)))
    out[3] = (words[0], 5, words[1])[words[2] & 1]
    return pair.first


def never_divides(words, out):
    """Divide by zero, which compiled code answers with zero."""
    out[0] = words[0] // words[3]
    out[1] = words[0] % words[3]
    return 0


def with_a_set(words, out):
    """Have what plans must not have."""
    out[0] = len({words[0]})
    return 0


def with_two_types(words, out):
    """Have a variable of two types."""
    pair = words[0]
    pair = (pair, 1)
    return 0


def with_a_string(words, out):
    """Have a constant that is no integer."""
    out[0] = "a"
    return 0


def with_or_of_integers(words, out):
    """Have a result that is one of two integers."""
    out[0] = words[0] or 5
    return 0
