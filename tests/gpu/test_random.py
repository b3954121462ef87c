"""Random problems on the GPU, most of them in a forced way, against NumPy; see `tests.random_cases`."""

import numpy as np
import pytest

from tests.gpu.memory import execute
from tests.gpu.ways import WAYS, CannotServeError, forced
from tests.random_cases import SEED, random_case, random_cases


def run(case, way, number):
    """Run a problem in a way; return whether that serves it."""
    try:
        with forced(way):
            execute(case, np.random.default_rng(abs(number)))
    except CannotServeError:
        return False
    except Exception as error:
        error.add_note(f"{case}\nin the way {way or 'that is chosen'}")
        raise
    return True


def test_random_cases(capsys):
    count = 0
    for number, case in random_cases(150):
        ways = (None, *WAYS[case.operator])
        way = ways[np.random.default_rng((number, 1)).integers(len(ways))]
        if not run(case, way, number):
            run(case, None, number)
        count += 1
    with capsys.disabled():
        print(f" {count} random problems of seed {SEED} on the GPU", end="")
    assert count


@pytest.mark.parametrize(
    ("operator", "way"), [(operator, way) for operator, ways in WAYS.items() for way in ways], ids=str
)
def test_each_way(operator, way):
    served = [run(random_case(operator, number), way, number) for number in range(-1, -26, -1)]
    assert sum(served) >= 3
