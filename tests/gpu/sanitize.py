"""Small problems in every way there is, for compute-sanitizer; see CONTRIBUTING.md for the commands.

Every operand is an allocation of its own that ends with the last element, and workspaces come as the driver
gives them: what a kernel touches beyond its arrays, or reads before it was written, shows.
"""

import sys
import time

import numpy as np

from tests.gpu.memory import execute
from tests.gpu.ways import WAYS, CannotServeError, forced
from tests.random_cases import SEED, random_case

SECONDS = 40
MOST_ELEMENTS = 20_000
# Large enough for several granules, tiles and parts of a row.
LARGER_ELEMENTS = 70_000


def rounds(seconds):
    """Go through all ways again and again, each time with other problems; return how many were solved."""
    end, solved, number = time.monotonic() + seconds, 0, 0
    unserved = {(operator, way) for operator, ways in WAYS.items() for way in ways}
    while True:
        for operator, ways in WAYS.items():
            most_elements = LARGER_ELEMENTS if number % 5 == 4 else MOST_ELEMENTS
            case = random_case(operator, -1000 - number, most_elements)
            for way in (None, *ways):
                try:
                    with forced(way):
                        execute(case, np.random.default_rng(number), fence=0)
                except CannotServeError:
                    continue
                unserved.discard((operator, way))
                solved += 1
                # Each way is seen at least once, however slow a tool is.
                if time.monotonic() > end and not unserved:
                    return solved
        number += 1


if __name__ == "__main__":
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print(f"{rounds(limit)} problems of seed {SEED} solved as NumPy solves them")
