"""Small problems in every way there is, for compute-sanitizer; see CONTRIBUTING.md for the commands.

Every operand is an allocation of its own that ends with the last element, and workspaces come as the driver
gives them: what a kernel touches beyond its arrays, or reads before it was written, shows.
"""

import argparse
import time

import numpy as np

from tests.gpu.memory import execute
from tests.gpu.ways import WAYS, CannotServeError, forced
from tests.random_cases import SEED, random_case

# Enough for several granules, tiles and parts of a row; every other round makes do with less.
MOST_ELEMENTS = 70_000
SMALL_SHARE = 10


def rounds(seconds, most_elements, operators):
    """Go through all ways again and again, each time with other problems; return how many were solved."""
    end, solved, number = time.monotonic() + seconds, 0, 0
    unserved = {(operator, str(way)) for operator in operators for way in WAYS[operator]}
    while True:
        for operator in operators:
            most = most_elements if number % 2 else most_elements // SMALL_SHARE
            case = random_case(operator, -1000 - number, most)
            for way in (None, *WAYS[operator]):
                try:
                    with forced(way):
                        execute(case, np.random.default_rng(number), fence=0)
                except CannotServeError:
                    continue
                unserved.discard((operator, str(way)))
                solved += 1
                # Each way is seen at least once, however slow a tool is.
                if time.monotonic() > end and not unserved:
                    return solved
        number += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Solve small problems in every way there is.")
    parser.add_argument("operators", nargs="*", default=list(WAYS), help="those to run; all if left out")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--elements", type=int, default=MOST_ELEMENTS, help="of the largest problems")
    given = parser.parse_args()
    count = rounds(given.seconds, given.elements, given.operators)
    print(f"{count} problems of seed {SEED} solved as NumPy solves them", flush=True)
