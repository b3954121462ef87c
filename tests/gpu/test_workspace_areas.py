"""Each area of a workspace has its own fence: no kernel writes outside its area."""

import numpy as np
import pytest

from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.gpu.memory import execute
from tests.random_cases import random_case
from tests.workspace_areas import areas_apart


@pytest.mark.parametrize(
    ("operator", "algorithm"),
    [
        (operator, algorithm)
        for operator in ("top_k", "nonzero_coordinates")
        for algorithm in ALGORITHMS[operator]
    ],
    ids=str,
)
def test_nothing_is_written_between_areas(operator, algorithm):
    n_served = 0
    for number in range(-1, -13, -1):
        case = random_case(operator, number)
        try:
            with forced(algorithm), areas_apart() as gaps:
                execute(case, np.random.default_rng(-number), gaps=gaps)
        except CannotServeError:
            continue
        n_served += 1
    assert n_served
