"""Kernels for GPUs without a GPU: `tests.interpreter` runs random problems, compared byte by byte.

Algorithms are forced. With ``DMLOPS_COMPILE_ALL=1``, these are all that plans can choose, which takes many
minutes; otherwise those that compile quickly, and those whose threads copy while they go on.
"""

import math

import pytest

from tests.gpu.algorithms import ALGORITHMS
from tests.interpreter.problems import run_case
from tests.kernel_sources import needs_compilations
from tests.marks import COMPILE_ALL
from tests.random_cases import random_case

pytest.importorskip("cuda.core")
pytestmark = needs_compilations

# Longer problems take the interpreter seconds each.
MOST_ELEMENTS = 5000
# A cluster has thousands of threads, and every row takes one.
MOST_CLUSTERS = 16
QUICK = {"rounds", "cluster", "masks", "elements"}
COPYING = {"sampled"}
CHOICES = [
    pytest.param(
        *(operator, choice),
        id=str(choice),
        marks=[pytest.mark.exhaustive] if choice.name in COPYING else [],
    )
    for operator, choices in ALGORITHMS.items()
    for choice in choices
    if COMPILE_ALL or choice.name in QUICK | COPYING
]


@pytest.mark.parametrize(("operator", "choice"), CHOICES)
def test_each_algorithm(operator, choice):
    n_served = 0
    for number in range(-1, -60, -1):
        case = random_case(operator, number, MOST_ELEMENTS)
        if choice.name == "cluster" and _n_rows(case.descriptor) > MOST_CLUSTERS:
            continue
        try:
            run_case(case, choice)
        except ValueError as error:
            if "does not take" not in str(error):
                raise
            continue
        n_served += 1
        if n_served == 3:
            return
    assert n_served


def _n_rows(descriptor):
    sizes = descriptor.input_tensor.sizes
    return math.prod(sizes) // sizes[descriptor.axis]
