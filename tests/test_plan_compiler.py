"""The functions that plans consist of give the same as compiled code and as Python."""

import functools
import random
from array import array

import pytest

from kernels_cpu.compiler import compile_kernel
from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cpu.linking import link
from tests import planned_functions

SMALL = (0, 1, -1, 2, 3, 4, 5, -5, 7, 16)
LARGE = (1 << 40, -(1 << 40) + 3, (1 << 62) - 1, -(1 << 62))


@functools.cache
def compiled(name):
    source = f"{planned_functions.__name__}:{name}"
    return link(compile_kernel(Kernel(name, source, (INTEGERS, INTEGERS))))


def run(name, words):
    """Return the result of a compiled function, and what it wrote."""
    given, out = array("q", words), array("q", [-9] * 64)
    result = compiled(name)(given.buffer_info()[0], out.buffer_info()[0])
    return result, list(out)


@pytest.mark.parametrize("name", ["arithmetic", "decisions", "loops", "tuples"])
def test_compiled_functions_give_what_python_gives(name):
    rng = random.Random(1)
    for _ in range(3000):
        words = [rng.choice((*SMALL, *LARGE, rng.randrange(-50, 50))) for _ in range(3)]
        out = [-9] * 64
        result = getattr(planned_functions, name)(words, out)
        assert run(name, words) == (result, out), words


def test_nothing_is_divided_by_zero():
    assert run("never_divides", [7, 0, 0, 0])[1][:2] == [0, 0]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("with_a_set", "Set expression"),
        ("with_two_types", "variable of several types, as 'pair' is"),
        ("with_a_string", "constant 'a'"),
        ("with_or_of_integers", "value of 'and' or 'or' of anything but bools"),
    ],
)
def test_what_plans_must_not_have(name, what):
    with pytest.raises(TypeError, match=rf"planned_functions\.py:\d+: a plan has no {what}"):
        compiled(name)
