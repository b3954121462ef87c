"""Plain Python functions of integers, of which plans consist, do the same when they are compiled."""

from array import array
from typing import NamedTuple

import pytest

from tests.data import random
from tests.inside import INTEGERS, Kernel, compile_kernel, link, plan_compiler, plan_words

TABLE = (3, 1, 4, 1, 5)
MOST, LEAST = (1 << 63) - 1, -(1 << 63)


class Inner(NamedTuple):
    """A tuple in a tuple."""

    first: int
    second: int = 7


class Outer(NamedTuple):
    """A tuple of tuples."""

    inner: Inner
    third: int


def weighted(number, weight, is_negative=False):
    """Return a product."""
    return -number * weight if is_negative else number * weight


def calls(words):
    """Call functions with constants, variables, names of parameters, and without some of them."""
    words[0] = weighted(words[0], 3) + weighted(5, words[1]) + weighted(7, 11)
    words[1] = weighted(words[1], 4, is_negative=True) + weighted(2, weight=3, is_negative=words[2] > 0)
    return 0


def arithmetic(words):
    """Apply every operator, to constants and to variables."""
    a, b, c = words[0], words[1], words[2]
    words[3] = a // b if b != 0 else 0
    words[4] = a % b if b != 0 else 0
    words[5] = a // 7 + a % 7 + a // -7 + a % -7 + -a // 3
    words[6] = a >> (c & 127)
    words[7] = (a & 255) << (c & 7) | (b ^ a) & 15
    words[8] = min(a, b, c) + max(a, b, 3) + abs(c)
    words[9] += int(a > b) + bool(b) - (not c)
    words[10] = ~a - b
    words[11] = LEAST
    return a % 5


def divides(words):
    """Tell whether a number divides another, and count the questions."""
    words[9] += 1
    return words[1] != 0 and words[0] % words[1] == 0


def logic(words):
    """Take values of ``and`` and ``or``, which do not evaluate more than they need."""
    words[3] = words[1] != 0 and words[0] // words[1] > 2
    words[5] = words[0] > 0 or divides(words)
    words[6] = words[0] < 0 and divides(words)
    words[7] = words[0] < words[1] <= words[2]
    words[8] = words[0] in (1, 2, words[1]) or words[2] not in TABLE
    if (words[2] and words[1] >= 0) or words[0]:
        words[10] = 1
    elif words[1]:
        words[10] = 2
    else:
        words[10] = 3
    words[11], words[12] = (words[0], words[1]) if words[0] < words[1] else (words[1], words[0])
    if words[0] > 2 and not (words[1] > 2 or words[2] > 2):
        return 1
    return 2 if words[0] == words[1] else 3


def swapped(pair: Inner) -> Inner:
    """Return a tuple with its integers in the other order, unless they are equal."""
    if pair.first == pair.second:
        return pair
    return Inner(second=pair.first, first=pair.second)


def tuples(words):
    """Take tuples apart, change one in a loop, and index them by variables."""
    outer = Outer(Inner(words[0]), third=words[1])
    inner = outer.inner if words[2] > 0 else Inner(words[1], words[0])
    for _ in range(words[2] & 3):
        inner = swapped(inner)
    outer = outer._replace(inner=outer.inner._replace(first=words[1] - 1))
    a, b = inner
    a, b = b, a + 1
    words[30] = words[31] = TABLE[words[2] & 3] + TABLE[-1] + TABLE[-1 - (words[2] & 3)]
    words[32] = len(TABLE) + (a, b, words[1])[-1 - (words[2] & 1)]
    words[33] = (a, b, words[1])[words[2] & 1]
    plan_words.begin_plan(words, 5)
    plan_words.begin_launch(words, 1, 2, 3, 4, 5)
    plan_words.put_pointer(words, 1, a)
    plan_words.put_values(words, Outer(inner, b))
    plan_words.put_values(words, (outer, (7, words[0] > 0)))
    plan_words.put_value(words, 8)
    return words[plan_words.END]


def loops(words):
    """Leave loops, go on in them, and run them backwards and by variable steps."""
    total = 0
    for i in range(words[0] & 15):
        if i == 3:
            continue
        if i > words[1] & 15:
            break
        total += i
    for i in range(9, words[1] & 7, -2):
        total = total * 2 + i
    step = words[2] & 3 if words[2] & 3 > 0 else -2
    for i in range(words[0] & 15, words[1] & 15, step):
        total += i
    while total > 50:
        total //= 2
        if total == 60:
            return -1
    words[3] = total
    return total + first_above_zero(words)


def first_above_zero(words):
    """Return from within a loop."""
    for i in range(3):
        if words[i] > 0:
            return i
    return -1


FUNCTIONS = [arithmetic, calls, logic, loops, tuples]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_compiled_functions_do_what_python_does(function):
    compiled = link(compile_kernel(Kernel(function.__name__, f"{__name__}:{function.__name__}", (INTEGERS,))))
    rng = random(function.__name__)
    for _ in range(2000):
        limit = int(rng.choice([3, 10, 1 << 40]))
        expected = [int(number) for number in rng.integers(-limit, limit, 40)]
        found = array("q", expected)
        assert compiled(found.buffer_info()[0]) == function(expected)
        assert list(found) == expected


def extremes(words):
    """Return the limits of integers, and divide by what Python refuses to divide by."""
    words[2] = (LEAST + words[0]) // (words[0] - 1)
    words[3] = (LEAST + words[0]) % (words[0] - 1)
    words[0] = MOST // words[0]
    words[1] = LEAST
    return MOST // 2 + LEAST // 2


def test_no_division_ends_the_process():
    compiled = link(compile_kernel(Kernel("extremes", f"{__name__}:extremes", (INTEGERS,))))
    found = array("q", [0, 1, 1, 1])
    assert compiled(found.buffer_info()[0]) == -1
    assert list(found) == [0, LEAST, LEAST, 0]


def has_two_kinds(words):
    """Use a variable for an integer and for a tuple."""
    value = 1
    value = (value, 2)
    words[0] = value[0]
    return 0


def has_no_result(words):
    """Return a result in one case alone."""
    if words[0]:
        return 1
    return None


def has_text(words):
    """Use text."""
    words[0] = len("text")
    return 0


def has_attribute(words):
    """Call a method."""
    words[0] = words[1].bit_length()
    return 0


def has_a_set(words):
    """Use a set."""
    words[0] = len({words[0]})
    return 0


def has_or_of_integers(words):
    """Use one of two integers."""
    words[0] = words[0] or 5
    return 0


def has_an_end(words):  # noqa: RET503 - this is what is refused
    """Return a result from a loop alone."""
    for i in range(words[0]):
        return i


REFUSED = {
    has_an_end: "end of a function without the result that it has elsewhere",
    has_two_kinds: "variable of several types, as 'value' is",
    has_no_result: "constant None",
    has_text: "constant 'text'",
    has_attribute: "attribute 'bit_length'",
    has_a_set: "Set expression",
    has_or_of_integers: "value of 'and' or 'or' of anything but bools",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_plans_cannot_have_is_refused(function):
    with pytest.raises(TypeError, match=rf"test_plan_compiler\.py:\d+: a plan has no {REFUSED[function]}"):
        compile_kernel(Kernel(function.__name__, f"{__name__}:{function.__name__}", (INTEGERS,)))


def test_functions_are_compiled_once_whatever_constants_they_are_called_with():
    assert (
        plan_compiler.plan_ir(calls, [plan_compiler.POINTER], "entry").count("@weighted") == 6
    )  # its definition, and five calls
