"""Small problems for compute-sanitizer, by every algorithm; docs/how_it_works.md has the commands.

Every operand is an allocation of its own that ends with the last element, and workspaces are used as the
driver gives them. Accesses outside of arrays, and reads of memory that was never written, are therefore
detected.
"""

import argparse
import time

import numpy as np

from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.gpu.memory import execute
from tests.random_cases import SEED, random_case

# Enough for several granules, tiles and parts of a row; every other round makes do with less.
MOST_ELEMENTS = 70_000
SMALL_SHARE = 10


def rounds(seconds, most_elements, operators, prefix=""):
    """Take all algorithms again and again, each time with other problems; return how many were solved."""
    end, solved, number = time.monotonic() + seconds, 0, 0
    named = {name: [a for a in ALGORITHMS[name] if str(a).startswith(prefix)] for name in operators}
    unserved = {(operator, str(algorithm)) for operator in operators for algorithm in named[operator]}
    while True:
        for operator in operators:
            most = most_elements if number % 2 else most_elements // SMALL_SHARE
            case = random_case(operator, -1000 - number, most)
            for algorithm in (None, *named[operator]):
                try:
                    with forced(algorithm):
                        execute(case, np.random.default_rng(number), fence=0)
                except CannotServeError:
                    continue
                unserved.discard((operator, str(algorithm)))
                solved += 1
                # Each algorithm is seen at least once, however slow a tool is.
                if time.monotonic() > end and not unserved:
                    return solved
        number += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Solve small problems by every algorithm there is.")
    parser.add_argument(
        "operators", nargs="*", default=list(ALGORITHMS), help="those to run; all if left out"
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--elements", type=int, default=MOST_ELEMENTS, help="of the largest problems")
    parser.add_argument("--algorithm", default="", help="how the names of those to run begin")
    given = parser.parse_args()
    count = rounds(given.seconds, given.elements, given.operators, given.algorithm)
    print(f"{count} problems of seed {SEED} solved as NumPy solves them", flush=True)
