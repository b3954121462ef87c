"""Kernels for GPUs where there is none: `tests.interpreter` runs random problems, compared byte by byte.

Every algorithm that plans can choose is forced. In the ordinary run only those do that compile quickly.
"""

import pytest

from tests.gpu.algorithms import ALGORITHMS
from tests.interpreter.problems import run_case
from tests.kernel_sources import needs_compilations
from tests.random_cases import random_case

pytest.importorskip("cuda.core")
pytestmark = needs_compilations

# Longer problems take the interpreter seconds each.
MOST_ELEMENTS = 5000
QUICK = {"rounds", "tile", "masks", "units", "elements"}
CHOICES = [
    pytest.param(
        operator, choice, marks=() if choice.name in QUICK else pytest.mark.exhaustive, id=str(choice)
    )
    for operator, choices in ALGORITHMS.items()
    for choice in choices
]


@pytest.mark.parametrize(("operator", "choice"), CHOICES)
def test_each_algorithm(operator, choice):
    n_served = 0
    for number in range(-1, -60, -1):
        case = random_case(operator, number, MOST_ELEMENTS)
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
