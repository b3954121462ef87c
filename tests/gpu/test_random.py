"""Random problems on the GPU, most of them by a forced algorithm, against NumPy; see `tests.random_cases`.

Each area of a workspace has its own fence: no kernel writes outside its area.
"""

import numpy as np
import pytest

from tests.gpu.algorithms import ALGORITHMS, EACH, CannotServeError, forced
from tests.gpu.memory import execute
from tests.random_cases import SEED, random_case, random_cases
from tests.workspace_areas import areas_apart


def run(case, algorithm, number):
    """Run a problem by an algorithm; return whether that serves it."""
    try:
        with forced(algorithm), areas_apart() as gaps:
            execute(case, np.random.default_rng(abs(number)), gaps=gaps)
    except CannotServeError:
        return False
    except Exception as error:
        error.add_note(f"{case}\nby the algorithm {algorithm or 'that is chosen'}")
        raise
    return True


def test_random_cases(capsys):
    count = 0
    for number, case in random_cases(150):
        algorithms = (None, *ALGORITHMS[case.operator])
        algorithm = algorithms[np.random.default_rng((number, 1)).integers(len(algorithms))]
        if not run(case, algorithm, number):
            run(case, None, number)
        count += 1
    with capsys.disabled():
        print(f" {count} random problems of seed {SEED} on the GPU", end="")
    assert count


@pytest.mark.parametrize(("operator", "algorithm"), EACH, ids=str)
def test_each_algorithm(operator, algorithm):
    # Few select all elements by index.
    last = -75 if algorithm.name == "copy" else -25
    served = [run(random_case(operator, number), algorithm, number) for number in range(-1, last - 1, -1)]
    assert sum(served) >= 3
